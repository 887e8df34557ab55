"""The TCP sockets of real processes, borrowed and given back."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.host.sockets import (
    MOST_SOCKETS,
    Connection,
    Endpoint,
    Sockets,
    TcpState,
    same_pids,
)
from support.programs import Program, descriptors, program
from support.rights import as_nobody, with_a_network_of_its_own
from support.waiting import PATIENCE_SECONDS, until

PROC = Path("/proc")
CONNECTED = """
server = socket.create_server(("127.0.0.1", 0))
c = connect(server.getsockname()[1])
a, _ = server.accept()
"""
LOOPBACK_UP = """
import fcntl
with socket.socket() as s:
    fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", 0x41))  # SIOCSIFFLAGS: up, running
"""
LOOK = """
import sys
from pathlib import Path
from gpu_bottleneck_exporter.host.sockets import Sockets
try:
    print(len(Sockets(Path("/proc"), int(sys.argv[1])).all()))
except OSError:
    print("refused")
"""
Look = Callable[[Program], Sockets]


@pytest.fixture
def look() -> Iterator[Look]:
    before = descriptors()
    yield lambda one: Sockets(PROC, one.pid)
    assert descriptors() <= before, "all descriptors are given back"


def by_number(sockets: Sockets) -> dict[int, Connection]:
    return {one.fd: one for one in sockets.all()}


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def test_a_connection_has_two_ends_and_is_named_by_its_cookie(look: Look) -> None:
    code = "cookie = c.getsockopt(socket.SOL_SOCKET, 57, 8)\n"
    code += "ready(*map(socket.socket.fileno, (server, c, a)), struct.unpack('=Q', cookie)[0])\n"
    with program(CONNECTED + code + "told()") as one:
        sockets = look(one)
        found = by_number(sockets)
        server, client, accepted, cookie = map(int, one.words)
        assert found.keys() == {server, client, accepted}
        assert [number for number, each in found.items() if each.listens] == [server]
        assert found[client].state == TcpState.ESTABLISHED
        assert found[client].remote == found[server].local == found[accepted].local
        assert found[client].local == found[accepted].remote
        assert found[client].cookie == cookie
        assert sockets.complete


@pytest.mark.parametrize(
    ("family", "listens", "asks", "text"),
    [
        ("AF_INET", "127.0.0.1", "127.0.0.1", "127.0.0.1:{}"),
        ("AF_INET6", "::1", "::1", "[::1]:{}"),
        ("AF_INET6", "::", "::ffff:127.0.0.1", "127.0.0.1:{}"),
    ],
    ids=["IPv4", "IPv6", "v4-mapped"],
)
def test_addresses_of_each_family(
    look: Look, family: str, listens: str, asks: str, text: str
) -> None:
    if family == "AF_INET6" and not has_ipv6():
        pytest.skip("no IPv6 here")
    code = f"""
server = socket.socket(socket.{family})
if server.family == socket.AF_INET6:
    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
server.bind(("{listens}", 0)); server.listen()
c = socket.socket(socket.{family}); c.connect(("{asks}", server.getsockname()[1]))
ready(c.fileno(), server.getsockname()[1]); told()
"""
    with program(code) as one:
        client, port = map(int, one.words)
        assert str(by_number(look(one))[client].remote) == text.format(port)


def test_what_was_sent_and_received(look: Look) -> None:
    code = "ready(c.fileno()); told(); a.send(bytes(5000)); got = 0\n"
    code += "while got < 5000: got += len(c.recv(5000))\n"
    code += "ready(); told(); c.send(b'x'); ready(); told()"
    with program(CONNECTED + code) as one:
        sockets, number = look(one), int(one.words[0])
        fresh = by_number(sockets)[number]
        assert (fresh.received_bytes, fresh.received_segments, fresh.sent_segments) == (0, 0, 0)
        one.tell()
        one.hear()
        (answered,) = sockets.of([number])
        assert answered.received_bytes == 5000
        assert answered.received_segments
        assert answered.received_ms < PATIENCE_SECONDS * 1000
        one.tell()
        one.hear()
        (asked,) = sockets.of([number])
        assert asked.sent_segments >= 1, "or more, if it was sent again"
        assert asked.sent_ms <= asked.received_ms


def test_other_descriptors_are_left_out(look: Look) -> None:
    code = """
kept = [socket.socketpair(), socket.socket(type=socket.SOCK_DGRAM), os.pipe(), select.epoll()]
kept += [open("/dev/null"), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)]
ready(); told()
"""
    with program(code) as one:
        sockets = look(one)
        assert not any(found.connects for found in sockets.all())
        assert sockets.all() == []
        assert sockets.of([-1, 500, 2**31 - 1, 2**32 - 1, 2**64 - 1]) == []
        (datagrams,) = sockets.of(range(64))
        assert datagrams.state == TcpState.DATAGRAMS, "only if it is asked for"
        assert sockets.complete


def test_a_number_that_becomes_a_sockets_is_found(look: Look) -> None:
    code = "f = open('/dev/null'); ready(f.fileno()); told()\n"
    code += "s = socket.socket(); os.dup2(s.fileno(), f.fileno()); ready(); told()"
    with program(code) as one:
        sockets, number = look(one), int(one.words[0])
        assert number not in by_number(sockets)
        one.tell()
        one.hear()
        sockets.forget()
        assert number in by_number(sockets)


def test_a_socket_among_many_files_is_found(look: Look) -> None:
    """Whether it is older or younger than they, and though the others are forgotten in between."""
    code = "files = [open('/dev/null') for _ in range(400)]; a = socket.socket()\n"
    code += "more = [open('/dev/null') for _ in range(400)]; b = socket.socket()\n"
    code += "ready(a.fileno(), b.fileno()); told()"
    with program(code) as one:
        sockets, numbers = look(one), {int(word) for word in one.words}
        assert max(numbers) in by_number(sockets), "the youngest first"
        for _ in range(4):
            sockets.forget()
            found = by_number(sockets)
        assert numbers <= found.keys()


def test_a_socket_is_named_anew_once_it_is_connected(look: Look) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        program(
            "s = socket.socket(); ready(s.fileno()); told()\n"
            "s.connect(('127.0.0.1', int(sys.argv[1]))); ready(); told()",
            server.getsockname()[1],
        ) as one,
    ):
        sockets = look(one)
        (before,) = sockets.all()
        assert str(before.remote) == "an unknown address"
        one.tell()
        one.hear()
        (now,) = sockets.all()
        assert str(now.remote) == f"127.0.0.1:{server.getsockname()[1]}"
        assert now.local.port


def test_a_connection_that_is_being_made_names_whom_it_asks(look: Look) -> None:
    code = """
server = socket.socket(); server.bind(("127.0.0.1", 0)); server.listen(0)
full = connect(server.getsockname()[1]); select.select([server], [], [])
s = socket.socket(); s.setblocking(False)
try: s.connect(server.getsockname())
except BlockingIOError: pass
ready(server.getsockname()[1], s.fileno()); told()
"""
    with program(code) as one:
        port, number = map(int, one.words)
        being_made = by_number(look(one))[number]
        assert being_made.state == TcpState.SYN_SENT
        assert str(being_made.remote) == f"127.0.0.1:{port}"


def test_of_a_crowd_so_many_are_asked_in_turn(look: Look) -> None:
    count = 3 * MOST_SOCKETS + 5
    code = f"kept = [socket.socket() for _ in range({count})]; ready(); told()"
    with program(code) as one:
        sockets = look(one)
        seen: set[int] = set()
        for _ in range(8):
            found = sockets.all()
            assert len(found) <= MOST_SOCKETS
            seen |= {each.fd for each in found}
        assert not sockets.complete
        assert len(seen) == count
        assert len(sockets.of(sorted(seen))) == MOST_SOCKETS


def test_in_another_network_namespace(look: Look) -> None:
    way = with_a_network_of_its_own()
    with program(LOOPBACK_UP + CONNECTED + "ready(); told()", way=way) as one:
        found = look(one).all()
        assert sorted(each.listens for each in found) == [False, False, True]
        port = next(each.local for each in found if each.listens)
        assert port in {each.remote for each in found}


def test_the_job_does_not_notice(look: Look) -> None:
    code = """
ready(c.fileno()); told()
blocking = (os.get_blocking(c.fileno()), c.gettimeout())
c.send(b"ping"); got = a.recv(4); a.send(got); back = c.recv(4)
a.close()
end = c.recv(1)
ready(back.decode(), len(end), blocking); told()
"""
    with program(CONNECTED + code) as one:
        sockets = look(one)
        for _ in range(200):
            assert len(sockets.all()) == 3
        one.tell()
        assert one.hear() == ["ping", "0", "(True,", "None)"]


def test_a_connection_that_the_job_closes_is_closed_at_once(look: Look) -> None:
    code = "c = connect(int(sys.argv[1])); ready(); told(); c.close(); ready(); told()"
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        program(code, server.getsockname()[1]) as one,
    ):
        peer, _ = server.accept()
        with peer:
            sockets = look(one)
            assert len(sockets.all()) == 1
            one.tell()
            one.hear()
            peer.settimeout(PATIENCE_SECONDS)
            assert peer.recv(1) == b""
            assert sockets.all() == []


@pytest.mark.parametrize("reaped", [False, True])
def test_a_process_that_ended_has_none(look: Look, *, reaped: bool) -> None:
    with program(CONNECTED + "ready(c.fileno()); told()") as one:
        sockets, number = look(one), int(one.words[0])
        assert sockets.all()
        one.process.kill()
        if reaped:
            one.process.wait()
        until(lambda: not sockets.of([number]), "nothing")
        assert sockets.all() == []
    assert look(one).all() == look(one).of([3]) == [], "nor has one that never was"


@pytest.mark.parametrize(
    ("capabilities", "said"),
    [((), "refused"), (("dac_read_search",), "refused"), (("sys_ptrace", "dac_read_search"), "3")],
)
def test_without_rights_it_is_refused(capabilities: tuple[str, ...], said: str) -> None:
    way = as_nobody(*capabilities, files=[])
    with program(CONNECTED + "ready(); told()") as one:
        command = [*way, sys.executable, "-c", LOOK, str(one.pid)]
        assert subprocess.check_output(command, text=True).strip() == said


def test_our_own_proc_numbers_processes_as_we_do(tmp_path: Path) -> None:
    assert same_pids(PROC)
    assert not same_pids(tmp_path)
    (tmp_path / "self").symlink_to("1")
    assert not same_pids(tmp_path)


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (Endpoint(bytes([10, 0, 0, 1]), 443), "10.0.0.1:443"),
        (Endpoint(bytes(15) + b"\x01", 80), "[::1]:80"),
        (Endpoint(b"", 0), "an unknown address"),
    ],
)
def test_an_end_reads_as_people_write_it(end: Endpoint, text: str) -> None:
    assert str(end) == text
