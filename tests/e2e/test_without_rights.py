"""The exporter where it may not know all: it runs, tells what it can, and `check` what it cannot.

Real processes feed two GPUs: a worker that burns CPU the first, workers that sleep the
second. What the exporter says with fewer rights is held against what it says with all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from scenarios.cases import Process
from scenarios.measure import running
from support.command import Server
from support.drivers import Libraries
from support.metrics import Metrics
from support.rights import (
    AS_WE_ARE,
    Way,
    as_nobody,
    with_proc_hiding_others,
)
from support.rows import rows
from support.stage import (
    NO_FEEDERS,
    PRIVATE,
    Stage,
    assert_told,
    machines_own,
    scraped,
    scraped_when,
    serving,
    staged,
    started,
)

FED, LOCKED = "0", "1"
LOOPS = {FED: "prep_1", LOCKED: "locked_up"}
DIAGNOSED_SECONDS = 3
BY_PROCESS = {"gpu_feeder_read_bytes_total", "gpu_feeder_written_bytes_total"}
SHARED_MEMORY = {"gpu_feeder_shm_size_bytes", "gpu_feeder_shm_used_bytes"}
OF_PROCESS_1 = {
    *(f"gpu_host_network_{way}_bytes_total" for way in ("receive", "transmit")),
    *(f"gpu_host_shm_{what}_bytes" for what in ("size", "used")),
}
RUNNING = ("worker_cpu", "cpu_queue", "cpu_quota")
"""What a worker that burns CPU is, alone or where others crowd it out."""


@pytest.fixture
def stage(libraries: Libraries) -> Iterator[Stage]:
    with staged(libraries, len(LOOPS)) as found:
        yield found


@contextmanager
def feeding(stage: Stage, way: Way = AS_WE_ARE, cages: tuple[Path, ...] = ()) -> Iterator[None]:
    """A main process on each GPU, with its workers."""
    with ExitStack() as cleanup:
        for gpu, loop in LOOPS.items():
            one = Process(loop, int(gpu))
            cleanup.enter_context(running(one, stage.board, stage.folder, cages, way))
        yield


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


def waited(metrics: Metrics, gpu: str, *causes: str) -> bool:
    """Whether most of a GPU's idle time is put down to `causes`."""
    found = metrics.by("waiting_on", "gpu_stall_seconds_total", gpu=gpu)
    return sum(found.get(cause, 0.0) for cause in causes) > 0.8 * sum(found.values())


def assert_exact(metrics: Metrics) -> None:
    """What was observed was busy or waited for something, to the last nanosecond."""
    for gpu in LOOPS:
        stalls = metrics.by("waiting_on", "gpu_stall_seconds_total", gpu=gpu)
        whole = metrics.of(gpu, "gpu_busy_seconds_total") + sum(stalls.values())
        assert metrics.of(gpu, "gpu_observed_seconds_total") == pytest.approx(whole, abs=1e-6)


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

        def watched(server: Server, cause: str) -> Metrics:
            """What it says once the first GPU waits for a worker, and the second for `cause`."""
            return scraped_when(
                server,
                lambda now: (
                    observes_feeders(now)
                    and waited(now, FED, *RUNNING)
                    and waited(now, LOCKED, cause)
                ),
                cause,
            )

        nobody, root = watched(theirs, "unknown"), watched(ours, "asleep")
        report, (status, said) = check(), diagnosis()
    assert root.names - nobody.names == BY_PROCESS | SHARED_MEMORY
    assert nobody.names <= root.names
    assert root.missing.isdisjoint(PRIVATE)
    assert nobody.signals == {**root.signals, **dict.fromkeys(PRIVATE, 0)}
    assert_told(report, {**machines_own(root), **PRIVATE})
    assert_exact(nobody)
    assert status == 0
    fed, locked = causes(said)
    assert fed in RUNNING
    assert locked == "unknown"
    for gpu in LOOPS:
        for role in ("main", "worker"):
            waits = nobody.by("state", "gpu_feeder_wait_seconds_total", gpu=gpu, role=role)
            assert waits.keys() <= {"unknown", "disk"}, waits
    assert "queue" in root.by("state", "gpu_feeder_wait_seconds_total", gpu=LOCKED)


@rows(
    "hidepid, missing",
    {
        "hidden pids": (2, {"host_pids"}),
        "hidden data": (1, {"host_pids", "process_io", "connections"}),
    },
)
def test_of_processes_that_are_not_seen_only_the_devices_are_told(
    stage: Stage, hidepid: int, missing: set[str]
) -> None:
    way = (*with_proc_hiding_others(hidepid), *as_nobody(files=stage.files))
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
    assert nobody.by("gpu", "gpu_processes") == dict.fromkeys(LOOPS, 1)
    assert nobody.feeders == set()
    assert nobody.missing == whole.missing | missing
    words = {signal: NO_FEEDERS if signal == "host_pids" else () for signal in missing}
    assert_told(report, {**machines_own(whole), **words})
    assert_exact(nobody)
    assert [nobody.waited_on(gpu) for gpu in LOOPS] == [{"unknown"}] * len(LOOPS)
    assert status == 0
    assert {*causes(said)} <= {"unknown"}
