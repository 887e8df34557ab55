from __future__ import annotations

import contextlib
import errno
import socket
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_bottleneck_exporter.errors import ExporterError
from gpu_bottleneck_exporter.web import listen
from gpu_bottleneck_exporter.web.listen import bind, parse_address
from support.daemon import free_port
from support.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@contextlib.contextmanager
def bound(address: str) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(sock) for sock in bind(address)]


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
    ("text", "reason"),
    [
        ("", "no port"),
        ("10170", "no port"),
        ("localhost", "no port"),
        ("[::1]", "no port"),
        (":", "not a number from 0 to 65535"),
        ("localhost:", "not a number from 0 to 65535"),
        (":http", "not a number from 0 to 65535"),
        (":-1", "not a number from 0 to 65535"),
        (":+80", "not a number from 0 to 65535"),
        (": 80", "not a number from 0 to 65535"),
        (":80\n", "not a number from 0 to 65535"),
        (":8_0", "not a number from 0 to 65535"),
        (":\u0668\u0660", "not a number from 0 to 65535"),
        (":65536", "not a number from 0 to 65535"),
        (":" + "9" * 5000, "not a number from 0 to 65535"),
        ("::1:10170", "must be in brackets"),
        ("[]:80", "not an IPv6 address"),
        ("[127.0.0.1]:80", "not an IPv6 address"),
        ("[::1:80", "must be in brackets"),
        ("[::g]:80", "not an IPv6 address"),
        ("http://localhost:80", "must be in brackets"),
        ("user@localhost:80", "not a name or an address"),
        ("local host:80", "not a name or an address"),
        ("local\0host:80", "not a name or an address"),
    ],
)
def test_bad_addresses(text: str, reason: str) -> None:
    with pytest.raises(ExporterError, match=reason) as raised:
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
    with bound(address) as sockets:
        ports = {sock.getsockname()[1] for sock in sockets}
        assert len(ports) == 1
        assert reachable("127.0.0.1", ports.pop())


def test_connections_send_at_once() -> None:
    with bound("127.0.0.1:0") as (listening,), socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


@needs_ipv6
def test_no_host_means_both_families() -> None:
    with bound(":0") as sockets:
        port = sockets[0].getsockname()[1]
        assert reachable("127.0.0.1", port)
        assert reachable("::1", port)


@needs_ipv6
def test_an_ipv6_address() -> None:
    with bound("[::1]:0") as sockets:
        port = sockets[0].getsockname()[1]
        assert reachable("::1", port)
        assert not reachable("127.0.0.1", port)


def without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    real = listen._open

    def open_ipv4_only(family: socket.AddressFamily, place: tuple[Any, ...]) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(family, place)

    monkeypatch.setattr(listen, "_open", open_ipv4_only)


def test_no_host_without_ipv6_means_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    without_ipv6(monkeypatch)
    with bound(":0") as sockets:
        assert [sock.family for sock in sockets] == [socket.AF_INET]


def two_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*_: object, **__: object) -> list[object]:
        ipv6 = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0))
        ipv4 = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))
        return [ipv6, ipv4, ipv4]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@needs_ipv6
def test_a_name_means_all_its_addresses_with_one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    two_addresses(monkeypatch)
    with bound("localhost:0") as sockets:
        assert [sock.family for sock in sockets] == [socket.AF_INET6, socket.AF_INET]
        assert len({sock.getsockname()[1] for sock in sockets}) == 1


def test_a_name_goes_without_the_addresses_that_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two_addresses(monkeypatch)
    without_ipv6(monkeypatch)
    with bound("localhost:0") as sockets:
        assert [sock.family for sock in sockets] == [socket.AF_INET]


@needs_ipv6
def test_a_failure_at_the_second_address_closes_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    with bound(f"127.0.0.1:{port}"):
        two_addresses(monkeypatch)
        with pytest.raises(ExporterError, match="another program"):
            bind(f"localhost:{port}")
    with bound(f"[::1]:{port}"):
        pass


@pytest.mark.parametrize("second", ["127.0.0.1:{}", ":{}", "localhost:{}", "0.0.0.0:{}"])
def test_port_in_use(second: str) -> None:
    with bound("127.0.0.1:0") as sockets:
        port = sockets[0].getsockname()[1]
        with pytest.raises(ExporterError, match="another program already listens there"):
            bind(second.format(port))


def test_a_port_is_free_again_at_once() -> None:
    port = free_port()
    with bound(f"127.0.0.1:{port}") as sockets:
        client = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
        sockets[0].accept()[0].close()  # this side closes first: TIME_WAIT is ours
        client.close()
    with bound(f"127.0.0.1:{port}"):
        pass


def test_unknown_host() -> None:
    with pytest.raises(ExporterError, match="the host is unknown"):
        bind("no-such-host.invalid:0")


def test_a_name_that_dns_cannot_hold() -> None:
    with pytest.raises(ExporterError, match="the host is unknown"):
        bind("x" * 64 + ".invalid:0")


def test_an_address_of_another_machine() -> None:
    with pytest.raises(ExporterError, match="this machine does not have that address"):
        bind("198.51.100.1:0")


def test_permission_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> socket.socket:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(listen, "_open", refuse)  # the tests may run as root
    with pytest.raises(ExporterError, match="permission denied"):
        bind("127.0.0.1:80")


def test_any_other_error_is_told_in_the_systems_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(listen, "_open", refuse)
    with pytest.raises(ExporterError, match="Too many open files"):
        bind(":0")
