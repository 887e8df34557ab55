"""TLS contexts as the web configuration file wants them."""

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
from gpu_bottleneck_exporter.web.config import IF_GIVEN, NO_CERTIFICATE, REQUIRED, Pem, TlsConfig
from gpu_bottleneck_exporter.web.files import read_regular
from gpu_bottleneck_exporter.web.yamlfile import shown

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
"""Go's names of the suites up to TLS 1.2 that it holds secure, and OpenSSL's."""

ALWAYS_ON = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
"""The suites of TLS 1.3: neither Go nor Python chooses among them."""

_VERSIONS = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
_CURVES = {
    "CurveP256": "prime256v1",
    "CurveP384": "secp384r1",
    "CurveP521": "secp521r1",
    "X25519": "X25519",
}
_VERIFY = {
    NO_CERTIFICATE: ssl.CERT_NONE,
    IF_GIVEN: ssl.CERT_OPTIONAL,
    REQUIRED: ssl.CERT_REQUIRED,
}
_MAX_PEM_BYTES = 4 * 2**20
"""All authorities of a Linux distribution are a quarter of one MiB."""
_OLD_VERSIONS = ("TLS10", "TLS11")


@dataclass(frozen=True, slots=True)
class Tls:
    """What a new connection gets: a context, and who may come with their certificate."""

    context: ssl.SSLContext
    allowed_sans: frozenset[str] | None = None

    def admits(self, connection: ssl.SSLObject | None) -> bool:
        """Whether the client's certificate has one of the names, or none is asked for."""
        if self.allowed_sans is None:
            return True
        certificate = (connection.getpeercert() if connection else None) or {}
        names = certificate.get("subjectAltName", ())
        return any(_name(*entry) in self.allowed_sans for entry in names)


def build(config: TlsConfig) -> Tls:
    """Reads the certificates and makes a context.

    Raises:
        SettingsError: If a file cannot be read or does not hold what it should, or
            OpenSSL has no such suite or curve.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    # Without tickets a client shows its certificate on every connection.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    _set_versions(context, config)
    _set_ciphers(context, config)
    if config.curve is not None:
        _set_curve(context, config.curve)
    _load_chain(context, config)
    if config.client_ca is not None:
        _load_ca(context, config.client_ca)
    context.verify_mode = _VERIFY[config.client_auth]
    return Tls(context, config.allowed_sans)


def _set_versions(context: ssl.SSLContext, config: TlsConfig) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # who asks for TLS 1.0 knows
        context.minimum_version = _VERSIONS[config.min_version]
        context.maximum_version = _VERSIONS[config.max_version]


def _set_ciphers(context: ssl.SSLContext, config: TlsConfig) -> None:
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    if config.server_preference:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    ciphers = [_cipher(name) for name in config.cipher_suites if name not in ALWAYS_ON]
    if config.cipher_suites and not ciphers and config.min_version != "TLS13":
        raise SettingsError("cipher_suites names suites of TLS 1.3 only: set min_version to TLS13")
    if config.min_version in _OLD_VERSIONS:
        # OpenSSL has taken their hashes for broken since 3.0 and asks for this consent.
        ciphers = [*(ciphers or CIPHER_SUITES.values()), "@SECLEVEL=0"]
    if ciphers:
        _set_openssl_ciphers(context, ciphers)


def _cipher(name: str) -> str:
    if name not in CIPHER_SUITES:
        raise SettingsError(
            f"cipher_suites: {shown(name)} is not one of {', '.join(CIPHER_SUITES)}"
        )
    return CIPHER_SUITES[name]


def _set_openssl_ciphers(context: ssl.SSLContext, ciphers: list[str]) -> None:
    try:
        context.set_ciphers(":".join(ciphers))
    except ssl.SSLError as error:
        raise SettingsError("cipher_suites: this machine's OpenSSL has none of these") from error


def _set_curve(context: ssl.SSLContext, curve: str) -> None:
    try:
        context.set_ecdh_curve(_CURVES[curve])
    except (ValueError, ssl.SSLError) as error:
        sentence = f"curve_preferences: this machine's OpenSSL cannot be set to {curve}"
        raise SettingsError(sentence) from error


def _load_chain(context: ssl.SSLContext, config: TlsConfig) -> None:
    texts = _read("cert", config.cert), _read("key", config.key)
    try:
        with _file(texts[0]) as cert, _file(texts[1]) as key:
            # Without a password OpenSSL would ask the terminal for one.
            context.load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise SettingsError("key_file does not belong to cert_file") from error
        raise SettingsError(
            f"cert_file and key_file must hold a certificate and its unencrypted key as PEM "
            f"({error.reason or 'unreadable'})"
        ) from error
    except OSError as error:
        raise SettingsError(f"cert_file or key_file: {error.strerror}") from error


def _load_ca(context: ssl.SSLContext, client_ca: Pem) -> None:
    try:
        context.load_verify_locations(
            cadata=_read("client_ca", client_ca).decode("ascii", "ignore")
        )
    except (ssl.SSLError, ValueError) as error:
        raise SettingsError("client_ca_file holds no certificate as PEM") from error
    # As in Go an intermediate certificate is good enough to trust.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _read(key: str, pem: Pem) -> bytes:
    if isinstance(pem, str):
        return pem.encode()
    try:
        text = read_regular(pem, _MAX_PEM_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"{key}_file {shown(str(pem))} cannot be read: {reason}") from error
    if len(text) > _MAX_PEM_BYTES:
        raise SettingsError(
            f"{key}_file {shown(str(pem))} is larger than {_MAX_PEM_BYTES >> 20} MiB"
        )
    return text


@contextmanager
def _file(text: bytes) -> Iterator[Path]:
    """A file with the text, for OpenSSL reads chains from files only; it is never on a disk."""
    with os.fdopen(os.memfd_create("pem"), "wb") as file:
        file.write(text)
        file.flush()
        yield Path(f"/proc/self/fd/{file.fileno()}")


def _name(kind: str, value: str) -> str:
    """A name as Go writes it: IP addresses in their short form."""
    if kind != "IP Address":
        return value
    try:
        return str(ipaddress.ip_address(value.strip()))
    except ValueError:
        return value
