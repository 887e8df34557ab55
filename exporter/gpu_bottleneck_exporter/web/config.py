"""The web configuration file, in the format of Prometheus' exporter-toolkit.

https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md
What Python's TLS or this server cannot do is refused, never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Union

from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.web.yamlfile import Value, read, shown

Pem = Union[Path, str]  # noqa: UP007 - evaluated, by 3.10 too
"""A file, or the text itself."""

TLS_VERSIONS = ("TLS10", "TLS11", "TLS12", "TLS13")
CURVES = ("CurveP256", "CurveP384", "CurveP521", "X25519")
NO_CERTIFICATE, IF_GIVEN, REQUIRED = (
    "NoClientCert",
    "VerifyClientCertIfGiven",
    "RequireAndVerifyClientCert",
)
MAX_COST = 18
"""Of bcrypt, in powers of two: half a minute a login on a slow CPU."""

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
"""Headers that can be set, and the values that they can have."""

_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_BCRYPT = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
_MIN_COST = 4


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """`tls_server_config`; names of versions, suites and curves are Go's."""

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
        """The files that it names."""
        return tuple(pem for pem in (self.cert, self.key, self.client_ca) if isinstance(pem, Path))


@dataclass(frozen=True, slots=True)
class WebConfig:
    """What the file says; users and headers as bytes, as HTTP has them."""

    tls: TlsConfig | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    users: Mapping[bytes, bytes] = field(default_factory=dict, repr=False)

    @property
    def summary(self) -> str:
        """What it does, in a few words."""
        tls = "no TLS"
        if self.tls is not None:
            asked = {IF_GIVEN: " with client certificates if given", REQUIRED: " with client"}
            tls = "TLS" + asked.get(self.tls.client_auth, "")
            tls += " certificates" if self.tls.client_auth == REQUIRED else ""
        users = f"{len(self.users)} user{'' if len(self.users) == 1 else 's'}"
        return f"{tls}, {users if self.users else 'no users'}"


def parse(path: Path) -> WebConfig:
    """Reads the file, not yet the certificates that it names.

    Raises:
        SettingsError: With one sentence that names the key.
    """
    top = _Section("the file", read(path))
    top.know("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit")
    if top.section("rate_limit").entries:
        raise SettingsError("rate_limit is not supported; connections are limited as they are")
    return WebConfig(
        _tls(top.section("tls_server_config"), path.parent),
        _http(top.section("http_server_config")),
        _users(top.section("basic_auth_users")),
    )


class _Section:
    """A mapping of the file, and how its values are read."""

    def __init__(self, name: str, entries: Mapping[str, Value]) -> None:
        self.name = name
        self.entries = entries

    def know(self, *keys: str) -> None:
        """Refuses every other key."""
        for key in self.entries:
            if key not in keys:
                raise SettingsError(f"unknown key {shown(key)} in {self.name}")

    def section(self, key: str) -> _Section:
        value = self.entries.get(key, {})
        if value in ("", "~", "null"):
            value = {}
        if not isinstance(value, Mapping):
            raise SettingsError(f"{key} must be a mapping of keys to values")
        return _Section(key, value)

    def text(self, key: str) -> str:
        """A text; "" if it is missing."""
        value = self.entries.get(key, "")
        if not isinstance(value, str):
            raise SettingsError(f"{self.name}: {key} must be a text")
        return value

    def choice(self, key: str, choices: Iterable[str], default: str) -> str:
        value = self.text(key) or default
        _one_of(f"{self.name}: {key}", value, choices)
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.entries.get(key, ())
        texts = [] if value == "" or isinstance(value, (str, Mapping)) else list(value)
        if value and (isinstance(value, (str, Mapping)) or not all(map(_is_text, texts))):
            raise SettingsError(f"{self.name}: {key} must be a list of texts")
        return tuple(str(text) for text in texts)

    def flag(self, key: str) -> bool:
        """A flag that is on unless it is switched off."""
        value = self.text(key) or "true"
        if value.lower() not in _FLAGS:
            raise SettingsError(f"{self.name}: {key} must be true or false, not {shown(value)}")
        return _FLAGS[value.lower()]

    def pem(self, key: str, folder: Path) -> Pem | None:
        """What `key` or `key`_file says; a relative file belongs to `folder`."""
        inline, file = self.text(key), self.text(f"{key}_file")
        if inline and file:
            raise SettingsError(f"{self.name}: give {key} or {key}_file, not both")
        return folder / file if file else inline or None


def _is_text(value: Value) -> bool:
    return isinstance(value, str)


def _one_of(what: str, value: str, choices: Iterable[str]) -> None:
    if value not in choices:
        raise SettingsError(f"{what} must be one of {', '.join(choices)}, not {shown(value)}")


def _tls(section: _Section, folder: Path) -> TlsConfig | None:
    if not section.entries:
        return None
    section.know(*_TLS_KEYS)
    cert, key = section.pem("cert", folder), section.pem("key", folder)
    if cert is None or key is None:
        missing = "key" if cert else "cert"
        raise SettingsError(f"{section.name}: {missing}_file (or {missing}) is missing")
    client_auth, client_ca = _client_auth(section), section.pem("client_ca", folder)
    _check_client_auth(section, client_auth, client_ca)
    minimum = section.choice("min_version", TLS_VERSIONS, "TLS12")
    maximum = section.choice("max_version", TLS_VERSIONS, "TLS13")
    if minimum > maximum:
        raise SettingsError(f"{section.name}: min_version {minimum} is above {maximum}")
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
        raise SettingsError(
            f"{section.name}: client_auth_type {value} is not supported: Python's TLS asks for no "
            f"certificate that it does not verify; use {REQUIRED}"
        )
    return section.choice("client_auth_type", (NO_CERTIFICATE, IF_GIVEN, REQUIRED), NO_CERTIFICATE)


def _check_client_auth(section: _Section, client_auth: str, client_ca: Pem | None) -> None:
    if client_auth == NO_CERTIFICATE and client_ca is not None:
        raise SettingsError(f"{section.name}: client_ca_file needs client_auth_type {REQUIRED}")
    if client_auth != NO_CERTIFICATE and client_ca is None:
        raise SettingsError(f"{section.name}: client_auth_type {client_auth} needs client_ca_file")
    if "client_allowed_sans" not in section.entries:
        return
    if client_auth != REQUIRED:
        raise SettingsError(
            f"{section.name}: client_allowed_sans needs client_auth_type {REQUIRED}"
        )
    if not section.texts("client_allowed_sans"):
        raise SettingsError(f"{section.name}: client_allowed_sans is empty, no client could come")


def _curve(section: _Section) -> str | None:
    curves: Sequence[str] = section.texts("curve_preferences")
    for curve in curves:
        _one_of(f"{section.name}: curve_preferences", curve, CURVES)
    if len(curves) > 1:
        raise SettingsError(
            f"{section.name}: curve_preferences can name one curve only; leave it out for all"
        )
    return curves[0] if curves else None


def _http(section: _Section) -> tuple[tuple[bytes, bytes], ...]:
    section.know("http2", "headers")
    section.flag("http2")  # HTTP/1.1 is spoken either way: every client falls back to it
    headers = section.section("headers")
    headers.know(*_HEADERS)
    values = {name: headers.text(name) for name in headers.entries}
    for name, value in values.items():
        if value and _HEADERS[name]:
            _one_of(name, value, _HEADERS[name])
        if not (value.isascii() and value.isprintable()):
            raise SettingsError(f"headers: {name} must be plain ASCII on one line")
    return tuple((name.lower().encode(), value.encode()) for name, value in values.items() if value)


def _users(section: _Section) -> dict[bytes, bytes]:
    users = {user: section.text(user) for user in section.entries}
    for user, hashed in users.items():
        _check_user(user, hashed)
    return {user.encode(): hashed.encode() for user, hashed in users.items()}


def _check_user(user: str, hashed: str) -> None:
    """Refuses a user who could never log in; says nothing of what stands for the hash."""
    if ":" in user:
        raise SettingsError(f"basic_auth_users: {shown(user)} must hold no colon")
    found = _BCRYPT.fullmatch(hashed)
    if found is None:
        raise SettingsError(f"basic_auth_users: the value of {shown(user)} is no bcrypt hash")
    if not _MIN_COST <= int(found[1]) <= MAX_COST:
        raise SettingsError(
            f"basic_auth_users: the hash of {shown(user)} must have a cost of {_MIN_COST} to "
            f"{MAX_COST}, not {int(found[1])}"
        )
