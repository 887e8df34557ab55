from __future__ import annotations

import errno
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_bottleneck_exporter.errors import ExporterError, SettingsError
from gpu_bottleneck_exporter.web.listen import bind, parse_address
from support.waiting import PATIENCE_SECONDS


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


def reachable(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), PATIENCE_SECONDS).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        (":10170", ("", 10170)),
        (":0", ("", 0)),
        (":65535", ("", 65535)),
        ("127.0.0.1:10170", ("127.0.0.1", 10170)),
        ("[::1]:10170", ("::1", 10170)),
        ("[::]:10170", ("::", 10170)),
        ("[fe80::1%eth0]:10170", ("fe80::1%eth0", 10170)),
        ("localhost:00080", ("localhost", 80)),
        ("gpu-7.example.org:10170", ("gpu-7.example.org", 10170)),
    ],
)
def test_addresses(text: str, parsed: tuple[str, int]) -> None:
    assert parse_address(text) == parsed


@pytest.mark.parametrize(
    "text",
    [
        *("", "10170", "localhost", "[::1]", ":", "localhost:", ":http", ":-1", ":+80", ": 80"),
        *(":80\n", ":8_0", ":\u0668\u0660", ":65536", ":" + "9" * 5000, "::1:10170", "[]:80"),
        *("[::1:80", "http://localhost:80", "user@localhost:80", "local host:80", "a]:80"),
    ],
)
def test_bad_addresses(text: str) -> None:
    with pytest.raises(SettingsError, match="is not of the form host:port") as raised:
        bind(text)
    assert "\n" not in str(raised.value)


@given(st.text())
def test_any_text_parses_or_raises_one_plain_line(text: str) -> None:
    try:
        host, port = parse_address(text)
    except ExporterError as error:
        assert str(error).isprintable()  # noqa: PT017 - both outcomes are right
    else:
        assert "[" not in host
        assert 0 <= port <= 65535


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", ":0", "0.0.0.0:0"])
def test_a_socket_takes_connections_at_once(address: str) -> None:
    with bind(address) as listening:
        assert reachable("127.0.0.1", listening.getsockname()[1])


def test_connections_send_at_once() -> None:
    with bind("127.0.0.1:0") as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


@needs_ipv6
@pytest.mark.parametrize(("address", "dual"), [(":0", True), ("[::]:0", True), ("[::1]:0", False)])
def test_ipv6_alone_or_both_families(address: str, *, dual: bool) -> None:
    with bind(address) as listening:
        port = listening.getsockname()[1]
        assert reachable("::1", port)
        assert reachable("127.0.0.1", port) is dual


def test_no_host_without_ipv6_means_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with bind(":0") as listening:
        assert listening.family == socket.AF_INET


@pytest.mark.parametrize("second", ["127.0.0.1:{}", ":{}", "localhost:{}", "0.0.0.0:{}"])
def test_port_in_use(second: str) -> None:
    with bind("127.0.0.1:0") as listening:
        port = listening.getsockname()[1]
        with pytest.raises(ExporterError, match="Address already in use"):
            bind(second.format(port))


@pytest.mark.parametrize(
    "host", ["no-such-host.invalid", "x" * 64 + ".invalid", "[::g]", "local\0host"]
)
def test_unknown_host(host: str) -> None:
    with pytest.raises(ExporterError, match="the host is unknown") as raised:
        bind(f"{host}:0")
    assert str(raised.value).isprintable()


def test_an_address_of_another_machine() -> None:
    with pytest.raises(ExporterError, match="Cannot assign requested address"):
        bind("198.51.100.1:0")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE])
def test_any_other_error_is_told_in_the_systems_words(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object, **__: object) -> socket.socket:
        raise OSError(number, "whatever else there is to say")

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(ExporterError, match=os.strerror(number)):
        bind(":0")
