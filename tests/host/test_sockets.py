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
    with program(f"{code}\ntold()", *arguments, way=way) as process:
        yield process, Sockets(PROC, process.pid)


def by_number(sockets: Sockets) -> dict[int, Connection]:
    return {item.fd: item for item in sockets.query()}


def test_a_connection_has_two_ends_and_is_named_by_its_cookie() -> None:
    code = "cookie = c.getsockopt(socket.SOL_SOCKET, 57, 8)\n"
    code += "ready(*map(socket.socket.fileno, (server, c, a)), struct.unpack('=Q', cookie)[0])"
    with job(CONNECTED + code) as (item, sockets):
        result = by_number(sockets)
        server, client, accepted, cookie = map(int, item.words)
        assert result.keys() == {server, client, accepted}
        assert [number for number, each in result.items() if each.listens] == [server]
        assert result[client].state == TcpState.ESTABLISHED
        assert result[client].remote == result[server].local == result[accepted].local
        assert result[client].local == result[accepted].remote
        assert result[client].cookie == cookie
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
    with job(code, listens, asks) as (item, sockets):
        client, port = map(int, item.words)
        assert str(by_number(sockets)[client].remote) == text.format(port)


def test_bytes_sent_and_received() -> None:
    code = "ready(c.fileno()); told(); a.send(bytes(5000)); got = 0\n"
    code += "while got < 5000: got += len(c.recv(5000))\n"
    code += "ready(); told(); c.send(b'x'); ready()"
    with job(CONNECTED + code) as (item, sockets):
        number = int(item.words[0])
        fresh = by_number(sockets)[number]
        assert (fresh.received_bytes, fresh.received_segments, fresh.sent_segments) == (0, 0, 0)
        item.ask()
        (answered,) = sockets.query_descriptors([number])
        assert answered.received_bytes == 5000
        assert answered.received_segments
        assert answered.received_ms < PATIENCE_SECONDS * 1000
        item.ask()
        (result,) = sockets.query_descriptors([number])
        assert result.sent_segments >= 1, "or more, if it was sent again"
        assert result.sent_ms <= result.received_ms


def test_other_descriptors_are_left_out() -> None:
    code = """
kept = [socket.socketpair(), socket.socket(type=socket.SOCK_DGRAM), os.pipe(), select.epoll()]
kept += [open("/dev/null"), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)]
ready()
"""
    with job(code) as (_, sockets):
        assert not any(result.connects for result in sockets.query())
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
    with job(code) as (item, sockets):
        later, *numbers = map(int, item.words)
        assert max(numbers) in by_number(sockets), "the youngest first"

        def found() -> set[int]:
            for _ in range(4):
                sockets.recheck()
                result = by_number(sockets)
            return {*result}

        assert found() == {*numbers}
        item.ask()
        assert found() == {later, *numbers}


def test_a_socket_is_named_anew_once_it_is_connected() -> None:
    code = "s = socket.socket(); ready(port, s.fileno()); told()\n"
    with job(SERVER + code + "s.connect(server.getsockname()); ready()") as (item, sockets):
        port, number = map(int, item.words)
        assert str(by_number(sockets)[number].remote) == "an unknown address"
        item.ask()
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
    with job(SERVER + code) as (item, sockets):
        port, number = map(int, item.words)
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
        values: set[int] = set()
        for _ in range(12):
            result = by_number(sockets).keys()
            assert len(result) <= MAX_QUERIED_SOCKETS
            values |= result
        assert not sockets.complete
        assert len(values) == count
        assert len(sockets.query_descriptors(sorted(values))) == MAX_QUERIED_SOCKETS


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
    with job(CONNECTED + code) as (item, sockets):
        for _ in range(200):
            assert len(sockets.query()) == 3
        assert item.ask() == ["ping", "0", "(True,", "None)"]


def test_a_process_that_ended_has_none() -> None:
    with job(f"{CONNECTED}ready(c.fileno())") as (process, sockets):
        number = int(process.words[0])
        assert sockets.query()
        process.process.kill()
        until(lambda: not sockets.query_descriptors([number]), "nothing of a zombie")
        assert sockets.query() == []
        process.process.wait()
        assert sockets.query() == sockets.query_descriptors([number]) == []
    assert Sockets(PROC, process.pid).query() == []


def test_our_own_proc_numbers_processes_as_we_do(tmp_path: Path) -> None:
    assert same_pids(PROC)
    assert not same_pids(tmp_path)
    (tmp_path / "self").symlink_to("1")
    assert not same_pids(tmp_path)


def test_an_end_reads_as_people_write_it() -> None:
    ends = (bytes([10, 0, 0, 1]), 443), (bytes(15) + b"\x01", 80), (b"", 0)
    values = [str(Endpoint(*end)) for end in ends]
    assert values == ["10.0.0.1:443", "[::1]:80", "an unknown address"]
