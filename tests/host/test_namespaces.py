"""Real user and network namespaces: who is accountable, and whose addresses can be believed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.host.links import TcpNetworks
from gpu_bottleneck_exporter.host.process import is_our_network, user_id
from gpu_bottleneck_exporter.host.sockets import Endpoint
from support.programs import Program, program
from support.rights import AS_WE_ARE, Way, as_user, with_a_network_of_its_own

PROC = Path("/proc")
USER, SUBORDINATE, COUNT = 54321, 1_000_000, 65_536
NEWUSER = "assert ctypes.CDLL(None, use_errno=True).unshare(0x10000000) == 0\n"
NESTED = f"""
{NEWUSER}
ready(); told()
os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
ready(); told()
{NEWUSER}
ready(); told()
"""
ALONE = "assert ctypes.CDLL(None, use_errno=True).unshare(0x10000000 | 0x40000000) == 0\n"
"""Command prefix like `unshare --user --net`."""
MIRROR = """
import fcntl
def ask(number, *address):
    request = struct.pack("16sH2x4s8x", b"lo", socket.AF_INET, socket.inet_aton(*address))
    fcntl.ioctl(socket.socket(), number, request)
ask(0x8916, sys.argv[1])  # SIOCSIFADDR
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH14x", b"lo", 1))  # lo goes up
ends = [(sys.argv[1], int(port)) for port in sys.argv[2:]]
server = socket.create_server(ends[0])
kept = socket.create_connection(*ends[:1], source_address=ends[1])
ready(); told()
"""
"""Has this address, and a connection from the last port to the first."""


@contextmanager
def mapped(way: Way, uid: int) -> Iterator[Program]:
    """A process in a user namespace, as newuidmap(1) and root set it up, with id `uid` in it."""
    with program(NESTED, uid, way=way) as process:
        for ids in ("uid_map", "gid_map"):
            (PROC / f"{process.pid}/{ids}").write_text(f"0 {SUBORDINATE} {COUNT}\n")
        process.ask()
        yield process


@pytest.fixture
def user() -> Way:
    return as_user(USER)


@pytest.mark.parametrize("uid", [0, 33])
def test_all_uids_of_a_users_namespace_are_that_user(user: Way, uid: int) -> None:
    with mapped(user, uid) as process:
        real = (PROC / f"{process.pid}/status").read_text()
        assert f"Uid:\t{SUBORDINATE + uid}\t" in real
        assert user_id(PROC, process.pid) == f"{USER}"
        process.ask()  # makes another one, inside
        assert user_id(PROC, process.pid) == f"{USER}"


def test_uids_of_a_namespace_of_roots_are_as_many_users() -> None:
    """A kubelet, and a Docker that maps users, write these maps."""
    with mapped(AS_WE_ARE, 33) as process:
        assert user_id(PROC, process.pid) == f"{SUBORDINATE + 33}"
        process.ask()  # a user of that namespace makes another one, inside
        assert user_id(PROC, process.pid) == f"{SUBORDINATE + 33}"


def test_in_our_own_namespace_users_are_their_uids(user: Way) -> None:
    with program("ready(); told()", way=user) as process:
        assert user_id(PROC, process.pid) == f"{USER}"


def test_only_where_no_user_chose_it_an_address_leads_to_another_network(user: Way) -> None:
    """One that copies both ends of a connection to another machine is not its other end."""
    address, port, source = "10.98.76.54", 2345, 3456
    here, there = (Endpoint(ip_address(address).packed, item) for item in (port, source))
    arguments = address, port, source

    def opposite() -> int:
        networks = TcpNetworks(PROC)
        networks.refresh(0)
        with program("ready(); told()", way=with_a_network_of_its_own()) as victim:
            return networks.peer_inode(victim.pid, here, there)

    for way in (user, AS_WE_ARE):
        with program(ALONE + MIRROR, *arguments, way=way) as double:
            assert not is_our_network(PROC, double.pid)
            assert opposite() == 0
    with program(MIRROR, *arguments, way=with_a_network_of_its_own()) as peer:
        assert is_our_network(PROC, peer.pid)
        assert opposite() != 0


def test_addresses_chosen_by_a_user_lead_to_no_other_network(user: Way) -> None:
    """A user who copies the near end of another's connection has not got its far end."""
    address, port, source = "10.98.76.54", 2345, 3456
    here, there = (Endpoint(ip_address(address).packed, item) for item in (port, source))
    networks = TcpNetworks(PROC)
    with program(MIRROR, address, port, source, way=with_a_network_of_its_own()):
        networks.refresh(0)
        for way in (user, AS_WE_ARE):
            with program(ALONE + "ready(); told()", way=way) as double:
                assert networks.peer_inode(double.pid, here, there) == 0
        with program("ready(); told()", way=with_a_network_of_its_own()) as client:
            assert networks.peer_inode(client.pid, here, there) != 0
