"""The web configuration file: what it may say, and one plain line for all else."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.web.config import CIPHER_SUITES, WebConfig, parse
from gpu_bottleneck_exporter.web.reload import WebConfigFile
from support.certificates import Authority, ask, client
from support.command import ANY_PORT, run, serving

from .test_users import basic

HASH = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"
PAIR = "cert_file: server.pem, key_file: server.key"
README = Path(__file__).parents[2] / "exporter" / "README.md"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with certificates."""
    authority = Authority(tmp_path_factory.mktemp("site"))
    authority.issue("server")
    authority.issue("other")
    (authority.folder / "empty.pem").touch()
    (authority.folder / "folder.pem").mkdir()
    return authority.folder


def tls(*entries: str) -> str:
    return f"tls_server_config: {{{', '.join((PAIR, *entries))}}}"


def refusal(path: Path) -> str:
    """The sentence with which the file is refused."""
    with pytest.raises(SettingsError) as raised:
        WebConfigFile(path)
    said = str(raised.value)
    assert raised.value.status == 2
    assert said.isprintable(), said
    assert said.startswith(f"--web.config.file {path}: ")
    assert len(said) < 1000
    return said


BAD: Mapping[str, tuple[str | bytes, str]] = {
    "a list": ("- a", "the file must be a mapping"),
    "an empty list": ("[]", "the file must be a mapping"),
    "a text": ("a", "the file must be a mapping"),
    "no YAML": ("a: b: c", "line 1: mapping values are not allowed here"),
    "a tab": ("\ta: b", "line 1: "),
    "an open bracket": ("tls_server_config: {", "line 1: "),
    "two documents": ("{}\n---\n{}", "line 2: "),
    "an unknown alias": ("a: *b", "alias"),
    "a circle": (
        "tls_server_config: &a {cert: *a}",
        "line 1: found unconstructable recursive node",
    ),
    "deep nesting": ("{a: " * 5_000, "no YAML: maximum recursion depth exceeded"),
    "Latin-1": (b"a: \xe4", "no YAML: unacceptable character #x00e4"),
    "a control character": (b"a: \x01", "not allowed"),
    "a NUL": (
        r'tls_server_config: {cert_file: "a\0", key_file: server.key}',
        "cannot be read: embedded null byte",
    ),
    "half a character": (
        r'tls_server_config: {cert_file: "a\ud800", key_file: server.key}',
        "surrogates not allowed",
    ),
    "half a character in a certificate": (
        r'tls_server_config: {cert: "a\ud800", key_file: server.key}',
        "must contain a certificate",
    ),
    "an impossible character": (r'a: "\UFFFFFFFF"', "no YAML: "),
    "a key that is a list": ("? [a]\n: b", "line 1: found unhashable key"),
    "a huge file": ("#" * 300_000, "larger than 256 KiB"),
    "a key twice": (
        "basic_auth_users: {}\nbasic_auth_users: {}",
        "'basic_auth_users' occurs twice",
    ),
    "a user twice": (f"basic_auth_users: {{a: {HASH}, a: {HASH}}}", "'a' occurs twice"),
    "an unknown section": ("tls_config: {}", "unknown key 'tls_config' in the file"),
    "a long unknown key": (f"{'x' * 900}: 1", "unknown key 'xxx"),
    "an unknown TLS key": (tls("certfile: x"), "unknown key 'certfile' in tls_server_config"),
    "an unknown HTTP key": ("http_server_config: {http3: true}", "unknown key 'http3' in http_ser"),
    "a section that is a list": ("tls_server_config: [a]", "tls_server_config must be a mapping"),
    "a section that is a text": ("basic_auth_users: alice", "basic_auth_users must be a mapping"),
    "a rate limit": (
        "rate_limit: {interval: 1s, burst: 2}",
        "unknown key 'rate_limit' in the file",
    ),
    "no certificate": ("tls_server_config: {key_file: server.key}", "cert_file (or cert) is miss"),
    "no key": ("tls_server_config: {cert_file: server.pem}", "key_file (or key) is missing"),
    "only a version": ("tls_server_config: {min_version: TLS13}", "cert_file (or cert) is missing"),
    "a certificate twice": (tls("cert: abc"), "give cert or cert_file, not both"),
    "a key file that is a list": (
        "tls_server_config: {cert_file: [a]}",
        "cert_file must be a string",
    ),
    "an unknown policy": (tls("client_auth_type: Always"), "client_auth_type must be one of NoCl"),
    "a policy in small letters": (tls("client_auth_type: noclientcert"), "must be one of"),
    "RequestClientCert": (
        tls("client_auth_type: RequestClientCert"),
        "must be one of NoClientCert",
    ),
    "RequireAnyClientCert": (
        tls("client_auth_type: RequireAnyClientCert"),
        "must be one of NoClientCert",
    ),
    "no authority": (tls("client_auth_type: RequireAndVerifyClientCert"), "needs client_ca_file"),
    "no authority, if given": (tls("client_auth_type: VerifyClientCertIfGiven"), "needs client_ca"),
    "no policy": (tls("client_ca_file: ca.pem"), "client_ca_file needs client_auth_type"),
    "names without a policy": (tls("client_allowed_sans: [a]"), "client_allowed_sans needs client"),
    "no names": (
        tls(
            "client_auth_type: RequireAndVerifyClientCert",
            "client_ca_file: ca.pem",
            "client_allowed_sans: []",
        ),
        "client_allowed_sans is empty",
    ),
    "suites that are a text": (tls("cipher_suites: a"), "must be a list of strings"),
    "suites that are lists": (tls("cipher_suites: [[a]]"), "must be a list of strings"),
    "an unknown version": (
        tls("min_version: TLS 1.2"),
        "must be one of TLS10, TLS11, TLS12, TLS13",
    ),
    "versions upside down": (
        tls("min_version: TLS13", "max_version: TLS12"),
        "min_version is above max_version",
    ),
    "an unknown suite": (tls("cipher_suites: [RC4]"), "not 'RC4'"),
    "an unknown curve": (tls("curve_preferences: [secp256k1]"), "must be one of CurveP256"),
    "two curves": (tls("curve_preferences: [X25519, CurveP256]"), "only one curve"),
    "no flag": (tls("prefer_server_cipher_suites: maybe"), "must be true or false, not 'maybe'"),
    "no flag for HTTP/2": ("http_server_config: {http2: 2}", "http2 must be true or false"),
    "a missing certificate": (
        "tls_server_config: {cert_file: no.pem, key_file: server.key}",
        "no.pem' cannot be read: No such file",
    ),
    "a missing key": (
        "tls_server_config: {cert_file: server.pem, key_file: no.key}",
        "no.key' cannot be read: No such file",
    ),
    "a folder": (
        "tls_server_config: {cert_file: folder.pem, key_file: server.key}",
        "cannot be read: Is a directory",
    ),
    "an empty certificate": (
        "tls_server_config: {cert_file: empty.pem, key_file: server.key}",
        "must contain a certificate and its unencrypted key",
    ),
    "another's key": (
        "tls_server_config: {cert_file: server.pem, key_file: other.key}",
        "key_file does not belong to cert_file",
    ),
    "a wrong certificate in the file": (
        "tls_server_config: {cert: abc, key_file: server.key}",
        "must contain a certificate",
    ),
    "an empty authority": (
        tls("client_auth_type: RequireAndVerifyClientCert", "client_ca_file: empty.pem"),
        "client_ca_file contains no PEM certificate",
    ),
    "a missing authority": (
        tls("client_auth_type: RequireAndVerifyClientCert", "client_ca_file: no.pem"),
        "client_ca_file",
    ),
    "another header": (
        "http_server_config: {headers: {Server: x}}",
        "unknown key 'Server' in head",
    ),
    "a wrong frame": (
        "http_server_config: {headers: {X-Frame-Options: all}}",
        "one of deny, sameo",
    ),
    "two headers in one": (
        'http_server_config: {headers: {X-XSS-Protection: "1\\r\\nServer: x"}}',
        "plain ASCII on one line",
    ),
    **{
        what: (f"basic_auth_users: {{{user}: {hashed}}}", f"{user!r} must be a name without a col")
        for what, user, hashed in (
            ("a plain password", "alice", "secret"),
            ("an empty password", "alice", ""),
            ("an MD5 hash", "alice", "$apr1$x$y"),
            ("a hash that is cut", "alice", HASH[:-1]),
            ("a hash that is a list", "alice", f"[{HASH}]"),
            ("a low cost", "alice", HASH.replace("$10$", "$03$")),
            ("a high cost", "alice", HASH.replace("$10$", "$31$")),
        )
    },
    "an unprintable user": ('basic_auth_users: {"\\x1f": []}', r"'\x1f' must be a name"),
    "a colon": (f'basic_auth_users: {{"a:b": {HASH}}}', "'a:b' must be a name without a colon"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_files(site: Path, what: str) -> None:
    content, reason = BAD[what]
    path = site / "web.yml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    said = refusal(path)
    assert reason in said
    assert "secret" not in said


@pytest.mark.parametrize("name", ["missing.yml", "folder.pem"])
def test_a_file_that_cannot_be_read(site: Path, name: str) -> None:
    assert "cannot be read: " in refusal(site / name)


@pytest.mark.parametrize(
    ("command", "what"),
    [("serve", "an unknown TLS key"), ("check", "a plain password"), ("demo", "another's key")],
)
def test_the_command_ends_with_one_line(
    site: Path, tmp_path: Path, command: str, what: str
) -> None:
    content, reason = BAD[what]
    path = site / f"{command}.yml"
    path.write_text(str(content))
    flags = () if command == "check" else ANY_PORT
    result = run(tmp_path, command, *flags, "--web.config.file", str(path))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"gpu-bottleneck-exporter: --web.config.file {path}: ")
    assert result.stderr.count("\n") == 1
    assert reason in result.stderr


def test_the_environment_names_the_file_too(tmp_path: Path) -> None:
    result = run(tmp_path, "serve", GPU_EXPORTER_WEB_CONFIG_FILE="missing.yml")
    assert result.returncode == 2
    assert "--web.config.file missing.yml: it cannot be read: No such file" in result.stderr


def test_the_demo_does_not_scrape_what_it_has_locked(tmp_path: Path) -> None:
    (tmp_path / "web.yml").touch()
    result = run(tmp_path, "demo", *ANY_PORT, "--alerts", "--web.config.file", "web.yml")
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "--alerts" in result.stderr


def test_check_says_that_the_file_is_right(site: Path, tmp_path: Path) -> None:
    path = site / "right.yml"
    path.write_text(
        tls("client_auth_type: RequireAndVerifyClientCert", "client_ca_file: ca.pem")
        + f"\nbasic_auth_users: {{alice: {HASH}}}"
    )
    result = run(tmp_path, "check", "--web.config.file", str(path))
    first = result.stdout.splitlines()[0]
    assert first == f"web config      OK: {path}: TLS with client certificates, 1 user"
    assert result.returncode == 2  # there is no driver


NOTHING = (
    *("", "# nothing", "---", "{}", "tls_server_config: {}", "tls_server_config:"),
    *("basic_auth_users: null", "http_server_config: ~", "http_server_config: {http2: true}"),
    *("http_server_config: {http2: off, headers: {X-Frame-Options: }}",),
)


@pytest.mark.parametrize("text", NOTHING)
def test_a_file_may_ask_for_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "web.yml").write_text(text)
    assert parse(tmp_path / "web.yml") == WebConfig()


def test_all_keys_at_once(site: Path) -> None:
    entries = {
        "cert_file": "server.pem",
        "key_file": "server.key",
        "client_auth_type": "RequireAndVerifyClientCert",
        "client_ca_file": str(site / "ca.pem"),
        "client_allowed_sans": ["prometheus.example"],
        "min_version": "TLS12",
        "max_version": "TLS13",
        "cipher_suites": list(CIPHER_SUITES),
        "prefer_server_cipher_suites": True,
        "curve_preferences": ["CurveP256"],
    }
    http = {"http2": True, "headers": {"X-Content-Type-Options": "nosniff"}}
    config = {
        "tls_server_config": entries,
        "http_server_config": http,
        "basic_auth_users": {"alice": HASH, "bob": HASH},
    }
    path = site / "all.yml"
    for text in (json.dumps(config), yaml.safe_dump(config)):
        path.write_text(text)
        active = WebConfigFile(path).active
        assert active.config.summary == "TLS with client certificates, 2 users"
        assert active.config.headers == {"X-Content-Type-Options": "nosniff"}


KEYS = st.sampled_from(
    [
        *("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit", "headers"),
        *("cert_file", "key_file", "cert", "key", "client_ca", "client_auth_type", "min_version"),
        *("client_allowed_sans", "cipher_suites", "curve_preferences", "http2", "alice"),
    ]
)
LEAVES = st.sampled_from(
    ["server.pem", "server.key", "ca.pem", "RequireAndVerifyClientCert", "TLS10", "X25519", HASH]
)
VALUES = st.recursive(
    LEAVES | st.text() | st.none() | st.booleans() | st.integers() | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(), inner, max_size=4)
    ),
    max_leaves=12,
)
SYNTAX = st.text(st.sampled_from("ab:-{}[]&*!|>%@`\"'\\?#,~ \n\tU0xFu9.\0\x85\ufeff"))


@settings(max_examples=150)
@given(
    content=st.binary()
    | SYNTAX.map(str.encode)
    | st.dictionaries(KEYS, VALUES).map(lambda value: yaml.safe_dump(value).encode())
)
def test_any_file_is_read_or_refused_in_one_line(site: Path, content: bytes) -> None:
    path = site / "any.yml"
    path.write_bytes(content)
    try:
        WebConfigFile(path)
    except SettingsError as error:
        assert str(error).isprintable()  # noqa: PT017 - both outcomes are right


def example() -> tuple[str, str]:
    """The files of the README's example: the exporter's and Prometheus'."""
    section = README.read_text().partition("\n## TLS and users\n")[2].partition("\n## ")[0]
    files = re.findall(r"^```yaml\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert len(files) == 2
    return files[0], files[1]


def test_the_readmes_example_works(tmp_path: Path) -> None:
    web, scrape = example()
    authority = Authority(tmp_path)
    authority.issue("server")
    (tmp_path / "web-config.yml").write_text(web)
    flags = ("--web.config.file", "web-config.yml")
    job = yaml.safe_load(scrape)[0]
    user, password = job["basic_auth"].values()
    prometheus = authority.issue("prometheus", "prometheus.example.org")
    with serving(tmp_path, "serve", *ANY_PORT, *flags) as server:
        assert server.url.startswith("https://127.0.0.1:")
        port = server.port
        context = client(authority.cert, prometheus)
        assert ask(port, context) == 401
        assert ask(port, context, headers=basic(user, password)) == 200
        assert server.terminate() == 0
        assert "Traceback" not in server.said
    named = {Path(name).name for name in job["tls_config"].values()}
    assert {"ca.pem", "prometheus.pem", "prometheus.key"} <= named
