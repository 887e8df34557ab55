"""The web configuration file, in the format of Prometheus' exporter-toolkit.

https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md
Settings that Python's TLS or this server cannot honour are refused.
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
"""A file, or the PEM text itself."""
Parse = Callable[[object], object]
"""Makes a setting of what the file holds, or raises ValueError with what it must be."""
Known = Mapping[str, Parse]
"""The keys that a section may have, and how each is read."""

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
"""The suites up to TLS 1.2 that Go considers secure: its names, and OpenSSL's."""
ALWAYS_ON = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
"""The suites of TLS 1.3: neither Go nor Python can choose among them."""
REQUIRED = "RequireAndVerifyClientCert"
CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    REQUIRED: ssl.CERT_REQUIRED,
}

_BCRYPT = re.compile(r"\$2[aby]\$(?:0[4-9]|1[0-8])\$[./A-Za-z0-9]{53}")
"""At a cost of 18, a login takes half a minute on a slow CPU."""
_ABSENT = (None, "", "~", "null")


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """`tls_server_config`, with its names and in OpenSSL's terms."""

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
        """The files it names."""
        return tuple(pem for pem in (self.cert, self.key, self.client_ca) if isinstance(pem, Path))


@dataclass(frozen=True, slots=True)
class WebConfig:
    """The parsed file; users and hashes are bytes, as in HTTP."""

    tls: TlsConfig | None = None
    context: ssl.SSLContext | None = None
    """Of `tls`, once its certificates have been read."""
    headers: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[bytes, bytes] = field(default_factory=dict, repr=False)

    @property
    def summary(self) -> str:
        """The configuration in a few words, for the log."""
        wanted = " with client certificates"
        asked = {ssl.CERT_NONE: "", ssl.CERT_OPTIONAL: f"{wanted} if given"}
        tls = f"TLS{asked.get(self.tls.client_auth_type, wanted)}" if self.tls else "no TLS"
        return f"{tls}, {len(self.users) or 'no'} user{'' if len(self.users) == 1 else 's'}"


def parse(path: Path) -> WebConfig:
    """Read the file, but not the certificates it names.

    Raises:
        SettingsError: With one sentence that names the key.
    """
    sections: Known = {
        "tls_server_config": partial(_tls, path.parent),
        "http_server_config": partial(_section, "http_server_config", _HTTP),
        "basic_auth_users": _users,
    }
    from gpu_bottleneck_exporter.web.yamlfile import load  # noqa: PLC0415 - takes memory

    try:
        found = _section("the file", sections, load(path))
    except ImportError:
        raise SettingsError(
            "bcrypt is missing: pip install 'gpu-bottleneck-exporter[web-config]'"
        ) from None
    return WebConfig(
        tls=found.get("tls_server_config"),
        headers=found.get("http_server_config", {}).get("headers", {}),
        users=found.get("basic_auth_users", {}),
    )


def _mapping(name: str, given: object) -> Mapping[str, object]:
    if given in _ABSENT:
        return {}
    if not isinstance(given, Mapping):
        raise SettingsError(f"{name} must be a mapping")
    return given


def _section(name: str, known: Known, given: object) -> dict[str, Any]:
    """The settings of a section by their keys; what is left empty is left out."""
    settings = {}
    for key, value in _mapping(name, given).items():
        if key not in known:
            raise SettingsError(f"unknown key {shown(key)} in {name}")
        if value == "":
            continue
        try:
            settings[key] = known[key](value)
        except ValueError as error:
            raise SettingsError(f"{name}: {key} {error}") from None
    return settings


def _text(given: object) -> str:
    if not isinstance(given, str):
        raise ValueError("must be a string")  # noqa: TRY004 - of the file's content
    return given


def _list(of: Parse, given: object) -> list[object]:
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise ValueError("must be a list of strings")
    return [of(one) for one in given]


def _one_of(choices: Mapping[str, object], given: object) -> object:
    if (text := _text(given)) not in choices:
        raise ValueError(f"must be one of {', '.join(choices)}, not {shown(text)}")
    return choices[text]


def _ignored_flag(given: object) -> None:
    if _text(given).lower() not in ("true", "false", "yes", "no", "on", "off"):
        raise ValueError(f"must be true or false, not {shown(_text(given))}")


def _header(given: object) -> str:
    text = _text(given)
    if not (text.isascii() and text.isprintable()):
        raise ValueError("must be plain ASCII on one line")
    return text


_TLS: Known = {
    **dict.fromkeys(("cert", "cert_file", "key", "key_file", "client_ca", "client_ca_file"), _text),
    "client_auth_type": partial(_one_of, CLIENT_AUTH),
    "client_allowed_sans": partial(_list, _text),
    "min_version": partial(_one_of, TLS_VERSIONS),
    "max_version": partial(_one_of, TLS_VERSIONS),
    "cipher_suites": partial(_list, partial(_one_of, CIPHER_SUITES | dict.fromkeys(ALWAYS_ON))),
    "curve_preferences": partial(_list, partial(_one_of, CURVES)),
    "prefer_server_cipher_suites": _ignored_flag,  # the server's order counts, as with Go
}
_HEADERS: Known = {
    **dict.fromkeys(("Content-Security-Policy", "Strict-Transport-Security"), _header),
    "X-Content-Type-Options": partial(_one_of, {"nosniff": "nosniff"}),
    "X-Frame-Options": partial(_one_of, {"deny": "deny", "sameorigin": "sameorigin"}),
    "X-XSS-Protection": _header,
}
# We speak HTTP/1.1, whatever http2 says: every client falls back to it.
_HTTP: Known = {"http2": _ignored_flag, "headers": partial(_section, "headers", _HEADERS)}


def _tls(folder: Path, given: object) -> TlsConfig | None:
    if given in (*_ABSENT, {}):
        return None
    section = "tls_server_config"
    found = _section(section, _TLS, given)
    found.pop("prefer_server_cipher_suites", None)
    for name in ("cert", "key", "client_ca"):
        inline, file = found.pop(name, None), found.pop(f"{name}_file", None)
        if inline and file:
            raise SettingsError(f"{section}: give {name} or {name}_file, not both")
        found[name] = folder / file if file else inline
    config = TlsConfig(**found)
    for problem, is_so in _problems(config).items():
        if is_so:
            raise SettingsError(f"{section}: {problem}")
    return config


def _problems(config: TlsConfig) -> Mapping[str, bool]:
    """What does not go together, and whether it is so."""
    auth, sans = config.client_auth_type, config.client_allowed_sans
    curves = config.curve_preferences
    required = f"needs client_auth_type {REQUIRED}"
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


def _users(given: object) -> dict[bytes, bytes]:
    """The users with their hashes; the error does not quote the hash."""
    users = _mapping("basic_auth_users", given)
    if users:
        import bcrypt  # noqa: F401, PLC0415 - comes with an extra, and is used later
    found = {}
    for user, hashed in users.items():
        if ":" in user or not isinstance(hashed, str) or not _BCRYPT.fullmatch(hashed):
            raise SettingsError(
                f"basic_auth_users: {shown(user)} must be a name without a colon, and its value a "
                "bcrypt hash of cost 4 to 18"
            )
        found[user.encode(errors="replace")] = hashed.encode()
    return found
