"""The web configuration file, in the format of Prometheus' exporter-toolkit.

https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md
Settings that Python's TLS or this server do not support are refused.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Union

from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.web.files import shown

Pem = Union[Path, str]  # noqa: UP007 - evaluated, by 3.10 too
Parser = Callable[[object], object]
"""Converts a value of the file; raises ValueError with its requirement."""
Schema = Mapping[str, Parser]

CIPHER_SUITES = {
    f"TLS_ECDHE_{key}_WITH_{go}": f"ECDHE-{key}-{openssl}"
    for go, openssl in {
        "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
        "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
        "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
        "AES_128_CBC_SHA": "AES128-SHA",
        "AES_256_CBC_SHA": "AES256-SHA",
    }.items()
    for key in ("ECDSA", "RSA")
}
"""Go's secure suites up to TLS 1.2, and OpenSSL's names."""
TLS13_SUITES = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
"""Suites of TLS 1.3, which Python cannot disable."""
_REQUIRE_CLIENT_CERT = "RequireAndVerifyClientCert"
_EMPTY_VALUES = (None, "", "~", "null")


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """The section `tls_server_config`, in OpenSSL's terms."""

    cert: Pem
    key: Pem = field(repr=False)
    client_ca: Pem | None = None
    client_auth_type: ssl.VerifyMode = ssl.CERT_NONE
    client_allowed_sans: list[str] | None = None
    min_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    max_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
    cipher_suites: list[str] = field(default_factory=list)
    curve_preferences: list[str] = field(default_factory=list)

    @property
    def files(self) -> tuple[Path, ...]:
        """Certificate and key files."""
        return tuple(pem for pem in (self.cert, self.key, self.client_ca) if isinstance(pem, Path))


@dataclass(frozen=True, slots=True)
class WebConfig:
    """The parsed file, with users and hashes as bytes."""

    tls: TlsConfig | None = None
    context: ssl.SSLContext | None = None
    """TLS context of `tls`; None until its certificates are read."""
    headers: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[bytes, bytes] = field(default_factory=dict, repr=False)

    @property
    def summary(self) -> str:
        """A summary for the log."""
        required = " with client certificates"
        clauses = {ssl.CERT_NONE: "", ssl.CERT_OPTIONAL: f"{required} if given"}
        tls = f"TLS{clauses.get(self.tls.client_auth_type, required)}" if self.tls else "no TLS"
        return f"{tls}, {len(self.users) or 'no'} user{'' if len(self.users) == 1 else 's'}"


def parse(path: Path) -> WebConfig:
    """Read the file, but not its certificates. Raises SettingsError with the key."""
    http: Schema = {
        "http2": _ignored_flag,  # every client falls back to HTTP/1.1
        "headers": partial(_section, "headers", _HTTP_HEADERS),
    }
    sections: Schema = {
        "tls_server_config": partial(_tls, path.parent),
        "http_server_config": partial(_section, "http_server_config", http),
        "basic_auth_users": _users,
    }
    from gpu_bottleneck_exporter.web.yamlfile import load  # noqa: PLC0415 - takes memory

    try:
        settings = _section("the file", sections, load(path))
    except ImportError:
        raise SettingsError(
            "bcrypt is missing: pip install 'gpu-bottleneck-exporter[web-config]'"
        ) from None
    return WebConfig(
        tls=settings.get("tls_server_config"),
        headers=settings.get("http_server_config", {}).get("headers", {}),
        users=settings.get("basic_auth_users", {}),
    )


def _mapping(name: str, value: object) -> Mapping[str, object]:
    if value in _EMPTY_VALUES:
        return {}
    if not isinstance(value, Mapping):
        raise SettingsError(f"{name} must be a mapping")
    return value


def _section(name: str, schema: Schema, content: object) -> dict[str, Any]:
    settings = {}
    for key, value in _mapping(name, content).items():
        if key not in schema:
            raise SettingsError(f"unknown key {shown(key)} in {name}")
        if value == "":
            continue
        try:
            settings[key] = schema[key](value)
        except ValueError as error:
            raise SettingsError(f"{name}: {key} {error}") from None
    return settings


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")  # noqa: TRY004 - of the file's content
    return value


def _list(parser: Parser, value: object) -> list[object]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("must be a list of strings")
    return [parser(item) for item in value]


def _choice(choices: Mapping[str, object], value: object) -> object:
    if (text := _text(value)) not in choices:
        raise ValueError(f"must be one of {', '.join(choices)}, not {shown(text)}")
    return choices[text]


def _ignored_flag(value: object) -> None:
    if _text(value).lower() not in ("true", "false", "yes", "no", "on", "off"):
        raise ValueError(f"must be true or false, not {shown(_text(value))}")


def _header(value: object) -> str:
    text = _text(value)
    if not (text.isascii() and text.isprintable()):
        raise ValueError("must be plain ASCII on one line")
    return text


_TLS_VERSIONS = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
_TLS_SCHEMA: Schema = {
    **dict.fromkeys(("cert", "cert_file", "key", "key_file", "client_ca", "client_ca_file"), _text),
    "client_auth_type": partial(
        _choice,
        {
            "NoClientCert": ssl.CERT_NONE,
            "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
            _REQUIRE_CLIENT_CERT: ssl.CERT_REQUIRED,
        },
    ),
    "client_allowed_sans": partial(_list, _text),
    "min_version": partial(_choice, _TLS_VERSIONS),
    "max_version": partial(_choice, _TLS_VERSIONS),
    "cipher_suites": partial(_list, partial(_choice, CIPHER_SUITES | dict.fromkeys(TLS13_SUITES))),
    "curve_preferences": partial(
        _list,
        partial(
            _choice,
            {  # OpenSSL's name by Go's
                "CurveP256": "prime256v1",
                "CurveP384": "secp384r1",
                "CurveP521": "secp521r1",
                "X25519": "X25519",
            },
        ),
    ),
    "prefer_server_cipher_suites": _ignored_flag,  # the server's order is used, as in Go
}
_HTTP_HEADERS: Schema = {
    **dict.fromkeys(("Content-Security-Policy", "Strict-Transport-Security"), _header),
    "X-Content-Type-Options": partial(_choice, {"nosniff": "nosniff"}),
    "X-Frame-Options": partial(_choice, {"deny": "deny", "sameorigin": "sameorigin"}),
    "X-XSS-Protection": _header,
}


def _tls(folder: Path, content: object) -> TlsConfig | None:
    if content in (*_EMPTY_VALUES, {}):
        return None
    section = "tls_server_config"
    settings = _section(section, _TLS_SCHEMA, content)
    settings.pop("prefer_server_cipher_suites", None)
    for name in ("cert", "key", "client_ca"):
        inline, file = settings.pop(name, None), settings.pop(f"{name}_file", None)
        if inline and file:
            raise SettingsError(f"{section}: give {name} or {name}_file, not both")
        settings[name] = folder / file if file else inline
    config = TlsConfig(**settings)
    for problem, applies in _problems(config).items():
        if applies:
            raise SettingsError(f"{section}: {problem}")
    return config


def _problems(config: TlsConfig) -> Mapping[str, bool]:
    auth, sans = config.client_auth_type, config.client_allowed_sans
    curves = config.curve_preferences
    required = f"needs client_auth_type {_REQUIRE_CLIENT_CERT}"
    return {
        "cert_file (or cert) is missing": not config.cert,
        "key_file (or key) is missing": not config.key,
        f"client_ca_file {required}": auth == ssl.CERT_NONE and config.client_ca is not None,
        "client_auth_type needs client_ca_file": auth != ssl.CERT_NONE and not config.client_ca,
        f"client_allowed_sans {required}": sans is not None and auth != ssl.CERT_REQUIRED,
        "client_allowed_sans is empty: no client could connect": sans == [],
        "min_version is above max_version": config.min_version > config.max_version,
        "curve_preferences can name only one curve; omit it for all": len(curves) > 1,
    }


def _users(content: object) -> dict[bytes, bytes]:
    """Hashes by user; errors do not quote hashes."""
    users = _mapping("basic_auth_users", content)
    if users:
        import bcrypt  # noqa: F401, PLC0415 - comes with an extra, and is used later
    # At 18, a login takes half a minute.
    bcrypt_hash = r"\$2[aby]\$(?:0[4-9]|1[0-8])\$[./A-Za-z0-9]{53}"
    hashes = {}
    for user, hashed in users.items():
        if ":" in user or not isinstance(hashed, str) or not re.fullmatch(bcrypt_hash, hashed):
            raise SettingsError(
                f"basic_auth_users: {shown(user)} must be a name without a colon, and its value a "
                "bcrypt hash of cost 4 to 18"
            )
        hashes[user.encode(errors="replace")] = hashed.encode()
    return hashes
