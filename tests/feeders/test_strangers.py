"""Feeders of a GPU from outside of its holder's family: real programs that talk to each other."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.bucket import Bucket, Role
from gpu_bottleneck_exporter.accounting.stall import UNKNOWN
from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.feeders.process import FeederProcess, StrangerRecord
from gpu_bottleneck_exporter.feeders.related import MAX_RELATED, StrangerFinder
from gpu_bottleneck_exporter.feeders.tcp import AnswerTimeouts
from gpu_bottleneck_exporter.feeders.tree import ProcessFamily, ProcessTree
from gpu_bottleneck_exporter.feeders.usage import CounterReader
from gpu_bottleneck_exporter.host.cgroup import Cgroups
from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.host.programs import compiles, is_no_worker
from gpu_bottleneck_exporter.host.threads import ThreadUsage
from support.programs import Program, descriptors, program
from support.rights import with_a_network_of_its_own
from support.rows import rows
from support.ticks import tick
from support.tools import require
from support.trees import lay, process
from support.waiting import until

PROC, SYSFS = Path("/proc"), Path("/sys")
MINUTE_NS = 60_000_000_000
LISTEN = """
unix = sys.argv[1].startswith("/")
server = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
server.bind(sys.argv[1] if unix else ("127.0.0.1", 0))
server.listen()
ready(*(server.getsockname()[1:] if not unix else ()))
c, _ = server.accept()
"""
CONNECT = """
unix = sys.argv[1].startswith("/")
c = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
c.connect(sys.argv[1] if unix else ("127.0.0.1", int(sys.argv[1])))
"""
RECEIVE = "c.recv(1)"
WAYS = {
    "in a receive": RECEIVE,
    "in a thread's receive": "named('loader', lambda: c.recv(1)); locked()",
    "in poll": "p = select.poll(); p.register(c, select.POLLIN); p.poll()",
    "in epoll": "p = select.epoll(); p.register(c, select.EPOLLIN); p.poll()",
}


class Watched:
    """A GPU that idles, held by `main`, as the watching thread sees it."""

    def __init__(self, main: Program, *workers: int, holders: tuple[int, ...] = ()) -> None:
        self._groups = Cgroups(SYSFS)
        self.feed = FeederGroup(PROC, self._groups, AnswerTimeouts(30_000))
        self.feed.adopt(ProcessTree({main.pid}, {*workers}, {main.pid, *holders}))
        self.feed.note(tick(0, {UNKNOWN: 1}, time.monotonic_ns()))
        self._finder = StrangerFinder(PROC)
        self.holders = {main.pid, *holders}

    def look(self) -> Bucket:
        self.feed.sample(time.monotonic_ns())
        return self.feed.history._passes[-1]

    def strangers(self, later_ns: int = 0) -> set[int]:
        """Strangers found by a new sample."""
        self.look()
        now = time.monotonic_ns() + later_ns
        result = self._finder.search([self.feed], self.holders, now)[self.feed]
        self.feed.family.adopt_strangers(result)
        return result

    def close(self) -> None:
        self.feed.close()
        self._groups.retain(())

    def finds(self, *pids: int) -> bool:
        until(lambda: self.strangers() == {*pids}, f"{pids}")
        return True


Watch = Callable[..., Watched]


@pytest.fixture
def watch() -> Iterator[Watch]:
    before, made = descriptors(), list[Watched]()

    def begin(*who: object, **holders: tuple[int, ...]) -> Watched:
        made.append(Watched(*who, **holders))  # type: ignore[arg-type]
        return made[-1]

    yield begin
    for watched in made:
        watched.close()
    assert descriptors() <= before, "all descriptors are given back"


@pytest.fixture(params=["unix", "tcp"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Address of a program's listener."""
    return f"{tmp_path / 'socket'}" if request.param == "unix" else "any"


@contextmanager
def connected(
    place: object, *, one: str = "told()", main: str = f"ready()\n{RECEIVE}"
) -> Iterator[tuple[Program, Program]]:
    """A main that is connected with one who listens, and what they do then."""
    with program(LISTEN + one, place) as listens:
        where = listens.words[0] if listens.words else place
        with program(CONNECT + main, where) as connects:
            yield listens, connects


@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
def test_a_process_at_the_other_end_of_an_awaited_descriptor_feeds(
    watch: Watch, place: str, how: str
) -> None:
    with connected(place, main=f"ready()\n{how}") as (child, main):
        assert watch(main).finds(child.pid)


def test_it_may_have_connected_itself(watch: Watch, place: str) -> None:
    with connected(place, one=f"ready()\n{RECEIVE}", main="ready(); told()") as (main, child):
        main.hear()
        assert watch(main).finds(child.pid)


def test_a_worker_may_be_fed(watch: Watch, place: str) -> None:
    forks = f"if os.fork() == 0: {RECEIVE}\nready(); locked()"
    with connected(place, main=forks) as (child, main):
        (worker,) = (PROC / f"{main.pid}/task/{main.pid}/children").read_text().split()
        assert watch(main, int(worker)).finds(child.pid)


def test_both_may_be_in_another_network_namespace_than_we(watch: Watch) -> None:
    code = "subprocess.run([sys.argv[1], 'link', 'set', 'lo', 'up'], check=True)\n"
    code += "s = socket.create_server(('127.0.0.1', 0))\n"
    code += "if os.fork() == 0:\n os.fork() and os._exit(0)\n"  # an orphan, not a child
    code += " c = connect(s.getsockname()[1]); c.send(b'%d' % os.getpid()); locked()\n"
    code += "c, _ = s.accept(); ready(int(c.recv(9))); c.recv(1)"
    with program(code, require("ip", "iproute2"), way=with_a_network_of_its_own()) as main:
        assert watch(main).finds(int(main.words[0]))


def test_a_connection_may_be_accepted_late(watch: Watch) -> None:
    listen = LISTEN.replace("c, _ =", "told(); c, _ =")
    with (
        program(f"{listen}told()", "any") as child,
        program(f"{CONNECT}ready()\n{RECEIVE}", *child.words) as main,
    ):
        watched = watch(main)
        until(lambda: watched.look() and watched.feed.drain_awaited(), "its wait")
        assert not any(watched.strangers() for _ in range(50)), "it is nobody's as yet"
        child.tell()
        assert watched.finds(child.pid)


def test_it_may_connect_anew_for_each_request(watch: Watch) -> None:
    serve = "while True:\n c, _ = s.accept(); time.sleep(0.1); c.close()"
    ask = "while True:\n connect(int(sys.argv[1])).recv(1); time.sleep(0.3)"
    code = f"s = socket.create_server(('127.0.0.1', 0)); ready(s.getsockname()[1])\n{serve}"
    with program(code) as main, program(f"ready()\n{ask}", main.words[0]) as child:
        assert watch(main).finds(child.pid)


def test_possible_writers_of_the_awaited_fifo_feed(watch: Watch, tmp_path: Path) -> None:
    fifo, other = tmp_path / "fifo", tmp_path / "other" / "fifo"
    other.parent.mkdir()
    os.mkfifo(fifo)
    os.mkfifo(other)
    opened = "f = os.open(sys.argv[1], getattr(os, sys.argv[2])); ready()\n"
    with (
        program(f"{opened}told()", fifo, "O_RDWR") as child,
        program(f"{opened}told()", other, "O_RDWR"),
        program(f"{opened}os.read(f, 1)", fifo, "O_RDONLY") as main,
        program(f"{opened}told()", fifo, "O_RDONLY"),
    ):
        assert watch(main).finds(child.pid)


@pytest.mark.parametrize("how", ["time.sleep(60)", "locked()", "sys.stdin.read()"])
def test_a_connection_that_is_not_waited_on_proves_nothing(
    watch: Watch, place: str, how: str
) -> None:
    with connected(place, main=f"ready()\n{how}") as (child, main):
        watched = watch(main)
        until(lambda: Role.THREAD in watched.look().parts, "a closer look")
        assert watched.strangers().isdisjoint({child.pid, os.getpid()}), "nor are we a feeder"


def test_another_holder_of_a_gpu_and_its_workers_are_no_strangers(watch: Watch) -> None:
    """They inherit the connections between ranks, and are found first as they are younger."""
    with connected("tcp", one="os.fork() and ready()\nlocked()") as (child, main):
        child.hear()
        listed = read(f"/proc/{child.pid}/task/{child.pid}/children")
        (worker,) = map(int, (listed or "").split())
        watched = watch(main)
        assert watched.finds(worker)
        watched.holders.add(child.pid)
        assert watched.strangers() == set()
    with connected("tcp") as (child, main):
        assert watch(main).finds(child.pid)
        assert watch(main, holders=(child.pid,)).finds()


def test_they_are_sought_ever_less_often_until_another_gpu_begins_to_idle() -> None:
    finder = StrangerFinder(PROC)
    item, other = (FeederGroup(PROC, Cgroups(SYSFS)) for _ in range(2))

    def searched(seconds: range, *idle: FeederGroup, explained: bool = False) -> list[float]:
        """When, of ten passes a second; what GPUs wait for may be explained at every other one."""
        values = []
        for tenth in range(10 * seconds.start, 10 * seconds.stop):
            expected = () if explained and tenth % 2 else idle
            if finder.is_due(tenth * 100_000_000, idle, expected):
                finder.search(expected, (), tenth * 100_000_000)
                values.append(tenth / 10)
        return values

    first = searched(range(100, 160), item)
    pauses = [after - before for before, after in pairwise(first)]
    assert (first[0], pauses[0]) == pytest.approx((100, 0.3))
    assert pauses == sorted(pauses)
    assert pauses[-1] > 8
    assert len(searched(range(160, 200), item, explained=True)) <= 4
    assert searched(range(200, 201), item, other)[0] == 200
    assert len(searched(range(201, 211), item, other)) > 5
    assert searched(range(211, 212)) == []
    assert searched(range(212, 213), item)[:1] == [212], "it idles again"


def test_a_disconnected_process_stays_known_for_a_minute(watch: Watch, place: str) -> None:
    leaves, stays = "told(); c.close(); ready(); told()", f"ready()\n{RECEIVE}\nlocked()"
    with connected(place, one=leaves, main=stays) as (child, main):
        watched = watch(main)
        assert watched.finds(child.pid)
        child.tell()
        child.hear()
        until(lambda: Role.THREAD in watched.look().parts, "a closer look")
        assert watched.strangers(MINUTE_NS // 2) == {child.pid}
        assert watched.strangers(2 * MINUTE_NS) == set()


def test_followed_processes_are_bounded(watch: Watch, tmp_path: Path) -> None:
    listen = LISTEN.replace("c, _ = server.accept()", "")
    code = "all = [server.accept()[0] for _ in range(40)]; ready(); select.select(all, [], [])"
    child = "for _ in range(40):\n if os.fork() == 0: c = socket.socket(socket.AF_UNIX); "
    child += "c.connect(sys.argv[1]); locked()\nready(); locked()"
    with program(listen + code, tmp_path / "socket") as main, program(child, tmp_path / "socket"):
        main.hear()
        watched = watch(main)
        until(lambda: len(watched.strangers()) == MAX_RELATED, "so many")


def test_it_counts_while_it_is_active(watch: Watch, place: str) -> None:
    with connected(place, one="told()\nburn()") as (child, main):
        watched = watch(main)
        assert watched.finds(child.pid)
        parts = [watched.look().of(Role.RELATED) for _ in range(9)]
        assert not any(part.by_activity or part.present for part in parts)
        child.tell()
        until(lambda: watched.look().of(Role.RELATED).by_activity.get(Activity.RUN), "it runs")
        assert watched.look().of(Role.RELATED).present == 1


RUNS, RESTS = Activity.RUN, Activity.SLEEP


@rows(
    "seen, idle, counts, works",
    {
        "now and then": (25 * [RUNS, RESTS, RESTS, RESTS], 1.0, False, False),
        "whenever the GPU idles": (25 * [RUNS, RESTS, RESTS, RESTS], 0.3, True, False),
        "all of that time": (25 * [RUNS, RESTS, RESTS, RESTS], 0.2, True, True),
        "waits for the network": (9 * [Activity.NETWORK], 1.0, True, False),
        "sampled too rarely": (2 * [RUNS], 1.0, False, False),
    },
)
def test_a_process_that_works_enough_counts(
    seen: list[Activity], idle: float, *, counts: bool, works: bool
) -> None:
    record = StrangerRecord()
    for activity in seen:
        record.note(activity)
    assert (record.counts(idle), record.works(idle)) == (counts, works)


def test_threads_of_an_inactive_stranger_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process(tmp_path, 7)
    family = ProcessFamily(tmp_path, None)
    stranger = family.related[7] = FeederProcess(tmp_path, 7)
    usage = ThreadUsage("pool", 10**9, 0, missed=True)
    monkeypatch.setattr(stranger.deepen(), "drain_used", lambda: [usage])

    def missed_ns() -> int:
        CounterReader(family).read(second := Bucket(), 0.0, deep=True)
        return second.of(Role.RELATED).used.missed_ns

    stranger.join(kin=True)
    assert missed_ns() == usage.cpu_ns
    stranger.join(kin=False)
    assert missed_ns() == 0


@pytest.mark.parametrize("seen", [True, False], ids=["that is known", "that has just started"])
def test_a_main_that_waits_for_a_compiler_runs_code_of_its_own(
    watch: Watch, tmp_path: Path, *, seen: bool
) -> None:
    compiler = tmp_path / "ptxas"
    compiler.symlink_to(Path(sys.executable).resolve())
    code = "p = subprocess.Popen([sys.argv[1], '-c', 'while True: pass']); ready(p.pid); p.wait()"
    with program(code, compiler) as main:
        until(lambda: read(PROC / main.words[0] / "cmdline"), "its command line")
        watched = watch(main, *map(int, main.words if seen else ()))
        until(lambda: watched.look().of(Role.MAIN).by_activity.get(Activity.RUN), "run")
        assert watched.feed.family.worker_count == 0
        assert not watched.look().of(Role.WORKER).by_activity


def test_a_pool_of_compilers_is_no_pool_of_workers(watch: Watch, tmp_path: Path) -> None:
    pool = tmp_path / "torch/_inductor/compile_worker/__main__.py"
    pool.parent.mkdir(parents=True)
    pool.write_text(
        "import os, time\nif one := os.fork(): print(one, flush=True)\ntime.sleep(60)\n"
    )
    code = "p = subprocess.Popen([sys.executable, sys.argv[1]], stdout=-1)\n"
    code += "ready(p.pid, p.stdout.readline().decode()); locked()"
    with program(code, pool) as main:
        watched = watch(main, *map(int, main.words))
        assert watched.feed.family.worker_count == 0
        assert len(watched.feed.family.compilers) == len(main.words)
        until(
            lambda: not watched.look().of(Role.MAIN).by_activity.get(Activity.RUN),
            "a pool that rests is no reason",
        )


@pytest.mark.parametrize(
    ("program", "compiler"),
    [
        *((name, True) for name in ("gcc", "/usr/bin/x86_64-linux-gnu-g++-12", "cc1plus", "ptxas")),
        *((name, False) for name in ("python", "gccgo-loader", "class", "load", "", "ld-linux.so")),
    ],
)
def test_compilers_are_recognized_by_their_names(program: str, compiler: bool) -> None:  # noqa: FBT001
    assert compiles(f"{program}\0-O2\0") is compiler


def test_a_forkserver_is_no_worker_but_its_children_are(tmp_path: Path) -> None:
    process(tmp_path, 8)  # a child of process 1
    command = "python\0-c\0from multiprocessing.forkserver import main; main(5)\0"
    lay(tmp_path, {"8/cmdline": command, "8/status": "PPid:\t1\n"})
    assert is_no_worker(tmp_path, 8, {1}, set())
    assert not is_no_worker(tmp_path, 8, {7}, set())
