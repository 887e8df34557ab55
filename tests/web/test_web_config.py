"""The web configuration file: what it may say, and one plain line for all else."""

from __future__ import annotations

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
from support.logins import basic
from support.rows import rows

from .conftest import PAIR

HASH = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"
OPERATIONS = Path(__file__).parents[2] / "exporter/OPERATIONS.md"


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
    pair = (f"{key}: {name}" for key, name in PAIR.items())
    return f"tls_server_config: {{{', '.join((*pair, *entries))}}}"


ASKS = "client_auth_type: RequireAndVerifyClientCert"
UNKNOWN_KEY, PLAIN_PASSWORD = tls("certfile: x"), "basic_auth_users: {alice: secret}"
OTHERS_KEY = "tls_server_config: {cert_file: server.pem, key_file: other.key}"
HTTP = "http_server_config: {%s}"
TLS = "tls_server_config: {%s}"
BAD: Mapping[str | bytes, str] = {
    "- a": "the file must be a mapping",
    "a: b: c": "line 1: mapping values are not allowed here",
    "tls_server_config: {": "line 1: ",
    "{}\n---\n{}": "line 2: ",
    "a: *b": "alias",
    TLS.replace("{", "&a {") % "cert: *a": "line 1: found unconstructable recursive node",
    "{a: " * 5_000: "no YAML: maximum recursion depth exceeded",
    b"a: \xe4": "no YAML: unacceptable character #x00e4",
    r'a: "\UFFFFFFFF"': "no YAML: ",
    "? [a]\n: b": "line 1: found unhashable key",
    "#" * 300_000: "larger than 256 KiB",
    "basic_auth_users: {}\nbasic_auth_users: {}": "'basic_auth_users' occurs twice",
    f"basic_auth_users: {{b: {HASH}, a: {HASH}, a: {HASH}}}": "'a' occurs twice",
    f"{'x' * 900}: 1": "unknown key 'xxx",
    "rate_limit: {interval: 1s, burst: 2}": "unknown key 'rate_limit' in the file",
    UNKNOWN_KEY: "unknown key 'certfile' in tls_server_config",
    HTTP % "http3: true": "unknown key 'http3' in http_server_config",
    HTTP % "headers: {Server: x}": "unknown key 'Server' in headers",
    "tls_server_config: [a]": "tls_server_config must be a mapping",
    "basic_auth_users: alice": "basic_auth_users must be a mapping",
    TLS % "key_file: server.key": "cert_file (or cert) is missing",
    TLS % "cert_file: ": "cert_file (or cert) is missing",
    TLS % "cert_file: server.pem": "key_file (or key) is missing",
    TLS % "cert_file: [a]": "cert_file must be a string",
    tls("cert: abc"): "give cert or cert_file, not both",
    tls("client_auth_type: RequestClientCert"): "client_auth_type must be one of NoClientCert",
    tls(ASKS): "client_auth_type needs client_ca_file",
    tls("client_ca_file: ca.pem"): "client_ca_file needs client_auth_type",
    tls("client_allowed_sans: [a]"): "client_allowed_sans needs client_auth_type",
    tls(ASKS, "client_ca_file: ca.pem", "client_allowed_sans: []"): "client_allowed_sans is empty",
    tls("cipher_suites: a"): "cipher_suites must be a list of strings",
    tls("cipher_suites: [[a]]"): "cipher_suites must be a list of strings",
    tls("cipher_suites: [RC4]"): "not 'RC4'",
    tls("min_version: TLS 1.2"): "must be one of TLS10, TLS11, TLS12, TLS13",
    tls("min_version: TLS13", "max_version: TLS12"): "min_version is above max_version",
    tls("curve_preferences: [secp256k1]"): "must be one of CurveP256",
    tls("curve_preferences: [X25519, CurveP256]"): "only one curve",
    tls("prefer_server_cipher_suites: maybe"): "must be true or false, not 'maybe'",
    HTTP % "http2: 2": "http2 must be true or false, not '2'",
    HTTP % "headers: {X-Frame-Options: all}": "X-Frame-Options must be one of deny, sameorigin",
    HTTP % 'headers: {X-XSS-Protection: "1\\r\\nA: x"}': "must be plain ASCII on one line",
    TLS % "cert_file: no.pem, key_file: server.key": "no.pem' cannot be read: No such file",
    TLS % "cert_file: folder.pem, key_file: server.key": "cannot be read: Is a directory",
    TLS % r'cert_file: "a\0", key_file: server.key': "cannot be read: embedded null byte",
    TLS % r'cert_file: "a\ud800", key_file: server.key': "surrogates not allowed",
    TLS % r'cert: "a\ud800", key_file: server.key': "must contain a certificate",
    TLS % "cert_file: empty.pem, key_file: server.key": "a certificate and its unencrypted key",
    OTHERS_KEY: "key_file does not belong to cert_file",
    tls(ASKS, "client_ca_file: empty.pem"): "client_ca_file contains no PEM certificate",
    tls(ASKS, "client_ca_file: no.pem"): "no.pem' cannot be read: No such file",
    PLAIN_PASSWORD: "'alice' must be a name without a colon",
    "basic_auth_users: {alice: }": "its value a bcrypt hash of cost 4 to 18",
    "basic_auth_users: {alice: $apr1$x$y}": "its value a bcrypt hash",
    f"basic_auth_users: {{alice: [{HASH}]}}": "its value a bcrypt hash",
    f"basic_auth_users: {{alice: {HASH.replace('$10$', '$03$')}}}": "its value a bcrypt hash",
    f"basic_auth_users: {{alice: {HASH.replace('$10$', '$31$')}}}": "its value a bcrypt hash",
    'basic_auth_users: {"\\x1f": []}': r"'\x1f' must be a name",
    f'basic_auth_users: {{"a:b": {HASH}}}': "'a:b' must be a name without a colon",
}


@pytest.mark.parametrize(("content", "reason"), BAD.items(), ids=range(len(BAD)))
def test_bad_files(site: Path, content: str | bytes, reason: str) -> None:
    path = site / "web.yml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SettingsError) as raised:
        WebConfigFile(path)
    result = str(raised.value)
    assert raised.value.status == 2
    assert result.startswith(f"--web.config.file {path}: ")
    assert reason in result
    assert result.isprintable()
    assert len(result) < 1000
    assert "secret" not in result


FILE = ("--web.config.file", "web.yml")


@rows(
    "words, content, said",
    {
        "serve": (("serve", *ANY_PORT, *FILE), UNKNOWN_KEY, BAD[UNKNOWN_KEY]),
        "check": (("check", *FILE), PLAIN_PASSWORD, BAD[PLAIN_PASSWORD]),
        "demo": (("demo", *ANY_PORT, *FILE), OTHERS_KEY, BAD[OTHERS_KEY]),
        "demo that scrapes itself": (("demo", *ANY_PORT, *FILE, "--alerts"), "", "--alerts"),
    },
)
def test_the_command_ends_with_one_line(
    site: Path, words: tuple[str, ...], content: str, said: str
) -> None:
    (site / "web.yml").write_text(content)
    result = run(site, *words)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith("gpu-bottleneck-exporter: --")
    assert content == "" or " --web.config.file web.yml: " in result.stderr
    assert said in result.stderr


NOTHING = (
    *("", "# nothing", "---", "{}", "tls_server_config: {}", "tls_server_config:"),
    *("basic_auth_users: null", "http_server_config: ~", "http_server_config: {http2: true}"),
    *("http_server_config: {http2: off, headers: {X-Frame-Options: }}",),
)


def test_a_file_may_ask_for_nothing(tmp_path: Path) -> None:
    for text in NOTHING:
        (tmp_path / "web.yml").write_text(text)
        assert parse(tmp_path / "web.yml") == WebConfig(), text


def test_all_keys_at_once(site: Path) -> None:
    entries = [ASKS, "client_ca_file: ca.pem", "client_allowed_sans: [prometheus.example]"]
    entries += ["min_version: TLS12", "max_version: TLS13", "curve_preferences: [CurveP256]"]
    entries += [f"cipher_suites: [{', '.join(CIPHER_SUITES)}]", "prefer_server_cipher_suites: true"]
    http = HTTP % "http2: true, headers: {X-Content-Type-Options: nosniff}"
    users = f"basic_auth_users: {{alice: {HASH}, bob: {HASH}}}"
    path = site / "all.yml"
    path.write_text("\n".join((tls(*entries), http, users)))
    active = WebConfigFile(path).active
    assert active.summary == "TLS with client certificates, 2 users"
    assert active.headers == {"X-Content-Type-Options": "nosniff"}
    assert HASH not in f"{active}"


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
    """The files of the documented example: the exporter's and Prometheus'."""
    section = OPERATIONS.read_text().partition("\n## TLS and users\n")[2].partition("\n## ")[0]
    files = re.findall(r"^```yaml\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert len(files) == 2
    return files[0], files[1]


def test_the_documented_example_works(tmp_path: Path) -> None:
    web, scrape = example()
    authority = Authority(tmp_path)
    authority.issue("server")
    (tmp_path / "web.yml").write_text(web)
    job = yaml.safe_load(scrape)[0]
    user, password = job["basic_auth"].values()
    prometheus = authority.issue("prometheus", "prometheus.example.org")
    with serving(tmp_path, "serve", *ANY_PORT, *FILE) as server:
        assert server.url.startswith("https://127.0.0.1:")
        port = server.port
        context = client(authority.cert, prometheus)
        assert ask(port, context) == 401
        assert ask(port, context, headers=basic(user, password)) == 200
        assert server.terminate() == 0
        assert "Traceback" not in server.said
    values = {Path(name).name for name in job["tls_config"].values()}
    assert {"ca.pem", "prometheus.pem", "prometheus.key"} <= values
