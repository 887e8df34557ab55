"""TLS with real clients: who is let in, who is not, and what a client can hold."""

from __future__ import annotations

import logging
import os
import shutil
import ssl
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization as pem

from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.web.config import ALWAYS_ON, CIPHER_SUITES
from gpu_bottleneck_exporter.web.reload import WebConfigFile
from support.certificates import Pair, ask, client, refused
from support.daemon import drain
from support.waiting import eventually, until

from .conftest import GET, Running, Serve, Site, warned

TLS11, TLS12, TLS13 = ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
Settings = Mapping[str, object]

# --- Who is let in --------------------------------------------------------------------------------
ASKS: Settings = {"client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": "ca.pem"}
IF_GIVEN: Settings = {**ASKS, "client_auth_type": "VerifyClientCertIfGiven"}
NAMES = ("prometheus.example", "192.0.2.7", "fd00::7", "a@b.example")
NAMED: Settings = {**ASKS, "client_allowed_sans": [*NAMES]}
CLIENTS: Mapping[str, Callable[[Site], Pair | None]] = {
    "nobody": lambda _: None,
    "ours": lambda site: site.authority.issue("client", "other.example"),
    "theirs": lambda site: site.other.issue("client", "other.example"),
    "expired": lambda site: site.authority.issue("client", "other.example", expired=True),
}


REFUSED: tuple[tuple[Settings, Mapping[str, str | None]], ...] = (
    (
        ASKS,
        {
            "nobody": "ALERT_CERTIFICATE_REQUIRED",
            "ours": None,
            "theirs": "ALERT_UNKNOWN_CA",
            "expired": "ALERT_CERTIFICATE_EXPIRED",
        },
    ),
    (IF_GIVEN, {"nobody": None, "ours": None, "theirs": "ALERT_UNKNOWN_CA"}),
    (NAMED, {**dict.fromkeys(NAMES), "ours": "", "more.example": "", "192.0.2.8": ""}),
)
"""By settings and client: the alert that it gets, if any."""


@pytest.mark.parametrize("version", [TLS12, TLS13])
@pytest.mark.parametrize(("settings", "alerts"), REFUSED)
def test_only_clients_with_a_right_certificate_come_in(
    serve: Serve, site: Site, version: ssl.TLSVersion, settings: Settings, alerts: dict[str, str]
) -> None:
    """All others are told why, since TLS 1.3 in such words."""
    running = serve(web_config=site.configure(**settings))
    for who, alert in alerts.items():
        pair = CLIENTS[who](site) if who in CLIENTS else site.authority.issue("c", "x.example", who)
        context = site.client(pair, version)
        if alert is None:
            assert ask(running.port, context) == 200, who
        else:
            with pytest.raises((ssl.SSLError, ConnectionError)) as raised:
                ask(running.port, context)
            assert version == TLS12 or alert in str(raised.value), who


CBC = "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA"
NEEDS_311 = pytest.mark.skipif(sys.version_info < (3, 11), reason="needs Python 3.11")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
@pytest.mark.parametrize(
    ("settings", "offer", "comes_in"),
    [
        ({}, TLS11, False),
        ({}, TLS12, True),
        ({}, TLS13, True),
        ({"min_version": "TLS13"}, TLS12, False),
        ({"min_version": "TLS13"}, TLS13, True),
        ({"max_version": "TLS12"}, TLS12, True),
        ({"max_version": "TLS12"}, TLS13, False),
        ({"min_version": "TLS10"}, TLS11, True),
        ({"cipher_suites": [*ALWAYS_ON]}, TLS12, False),
        ({"cipher_suites": [*ALWAYS_ON, CBC]}, "ECDHE+AESGCM", False),
        ({"cipher_suites": [*ALWAYS_ON, CBC]}, CIPHER_SUITES[CBC], True),
        ({"curve_preferences": ["CurveP256"]}, "prime256v1", True),
        ({"curve_preferences": ["CurveP256"]}, "secp521r1", False),
        ({"curve_preferences": ["CurveP384"]}, "secp384r1", True),
        pytest.param({"curve_preferences": ["X25519"]}, "X25519", True, marks=NEEDS_311),
    ],
)
def test_what_a_client_may_offer(
    serve: Serve, site: Site, settings: Settings, offer: str | ssl.TLSVersion, *, comes_in: bool
) -> None:
    """One version, the suites of TLS 1.2, or one curve."""
    running = serve(web_config=site.configure(**settings))
    if isinstance(offer, ssl.TLSVersion):
        context = site.client(version=offer)
    elif "curve_preferences" in settings:
        context = site.client()
        context.set_ecdh_curve(offer)
    else:
        context = site.client(version=TLS12)
        context.set_ciphers(offer)
    assert refused(running.port, context) is not comes_in


def answers(client: ssl.SSLSocket) -> bool:
    client.sendall(GET)
    return client.recv(12) == b"HTTP/1.1 200"


def test_openssl_has_every_suite(site: Site) -> None:
    for go, openssl in CIPHER_SUITES.items():
        context = WebConfigFile(site.configure(cipher_suites=[go])).active.context
        assert context is not None
        offered = {cipher["name"] for cipher in context.get_ciphers()}
        assert offered - set(ALWAYS_ON) == {openssl}, go


def test_a_client_is_answered_over_http_1_1(serve: Serve, site: Site) -> None:
    running = serve(web_config=site.configure())
    context = site.client()
    context.set_alpn_protocols(["h2", "http/1.1"])
    wrapped = running.shake(context)
    assert (wrapped.version(), wrapped.selected_alpn_protocol()) == ("TLSv1.3", "http/1.1")
    assert answers(wrapped)


def test_certificate_and_key_can_stand_in_the_file(serve: Serve, site: Site) -> None:
    texts = {"cert": "server.pem", "key": "server.key", "client_ca": "ca.pem"}
    inline = {name: (site.folder / file).read_text() for name, file in texts.items()}
    without = dict.fromkeys(("cert_file", "key_file", "client_ca_file"), "")
    running = serve(web_config=site.configure(**{**ASKS, **without, **inline}))
    assert ask(running.port, site.client(site.authority.issue("client", "x"))) == 200
    assert refused(running.port, site.client())


@pytest.mark.parametrize("version", [TLS12, TLS13])
def test_sessions_are_not_resumed(serve: Serve, site: Site, version: ssl.TLSVersion) -> None:
    running = serve(web_config=site.configure())
    context = site.client(version=version)
    first = running.shake(context)
    assert answers(first)
    assert first.session is None or not first.session.has_ticket
    assert not running.shake(context).session_reused


# --- What a client can hold -----------------------------------------------------------------------
@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01\x02\x00", b"\x16\x03\x01\x00\x05hell"])
def test_a_client_that_never_ends_its_handshake_is_closed(
    serve: Serve, site: Site, first: bytes
) -> None:
    assert drain(serve(web_config=site.configure(), head=0.3).connect(first)) == b""


def test_a_client_that_says_nothing_after_its_handshake_is_closed(serve: Serve, site: Site) -> None:
    assert serve(web_config=site.configure(), head=2).shake(site.client()).recv(1) == b""


def test_nonsense_leaves_no_log(serve: Serve, site: Site, caplog: pytest.LogCaptureFixture) -> None:
    running = serve(web_config=site.configure(**ASKS), head=2)
    nonsense = (b"\x16\x03\x01\x00\x05hello", b"\xff" * 600, b"\r\n\r\n", GET)
    talking = [running.connect(words) for words in nonsense]
    for _ in range(3):
        running.connect(b"\x16\x03\x01").close()
    assert refused(running.port, site.client())
    assert ask(running.port, site.client(site.authority.issue("client", "x"))) == 200
    assert not any(b"HTTP" in drain(one) for one in talking)
    assert warned(caplog) == []


def test_stop_waits_neither_for_handshakes_nor_for_resting_connections(
    serve: Serve, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    running = serve(web_config=site.configure(), head=600, grace=600)
    running.connect()
    running.connect(b"\x16\x03\x01")
    assert answers(running.shake(site.client()))
    eventually(lambda: len(running.server.connections) == 3)
    running.end()
    assert warned(caplog) == []


# --- Files that change ----------------------------------------------------------------------------
def seen_certificate(running: Running) -> bytes | None:
    return running.shake(client(None)).getpeercert(binary_form=True)


def der(path: Path) -> bytes:
    first, end, _ = path.read_text().partition("-----END CERTIFICATE-----\n")
    return ssl.PEM_cert_to_DER_cert(first + end)


def test_a_certificate_that_comes_later_serves_the_next_connection(
    serve: Serve, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    running = serve(web_config=site.configure())
    kept = running.shake(site.client())
    old = seen_certificate(running)
    assert old == der(site.folder / "server.pem")
    site.configure(cert_file="later.pem", key_file="later.key")
    until(lambda: warned(caplog), "that it is not there yet")
    new = der(site.authority.issue("later").cert)
    assert new != old
    until(lambda: seen_certificate(running) == new, "the new certificate")
    assert answers(kept)


def test_a_secret_that_kubernetes_swaps_is_used(serve: Serve, site: Site, tmp_path: Path) -> None:
    site.configure()
    volume = tmp_path / "volume"
    for name in ("one", "two"):
        shutil.copytree(site.folder, volume / f"..{name}")
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
    running = serve(web_config=site.configure(**ASKS))
    ours, theirs = (site.client(a.issue("client", "x")) for a in (site.authority, site.other))
    assert ask(running.port, ours) == 200
    shutil.copy(site.other.cert, site.folder / "new.pem")
    (site.folder / "new.pem").replace(site.folder / "ca.pem")
    until(lambda: refused(running.port, ours), "the new authority")
    assert ask(running.port, theirs) == 200


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
    assert f"configuration stays in force: --web.config.file {site.file}: " in said
    assert "\n" not in said
    caplog.set_level(logging.INFO)
    site.authority.issue("server")
    site.configure(max_version="TLS12")
    until(lambda: running.shake(trusting).version() == "TLSv1.2", "the change")
    assert caplog.messages[-1] == "Reloaded the web configuration: TLS, no users."


def test_an_encrypted_key_is_refused_and_nobody_is_asked(site: Site) -> None:
    key = pem.load_pem_private_key((site.folder / "server.key").read_bytes(), None)
    secret = pem.BestAvailableEncryption(b"secret")
    formats = (pem.Encoding.PEM, pem.PrivateFormat.PKCS8, secret)
    (site.folder / "server.key").write_bytes(key.private_bytes(*formats))
    with pytest.raises(SettingsError, match="unencrypted"):
        WebConfigFile(site.configure())
