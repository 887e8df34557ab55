"""The exporter where it may not know all: it runs, tells what it can, and `check` what it cannot.

Real processes feed two GPUs: a worker that burns CPU the first, workers that sleep the
second. What the exporter says with fewer rights is held against what it says with all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from scenarios.cases import Process
from scenarios.cgroups import Limits
from scenarios.measure import running
from support.command import Server
from support.drivers import Libraries
from support.metrics import Metrics
from support.rights import (
    AS_WE_ARE,
    Way,
    as_nobody,
    with_cgroups_of_its_own,
    with_pids_of_its_own,
    with_proc_hiding_others,
)
from support.rows import rows
from support.stage import (
    NO_FEEDERS,
    PRIVATE,
    Stage,
    assert_told,
    caged,
    machines_own,
    scraped,
    scraped_when,
    serving,
    staged,
    started,
)

FED, LOCKED = "0", "1"
LOOPS = {FED: "prep_1", LOCKED: "locked_up"}
WATCHED_SECONDS = 4.0
DIAGNOSED_SECONDS = 3
BY_PROCESS = {"gpu_feeder_read_bytes_total", "gpu_feeder_written_bytes_total"}
SHARED_MEMORY = {"gpu_feeder_shm_size_bytes", "gpu_feeder_shm_used_bytes"}
OF_PROCESS_1 = {
    *(f"gpu_host_network_{way}_bytes_total" for way in ("receive", "transmit")),
    *(f"gpu_host_shm_{what}_bytes" for what in ("size", "used")),
}
OF_CGROUPS = {
    *("gpu_feeder_cpu_limit_cores", "gpu_feeder_throttled_seconds_total"),
    *("gpu_feeder_memory_used_bytes", "gpu_feeder_memory_limit_bytes"),
    "gpu_feeder_refault_bytes_total",
}
RUNNING = ("worker_cpu", "cpu_queue", "cpu_quota")
"""What a worker that burns CPU is, alone or where others crowd it out."""


@dataclass(frozen=True)
class Stretch:
    """Two scrapes of one exporter, and what lies between."""

    first: Metrics
    last: Metrics

    def grown(self, gpu: str, name: str, **labels: str) -> float:
        ends = [metrics.by("gpu", name, gpu=gpu, **labels)[gpu] for metrics in self.ends]
        return ends[1] - ends[0]

    def stalls(self, gpu: str) -> dict[str, float]:
        """Shares of the idle time, 0-1, by what it waited on."""
        first, last = (m.by("waiting_on", "gpu_stall_seconds_total", gpu=gpu) for m in self.ends)
        idle = sum(last.values()) - sum(first.values())
        return {cause: (last[cause] - first[cause]) / idle for cause in last}

    @property
    def ends(self) -> tuple[Metrics, Metrics]:
        return self.first, self.last


@pytest.fixture
def stage(libraries: Libraries) -> Iterator[Stage]:
    with staged(libraries, len(LOOPS)) as found:
        yield found


@contextmanager
def feeding(stage: Stage, way: Way = AS_WE_ARE, cages: tuple[Path, ...] = ()) -> Iterator[None]:
    """A main process on each GPU, with its workers."""
    with ExitStack() as cleanup:
        for gpu, loop in LOOPS.items():
            one = Process(loop, (int(gpu),))
            cleanup.enter_context(running(one, stage.board, stage.folder, cages, way))
        yield


def watched(server: Server, begun: Metrics) -> Stretch:
    """From `begun` until enough of every GPU was observed."""
    observed = "gpu_observed_seconds_total"
    until = {gpu: begun.of(gpu, observed) + WATCHED_SECONDS for gpu in LOOPS}

    def enough(metrics: Metrics) -> bool:
        return all(metrics.of(gpu, observed) >= seconds for gpu, seconds in until.items())

    return Stretch(begun, scraped_when(server, enough, "time to observe"))


def observes(metrics: Metrics) -> bool:
    """Whether idle time of both GPUs has been put down to something."""
    return all(metrics.waited_on(gpu) for gpu in LOOPS)


def observes_feeders(metrics: Metrics) -> bool:
    """Whether also all processes of both loops were found, and seen to wait."""
    found = {gpu: metrics.by("role", "gpu_feeder_processes", gpu=gpu) for gpu in LOOPS}
    waits = [metrics.by("state", "gpu_feeder_wait_seconds_total", gpu=gpu) for gpu in LOOPS]
    known = found == {FED: {"main": 1, "worker": 1}, LOCKED: {"main": 1, "worker": 2}}
    return known and all(waits) and observes(metrics)


def scraped_with(server: Server, names: set[str]) -> Metrics:
    """What it says once it says all of `names`, and has put idle time down to something."""
    return scraped_when(
        server,
        lambda metrics: observes(metrics) and names <= metrics.names,
        lambda: names - scraped(server).names,
    )


def assert_exact(metrics: Metrics) -> None:
    """What was observed was busy or waited for something, to the last nanosecond."""
    for gpu in LOOPS:
        stalls = metrics.by("waiting_on", "gpu_stall_seconds_total", gpu=gpu)
        whole = metrics.of(gpu, "gpu_busy_seconds_total") + sum(stalls.values())
        assert metrics.of(gpu, "gpu_observed_seconds_total") == pytest.approx(whole, abs=1e-6)


def assert_runs(stretch: Stretch) -> None:
    """The first GPU waited for a worker that ran, or would have if there had been a CPU."""
    stalls = stretch.stalls(FED)
    assert sum(stalls[cause] for cause in RUNNING) > 0.8, stalls
    ran = stretch.grown(FED, "gpu_feeder_cpu_seconds_total", role="worker")
    queued = stretch.grown(FED, "gpu_feeder_run_queue_seconds_total", role="worker")
    assert ran > 0
    if queued < 0.15 * ran:  # nobody crowded it out
        assert stalls["worker_cpu"] > 0.8, stalls


def causes(said: str) -> list[str]:
    """The likely cause of each GPU that `check --diagnose` names."""
    return re.findall(r"^  likely cause  .*\((\w+)\)", said, re.MULTILINE)


def test_another_user_is_told_all_but_what_is_private(stage: Stage) -> None:
    way = as_nobody(files=stage.files)
    with (
        feeding(stage),
        serving(stage, AS_WE_ARE) as ours,
        serving(stage, way) as theirs,
        started(stage, way, "check") as check,
        started(stage, way, "check", "--diagnose", f"{DIAGNOSED_SECONDS}") as diagnosis,
    ):
        begun = scraped_when(ours, observes_feeders, "feeders")
        nobody = watched(theirs, scraped_when(theirs, observes_feeders, "feeders"))
        root = watched(ours, begun)
        report, (status, said) = check(), diagnosis()
    assert root.last.names - nobody.last.names == BY_PROCESS | SHARED_MEMORY
    assert nobody.last.names <= root.last.names
    assert root.last.missing.isdisjoint(PRIVATE)
    assert nobody.last.signals == {**root.last.signals, **dict.fromkeys(PRIVATE, 0)}
    assert_told(report, {**machines_own(root.last), **PRIVATE})

    assert_exact(nobody.last)
    assert_runs(root)
    assert_runs(nobody)
    assert root.stalls(LOCKED)["asleep"] > 0.8, root.stalls(LOCKED)
    assert nobody.stalls(LOCKED)["unknown"] > 0.8, nobody.stalls(LOCKED)
    assert status == 0
    fed, locked = causes(said)
    assert fed in RUNNING
    assert locked == "unknown"
    for gpu in LOOPS:
        for role in ("main", "worker"):
            waits = nobody.last.by("state", "gpu_feeder_wait_seconds_total", gpu=gpu, role=role)
            assert waits.keys() <= {"unknown", "disk"}, waits
    assert "queue" in root.last.by("state", "gpu_feeder_wait_seconds_total", gpu=LOCKED)


def way_of(stage: Stage, hidepid: int) -> Way:
    """Without a `hidepid`, it has its own pids."""
    if not hidepid:
        return with_pids_of_its_own()
    return (*with_proc_hiding_others(hidepid), *as_nobody(files=stage.files))


@rows(
    "hidepid, missing",
    {
        "own pids": (0, {"host_pids"}),
        "hidden pids": (2, {"host_pids"}),
        "hidden data": (1, {"host_pids", "process_io", "connections"}),
    },
)
def test_of_processes_that_are_not_seen_only_the_devices_are_told(
    stage: Stage, hidepid: int, missing: set[str]
) -> None:
    way = way_of(stage, hidepid)
    with (
        feeding(stage),
        started(stage, AS_WE_ARE, "once") as ours,
        serving(stage, way) as theirs,
        started(stage, way, "check") as check,
        started(stage, way, "check", "--diagnose", f"{DIAGNOSED_SECONDS}") as diagnosis,
    ):
        (_, root), report, (status, said) = ours(), check(), diagnosis()
        whole = Metrics(root)
        expected = whole.names - whole.feeders - {"gpu_processes"} - OF_PROCESS_1
        nobody = scraped_with(theirs, expected)
        assert "Traceback" not in theirs.said
    counted = dict.fromkeys(LOOPS, 1) if hidepid else {}
    assert nobody.by("gpu", "gpu_processes") == counted, "none that are seen are not none"
    assert nobody.feeders == set()
    assert nobody.missing == whole.missing | missing
    words = {signal: NO_FEEDERS if signal == "host_pids" else () for signal in missing}
    assert_told(report, {**machines_own(whole), **words})
    assert_exact(nobody)
    assert [nobody.waited_on(gpu) for gpu in LOOPS] == [{"unknown"}] * len(LOOPS)
    assert status == 0
    assert {*causes(said)} <= {"unknown"}


JOBS = Limits(cpu_cores=1.5, memory_bytes=2 * 2**30)
EXPORTERS = Limits(cpu_cores=64, memory_bytes=3 * 2**30)


@pytest.mark.parametrize("mounted", [False, True], ids=["hosts mounts", "mounts of its own"])
def test_in_a_cgroup_namespace_limits_are_the_jobs_or_absent(
    stage: Stage, *, mounted: bool
) -> None:
    with (
        caged(JOBS, stage.folder) as cages,
        caged(EXPORTERS, stage.folder) as own,
        feeding(stage, cages=cages),
        serving(stage, with_cgroups_of_its_own(own, mounted=mounted)) as theirs,
    ):
        told = set() if mounted else OF_CGROUPS  # of these, some take two readings
        container = scraped_when(
            theirs,
            lambda now: observes_feeders(now) and told <= now.feeders,
            lambda: told - scraped(theirs).feeders,
        )
    assert_exact(container)
    assert all(container.by("gpu", "gpu_up").values())
    if mounted:
        assert container.feeders.isdisjoint({*OF_CGROUPS, "gpu_feeder_pressure_seconds_total"})
    else:
        limits = {"cpu_limit_cores": JOBS.cpu_cores, "memory_limit_bytes": JOBS.memory_bytes}
        for name, limit in limits.items():
            assert container.by("gpu", f"gpu_feeder_{name}") == dict.fromkeys(LOOPS, limit)
