"""The exporter where it may not know all: it runs, tells what it can, and `check` what it cannot.

Real processes feed two GPUs: a worker that burns CPU the first, workers that sleep the
second. What the exporter says with fewer rights is held against what it says with all.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpu_bottleneck_exporter.driver.board import H100, Board, create
from scenarios import loops
from scenarios.cgroups import Limits, Unavailable, limited
from scenarios.measure import _end, _holds
from support.command import (
    ANY_PORT,
    COMMAND,
    PATIENCE_SECONDS,
    Server,
    _kill,
    environment,
    wait_for,
)
from support.drivers import Libraries
from support.rights import (
    AS_WE_ARE,
    Way,
    as_nobody,
    with_cgroups_of_its_own,
    with_pids_of_its_own,
    with_proc_hiding_others,
)
from support.tools import _missing

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
    "gpu_feeder_cpu_limit_cores",
    "gpu_feeder_throttled_seconds_total",
    "gpu_feeder_memory_used_bytes",
    "gpu_feeder_memory_limit_bytes",
    "gpu_feeder_refault_bytes_total",
}
RUNNING = ("worker_cpu", "cpu_queue", "cpu_quota")
"""What a worker that burns CPU is, alone or where others crowd it out."""


@dataclass(frozen=True)
class Stage:
    """A board that any user may drive, and the driver's library, where any user can go."""

    folder: Path
    board: Board

    @property
    def environment(self) -> dict[str, str]:
        return environment(self.folder, FAKE_NVML_BOARD=f"{self.board.path}")

    @property
    def files(self) -> list[Path]:
        """What the programs on it read."""
        return [self.board.path, Path(loops.__file__)]


class Metrics:
    """One exposition."""

    def __init__(self, text: str) -> None:
        self.samples = [s for f in text_string_to_metric_families(text) for s in f.samples]

    @property
    def names(self) -> set[str]:
        return {sample.name for sample in self.samples}

    @property
    def feeders(self) -> set[str]:
        """Families that tell of the processes that feed GPUs, and whose they are."""
        told = ("gpu_feeder_", "gpu_workload_")
        return {name for name in self.names if name.startswith(told)}

    def by(self, label: str, name: str, **labels: str) -> dict[str, float]:
        """Values of `name` with `labels`, by `label`."""
        return {
            sample.labels[label]: sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        }

    def of(self, gpu: str, name: str) -> float:
        return self.by("gpu", name, gpu=gpu)[gpu]

    def waited_on(self, gpu: str) -> set[str]:
        stalls = self.by("waiting_on", "gpu_stall_seconds_total", gpu=gpu)
        return {cause for cause, seconds in stalls.items() if seconds}

    @property
    def signals(self) -> dict[str, float]:
        return self.by("signal", "gpu_exporter_signal_available")

    @property
    def missing(self) -> set[str]:
        return {signal for signal, given in self.signals.items() if not given}


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
    # Not below pytest's folder, where other users cannot go.
    with tempfile.TemporaryDirectory(prefix="gpu-rights-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copy(libraries.path(580), folder)
        with create(folder / "board", gpus=[H100] * len(LOOPS)) as board:
            board.path.chmod(0o666)
            yield Stage(folder, board)


@contextmanager
def feeding(stage: Stage, way: Way = AS_WE_ARE, cages: tuple[Path, ...] = ()) -> Iterator[None]:
    """A main process on each GPU, with its workers."""
    with ExitStack() as cleanup:
        for gpu, loop in LOOPS.items():
            words = [f"{stage.board.path}", gpu, loop, f"{stage.folder}", f"{os.getpid()}"]
            main = subprocess.Popen(
                [*way, sys.executable, loops.__file__, *words, *map(str, cages)],
                env=stage.environment,
                cwd=stage.folder,
                start_new_session=True,
            )
            cleanup.callback(_end, main)
            held = _held(stage.board, int(gpu), main)
            wait_for(held, f"a process on GPU {gpu}")
        yield


def _held(board: Board, gpu: int, main: subprocess.Popen[bytes]) -> Callable[[], bool]:
    def held() -> bool:
        assert main.poll() is None, "a feeder ended at once"
        return _holds(board, gpu, main)

    return held


@contextmanager
def serving(stage: Stage, way: Way) -> Iterator[Server]:
    """`serve`; nothing of it is left afterwards."""
    with tempfile.NamedTemporaryFile(dir=stage.folder, delete=False) as log:
        process = subprocess.Popen(
            [*way, *COMMAND, "serve", *ANY_PORT],
            env=stage.environment,
            cwd=stage.folder,
            stderr=log,
            start_new_session=True,
        )
    server = Server(process, Path(log.name))
    try:
        yield server
    finally:
        while left := server.session():
            for pid in left:
                _kill(pid)
            process.poll()
        process.wait()


@contextmanager
def started(stage: Stage, way: Way, *arguments: str) -> Iterator[Callable[[], tuple[int, str]]]:
    """A command that ends by itself, in the background; a call waits for its status and text."""
    with subprocess.Popen(
        [*way, *COMMAND, *arguments],
        env=stage.environment,
        cwd=stage.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:

        def ended() -> tuple[int, str]:
            said, errors = process.communicate(timeout=PATIENCE_SECONDS)
            assert errors == "", errors
            return process.returncode, said

        try:
            yield ended
        finally:
            process.kill()


def scraped(server: Server) -> Metrics:
    status, text = server.get()
    assert status == 200
    return Metrics(text)


def scraped_when(server: Server, condition: Callable[[Metrics], bool], what: str) -> Metrics:
    found: list[Metrics] = []

    def holds() -> bool:
        assert not server.ended, server.said
        found.append(scraped(server))
        return condition(found[-1])

    wait_for(holds, what)
    return found[-1]


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
    waits = [metrics.by("on", "gpu_feeder_wait_seconds_total", gpu=gpu) for gpu in LOOPS]
    known = found == {FED: {"main": 1, "worker": 1}, LOCKED: {"main": 1, "worker": 2}}
    return known and all(waits) and observes(metrics)


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
    ran, queued = (
        stretch.grown(FED, f"gpu_feeder_{what}_seconds_total", role="worker")
        for what in ("cpu", "run_queue")
    )
    assert ran > 0
    if queued < 0.5 * ran:  # nobody crowded it out
        assert stalls["worker_cpu"] > 0.8, stalls


def assert_told(report: tuple[int, str], missing: Mapping[str, tuple[str, ...]]) -> None:
    """`check` says that it `works, with gaps`, and each gap in words: its cost and remedy."""
    status, said = report
    assert status == (1 if missing else 0), said
    gaps = dict(re.findall(r"^gap +(\w+): .*\n  remedy +(.*)$", said, re.MULTILINE))
    assert gaps.keys() == missing.keys(), said
    unsaid = {s: word for s, words in missing.items() for word in words if word not in gaps[s]}
    assert not unsaid, said


def causes(said: str) -> list[str]:
    """The likely cause of each GPU that `check --diagnose` names."""
    return re.findall(r"^  likely cause  (\w+):", said, re.MULTILINE)


CAPABILITIES = ("CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH", "root")
PRIVATE = {
    "process_io": ("read and wrote", "memory shows as storage", *CAPABILITIES),
    "wait_channel": ("network, queue and asleep become unknown", *CAPABILITIES),
}
"""What the kernel keeps from other users, and what `check` is to say of it."""


def machines_own(metrics: Metrics) -> dict[str, tuple[str, ...]]:
    """Signals that this machine has for nobody, whose remedies do not matter here."""
    return dict.fromkeys(metrics.missing, ())


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
            waits = nobody.last.by("on", "gpu_feeder_wait_seconds_total", gpu=gpu, role=role)
            assert waits.keys() <= {"unknown", "disk"}, waits
    assert "queue" in root.last.by("on", "gpu_feeder_wait_seconds_total", gpu=LOCKED)


def test_the_user_of_the_feeders_is_told_all(stage: Stage) -> None:
    way = as_nobody(files=stage.files)
    with (
        feeding(stage, way),
        serving(stage, AS_WE_ARE) as ours,
        serving(stage, way) as theirs,
        started(stage, way, "check") as check,
    ):
        nobody = watched(theirs, scraped_when(theirs, observes_feeders, "feeders"))
        root = scraped_when(ours, observes_feeders, "feeders")
        report = check()
    assert_told_all(nobody.last, root)
    assert_told(report, machines_own(root))
    assert_exact(nobody.last)
    assert_runs(nobody)
    assert nobody.stalls(LOCKED)["asleep"] > 0.8, nobody.stalls(LOCKED)


def test_the_capabilities_that_check_names_are_enough(stage: Stage) -> None:
    way = as_nobody("sys_ptrace", "dac_read_search", files=stage.files)
    with (
        feeding(stage),
        serving(stage, AS_WE_ARE) as ours,
        serving(stage, way) as theirs,
        started(stage, way, "check") as check,
    ):
        root = scraped_when(ours, observes_feeders, "feeders")
        assert_told_all(scraped_when(theirs, observes_feeders, "feeders"), root)
        assert_told(check(), machines_own(root))


def assert_told_all(theirs: Metrics, ours: Metrics) -> None:
    """Nothing lacks that we know of the same feeders."""
    assert theirs.feeders == ours.feeders
    assert theirs.feeders >= BY_PROCESS | SHARED_MEMORY
    assert theirs.missing == ours.missing
    assert ours.missing.isdisjoint(PRIVATE)


NO_FEEDERS = ("feeders", "unknown", "hostPID: true", "--pid=host", "hidepid")
"""What `check` is to say where processes cannot be seen."""


def test_without_the_hosts_pids_the_devices_are_told(stage: Stage) -> None:
    way = with_pids_of_its_own()
    with (
        feeding(stage),
        started(stage, AS_WE_ARE, "once") as ours,
        serving(stage, way) as theirs,
        started(stage, way, "check") as check,
        started(stage, way, "check", "--diagnose", f"{DIAGNOSED_SECONDS}") as diagnosis,
    ):
        (_, root), report, (status, said) = ours(), check(), diagnosis()
        container = scraped_when(theirs, observes, "a stall")
    whole = Metrics(root)
    assert whole.names - whole.feeders <= container.names | OF_PROCESS_1
    assert container.missing == whole.missing | {"host_pids"}
    assert_told(report, {**machines_own(whole), "host_pids": NO_FEEDERS})
    assert_exact(container)
    for gpu in LOOPS:
        assert container.waited_on(gpu) <= {"unknown"}
    assert status == 0
    assert {*causes(said)} <= {"unknown"}


def test_without_the_hosts_pids_nothing_is_made_up(stage: Stage) -> None:
    with feeding(stage), serving(stage, with_pids_of_its_own()) as theirs:
        container = scraped_when(theirs, observes, "a stall")
    assert container.feeders == set()
    assert [container.waited_on(gpu) for gpu in LOOPS] == [{"unknown"}] * len(LOOPS)


@pytest.mark.parametrize(
    ("hidepid", "missing"),
    [
        (2, {"host_pids"}),
        (1, {"host_pids", "process_io"}),
    ],
)
def test_processes_that_proc_hides_are_unknown(
    stage: Stage, hidepid: int, missing: set[str]
) -> None:
    way = (*with_proc_hiding_others(hidepid), *as_nobody(files=stage.files))
    with (
        feeding(stage),
        started(stage, AS_WE_ARE, "once") as ours,
        serving(stage, way) as theirs,
        started(stage, way, "check") as check,
    ):
        (_, root), report = ours(), check()
        nobody = scraped_when(theirs, observes, "a stall")
        assert "Traceback" not in theirs.said
    whole = Metrics(root)
    assert whole.names - whole.feeders <= nobody.names | OF_PROCESS_1
    assert nobody.feeders == set()
    assert nobody.by("gpu", "gpu_processes") == dict.fromkeys(LOOPS, 1)
    assert nobody.missing == whole.missing | missing
    words = {signal: NO_FEEDERS if signal == "host_pids" else () for signal in missing}
    assert_told(report, {**machines_own(whole), **words})
    assert_exact(nobody)
    assert [nobody.waited_on(gpu) for gpu in LOOPS] == [{"unknown"}] * len(LOOPS)


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
        container = scraped_when(theirs, observes_feeders, "feeders")
    assert_exact(container)
    assert all(container.by("gpu", "gpu_up").values())
    if mounted:
        assert container.feeders.isdisjoint({*OF_CGROUPS, "gpu_feeder_pressure_seconds_total"})
    else:
        assert container.feeders >= OF_CGROUPS
        limits = (
            container.by("gpu", f"gpu_feeder_{n}")
            for n in ("cpu_limit_cores", "memory_limit_bytes")
        )
        expected = (JOBS.cpu_cores, JOBS.memory_bytes)
        assert list(limits) == [dict.fromkeys(LOOPS, value) for value in expected]


@contextmanager
def caged(limits: Limits, folder: Path) -> Iterator[tuple[Path, ...]]:
    """Control groups with `limits`; without rights or controllers there is nothing to test."""
    with ExitStack() as cleanup:
        try:
            yield cleanup.enter_context(limited(limits, folder))
        except Unavailable as reason:
            if reason.kernel:
                pytest.skip(f"{reason}")
            _missing(f"{reason}")
