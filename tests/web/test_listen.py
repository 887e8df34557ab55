from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_bottleneck_exporter.errors import ExporterError, SettingsError
from gpu_bottleneck_exporter.web.listen import bind, parse_address
from support.offenders import each
from support.waiting import PATIENCE_SECONDS

IPV4, IPV6 = "127.0.0.1", "::1"


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind((IPV6, 0))
    except OSError:
        return False
    return True


def reachable(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), PATIENCE_SECONDS).close()
    except OSError:
        return False
    return True


PARSED = {
    ":10170": ("", 10170),
    ":0": ("", 0),
    ":65535": ("", 65535),
    "127.0.0.1:10170": ("127.0.0.1", 10170),
    "[::1]:10170": ("::1", 10170),
    "[::]:10170": ("::", 10170),
    "[fe80::1%eth0]:10170": ("fe80::1%eth0", 10170),
    "localhost:00080": ("localhost", 80),
    "gpu-7.example.org:10170": ("gpu-7.example.org", 10170),
}


@each(PARSED)
def test_addresses(text: str) -> None:
    assert parse_address(text) == PARSED[text]


@given(st.text())
def test_any_text_parses_or_raises_one_plain_line(text: str) -> None:
    try:
        host, port = parse_address(text)
    except ExporterError as error:
        assert str(error).isprintable()  # noqa: PT017 - both outcomes are right
    else:
        assert "[" not in host
        assert 0 <= port <= 65535


REACHED = {
    "127.0.0.1:0": {IPV4},
    "0.0.0.0:0": {IPV4},
    ":0": {IPV4, IPV6},
    "[::]:0": {IPV4, IPV6},
    "[::1]:0": {IPV6},
}


@pytest.mark.parametrize("address", REACHED)
def test_a_socket_takes_connections_at_once(address: str) -> None:
    if address.startswith("[") and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    with bind(address) as listening:
        assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), "bodies would wait"
        port = listening.getsockname()[1]
        values = {host for host in (IPV4, IPV6) if reachable(host, port)}
    assert values == REACHED[address] - (set() if has_ipv6() else {IPV6})


def test_the_kernel_buffers_little_for_a_client_that_does_not_read() -> None:
    with bind("127.0.0.1:0") as listening, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(listening.getsockname())
        taken, _ = listening.accept()
        with taken:
            taken.settimeout(0)
            assert 64 * 1024 < taken.send(bytes(2**22)) < 300 * 1024


def test_no_host_without_ipv6_means_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with bind(":0") as listening:
        assert listening.family == socket.AF_INET


BAD = [
    *("", "10170", "localhost", "[::1]", ":", "localhost:", ":http", ":-1", ":+80", ": 80"),
    *(":80\n", ":8_0", ":\u0668\u0660", ":65536", ":" + "9" * 5000, "::1:10170", "[]:80"),
    *("[::1:80", "http://localhost:80", "user@localhost:80", "local host:80", "a]:80"),
]
UNKNOWN = ["no-such-host.invalid:0", "x" * 64 + ".invalid:0", "[::g]:0", "local\0host:0"]
REFUSED = {
    **dict.fromkeys(BAD, "is not of the form host:port"),
    **dict.fromkeys(UNKNOWN, "the host is unknown"),
    **dict.fromkeys(("127.0.0.1:{}", ":{}", "localhost:{}", "0.0.0.0:{}"), "already in use"),
    "198.51.100.1:0": "Cannot assign requested address",
}


@pytest.mark.processes
@each(REFUSED, repr)
def test_an_unusable_address_is_reported_in_one_line(address: str) -> None:
    with bind("127.0.0.1:0") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ExporterError, match=REFUSED[address]) as raised:
            bind(address.format(port))
    assert str(raised.value).isprintable()
    assert isinstance(raised.value, SettingsError) or address not in BAD


def test_of_a_name_that_has_both_it_takes_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [(socket.AF_INET6, (IPV6, 0, 0, 0)), (socket.AF_INET, (IPV4, 0))]
    values = [(family, socket.SOCK_STREAM, 6, "", place) for family, place in both]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: values)
    with bind("a-name:0") as sock:
        assert sock.family is socket.AF_INET
