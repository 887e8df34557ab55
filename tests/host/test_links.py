"""Links between real processes, and the socket at the other end of a connection."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.host import links as module
from gpu_bottleneck_exporter.host.links import (
    End,
    Links,
    TcpNetworks,
    find_processes,
    inode_of,
    links,
)
from gpu_bottleneck_exporter.host.sockets import Endpoint, Ends
from support import trees
from support.programs import ended, program
from support.rows import rows
from support.trees import lay

PROC = Path("/proc")
CIPHERS = """
try: s = socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)
except OSError: pass
"""


def test_pipes_and_pairs_of_sockets_lead_to_their_makers() -> None:
    code = """
r, w = os.pipe()
a, b = socket.socketpair()
child = os.fork()
if child:
    os.close(r); b.close(); ready(child); told()
else:
    os.close(w); a.close(); time.sleep(60)
"""
    with program(code) as process:
        ours, theirs = links(PROC, process.pid), links(PROC, int(process.words[0]))
        assert len(ours.pipes & theirs.pipes) == 1
        assert not ours.peers
        assert theirs.peers == {process.pid}


def test_a_connection_leads_both_ways(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    code = """
server = socket.socket(socket.AF_UNIX); server.bind(sys.argv[1]); server.listen()
ready(); a, _ = server.accept(); ready(); told()
"""
    ask = "c = socket.socket(socket.AF_UNIX); c.connect(sys.argv[1]); ready(); told()"
    with program(code, path) as server, program(ask, path) as client:
        server.hear()
        assert links(PROC, client.pid).peers == {server.pid}
        assert links(PROC, server.pid).peers == {client.pid}


def test_a_search_ends_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of many users hang in an execve, one after the other."""
    with program("r, w = os.pipe(); ready(os.readlink(f'/proc/self/fd/{w}')); told()") as process:
        end = End(process.words[0])
        assert find_processes(PROC, [end], [process.pid]) == {end: {process.pid}}
        monkeypatch.setattr(module, "_MAX_SEARCH_SECONDS", 0.0)
        assert find_processes(PROC, [end], [process.pid]) == {end: set()}


@rows(
    "code",
    {
        "input and output only": "",
        "a file": "f = open('/dev/null')",
        "a pair of its own": "a, b = socket.socketpair()",
        "a socket that leads nowhere": "s = socket.socket(socket.AF_UNIX)",
        "UDP": "s = socket.socket(type=socket.SOCK_DGRAM)",
        "TCP": "s = socket.create_server(('127.0.0.1', 0)); c = connect(s.getsockname()[1])",
        "netlink": "s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        "the kernel's ciphers": CIPHERS,
    },
)
def test_descriptors_without_another_end(code: str) -> None:
    with program(code + "\nready(); told()") as process:
        result = links(PROC, process.pid)
        assert not result.pipes
        assert not result.peers


def test_input_and_output_are_distinct_and_errors_join_no_processes() -> None:
    code = """
a, b = socket.socketpair()
c = subprocess.Popen(["sleep", "60"], stdin=-1, stdout=-1, stderr=-1)
d = subprocess.Popen(["sleep", "60"], stdin=c.stdout, stdout=subprocess.DEVNULL, stderr=a)
ready(c.pid, d.pid); told()
"""
    with program(code) as process:
        writer, reader = (links(PROC, int(word)) for word in process.words)
        assert writer.written_to is not None
        assert writer.written_to == reader.read_from != writer.read_from
        assert reader.written_to is None
        assert not writer.pipes | reader.pipes
        assert not writer.peers | reader.peers


def test_an_ended_process_has_no_links() -> None:
    assert links(PROC, ended()) == Links()


@pytest.mark.parametrize(("inode", "found"), [("ino:\t5\n", {7}), ("", set())])
def test_before_linux_5_14_no_writer_is_known(tmp_path: Path, inode: str, found: set[int]) -> None:
    lay(tmp_path, {"7/fdinfo/3": f"flags:\t01\nmnt_id:\t15\n{inode}", "7/mountinfo": ""})
    trees.links(tmp_path / "7/fd", "pipe:[5]")
    assert find_processes(tmp_path, [End("pipe:[5]")], ()) == {End("pipe:[5]"): found}


def test_a_file_that_is_named_like_a_socket_is_none(tmp_path: Path) -> None:
    lay(tmp_path, {"7/fdinfo/3": "flags:\t01\nmnt_id:\t15\nino:\t5\n", "7/mountinfo": ""})
    trees.links(tmp_path / "7/fd", "/tmp/socket:[9]")  # noqa: S108
    trees.links(tmp_path / "6/fd", "socket:[9]")
    ends = [End("socket:[9]"), End("pipe:[9]")]
    assert find_processes(tmp_path, ends, ()) == {ends[0]: {6}, ends[1]: set()}


LOOPBACK = "127.0.0.1"


@pytest.fixture(
    params=[
        pytest.param((LOOPBACK, LOOPBACK), id="IPv4"),
        pytest.param(("::1", "::1"), id="IPv6"),
        pytest.param(("::", LOOPBACK), id="an IPv6 socket that an IPv4 client is connected with"),
    ]
)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client, and its connection at the server."""
    listens, reached = request.param
    family = socket.AF_INET6 if ":" in listens else socket.AF_INET
    server = socket.create_server((listens, 0), family=family, dualstack_ipv6=listens == "::")
    with server, socket.create_connection((reached, server.getsockname()[1])) as client:
        connection, _ = server.accept()
        with connection:
            yield client, connection


def end(name: tuple[str, int]) -> Endpoint:
    address = ip_address(name[0])
    return Endpoint((getattr(address, "ipv4_mapped", None) or address).packed, name[1])


def ends(one: socket.socket) -> Ends:
    return end(one.getsockname()[:2]), end(one.getpeername()[:2])


def test_each_end_is_found(pair: tuple[socket.socket, socket.socket]) -> None:
    values = [os.fstat(item.fileno()).st_ino for item in pair]
    assert [inode_of(*ends(item)) for item in pair] == values


def test_a_connection_that_is_none_has_none(pair: tuple[socket.socket, socket.socket]) -> None:
    client, connection = pair
    names = ends(client), ends(connection)
    client.close()
    connection.close()
    assert [inode_of(*name) for name in names] == [0, 0]


def test_a_listener_is_at_no_end() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        here = end(server.getsockname())
        assert inode_of(here, Endpoint(here.address, 1)) == 0


def test_the_other_end_in_another_network_is_found_by_its_address(tmp_path: Path) -> None:
    # Addresses that read the same in either order of bytes, as net/tcp has them.
    local, remote = end(("10.1.1.10", 16)), end(("10.2.2.10", 32))
    trie = " |-- 10.2.2.10\n    /32 host LOCAL\n"
    tcp = "   0: 0A02020A:0020 0A01010A:0010 01 0:0 0:0 0  0  0 777 1\n"
    files = {"7/net/dev": "", "8/net/dev": "", "8/net/fib_trie": trie, "8/net/tcp": tcp}
    networks = TcpNetworks(lay(tmp_path, files))
    networks.refresh(0)
    assert networks.peer_inode(7, local, remote) == 777
    assert networks.peer_inode(7, local, end(("10.3.3.10", 32))) == 0
