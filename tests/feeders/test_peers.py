"""GPUs of one job wait for each other; no process becomes a peer by a mere claim."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.accounting.stall import UNKNOWN
from gpu_bottleneck_exporter.feeders import evidence
from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.feeders.job import GROUP, job_keys
from gpu_bottleneck_exporter.feeders.tcp import AnswerTimeouts
from gpu_bottleneck_exporter.feeders.tree import ProcessTree
from gpu_bottleneck_exporter.host.cgroup import Cgroups
from gpu_bottleneck_exporter.host.process import command_line
from gpu_bottleneck_exporter.host.sockets import Ends
from gpu_bottleneck_exporter.sampling.discovery import (
    Connections,
    ends_towards,
    engaged_peer,
    inspect_connections,
)
from gpu_bottleneck_exporter.workload.owners import Groups
from gpu_bottleneck_exporter.workload.ranks import rendezvous
from support.programs import Program, program
from support.rights import Way, as_nobody, with_a_network_of_its_own
from support.ticks import tick
from support.waiting import until

PROC, SYSFS = Path("/proc"), Path("/sys")
SERVER = """
server = socket.create_server(("127.0.0.1", 0))
ready(server.getsockname()[1])
kept = server.accept()
ready(kept[1][1])
told()
"""
CLIENT = """
kept = connect(int(sys.argv[1]))
ready()
told()
"""
DOUBLE = """
import fcntl
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH14x", b"lo", 1))  # lo goes up
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
source = "127.0.0.1", int(sys.argv[2])
kept = socket.create_connection(server.getsockname(), source_address=source)
ready()
told()
"""
MIRROR = """
import fcntl
ports = [int(port) for port in sys.argv[1:]] or [0, 0]
request = struct.pack("16sH2x4s8x", b"lo", socket.AF_INET, bytes((10, 98, 76, 54)))
fcntl.ioctl(socket.socket(), 0x8916, request)  # SIOCSIFADDR
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH14x", b"lo", 1))  # lo goes up
server = socket.create_server(("10.98.76.54", ports[0]))
kept = socket.create_connection(server.getsockname(), source_address=("10.98.76.54", ports[1]))
also = server.accept()
ready(server.getsockname()[1], kept.getsockname()[1])
told()
"""
ALONE = "assert ctypes.CDLL(None, use_errno=True).unshare(0x10000000 | 0x40000000) == 0\n"
"""Command prefix like `unshare --user --net`."""
SHY = "ctypes.CDLL(None).prctl(4, 0)\nready()\ntold()\n"
"""PR_SET_DUMPABLE: who wants no core dumps is root's in /proc."""


@contextmanager
def rank(address: str, code: str = "ready(); told()", way: Way = ()) -> Iterator[Program]:
    """A process whose environment says where the ranks of its job meet."""
    values = ("env", f"MASTER_ADDR={address}", "MASTER_PORT=29500", "WORLD_SIZE=2")
    with program(code, way=(*way, *values)) as process:
        yield process


def meets(one: Program) -> set[tuple[str, ...]]:
    return {
        key
        for key in job_keys(PROC, one.pid, command_line(PROC, one.pid), Groups(PROC))
        if key[0] == GROUP
    }


def group(one: Program) -> FeederGroup:
    """Feeders of a GPU that `one` holds."""
    result = FeederGroup(PROC, Cgroups(SYSFS), AnswerTimeouts(30_000))
    result.adopt(ProcessTree({one.pid}))
    result.refresh_facts(time.monotonic_ns())
    return result


@contextmanager
def holding(*programs: Program) -> Iterator[dict[str, FeederGroup]]:
    """Feeders of GPUs that these hold, by a letter each; all idle."""
    feeds = {name: group(item) for name, item in zip("abc", programs, strict=False)}
    for feed in feeds.values():
        feed.note(tick(0, {UNKNOWN: 1}))
    yield feeds
    for feed in feeds.values():
        feed.close()


def connections(feeds: Mapping[str, FeederGroup]) -> Connections:
    sockets = inspect_connections(feeds, time.monotonic_ns())
    assert all(item.ends for item in sockets.values())
    return sockets


def joined(found: Connections) -> list[set[str]]:
    return [{*item.joined} for item in found.values()]


def reverse(ends: Collection[Ends]) -> set[Ends]:
    """Connections as the other side has them."""
    return {(remote, local) for local, remote in ends}


@pytest.fixture
def another_user() -> Way:
    return as_nobody(files=[])


def test_the_rank_that_a_gpu_waits_for_is_named() -> None:
    with rank("train-0") as item, rank("train-0") as other:
        feeds = {"a": group(item), "b": group(other)}
        now_ns = time.monotonic_ns()
        assert engaged_peer("a", feeds, {}, now_ns) == (0.0, None)
        feeds["b"].note(tick(9, {UNKNOWN: 1}, now_ns))
        ratio, awaited = engaged_peer("a", feeds, {}, now_ns)
        assert (ratio, awaited) == (0.9, feeds["b"])
        assert awaited is not None
        assert [*evidence.rank(awaited.mains)] == [f"waits for the rank of pid {other.pid}"]
        assert [*evidence.rank(())] == []


@pytest.mark.parametrize("address", ["train-0", "127.0.0.1"])
def test_ranks_of_one_user_that_meet_are_of_one_job(address: str) -> None:
    with rank(address) as item, rank(address) as other:
        assert meets(item)
        assert meets(item) == meets(other)


def test_workers_of_a_ray_job_are_no_peers_by_that_alone() -> None:
    """They may be independent trials, none of which waits for another."""
    way = ("env", "RAY_ADDRESS=10.0.0.1:6379", "RAY_JOB_ID=01000000")
    with program("ready(); told()", way=way) as process:
        assert rendezvous(PROC, process.pid, Groups(PROC).claims(process.pid))
        assert not meets(process)


@pytest.mark.parametrize("address", ["localhost", "127.1", "0.0.0.0", "::ffff:127.0.0.1"])  # noqa: S104
def test_the_same_machine_differs_in_another_network(address: str) -> None:
    with rank(address) as item, rank(address, way=with_a_network_of_its_own()) as other:
        assert meets(item)
        assert meets(item).isdisjoint(meets(other))


@pytest.mark.parametrize("code", ["ready()\ntold()\n", SHY])
def test_another_user_with_the_same_variables_is_of_another_job(
    code: str, another_user: Way
) -> None:
    with rank("train-0") as item, rank("train-0", code, another_user) as other:
        assert meets(other)
        assert meets(item).isdisjoint(meets(other))


def test_a_connection_between_processes_of_one_user_joins_them() -> None:
    with program(SERVER) as server, program(CLIENT, *server.words) as client:
        server.hear()
        with holding(server, client) as feeds:
            assert joined(connections(feeds)) == [{"b"}, {"a"}]


ANSWERS = (
    SERVER.replace("told()", "")
    + """
while kept[0].recv(4):
    told()
    kept[0].sendall(bytes(4))
"""
)
ASKS = (
    CLIENT.replace("told()", "")
    + """
while not told():
    kept.sendall(bytes(4))
    kept.recv(4)
"""
)


@pytest.mark.parametrize("of_both", [False, True])
def test_kin_join_two_gpus_unless_they_are_those_of_both(*, of_both: bool) -> None:
    """Front end of a server that a trainer asks; and a broker of several jobs."""
    alone = SERVER.replace("kept =", "own = connect(server.getsockname()[1])\nkept =")
    with (
        program(SERVER) as front,
        program(CLIENT, *front.words) as trainer,
        program(alone) as server,
    ):
        front.hear()
        server.hear()
        with holding(trainer, server) as feeds:
            for feed in list(feeds.values())[not of_both :]:
                feed.family.adopt_kin({front.pid})
            assert [bool(names) for names in joined(connections(feeds))] == [not of_both] * 2


def test_gpus_that_work_in_turn_wait_for_each_other() -> None:
    """A trainer and the server that makes its rollouts."""
    with program(ANSWERS) as server, program(ASKS, *server.words) as client:
        server.hear()
        with holding(server, client) as feeds:

            def waits_for_peer() -> list[bool]:
                """Whether the server waits for the client, and the client for the server."""
                now_ns = time.monotonic_ns()
                for item in feeds.values():
                    item.note(tick(0, {UNKNOWN: 1}, now_ns))
                sockets = inspect_connections(feeds, now_ns)
                for name, item in feeds.items():
                    item.sample(now_ns, sockets[name])
                mains = [main.deep for feed in feeds.values() for main in feed.mains.values()]
                return [deep is not None and deep.peer for deep in mains]

            client.tell()
            until(lambda: waits_for_peer() == [False, True], lambda: f"{waits_for_peer()}")
            server.tell()
            until(lambda: waits_for_peer() == [True, False], lambda: f"{waits_for_peer()}")


def test_a_connection_of_another_user_joins_no_jobs(another_user: Way) -> None:
    with program(SERVER) as server, program(CLIENT, *server.words, way=another_user) as client:
        server.hear()
        with holding(server, client) as feeds:
            sockets = connections(feeds)
            ends = sockets["b"].ends
            assert sockets["a"].ends > reverse(ends), "they are connected all the same"
            assert joined(sockets) == [set(), set()]
            assert not ends_towards(feeds["a"], feeds["b"], ends)


def test_addresses_in_a_users_own_network_join_no_jobs() -> None:
    with program(MIRROR, way=with_a_network_of_its_own()) as server:
        ports = server.words
        with (
            program(ALONE + MIRROR, *ports) as double,
            program(MIRROR, *ports, way=with_a_network_of_its_own()) as peer,
            holding(server, double, peer) as feeds,
        ):
            sockets = connections(feeds)
            item, other, third = (result.ends for result in sockets.values())
            assert item & reverse(other) & reverse(third), "both look like it"
            assert "c" in sockets["a"].joined
            assert "b" not in sockets["a"].joined
            assert "a" not in sockets["b"].joined


def test_a_matching_address_in_another_network_is_not_the_other_end() -> None:
    with program(SERVER) as server, program(CLIENT, *server.words) as client:
        ports = (*server.words, *server.hear())
        with (
            program(DOUBLE, *ports, way=with_a_network_of_its_own()) as double,
            holding(server, double, client) as feeds,
        ):
            sockets = connections(feeds)
            assert sockets["a"].ends & reverse(sockets["b"].ends), "it does look like it"
            assert joined(sockets)[0] == {"c"}
