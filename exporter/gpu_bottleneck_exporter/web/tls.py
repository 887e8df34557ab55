"""TLS contexts for the web configuration file."""

from __future__ import annotations

import ipaddress
import os
import ssl
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.web.config import CLIENT_AUTH, CURVES, TLS_VERSIONS, Pem, TlsConfig
from gpu_bottleneck_exporter.web.files import read_regular, shown

CIPHER_SUITES = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
}
"""The suites up to TLS 1.2 that Go considers secure: its names, and OpenSSL's."""

ALWAYS_ON = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
"""The suites of TLS 1.3: neither Go nor Python can choose among them."""

_MAX_PEM_BYTES = 4 * 2**20
"""All certificate authorities of a Linux distribution take a quarter of a MiB."""
_OLD_VERSIONS = ("TLS10", "TLS11")


@dataclass(frozen=True, slots=True)
class Tls:
    """What a new connection gets: a context, and the names allowed in client certificates."""

    context: ssl.SSLContext
    allowed_sans: frozenset[str] | None = None

    def admits(self, connection: ssl.SSLSocket) -> bool:
        """Whether the client's certificate has an allowed name, or none is required."""
        if self.allowed_sans is None:
            return True
        certificate = connection.getpeercert() or {}
        names = certificate.get("subjectAltName", ())
        return any(_name(*entry) in self.allowed_sans for entry in names)


def build(config: TlsConfig) -> Tls:
    """Read the certificates and make a context.

    Raises:
        SettingsError: If a file cannot be read or does not contain what it should, or OpenSSL
            has no such suite or curve.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    # Without tickets, a client presents its certificate on every connection.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    _set_versions(context, config)
    _set_ciphers(context, config)
    if config.curve is not None:
        _set_curve(context, config.curve)
    _load_chain(context, config)
    if config.client_ca is not None:
        _load_ca(context, config.client_ca)
    context.verify_mode = CLIENT_AUTH[config.client_auth]
    return Tls(context, config.allowed_sans)


def _set_versions(context: ssl.SSLContext, config: TlsConfig) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # TLS 1.0 was asked for
        context.minimum_version = TLS_VERSIONS[config.min_version]
        context.maximum_version = TLS_VERSIONS[config.max_version]


def _set_ciphers(context: ssl.SSLContext, config: TlsConfig) -> None:
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    if config.server_preference:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    ciphers = [_cipher(name) for name in config.cipher_suites if name not in ALWAYS_ON]
    if config.cipher_suites and not ciphers and config.min_version != "TLS13":
        raise SettingsError("cipher_suites names only suites of TLS 1.3: set min_version to TLS13")
    if config.min_version in _OLD_VERSIONS:
        # Since 3.0, OpenSSL considers their hashes broken and requires this consent.
        ciphers = [*(ciphers or CIPHER_SUITES.values()), "@SECLEVEL=0"]
    try:
        if ciphers:
            context.set_ciphers(":".join(ciphers))
    except ssl.SSLError as error:
        raise SettingsError("cipher_suites: this machine's OpenSSL has none of these") from error


def _cipher(name: str) -> str:
    if name not in CIPHER_SUITES:
        raise SettingsError(
            f"cipher_suites: {shown(name)} is not one of {', '.join(CIPHER_SUITES)}"
        )
    return CIPHER_SUITES[name]


def _set_curve(context: ssl.SSLContext, curve: str) -> None:
    try:
        context.set_ecdh_curve(CURVES[curve])
    except (ValueError, ssl.SSLError) as error:
        sentence = f"curve_preferences: this machine's OpenSSL does not support {curve}"
        raise SettingsError(sentence) from error


def _load_chain(context: ssl.SSLContext, config: TlsConfig) -> None:
    texts = _read("cert", config.cert), _read("key", config.key)
    try:
        with _file(texts[0]) as cert, _file(texts[1]) as key:
            # Without a password, OpenSSL would prompt for one on the terminal.
            context.load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise SettingsError("key_file does not belong to cert_file") from error
        raise SettingsError(
            "cert_file and key_file must contain a certificate and its unencrypted key as PEM "
            f"({error.reason or 'unreadable'})"
        ) from error
    except OSError as error:
        raise SettingsError(f"cert_file or key_file: {error.strerror}") from error


def _load_ca(context: ssl.SSLContext, client_ca: Pem) -> None:
    try:
        authorities = _read("client_ca", client_ca).decode("ascii", "ignore")
        context.load_verify_locations(cadata=authorities)
    except (ssl.SSLError, ValueError) as error:
        raise SettingsError("client_ca_file contains no PEM certificate") from error
    # As in Go, an intermediate certificate can be trusted by itself.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _read(key: str, pem: Pem) -> bytes:
    if isinstance(pem, str):
        return pem.encode()
    name = f"{key}_file {shown(str(pem))}"
    try:
        text = read_regular(pem, _MAX_PEM_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"{name} cannot be read: {reason}") from error
    if len(text) > _MAX_PEM_BYTES:
        raise SettingsError(f"{name} is larger than {_MAX_PEM_BYTES >> 20} MiB")
    return text


@contextmanager
def _file(text: bytes) -> Iterator[Path]:
    """A file with the text, as OpenSSL reads chains from files only; never on a disk."""
    with os.fdopen(os.memfd_create("pem"), "wb") as file:
        file.write(text)
        file.flush()
        yield Path(f"/proc/self/fd/{file.fileno()}")


def _name(kind: str, value: str) -> str:
    """A name as Go writes it: IP addresses in short form."""
    if kind != "IP Address":
        return value
    try:
        return str(ipaddress.ip_address(value.strip()))
    except ValueError:
        return value
