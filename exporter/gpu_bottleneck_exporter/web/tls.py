"""TLS contexts from the web configuration."""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.web.config import CIPHER_SUITES, Pem, TlsConfig
from gpu_bottleneck_exporter.web.files import read, shown


def build(config: TlsConfig) -> ssl.SSLContext:
    """Read the certificates into a context.

    Raises SettingsError for a malformed file, or a cipher or curve that OpenSSL lacks.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    # No tickets: each connection presents its certificate.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    context.minimum_version, context.maximum_version = config.min_version, config.max_version
    try:
        _set_ciphers(context, config)
        for curve in config.curve_preferences:
            context.set_ecdh_curve(curve)
    except (ValueError, ssl.SSLError) as error:
        raise SettingsError(f"this machine's OpenSSL lacks a cipher or curve: {error}") from error
    _load_chain(context, config)
    if config.client_ca is not None:
        _load_ca(context, config.client_ca)
    context.verify_mode = config.client_auth_type
    return context


def admits(allowed_sans: Collection[str] | None, connection: ssl.SSLSocket) -> bool:
    """Whether the client's certificate has an allowed name; None allows any."""
    if allowed_sans is None:
        return True
    certificate = connection.getpeercert() or {}
    return any(_name(*entry) in allowed_sans for entry in certificate.get("subjectAltName", ()))


def _set_ciphers(context: ssl.SSLContext, config: TlsConfig) -> None:
    ciphers = [suite for suite in config.cipher_suites if suite]
    if config.cipher_suites and not ciphers:  # only those of TLS 1.3, as in Go
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if config.min_version < ssl.TLSVersion.TLSv1_2:
        # Since 3.0, OpenSSL requires this for their broken hashes.
        ciphers = [*(ciphers or CIPHER_SUITES.values()), "@SECLEVEL=0"]
    if ciphers:
        context.set_ciphers(":".join(ciphers))


def _load_chain(context: ssl.SSLContext, config: TlsConfig) -> None:
    try:
        with _file("cert", config.cert) as cert, _file("key", config.key) as key:
            # Without one, OpenSSL would prompt on the terminal.
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
    # As in Go, an intermediate certificate can be a trust anchor.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _read(key: str, pem: Pem) -> bytes:
    if isinstance(pem, str):
        return pem.encode(errors="replace")
    # 16 times all certificate authorities of a Linux distribution.
    return read(f"{key}_file {shown(str(pem))}", pem, 4 * 2**20)


@contextmanager
def _file(key: str, pem: Pem) -> Iterator[Path]:
    """An in-memory file, as OpenSSL reads chains from files only."""
    with os.fdopen(os.memfd_create("pem"), "wb") as file:
        file.write(_read(key, pem))
        file.flush()
        yield Path(f"/proc/self/fd/{file.fileno()}")


def _name(kind: str, value: str) -> str:
    """Name in Go's form, with IP addresses shortened."""
    if kind == "IP Address":
        with suppress(ValueError):
            return str(ipaddress.ip_address(value.strip()))
    return value
