"""Crowds of processes, threads and sockets: counted, read in turn, and told truly."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.bucket import Bucket, Part, Role
from gpu_bottleneck_exporter.accounting.stall import UNKNOWN
from gpu_bottleneck_exporter.feeders import tree
from gpu_bottleneck_exporter.feeders.process import FeederProcess
from gpu_bottleneck_exporter.feeders.snapshot import Feeding
from gpu_bottleneck_exporter.feeders.tree import (
    DeeplyProbed,
    SamplingBudget,
    budget_of,
    select_workers,
)
from gpu_bottleneck_exporter.host.aside import proc_reads
from gpu_bottleneck_exporter.sampling.watching import HostSampler
from gpu_bottleneck_exporter.settings import Settings
from support.children import Parent
from support.limits import all_in_use
from support.programs import program
from support.ticks import note_split
from support.waiting import until

UUID = "a"
BURN_SECONDS = 0.5
SOCKETS = 500
CROWD = """
def children(number):
    for _ in range(number):
        if os.fork() == 0:
            signal.pause()
children({})
"""
BURNS = f"""
if os.fork() == 0:
    told()
    end = time.process_time() + {BURN_SECONDS}
    while time.process_time() < end:
        pass
    signal.pause()
ready()
signal.pause()
"""
SILENT = """
silent = socket.create_server(("127.0.0.1", 0), backlog=4096)
ready(silent.getsockname()[1])
locked()
"""
ASKING = f"""
import resource
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
if os.fork() == 0:
    kept = [connect(int(sys.argv[1])) for _ in range({SOCKETS})]
    ready()
    while True:
        kept[-1].send(b"?")
        select.select([kept[-1]], [], [], 0.5)
locked()
"""


@contextmanager
def watched(*pids: int, proc: Path = Path("/proc")) -> Iterator[HostSampler]:
    """A watch of GPUs that processes `pids` hold, named `a`, `b` and so on."""
    watch = HostSampler(Settings(procfs=proc))
    for number, pid in enumerate(pids):
        watch.hold(chr(ord(UUID) + number), frozenset({pid}))
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()


def feeding(watch: HostSampler) -> Feeding | None:
    note_split(watch, UUID, 0, {UNKNOWN: 1})  # starved, and looked at closely
    return watch.feeding(UUID)


def workers(watch: HostSampler) -> int | None:
    feeders = feeding(watch)
    return feeders.processes.get("worker") if feeders else None


def worker_cpu_ns(watch: HostSampler) -> int:
    feeders = feeding(watch)
    return feeders.counters["worker"].cpu_ns if feeders and "worker" in feeders.counters else 0


def told(watch: HostSampler) -> tuple[bool | None, dict[str, int]]:
    """The signal, and how many are watched how well."""
    snapshot = watch.host.snapshot
    return signal(watch, "all_processes"), dict(snapshot.watched) if snapshot else {}


def signal(watch: HostSampler, name: str) -> bool | None:
    """One of what the host tells, while the GPU has no work."""
    note_split(watch, UUID, 0, {UNKNOWN: 1})
    snapshot = watch.host.snapshot
    return snapshot.signals.get(name) if snapshot else None


def seen(watch: HostSampler, since_ns: int, role: str, uuid: str = UUID) -> Part:
    """Activity of feeders while the GPU had no work."""
    note_split(watch, uuid, 0, {UNKNOWN: 1})
    return (watch.explaining(uuid, since_ns, time.monotonic_ns()) or Bucket()).of(role)


def test_usage_of_a_crowd_is_exact_if_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "MAX_READS_PER_TICK", 40)
    with program(CROWD.format(100) + BURNS) as process, watched(process.pid) as watch:
        until(lambda: workers(watch) == 101, "all workers")
        until(lambda: told(watch) == (False, {"whole": 1, "sampled": 101, "counted": 0}), "it")
        before = worker_cpu_ns(watch)
        process.tell()
        until(lambda: worker_cpu_ns(watch) - before >= BURN_SECONDS * 0.9e9, "all it burned")
        assert worker_cpu_ns(watch) - before < BURN_SECONDS * 2e9


def test_beyond_the_followed_processes_only_their_number_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tree, "MAX_FOLLOWED", 50)
    with program(CROWD.format(120) + "ready(); told()") as process, watched(process.pid) as watch:
        until(lambda: workers(watch) == 120, "all workers")
        until(lambda: told(watch) == (False, {"whole": 51, "sampled": 0, "counted": 70}), "it")
        feeders = feeding(watch)
        assert feeders is not None
        assert feeders.counters.keys() == {"main"}
        assert feeders.worker_starts == 0
    with program(CROWD.format(20) + "ready(); told()") as process, watched(process.pid) as watch:
        until(lambda: told(watch) == (True, {"whole": 21, "sampled": 0, "counted": 0}), "all")


def test_a_watch_without_room_takes_no_process_for_ended(
    start: Callable[[], Parent], caplog: pytest.LogCaptureFixture
) -> None:
    def faults() -> list[logging.LogRecord]:
        return [line for line in caplog.records if line.levelno >= logging.WARNING]

    main = start()
    worker = main.fork()
    with watched(main.pid) as watch:
        until(lambda: workers(watch) == 1, "the worker")
        feed = watch.feed(UUID)
        assert feed is not None
        member = feed.workers[worker]
        until(lambda: len(feed.history._passes) > 0, "a first pass")
        with all_in_use() as take:
            until(lambda: take() or faults(), "that it is told")
            last_ns = feed.history._passes[-1].at_ns
            time.sleep(1.0)
        until(lambda: feed.history._passes[-1].at_ns > last_ns, "more passes")
        watch.hold("another", frozenset())  # a reason to discover
        until(lambda: watch.feed("another"), "a discovery")
        # A look without room may take it for a helper, whose counters go on, until the next one.
        until(lambda: feed.workers == {worker: member}, "the same worker")
        assert feed.worker_starts == 0
    assert len(faults()) <= 6, "by what could not be done, not by pass"


def test_a_process_that_responds_late_stays_until_it_has_ended(
    start: Callable[[], Parent], monkeypatch: pytest.MonkeyPatch
) -> None:
    main = start()
    main.fork()
    with watched(main.pid) as watch:
        until(lambda: workers(watch) == 1, "the worker")
        feed = watch.feed(UUID)
        assert feed is not None
        mains, members = dict(feed.mains), dict(feed.workers)
        monkeypatch.setattr(proc_reads, "call", lambda *_: None)
        watch.hold("another", frozenset())  # a reason to discover
        until(lambda: watch.feed("another"), "a discovery")
        assert (feed.mains, feed.workers) == (mains, members)
        assert feed.worker_starts == 0
        main.end()
        until(lambda: not feed.mains, "its end")


def test_of_many_sockets_the_one_that_is_asked_is_seen() -> None:
    with (
        program(SILENT) as server,
        program(ASKING, *server.words) as process,
        watched(process.pid) as watch,
    ):
        until(lambda: signal(watch, "all_sockets") is False, "that not all are looked at")
        since = time.monotonic_ns()

        def mostly() -> bool:
            fields = dict(seen(watch, since, Role.WORKER).by_activity)
            fields.pop(Activity.RUN, 0)  # it is about to, for long where there is no CPU for it
            asks = fields.pop(Activity.NETWORK, 0)
            return asks > max(10, 4 * sum(fields.values()))

        until(mostly, "the one")


def test_shares_refer_to_the_total_time() -> None:
    assert budget_of(0) == budget_of(1) == tree.FULL_BUDGET
    assert budget_of(8) == SamplingBudget(1024, 64)
    assert sum(budget_of(16)) <= sum(tree.FULL_BUDGET) / 16


@pytest.mark.parametrize(
    ("workers", "rounds"), [(0, 1), (4, 1), (5, 2), (128, 2), (129, 3), (1024, 16)]
)
def test_interval_of_reading_by_number_of_processes(workers: int, rounds: int) -> None:
    assert budget_of(8).rounds(workers) == rounds
    assert budget_of(8).is_prompt(workers) is (rounds <= 2)


def test_those_that_are_followed_stay_so_and_others_are_chosen_at_random() -> None:
    everybody = set(range(1000))
    first = select_workers(everybody, [], 100)
    assert len(first) == 100
    assert select_workers(everybody, first, 100) == first
    assert select_workers(everybody, list(first)[:50], 100) >= set(list(first)[:50])
    assert select_workers(everybody, [], 100) != first
    assert select_workers({1, 2}, [2, 3], 100) == {1, 2}


def test_an_ended_process_is_not_probed_deeply_any_more(tmp_path: Path) -> None:
    everybody = {pid: FeederProcess(tmp_path, pid) for pid in range(2 * tree.MAX_DEEPLY_PROBED)}
    probed = DeeplyProbed()
    probed.choose_from(everybody, 0)
    first, second, *others = probed.members
    del everybody[first.pid]
    everybody[second.pid] = FeederProcess(tmp_path, second.pid)
    probed.choose_from(everybody, 1)
    assert probed.members == others
