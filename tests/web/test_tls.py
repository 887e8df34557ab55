"""TLS with real clients: who is let in, who is not, and what a client can hold."""

from __future__ import annotations

import http.client
import json
import logging
import os
import shutil
import ssl
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.web.config import ALWAYS_ON, CIPHER_SUITES
from gpu_bottleneck_exporter.web.reload import WebConfigFile
from support.certificates import Authority, Pair, ask, client, refused
from support.daemon import drain
from support.waiting import PATIENCE_SECONDS, eventually, until

if TYPE_CHECKING:
    from .conftest import Page, Running, Serve


GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
TLS11, TLS12, TLS13 = ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


@dataclass(frozen=True)
class Site:
    """Files of a server in a folder, and the authorities that know it and its clients."""

    folder: Path
    authority: Authority
    other: Authority

    @property
    def file(self) -> Path:
        return self.folder / "web.yml"

    def configure(self, **more: object) -> Path:
        """Write the file, with relative names; JSON is YAML."""
        tls = {"cert_file": "server.pem", "key_file": "server.key", **more}
        self.file.write_text(json.dumps({"tls_server_config": tls}))
        return self.file

    def ask_clients(self, kind: str = "RequireAndVerifyClientCert", **more: object) -> Path:
        return self.configure(client_auth_type=kind, client_ca_file="ca.pem", **more)

    def client(self, pair: Pair | None = None) -> ssl.SSLContext:
        return client(self.authority.cert, pair)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    authority = Authority(tmp_path / "site")
    authority.issue("server")
    return Site(authority.folder, authority, Authority(tmp_path / "other"))


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def shaken(running: Running, context: ssl.SSLContext) -> ssl.SSLSocket:
    """A connection after its handshake; the fixture closes it."""
    wrapped = context.wrap_socket(running.connect(), server_hostname="localhost")
    running.clients.append(wrapped)
    return wrapped


def test_a_client_is_answered_over_http_1_1(serve: Serve, site: Site, page: Page) -> None:
    running = serve(web_config=site.configure())
    context = site.client()
    context.set_alpn_protocols(["h2", "http/1.1"])
    wrapped = shaken(running, context)
    assert (wrapped.version(), wrapped.selected_alpn_protocol()) == ("TLSv1.3", "http/1.1")
    wrapped.sendall(GET)
    assert wrapped.recv(12) == b"HTTP/1.1 200"
    assert ask(running.port, context, "/-/healthy") == 200
    assert len(page.accepted) == 1


@pytest.mark.parametrize("version", [TLS12, TLS13])
def test_only_clients_with_a_right_certificate_come_in(
    serve: Serve, site: Site, page: Page, version: ssl.TLSVersion
) -> None:
    running = serve(web_config=site.ask_clients())
    pairs: Mapping[str, Pair | None] = {
        "none": None,
        "other authority": site.other.issue("client", "prometheus"),
        "expired": site.authority.issue("expired", "prometheus", expired=True),
    }
    contexts = {
        what: client(site.authority.cert, pair, (version, version)) for what, pair in pairs.items()
    }
    let_in = [what for what, context in contexts.items() if not refused(running.port, context)]
    assert let_in == []
    assert page.accepted == []
    right = site.authority.issue("client", "prometheus")
    assert ask(running.port, client(site.authority.cert, right, (version, version))) == 200


def test_a_certificate_that_is_not_asked_for_is_verified_if_given(serve: Serve, site: Site) -> None:
    running = serve(web_config=site.ask_clients("VerifyClientCertIfGiven"))
    assert ask(running.port, site.client()) == 200
    assert ask(running.port, site.client(site.authority.issue("client", "x"))) == 200
    assert refused(running.port, site.client(site.other.issue("client", "x")))


@pytest.mark.parametrize("identity", ["prometheus.example", "192.0.2.7", "fd00::7", "a@b.example"])
def test_the_names_that_may_come(serve: Serve, site: Site, page: Page, identity: str) -> None:
    running = serve(web_config=site.ask_clients(client_allowed_sans=["x", identity]))
    pairs = [site.authority.issue("two", "other.example", identity)]
    assert [ask(running.port, site.client(pair)) for pair in pairs] == [200]
    stranger = site.authority.issue("stranger", "other.example", "192.0.2.8", "more.example")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask(running.port, site.client(stranger))
    assert len(page.accepted) == 1


def versions_of(site: Site, version: ssl.TLSVersion) -> ssl.SSLContext:
    return client(site.authority.cert, versions=(version, version))


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
@pytest.mark.parametrize(
    ("bounds", "let_in"),
    [
        ({}, [TLS12, TLS13]),
        ({"min_version": "TLS13"}, [TLS13]),
        ({"max_version": "TLS12"}, [TLS12]),
        ({"min_version": "TLS10"}, [TLS11, TLS12, TLS13]),
    ],
)
def test_the_versions_that_are_let_in(
    serve: Serve, site: Site, bounds: dict[str, object], let_in: list[ssl.TLSVersion]
) -> None:
    running = serve(web_config=site.configure(**bounds))
    versions = (TLS11, TLS12, TLS13)
    assert [v for v in versions if not refused(running.port, versions_of(site, v))] == let_in


def test_only_the_named_suites_are_offered(serve: Serve, site: Site) -> None:
    suite = "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA"
    running = serve(web_config=site.configure(cipher_suites=[*ALWAYS_ON, suite]))
    context = versions_of(site, TLS12)
    context.set_ciphers("ECDHE+AESGCM")
    assert refused(running.port, context)
    context.set_ciphers("ALL")
    cipher = shaken(running, context).cipher()
    assert cipher is not None
    assert cipher[0] == CIPHER_SUITES[suite]


def test_a_refused_client_is_told_why(serve: Serve, site: Site) -> None:
    running = serve(web_config=site.ask_clients())
    with pytest.raises(ssl.SSLError, match="ALERT_CERTIFICATE_REQUIRED"):
        ask(running.port, site.client())
    with pytest.raises(ssl.SSLError, match="ALERT_UNKNOWN_CA"):
        ask(running.port, site.client(site.other.issue("client", "x")))
    with pytest.raises(ssl.SSLError, match="ALERT_CERTIFICATE_EXPIRED"):
        ask(running.port, site.client(site.authority.issue("client", "x", expired=True)))
    with pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"):
        ask(running.port, versions_of(site, TLS11))


@pytest.mark.parametrize("suite", CIPHER_SUITES)
def test_openssl_has_every_suite(site: Site, suite: str) -> None:
    active = WebConfigFile(site.configure(cipher_suites=[suite])).active
    assert active.context is not None
    offered = {cipher["name"] for cipher in active.context.get_ciphers()}
    assert CIPHER_SUITES[suite] in offered
    assert len(offered - set(ALWAYS_ON)) == 1


NEEDS_311 = pytest.mark.skipif(sys.version_info < (3, 11), reason="needs Python 3.11")


@pytest.mark.parametrize(
    ("curve", "openssl"),
    [
        ("CurveP256", "prime256v1"),
        ("CurveP384", "secp384r1"),
        pytest.param("X25519", "X25519", marks=NEEDS_311),
    ],
)
def test_the_curve_that_is_used(serve: Serve, site: Site, curve: str, openssl: str) -> None:
    running = serve(web_config=site.configure(curve_preferences=[curve]))
    other, same = site.client(), site.client()
    other.set_ecdh_curve("secp521r1")
    same.set_ecdh_curve(openssl)
    assert refused(running.port, other)
    assert ask(running.port, same) == 200


def test_certificate_and_key_can_stand_in_the_file(serve: Serve, site: Site) -> None:
    folder = site.folder
    tls = {
        "cert": (folder / "server.pem").read_text(),
        "key": (folder / "server.key").read_text(),
        "client_ca": site.authority.cert.read_text(),
        "client_auth_type": "RequireAndVerifyClientCert",
    }
    site.file.write_text(json.dumps({"tls_server_config": tls}))
    running = serve(web_config=site.file)
    assert ask(running.port, site.client(site.authority.issue("client", "x"))) == 200
    assert refused(running.port, site.client())


@pytest.mark.parametrize("version", [TLS12, TLS13])
def test_sessions_are_not_resumed(serve: Serve, site: Site, version: ssl.TLSVersion) -> None:
    running = serve(web_config=site.configure())
    context = versions_of(site, version)
    first = shaken(running, context)
    first.sendall(GET)
    assert first.recv(12) == b"HTTP/1.1 200"
    assert first.session is None or not first.session.has_ticket
    assert not shaken(running, context).session_reused


@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01\x02\x00", b"\x16\x03\x01\x00\x05hell"])
def test_a_client_that_never_ends_its_handshake_is_closed(
    serve: Serve, site: Site, first: bytes
) -> None:
    assert drain(serve(web_config=site.configure(), head=0.3).connect(first)) == b""


def test_a_client_that_says_nothing_after_its_handshake_is_closed(serve: Serve, site: Site) -> None:
    running = serve(web_config=site.configure(), head=2)
    assert shaken(running, site.client()).recv(1) == b""


def test_a_client_that_does_not_read_is_closed(serve: Serve, site: Site, page: Page) -> None:
    page.body = b"x" * 50_000_000
    running = serve(web_config=site.configure(), response=0.5)
    shaken(running, site.client()).sendall(GET)
    eventually(lambda: len(page.accepted) == 1)
    eventually(lambda: len(running.server.connections) == 0)


@pytest.mark.parametrize("headers", [{}, {"Connection": "close"}])
def test_a_big_body_arrives(serve: Serve, site: Site, page: Page, headers: dict[str, str]) -> None:
    page.body = bytes(range(256)) * 40_000
    running = serve(web_config=site.configure())
    connection = http.client.HTTPSConnection(
        "localhost", running.port, context=site.client(), timeout=PATIENCE_SECONDS
    )
    for _ in range(2):
        connection.request("GET", "/metrics", headers=headers)
        assert connection.getresponse().read() == page.body
    connection.close()


def test_nonsense_leaves_no_log(serve: Serve, site: Site, caplog: pytest.LogCaptureFixture) -> None:
    running = serve(web_config=site.ask_clients(), head=2)
    nonsense = (b"\x16\x03\x01\x00\x05hello", b"\xff" * 600, b"\r\n\r\n", GET)
    talking = [running.connect(words) for words in nonsense]
    for _ in range(3):
        running.connect(b"\x16\x03\x01").close()
    assert refused(running.port, site.client())
    assert ask(running.port, site.client(site.authority.issue("client", "x"))) == 200
    assert not any(b"HTTP" in drain(one) for one in talking)
    assert warned(caplog) == []


def test_stop_does_not_wait_for_handshakes(
    serve: Serve, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    running = serve(web_config=site.configure(), head=600, grace=600)
    running.connect()
    running.connect(b"\x16\x03\x01")
    eventually(lambda: len(running.server.connections) == 2)
    running.end()
    assert warned(caplog) == []


def test_stop_ends_resting_connections(serve: Serve, site: Site) -> None:
    running = serve(web_config=site.configure(), grace=600)
    resting = shaken(running, site.client())
    resting.sendall(GET)
    assert resting.recv(12) == b"HTTP/1.1 200"
    running.end()


def seen_certificate(running: Running) -> bytes | None:
    return shaken(running, client(None)).getpeercert(binary_form=True)


def der(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(
        path.read_text().split("-----END")[0] + "-----END CERTIFICATE-----\n"
    )


def test_a_renewed_certificate_serves_the_next_connection(serve: Serve, site: Site) -> None:
    running = serve(web_config=site.configure())
    kept = shaken(running, site.client())
    old = seen_certificate(running)
    assert old == der(site.folder / "server.pem")
    site.authority.issue("server")
    new = der(site.folder / "server.pem")
    assert new != old
    until(lambda: seen_certificate(running) == new, "the new certificate")
    kept.sendall(GET)
    assert kept.recv(12) == b"HTTP/1.1 200"


def test_a_secret_that_kubernetes_swaps_is_used(serve: Serve, site: Site, tmp_path: Path) -> None:
    site.configure()
    volume = tmp_path / "volume"
    for name in ("one", "two"):
        shutil.copytree(site.folder, volume / f"..{name}")
        if name == "one":
            site.authority.issue("server")
    (volume / "..data").symlink_to("..one")
    for name in ("web.yml", "server.pem", "server.key"):
        (volume / name).symlink_to(f"..data/{name}")
    running = serve(web_config=volume / "web.yml")
    assert seen_certificate(running) == der(volume / "..one" / "server.pem")
    (volume / "..data_tmp").symlink_to("..two")
    os.replace(volume / "..data_tmp", volume / "..data")  # noqa: PTH105 - as the kubelet does
    shutil.rmtree(volume / "..one")
    new = der(volume / "..two" / "server.pem")
    until(lambda: seen_certificate(running) == new, "the new certificate")


def test_an_authority_that_is_taken_out_is_no_longer_trusted(serve: Serve, site: Site) -> None:
    running = serve(web_config=site.ask_clients())
    ours, theirs = (a.issue("client", "x") for a in (site.authority, site.other))
    assert ask(running.port, site.client(ours)) == 200
    shutil.copy(site.other.cert, site.folder / "new.pem")
    trusted = client(site.authority.cert, ours), client(site.authority.cert, theirs)
    (site.folder / "new.pem").replace(site.folder / "ca.pem")
    until(lambda: refused(running.port, trusted[0]), "the new authority")
    assert ask(running.port, trusted[1]) == 200


BREAKS: Mapping[str, Callable[[Site], object]] = {
    "no YAML": lambda site: site.file.write_text("{"),
    "gone": lambda site: site.file.unlink(),
    "unknown key": lambda site: site.configure(certfile="x"),
    "no TLS": lambda site: site.file.write_text(""),
    "no such certificate": lambda site: site.configure(cert_file="missing.pem"),
    "another key": lambda site: site.other.issue("server").key.replace(site.folder / "server.key"),
    "empty certificate": lambda site: (site.folder / "server.pem").write_text(""),
}


@pytest.mark.parametrize("what", BREAKS)
def test_a_broken_change_leaves_the_last_good_one_in_force(
    serve: Serve, site: Site, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    running = serve(web_config=site.configure())
    trusting = site.client()
    BREAKS[what](site)
    until(lambda: warned(caplog), "the reason")
    assert [ask(running.port, trusting) for _ in range(3)] == [200] * 3
    (said,) = warned(caplog)
    assert said.startswith(
        f"The last good web configuration stays in force: --web.config.file {site.file}: "
    )
    assert "\n" not in said

    caplog.set_level(logging.INFO)
    site.authority.issue("server")
    site.configure(max_version="TLS12")
    until(lambda: shaken(running, trusting).version() == "TLSv1.2", "the change")
    assert caplog.messages[-1] == "Reloaded the web configuration: TLS, no users."


def test_a_certificate_that_comes_after_the_file_that_names_it_is_used(
    serve: Serve, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    running = serve(web_config=site.configure())
    site.configure(cert_file="later.pem", key_file="later.key")
    until(lambda: warned(caplog), "the reason")
    pair = site.authority.issue("later")
    until(lambda: seen_certificate(running) == der(pair.cert), "the new certificate")


def test_an_encrypted_key_is_refused_and_nobody_is_asked(site: Site) -> None:
    from cryptography.hazmat.primitives import serialization as pem  # noqa: PLC0415

    key = pem.load_pem_private_key((site.folder / "server.key").read_bytes(), None)
    secret = pem.BestAvailableEncryption(b"secret")
    formats = (pem.Encoding.PEM, pem.PrivateFormat.PKCS8, secret)
    (site.folder / "server.key").write_bytes(key.private_bytes(*formats))
    with pytest.raises(SettingsError, match="unencrypted"):
        WebConfigFile(site.configure())
