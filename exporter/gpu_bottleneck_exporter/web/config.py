"""The web configuration file, in the format of Prometheus' exporter-toolkit.

https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md
Settings that Python's TLS or this server cannot honour are refused, never ignored.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Union

from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.web.files import shown

if TYPE_CHECKING:
    from gpu_bottleneck_exporter.web.yamlfile import Value

Pem = Union[Path, str]  # noqa: UP007 - evaluated, by 3.10 too
"""A file, or the PEM text itself."""

TLS_VERSIONS = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
CURVES = {
    "CurveP256": "prime256v1",
    "CurveP384": "secp384r1",
    "CurveP521": "secp521r1",
    "X25519": "X25519",
}
"""Go's names, and OpenSSL's."""
NO_CERTIFICATE = "NoClientCert"
IF_GIVEN = "VerifyClientCertIfGiven"
REQUIRED = "RequireAndVerifyClientCert"
CLIENT_AUTH = {
    NO_CERTIFICATE: ssl.CERT_NONE,
    IF_GIVEN: ssl.CERT_OPTIONAL,
    REQUIRED: ssl.CERT_REQUIRED,
}
MAX_COST = 18
"""Of bcrypt, as a power of two: a login takes half a minute on a slow CPU."""

_UNVERIFIED = ("RequestClientCert", "RequireAnyClientCert", "RequireClientCert")
_TLS_KEYS = (
    *("cert", "key", "client_ca", "cert_file", "key_file", "client_ca_file", "client_auth_type"),
    *("client_allowed_sans", "min_version", "max_version", "cipher_suites", "curve_preferences"),
    "prefer_server_cipher_suites",
)
_HEADERS: Mapping[str, tuple[str, ...]] = {
    "Content-Security-Policy": (),
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
}
"""Headers that can be set, with their allowed values; empty: any."""

_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_BCRYPT = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
_MIN_COST = 4


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """`tls_server_config`; versions, suites and curves have Go's names."""

    cert: Pem
    key: Pem = field(repr=False)
    client_ca: Pem | None = None
    client_auth: str = NO_CERTIFICATE
    allowed_sans: frozenset[str] | None = None
    min_version: str = "TLS12"
    max_version: str = "TLS13"
    cipher_suites: tuple[str, ...] = ()
    server_preference: bool = True
    curve: str | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """The files it names."""
        return tuple(pem for pem in (self.cert, self.key, self.client_ca) if isinstance(pem, Path))


@dataclass(frozen=True, slots=True)
class WebConfig:
    """The parsed file; users and hashes are bytes, as in HTTP."""

    tls: TlsConfig | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[bytes, bytes] = field(default_factory=dict, repr=False)

    @property
    def summary(self) -> str:
        """The configuration in a few words, for the log."""
        wanted = " with client certificates"
        asked = {NO_CERTIFICATE: "", IF_GIVEN: f"{wanted} if given", REQUIRED: wanted}
        tls = f"TLS{asked[self.tls.client_auth]}" if self.tls else "no TLS"
        users = f"{len(self.users)} user{'' if len(self.users) == 1 else 's'}"
        return f"{tls}, {users if self.users else 'no users'}"


def parse(path: Path) -> WebConfig:
    """Read the file, but not the certificates it names.

    Raises:
        SettingsError: With one sentence that names the key.
    """
    try:
        from gpu_bottleneck_exporter.web.yamlfile import read  # noqa: PLC0415 - with an extra
    except ImportError:
        raise SettingsError(
            "PyYAML is missing: pip install 'gpu-bottleneck-exporter[web-config]'"
        ) from None
    top = _Section("the file", read(path))
    top.know("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit")
    if top.section("rate_limit").entries:
        raise SettingsError("rate_limit is not supported; connections have fixed limits")
    return WebConfig(
        _tls(top.section("tls_server_config"), path.parent),
        _http(top.section("http_server_config")),
        _users(top.section("basic_auth_users")),
    )


class _Section:
    """A mapping of the file, with checked access to its values."""

    def __init__(self, name: str, entries: Mapping[str, Value]) -> None:
        self.name = name
        self.entries = entries

    def fault(self, problem: str) -> SettingsError:
        """The error that says what is wrong here."""
        return SettingsError(f"{self.name}: {problem}")

    def know(self, *keys: str) -> None:
        """Refuse all other keys."""
        for key in self.entries:
            if key not in keys:
                raise SettingsError(f"unknown key {shown(key)} in {self.name}")

    def section(self, key: str) -> _Section:
        value = self.entries.get(key, {})
        if value in ("", "~", "null"):
            value = {}
        if not isinstance(value, Mapping):
            raise SettingsError(f"{key} must be a mapping")
        return _Section(key, value)

    def text(self, key: str) -> str:
        """A text; "" if missing."""
        value = self.entries.get(key, "")
        if not isinstance(value, str):
            raise self.fault(f"{shown(key)} must be a string")
        return value

    def choice(self, key: str, choices: Iterable[str], default: str) -> str:
        return _one_of(f"{self.name}: {key}", self.text(key) or default, choices)

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.entries.get(key) or ()
        if isinstance(value, (str, Mapping)) or not all(isinstance(text, str) for text in value):
            raise self.fault(f"{key} must be a list of strings")
        return tuple(map(str, value))

    def flag(self, key: str) -> bool:
        """A flag, on unless it is switched off."""
        value = self.text(key) or "true"
        if value.lower() not in _FLAGS:
            raise self.fault(f"{key} must be true or false, not {shown(value)}")
        return _FLAGS[value.lower()]

    def pem(self, key: str, folder: Path) -> Pem | None:
        """The value of `key` or `key`_file; a relative path starts at `folder`."""
        inline, file = self.text(key), self.text(f"{key}_file")
        if inline and file:
            raise self.fault(f"give {key} or {key}_file, not both")
        return folder / file if file else inline or None


def _one_of(what: str, value: str, choices: Iterable[str]) -> str:
    if value not in choices:
        raise SettingsError(f"{what} must be one of {', '.join(choices)}, not {shown(value)}")
    return value


def _tls(section: _Section, folder: Path) -> TlsConfig | None:
    if not section.entries:
        return None
    section.know(*_TLS_KEYS)
    cert, key = section.pem("cert", folder), section.pem("key", folder)
    if cert is None or key is None:
        missing = "key" if cert else "cert"
        raise section.fault(f"{missing}_file (or {missing}) is missing")
    client_auth, client_ca = _client_auth(section), section.pem("client_ca", folder)
    _check_client_auth(section, client_auth, client_ca)
    minimum = section.choice("min_version", TLS_VERSIONS, "TLS12")
    maximum = section.choice("max_version", TLS_VERSIONS, "TLS13")
    if minimum > maximum:
        raise section.fault(f"min_version {minimum} is above {maximum}")
    return TlsConfig(
        cert,
        key,
        client_ca,
        client_auth,
        frozenset(section.texts("client_allowed_sans")) or None,
        minimum,
        maximum,
        section.texts("cipher_suites"),
        section.flag("prefer_server_cipher_suites"),
        _curve(section),
    )


def _client_auth(section: _Section) -> str:
    value = section.text("client_auth_type")
    if value in _UNVERIFIED:
        raise section.fault(
            f"client_auth_type {value} is not supported: Python's TLS verifies each certificate "
            f"that it requests; use {REQUIRED}"
        )
    return section.choice("client_auth_type", CLIENT_AUTH, NO_CERTIFICATE)


def _check_client_auth(section: _Section, client_auth: str, client_ca: Pem | None) -> None:
    if client_auth == NO_CERTIFICATE and client_ca is not None:
        raise section.fault(f"client_ca_file needs client_auth_type {REQUIRED}")
    if client_auth != NO_CERTIFICATE and client_ca is None:
        raise section.fault(f"client_auth_type {client_auth} needs client_ca_file")
    if "client_allowed_sans" not in section.entries:
        return
    if client_auth != REQUIRED:
        raise section.fault(f"client_allowed_sans needs client_auth_type {REQUIRED}")
    if not section.texts("client_allowed_sans"):
        raise section.fault("client_allowed_sans is empty: no client could connect")


def _curve(section: _Section) -> str | None:
    curves = section.texts("curve_preferences")
    for curve in curves:
        _one_of(f"{section.name}: curve_preferences", curve, CURVES)
    if len(curves) > 1:
        raise section.fault("curve_preferences can name only one curve; omit it for all")
    return curves[0] if curves else None


def _http(section: _Section) -> dict[str, str]:
    section.know("http2", "headers")
    section.flag("http2")  # checked only: we speak HTTP/1.1, and every client falls back to it
    headers = section.section("headers")
    headers.know(*_HEADERS)
    values = {name: headers.text(name) for name in headers.entries}
    for name, value in values.items():
        if value and _HEADERS[name]:
            _one_of(name, value, _HEADERS[name])
        if not (value.isascii() and value.isprintable()):
            raise SettingsError(f"headers: {name} must be plain ASCII on one line")
    return {name: value for name, value in values.items() if value}


def _users(section: _Section) -> dict[bytes, bytes]:
    users = {user: section.text(user) for user in section.entries}
    for user, hashed in users.items():
        _check_user(user, hashed)
    return {user.encode(): hashed.encode() for user, hashed in users.items()}


def _check_user(user: str, hashed: str) -> None:
    """Refuse a user who could never log in; the message does not quote the hash."""
    if ":" in user:
        raise SettingsError(f"basic_auth_users: {shown(user)} must not contain a colon")
    found = _BCRYPT.fullmatch(hashed)
    if found is None:
        raise SettingsError(f"basic_auth_users: the value of {shown(user)} is not a bcrypt hash")
    if not _MIN_COST <= int(found[1]) <= MAX_COST:
        raise SettingsError(
            f"basic_auth_users: the hash of {shown(user)} must have a cost of {_MIN_COST} to "
            f"{MAX_COST}, not {int(found[1])}"
        )
