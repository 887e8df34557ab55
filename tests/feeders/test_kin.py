"""Feeders of a GPU beside its holder's descendants: real families, and their neighbours."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.feeders.related import MAX_RELATED, KinFinder
from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.host.sockets import Sockets
from gpu_bottleneck_exporter.workload.identity import owner_in_cgroup
from support.leftovers import mark
from support.programs import descriptors, program
from support.rows import rows
from support.trees import process
from support.waiting import until

PROC = Path("/proc")
CGROUPS = [Path("/sys/fs/cgroup") / name for name in (".", "unified", "systemd")]
FAMILY = """
ends = []
pair = socket.socketpair

def child(join=None, do=locked):
    "Start one that is joined with us by what `join` makes, and only by that."
    ours, theirs = join() if join else (None, None)
    pid = os.fork()
    if pid == 0:
        for end in [*ends, ours]:
            if end: end.close()
        do()
        os._exit(0)
    if theirs: theirs.close()
    ends.append(ours)
    return pid

def pipe():
    r, w = os.pipe()
    return os.fdopen(w, "wb"), os.fdopen(r, "rb")

def alone():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # it ends with its parent
    os.setsid()
    locked()
"""


PIPELINE = """
first = subprocess.Popen(["sleep", "60"], stdin=-1, stdout=-1)
second = subprocess.Popen(["sleep", "60"], stdin=first.stdout, stdout=-1, stderr=-1)
third = subprocess.Popen(["sleep", "60"], stdin=second.stdout, stdout=-1)
log = subprocess.Popen(["sleep", "60"], stdin=third.stdout)
ready(first.pid, second.pid, third.pid, log.pid)
"""
CIRCLE = """
(r, w), (s, v) = os.pipe(), os.pipe()
one = subprocess.Popen(["sleep", "60"], stdin=s, stdout=w)
other = subprocess.Popen(["sleep", "60"], stdin=r, stdout=v)
ready(one.pid, other.pid, subprocess.Popen(["sleep", "60"], stdin=r).pid)
"""
GRANDPARENT = """
w, r = pipe()
def start():
    w.close()
    pid = os.fork()
    if pid == 0: locked()
    r.close(); ready(pid); locked()
os.fork() or start()
r.close()
"""
ONE_PIPE = """
w, r = pipe()
first = os.fork() or (w.close(), locked())
second = os.fork() or (r.close(), locked())
w.close(); r.close()
ready(first, second, child())
"""
NEPHEW = """
w, r = pipe()
def start():
    w.close()
    nephew = os.fork() or locked()
    r.close(); ready(first, os.getpid(), nephew); locked()
first = os.fork() or (r.close(), locked())
second = os.fork() or start()
w.close(); r.close()
"""


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    before = descriptors()
    yield
    assert descriptors() <= before


def kin(*holders: int, own: tuple[int, ...] = ()) -> set[int]:
    """Kin of the first of `holders`."""
    return KinFinder(PROC, holders).of(holders[0], own)


def no_container() -> None:
    owner = owner_in_cgroup(read(PROC / "self/cgroup") or "")
    if owner.container_id or owner.slurm_job_id:
        pytest.skip("in a container all who are joined are kin, whatever their session")


@rows(
    "code, found",
    {
        "a parent, by a pipe": ("ready(child(pipe))", {(1,): {0}}),
        "a parent, by a socket": ("ready(child(pair))", {(1,): {0}}),
        "a grandparent": (GRANDPARENT, {(1,): {0}}),
        "a reader of its output feeds it nothing": (PIPELINE, {(1,): set()}),
        "the left side of a pipeline": (PIPELINE, {(3,): {1, 2}, (4,): {1, 2, 3}}),
        "two that feed each other, and it": (CIRCLE, {(3,): {1, 2}}),
        "a holder of a GPU is no kin": (PIPELINE, {(3, 2): set()}),
        "no neighbour of the same session": ("ready(child(), child(None, burn))", {(1,): set()}),
        "no neighbour of one that is": (
            "ready(child(pair), child(None, burn), child())",
            {(1,): {0}},
        ),
        "a sibling, by a broker that started both": (
            "ready(child(pair), child(pair), child(None, burn))",
            {(1,): {0, 2}, (1, 2): {0}},
        ),
        "siblings, by a pipe of their own": (ONE_PIPE, {(1,): {2}, (2,): {1}}),
        "a descendant of a sibling": (NEPHEW, {(1,): {3}}),
    },
)
def test_kin_of_a_holder(code: str, found: Mapping[tuple[int, ...], set[int]]) -> None:
    """Numbers: 0 is the program, the others are those that it tells of; of holders, the first's."""
    with program(f"{FAMILY}{code}\nlocked()") as child:
        pids = [child.pid, *map(int, child.words)]
        for holders, expected in found.items():
            until(
                lambda: kin(*(pids[at] for at in holders)) == {pids[at] for at in expected},  # noqa: B023
                f"{expected}",
            )


def test_own_descendants_are_no_kin() -> None:
    with program(f"{FAMILY}ready(child(pair), child(pair)); locked()") as child:
        holder, sibling = map(int, child.words)
        until(lambda: kin(holder) == {child.pid, sibling}, "the broker and the sibling")
        assert kin(holder, own=(sibling,)) == {child.pid}


def test_the_starter_of_the_left_side_of_a_pipeline_feeds_it_too() -> None:
    code = """
first = subprocess.Popen(["sh", "-c", "while :; do sleep 60; done"], stdout=-1)
second = subprocess.Popen(["sleep", "60"], stdin=first.stdout)
ready(first.pid, second.pid); locked()
"""
    with program(code) as running:
        first, second = map(int, running.words)
        started = PROC / f"{first}/task/{first}/children"
        child = int(until(lambda: read(started), "its first program") or 0)
        until(lambda: kin(second) == {first, child}, "both")


def test_a_session_of_its_own_is_another_job() -> None:
    no_container()
    code = "ready(child(pair), child(pair, alone), child(pipe, alone)); locked()"
    with program(FAMILY + code) as child:
        holder, *others = map(int, child.words)
        until(lambda: all(os.getsid(pid) == pid for pid in others), "sessions")
        until(lambda: kin(holder) == {child.pid}, "the parent alone")
        assert kin(others[0]) == set()


def test_a_process_with_unreadable_connections_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid in (7, 8):
        process(tmp_path, pid, cgroup=f"/docker-{'0a' * 32}.scope")

    def refused(_: Sockets) -> None:
        raise PermissionError

    monkeypatch.setattr(Sockets, "query", refused)
    assert KinFinder(tmp_path, [7]).of(7, ()) == set()


def test_kin_are_bounded_and_include_the_parent() -> None:
    with program(
        f"{FAMILY}ready(*(child(pair) for _ in range({MAX_RELATED + 10}))); locked()"
    ) as child:
        holder = int(child.words[-1])
        result = until(lambda: kin(holder), "kin")
        assert len(result) <= MAX_RELATED + 1
        assert child.pid in result


def test_the_exporter_and_its_parents_feed_no_gpu_through_an_inherited_pipe() -> None:
    """A shell with `exec 9> >(tee log)` has started both the job and us."""
    code = """
held, written = os.pipe()
os.set_inheritable(written, True)
holder = os.fork()
if holder == 0:
    locked()
us = "from gpu_bottleneck_exporter.feeders.related import KinFinder as Finder;"
us += f"print(*Finder(pathlib.Path('/proc'), [{holder}]).of({holder}, ()))"
us = [sys.executable, "-c", f"import pathlib; {us}"]
ready("kin", subprocess.run(us, close_fds=False, stdout=-1, text=True, check=True).stdout.strip())
locked()
"""
    with program(code) as child:
        assert child.words == ["kin"]


@pytest.fixture
def container() -> Iterator[Path]:
    """A control group that is named as that of a container."""
    mounts = [mount for mount in CGROUPS if (mount / "cgroup.procs").exists()]
    if not mounts:
        pytest.skip("no control groups here")
    group = mounts[0] / f"docker-{mark()}{secrets.token_hex(16)}.scope"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield group
    until(lambda: not read(group / "cgroup.procs"), "an empty group")
    group.rmdir()


def test_in_a_container_any_connection_joins(container: Path) -> None:
    server = "s = socket.create_server(('127.0.0.1', 0)); ready(s.getsockname()[1])\n"
    server += "a, _ = s.accept(); ready(); locked()"
    client = "c = connect(int(sys.argv[1])); ready(); locked()"
    with (
        program(server) as loader,
        program(client, loader.words[0]) as holder,
        program("ready(); burn()") as neighbour,
    ):
        loader.hear()
        assert kin(holder.pid) == set()
        for child in (loader, holder, neighbour):
            (container / "cgroup.procs").write_text(str(child.pid))
        assert kin(holder.pid) == {loader.pid}
        assert kin(loader.pid) == {holder.pid}
        assert kin(holder.pid, loader.pid) == set()
        assert kin(neighbour.pid) == set()
