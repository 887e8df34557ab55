"""The TCP sockets of real processes, borrowed and given back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.host.files import MAX_QUERIED_SOCKETS
from gpu_bottleneck_exporter.host.sockets import (
    Connection,
    Endpoint,
    Sockets,
    TcpState,
    same_pids,
)
from support.programs import Program, program
from support.rights import AS_WE_ARE, Way
from support.rows import rows
from support.waiting import PATIENCE_SECONDS, until

PROC = Path("/proc")
IPV6 = Path("/proc/net/if_inet6")
SERVER = 'server = socket.create_server(("127.0.0.1", 0)); port = server.getsockname()[1]\n'
CONNECTED = f"{SERVER}c = connect(port); a, _ = server.accept()\n"


@contextmanager
def job(code: str, *arguments: str, way: Way = AS_WE_ARE) -> Iterator[tuple[Program, Sockets]]:
    """One that waits in the end to be told something, and its sockets."""
    with program(f"{code}\ntold()", *arguments, way=way) as one:
        yield one, Sockets(PROC, one.pid)


def by_number(sockets: Sockets) -> dict[int, Connection]:
    return {one.fd: one for one in sockets.query()}


def test_a_connection_has_two_ends_and_is_named_by_its_cookie() -> None:
    code = "cookie = c.getsockopt(socket.SOL_SOCKET, 57, 8)\n"
    code += "ready(*map(socket.socket.fileno, (server, c, a)), struct.unpack('=Q', cookie)[0])"
    with job(CONNECTED + code) as (one, sockets):
        found = by_number(sockets)
        server, client, accepted, cookie = map(int, one.words)
        assert found.keys() == {server, client, accepted}
        assert [number for number, each in found.items() if each.listens] == [server]
        assert found[client].state == TcpState.ESTABLISHED
        assert found[client].remote == found[server].local == found[accepted].local
        assert found[client].local == found[accepted].remote
        assert found[client].cookie == cookie
        assert sockets.complete


@rows(
    "listens, asks, text",
    {
        "IPv4": ("127.0.0.1", "127.0.0.1", "127.0.0.1:{}"),
        "IPv6": ("::1", "::1", "[::1]:{}"),
        "v4-mapped": ("::", "::ffff:127.0.0.1", "127.0.0.1:{}"),
    },
)
def test_addresses_of_each_family(listens: str, asks: str, text: str) -> None:
    if ":" in listens and not (IPV6.exists() and IPV6.read_text()):
        pytest.skip("no IPv6 here")
    code = """
listens, asks = sys.argv[1:]
family = socket.AF_INET6 if ":" in listens else socket.AF_INET
server = socket.create_server((listens, 0), family=family, dualstack_ipv6=listens == "::")
port = server.getsockname()[1]; c = connect(port, host=asks); ready(c.fileno(), port)
"""
    with job(code, listens, asks) as (one, sockets):
        client, port = map(int, one.words)
        assert str(by_number(sockets)[client].remote) == text.format(port)


def test_bytes_sent_and_received() -> None:
    code = "ready(c.fileno()); told(); a.send(bytes(5000)); got = 0\n"
    code += "while got < 5000: got += len(c.recv(5000))\n"
    code += "ready(); told(); c.send(b'x'); ready()"
    with job(CONNECTED + code) as (one, sockets):
        number = int(one.words[0])
        fresh = by_number(sockets)[number]
        assert (fresh.received_bytes, fresh.received_segments, fresh.sent_segments) == (0, 0, 0)
        one.ask()
        (answered,) = sockets.query_descriptors([number])
        assert answered.received_bytes == 5000
        assert answered.received_segments
        assert answered.received_ms < PATIENCE_SECONDS * 1000
        one.ask()
        (asked,) = sockets.query_descriptors([number])
        assert asked.sent_segments >= 1, "or more, if it was sent again"
        assert asked.sent_ms <= asked.received_ms


def test_other_descriptors_are_left_out() -> None:
    code = """
kept = [socket.socketpair(), socket.socket(type=socket.SOCK_DGRAM), os.pipe(), select.epoll()]
kept += [open("/dev/null"), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)]
ready()
"""
    with job(code) as (_, sockets):
        assert not any(found.connects for found in sockets.query())
        (datagrams,) = sockets.query()
        assert datagrams.state == TcpState.DATAGRAMS
        assert sockets.query_descriptors([-1, 500, 2**31 - 1, 2**32 - 1, 2**64 - 1]) == []
        assert sockets.query_descriptors(range(64)) == [datagrams]
        assert sockets.complete


def test_sockets_among_many_files_are_found_however_late_they_come() -> None:
    """Though what is none is forgotten in between, and a file's number may become a socket's."""
    code = "files = [open('/dev/null') for _ in range(400)]; a = socket.socket()\n"
    code += "more = [open('/dev/null') for _ in range(400)]; b = socket.socket(); f = files[7]\n"
    code += "ready(f.fileno(), a.fileno(), b.fileno()); told()\n"
    code += "os.dup2(a.fileno(), f.fileno()); ready()"
    with job(code) as (one, sockets):
        later, *numbers = map(int, one.words)
        assert max(numbers) in by_number(sockets), "the youngest first"

        def found() -> set[int]:
            for _ in range(4):
                sockets.recheck()
                seen = by_number(sockets)
            return {*seen}

        assert found() == {*numbers}
        one.ask()
        assert found() == {later, *numbers}


def test_a_socket_is_named_anew_once_it_is_connected() -> None:
    code = "s = socket.socket(); ready(port, s.fileno()); told()\n"
    with job(SERVER + code + "s.connect(server.getsockname()); ready()") as (one, sockets):
        port, number = map(int, one.words)
        assert str(by_number(sockets)[number].remote) == "an unknown address"
        one.ask()
        now = by_number(sockets)[number]
        assert str(now.remote) == f"127.0.0.1:{port}"
        assert now.local.port


def test_a_connection_being_established_names_its_server() -> None:
    code = """
server.listen(0); full = connect(port); select.select([server], [], [])
s = socket.socket(); s.setblocking(False)
try: s.connect(server.getsockname())
except BlockingIOError: pass
ready(port, s.fileno())
"""
    with job(SERVER + code) as (one, sockets):
        port, number = map(int, one.words)
        being_made = by_number(sockets)[number]
        assert being_made.state == TcpState.SYN_SENT
        assert str(being_made.remote) == f"127.0.0.1:{port}"


def test_concurrent_queries_are_bounded() -> None:
    with job(f"kept = [socket.socket() for _ in range({MAX_QUERIED_SOCKETS})]; ready()") as (
        _,
        sockets,
    ):
        assert len(sockets.query()) == MAX_QUERIED_SOCKETS
        assert sockets.complete


@pytest.mark.parametrize("pairs", [0, MAX_QUERIED_SOCKETS // 4, MAX_QUERIED_SOCKETS // 2])
def test_a_crowd_is_queried_in_turn(pairs: int) -> None:
    """Also those that carry nothing, beside others that do."""
    count = 3 * MAX_QUERIED_SOCKETS + 1 + 2 * pairs
    code = f"{SERVER}kept = [socket.socket() for _ in range({3 * MAX_QUERIED_SOCKETS})]\n"
    code += (
        f"kept += [one for _ in range({pairs}) for one in (connect(port), *server.accept()[:1])]"
    )
    with job(f"{code}; ready()") as (_, sockets):
        seen: set[int] = set()
        for _ in range(12):
            found = by_number(sockets).keys()
            assert len(found) <= MAX_QUERIED_SOCKETS
            seen |= found
        assert not sockets.complete
        assert len(seen) == count
        assert len(sockets.query_descriptors(sorted(seen))) == MAX_QUERIED_SOCKETS


def test_the_job_does_not_notice() -> None:
    """Closed sockets are closed at once, too."""
    code = """
ready(c.fileno()); told()
blocking = (os.get_blocking(c.fileno()), c.gettimeout())
c.send(b"ping"); got = a.recv(4); a.send(got); back = c.recv(4)
a.close()
end = c.recv(1)
ready(back.decode(), len(end), blocking)
"""
    with job(CONNECTED + code) as (one, sockets):
        for _ in range(200):
            assert len(sockets.query()) == 3
        assert one.ask() == ["ping", "0", "(True,", "None)"]


def test_a_process_that_ended_has_none() -> None:
    with job(f"{CONNECTED}ready(c.fileno())") as (one, sockets):
        number = int(one.words[0])
        assert sockets.query()
        one.process.kill()
        until(lambda: not sockets.query_descriptors([number]), "nothing of a zombie")
        assert sockets.query() == []
        one.process.wait()
        assert sockets.query() == sockets.query_descriptors([number]) == []
    assert Sockets(PROC, one.pid).query() == []


def test_our_own_proc_numbers_processes_as_we_do(tmp_path: Path) -> None:
    assert same_pids(PROC)
    assert not same_pids(tmp_path)
    (tmp_path / "self").symlink_to("1")
    assert not same_pids(tmp_path)


def test_an_end_reads_as_people_write_it() -> None:
    ends = (bytes([10, 0, 0, 1]), 443), (bytes(15) + b"\x01", 80), (b"", 0)
    told = [str(Endpoint(*end)) for end in ends]
    assert told == ["10.0.0.1:443", "[::1]:80", "an unknown address"]
