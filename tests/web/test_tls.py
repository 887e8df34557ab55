"""TLS with real clients: who is let in, who is not, and what a client can hold."""

from __future__ import annotations

import logging
import os
import shutil
import ssl
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization as pem

from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.web.config import CIPHER_SUITES, TLS13_SUITES
from gpu_bottleneck_exporter.web.reload import WebConfigFile
from support.certificates import Authority, Pair, ask, client, refused
from support.daemon import drain
from support.logged import logged
from support.rows import rows
from support.waiting import until

from .conftest import GET, Log, Page, Running, Serve, Site, warned

TLS11, TLS12, TLS13 = ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
Settings = Mapping[str, object]

# --- Who is let in --------------------------------------------------------------------------------
ASKS: Settings = {"client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": "ca.pem"}
IF_GIVEN: Settings = {**ASKS, "client_auth_type": "VerifyClientCertIfGiven"}
NAMES = ("prometheus.example", "192.0.2.7", "fd00::7", "a@b.example")
OTHER_NAMES = ("ours", "more.example", "192.0.2.8")
NAMED: Settings = {**ASKS, "client_allowed_sans": [*NAMES]}
CLIENTS: Mapping[str, Callable[[Site], Pair | None]] = {
    "no certificate": lambda _: None,
    "ours": lambda site: site.authority.issue("client", "other.example"),
    "theirs": lambda site: site.other.issue("client", "other.example"),
    "expired": lambda site: site.authority.issue("client", "other.example", expired=True),
}


THEIRS = {"theirs": "ALERT_UNKNOWN_CA"}
EXPIRED = {"no certificate": "ALERT_CERTIFICATE_REQUIRED", "expired": "ALERT_CERTIFICATE_EXPIRED"}


@pytest.mark.parametrize("version", [TLS12, TLS13])
@rows(
    "settings, alerts",
    {
        "of our authority": (ASKS, {"ours": None, **THEIRS, **EXPIRED}),
        "if given": (IF_GIVEN, {"no certificate": None, "ours": None, **THEIRS}),
        "named": (NAMED, {**dict.fromkeys(NAMES), **dict.fromkeys(OTHER_NAMES, "")}),
    },
)
def test_only_clients_with_a_right_certificate_come_in(  # noqa: PLR0913, PLR0917 - columns of a table
    serve: Serve,
    site: Site,
    page: Page,
    version: ssl.TLSVersion,
    settings: Settings,
    alerts: Mapping[str, str | None],
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
    assert len(page.accepted) == [*alerts.values()].count(None)


def test_an_authority_in_between_is_trusted_by_itself(serve: Serve, site: Site) -> None:
    between = Authority(site.folder / "between", site.authority.ca.create_child_ca())
    running = serve(web_config=site.configure(**{**ASKS, "client_ca_file": "between/ca.pem"}))
    assert ask(running.port, site.client(between.issue("client"))) == 200
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask(running.port, site.client(site.authority.issue("client")))


CBC = "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA"
NEEDS_311 = pytest.mark.skipif(sys.version_info < (3, 11), reason="needs Python 3.11")


Offers = Sequence[str | ssl.TLSVersion]
"""A version, suites of TLS 1.2, or a curve."""


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
@pytest.mark.parametrize(
    ("settings", "taken", "not_taken"),
    [
        ({}, [TLS12, TLS13], [TLS11]),
        ({"min_version": "TLS13"}, [TLS13], [TLS12]),
        ({"max_version": "TLS12"}, [TLS12], [TLS13]),
        ({"min_version": "TLS10"}, [TLS11], []),
        ({"cipher_suites": [*TLS13_SUITES]}, [], [TLS12]),
        ({"cipher_suites": [*TLS13_SUITES, CBC]}, [CIPHER_SUITES[CBC]], ["ECDHE+AESGCM"]),
        ({"curve_preferences": ["CurveP256"]}, ["prime256v1"], ["secp521r1"]),
        ({"curve_preferences": ["CurveP384"]}, ["secp384r1"], []),
        pytest.param({"curve_preferences": ["X25519"]}, ["X25519"], [], marks=NEEDS_311),
    ],
)
def test_accepted_and_refused_offers_of_a_client(
    serve: Serve, site: Site, settings: Settings, taken: Offers, not_taken: Offers
) -> None:
    port = serve(web_config=site.configure(**settings)).port
    offered = {offer: offering(site, settings, offer) for offer in (*taken, *not_taken)}
    values = [offer for offer, context in offered.items() if not refused(port, context)]
    assert values == [*taken]


def offering(site: Site, settings: Settings, offer: str | ssl.TLSVersion) -> ssl.SSLContext:
    if isinstance(offer, ssl.TLSVersion):
        return site.client(version=offer)
    if "curve_preferences" in settings:
        context = site.client()
        context.set_ecdh_curve(offer)
    else:
        context = site.client(version=TLS12)
        context.set_ciphers(offer)
    return context


def answers(client: ssl.SSLSocket) -> bool:
    client.sendall(GET)
    return client.recv(12) == b"HTTP/1.1 200"


def test_openssl_has_every_suite(site: Site) -> None:
    for go, openssl in CIPHER_SUITES.items():
        context = WebConfigFile(site.configure(cipher_suites=[go])).active.context
        assert context is not None
        offered = {cipher["name"] for cipher in context.get_ciphers()}
        assert offered - set(TLS13_SUITES) == {openssl}, go


def test_a_client_is_answered_over_http_1_1(serve: Serve, site: Site) -> None:
    running = serve(web_config=site.configure())
    context = site.client()
    context.set_alpn_protocols(["h2", "http/1.1"])
    wrapped = running.shake(context)
    assert (wrapped.version(), wrapped.selected_alpn_protocol()) == ("TLSv1.3", "http/1.1")
    assert answers(wrapped)


def test_a_client_can_distinguish_the_end_from_a_cut(serve: Serve, site: Site) -> None:
    raw, context = serve(web_config=site.configure()).connect(), site.client()
    with context.wrap_socket(
        raw, server_hostname="localhost", suppress_ragged_eofs=False
    ) as client:
        client.sendall(GET[:-2] + b"Connection: close\r\n\r\n")
        assert drain(client).endswith(b"up 1\n")


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
def test_a_client_with_an_endless_handshake_is_closed(
    serve: Serve, site: Site, first: bytes
) -> None:
    assert drain(serve(web_config=site.configure(), request_timeout=0.3).connect(first)) == b""


def test_a_client_that_is_silent_after_its_handshake_is_closed(serve: Serve, site: Site) -> None:
    assert serve(web_config=site.configure(), request_timeout=2).shake(site.client()).recv(1) == b""


def test_nonsense_leaves_no_log(serve: Serve, site: Site, caplog: Log) -> None:
    running = serve(web_config=site.configure(**ASKS), request_timeout=2)
    nonsense = (b"\x16\x03\x01\x00\x05hello", b"\xff" * 600, b"\r\n\r\n", GET)
    talking = [running.connect(words) for words in nonsense]
    for _ in range(3):
        running.connect(b"\x16\x03\x01").close()
    assert refused(running.port, site.client())
    assert ask(running.port, site.client(site.authority.issue("client", "x"))) == 200
    assert not any(b"HTTP" in drain(item) for item in talking)
    assert warned(caplog) == []


# --- Files that change ----------------------------------------------------------------------------
def seen_certificate(running: Running) -> bytes | None:
    return running.shake(client(None)).getpeercert(binary_form=True)


def der(path: Path) -> bytes:
    first, end, _ = path.read_text().partition("-----END CERTIFICATE-----\n")
    return ssl.PEM_cert_to_DER_cert(first + end)


def test_a_certificate_may_come_later(serve: Serve, site: Site, caplog: Log) -> None:
    running = serve(web_config=site.configure())
    result = running.shake(site.client())
    old = seen_certificate(running)
    assert old == der(site.folder / "server.pem")
    site.configure(cert_file="later.pem", key_file="later.key")
    until(lambda: warned(caplog), "that it is not there yet")
    new = der(site.authority.issue("later").cert)
    assert new != old
    until(lambda: seen_certificate(running) == new, "the new certificate")
    assert answers(result)


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
def test_a_broken_change_is_not_in_force(serve: Serve, site: Site, caplog: Log, what: str) -> None:
    running = serve(web_config=site.configure())
    trusting = site.client()
    BREAKS[what](site)
    until(lambda: warned(caplog), "the reason")
    assert [ask(running.port, trusting) for _ in range(3)] == [200] * 3
    (result,) = warned(caplog)
    assert f"configuration stays in force err=--web.config.file {site.file}: " in result
    assert "\n" not in result
    caplog.set_level(logging.INFO)
    site.authority.issue("server")
    site.configure(max_version="TLS12")
    until(lambda: running.shake(trusting).version() == "TLSv1.2", "the change")
    assert logged(caplog)[-1] == "reloaded the web configuration now=TLS, no users"


def test_an_encrypted_key_is_refused_without_a_prompt(site: Site) -> None:
    key = pem.load_pem_private_key((site.folder / "server.key").read_bytes(), None)
    secret = pem.BestAvailableEncryption(b"secret")
    formats = (pem.Encoding.PEM, pem.PrivateFormat.PKCS8, secret)
    (site.folder / "server.key").write_bytes(key.private_bytes(*formats))
    with pytest.raises(SettingsError, match="unencrypted"):
        WebConfigFile(site.configure())
