"""What is staged, what the idle GPU must be found to wait for, and which alert must fire.

The alerts are those on 2 cores, where one saturated worker may or may not leave a core for another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from scenarios.cgroups import Limits
from scenarios.loops import CORES, MEBIBYTE

BESIDE = None
"""In place of GPUs: a process that runs next to the job."""
ALERT_SECONDS = 40.0
"""Alerts mostly fire within 20 s of the start of the processes."""


@dataclass(frozen=True, slots=True, order=True)
class Diagnosis:
    """An alert and its cause, which is the primary one while the alert fires."""

    alert: str
    cause: str


ALERTS = {
    "cpu_throttled": "GpuCpuThrottled",
    "worker_churn": "GpuWorkerChurn",
    "checkpoint_stall": "GpuCheckpointStall",
    "page_cache_thrash": "GpuPageCacheThrash",
    "local_storage_bound": "GpuLocalStorageBound",
    "network_storage_bound": "GpuNetworkStorageBound",
    "cpu_oversubscribed": "GpuCpuOversubscribed",
    "too_few_workers": "GpuTooFewWorkers",
    "cpu_preprocessing_bound": "GpuCpuPreprocessingBound",
    "gpu_fault": "GpuFault",
    "hw_slowdown": "GpuHardwareSlowdown",
    "shm_exhausted": "GpuShmExhausted",
    "inline_loading": "GpuInlineLoading",
    "host_loop_bound": "GpuHostLoopBound",
    "gpu_imbalance": "GpuImbalance",
    "job_stalled": "GpuJobStalled",
    "startup_stall": "GpuStartupStall",
    "allocated_idle": "GpuAllocatedIdle",
}
"""By cause."""
CPU_QUEUE, NEED_CPU = "cpu_queue", frozenset({"cpu_quota", "host_code", "worker_cpu"})
NO_ALERT: frozenset[Diagnosis] = frozenset()
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Process:
    """A loop, the GPUs it holds, and the limits of the control group that it is in, if it is."""

    loop: str
    gpus: tuple[int, ...] | None = (0,)
    limits: Limits | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """What is accepted on GPU `gpu`; `second_half`: after the loop was told to change.

    Without `waiting_on`, the GPU is hardly ever idle. Without `alerts`, none may fire. Those in
    `before` may fire, but do not suffice.
    """

    waiting_on: frozenset[str]
    alerts: frozenset[Diagnosis] = NO_ALERT
    before: frozenset[Diagnosis] = NO_ALERT
    alert_seconds: float = ALERT_SECONDS
    """How long after the start of the processes one of `alerts` may take to fire."""
    gpu: int = 0
    second_half: bool = False
    title: str = ""

    def in_a_crowd(self) -> Expected:
        """The same where a stranger takes a core: who needs the CPU may wait for it, too."""
        if not self.waiting_on & NEED_CPU:
            return self
        queue = Diagnosis(ALERTS["cpu_oversubscribed"], "cpu_oversubscribed")
        waiting_on = self.waiting_on | {CPU_QUEUE}
        return replace(self, waiting_on=waiting_on, alerts=self.alerts | {queue})


@dataclass(frozen=True, slots=True)
class Case:
    """One scenario."""

    name: str
    processes: tuple[Process, ...]
    expected: tuple[Expected, ...]
    data_bytes: int = 0
    """Size of the data set; 0: it reads none."""
    stage: str = ""
    """Cases with the same stage run together: they leave enough CPU or disk for each other."""

    @property
    def gpus(self) -> int:
        """How many GPUs it takes."""
        return 1 + max(expected.gpu for expected in self.expected)

    @property
    def needs_disk(self) -> bool:
        """Whether its files must be on a disk, not in memory."""
        return self.data_bytes > 0 or any(p.loop == "checkpointing" for p in self.processes)


def _expected(  # noqa: PLR0913 - a table
    waiting_on: str,
    causes: str = "",
    *,
    before: str = "",
    seconds: float = ALERT_SECONDS,
    gpu: int = 0,
    second_half: bool = False,
    title: str = "",
) -> Expected:
    """Names are separated by spaces; `causes` and `before` stand for their alerts."""
    alerts, may = (
        frozenset(Diagnosis(ALERTS[cause], cause) for cause in words.split())
        for words in (causes, before)
    )
    accepted = frozenset(waiting_on.split())
    return Expected(accepted, alerts, may, seconds, gpu, second_half, title)


def _case(  # noqa: PLR0913 - a table
    name: str,
    loop: str,
    expected: Expected,
    *,
    beside: str = "",
    limits: Limits | None = None,
    data: int = 0,
    stage: str = "",
) -> Case:
    """`beside`: loops that run next to it; `data` in MiB."""
    neighbours = (Process(other, BESIDE) for other in beside.split())
    processes = (*neighbours, Process(loop, limits=limits))
    return Case(name, processes, (expected,), data * MEBIBYTE, stage)


def stages(cases: Sequence[Case]) -> list[tuple[Case, ...]]:
    """Cases that run at the same time: those with the same stage; all others run alone."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.stage or case.name, []).append(case)
    return [tuple(together) for together in found.values()]


def side_by_side(cases: Sequence[Case]) -> Case:
    """One case that combines `cases`, each with its own GPUs."""
    if len(cases) == 1:
        return cases[0]
    processes: list[Process] = []
    expected: list[Expected] = []
    first = 0
    for case in cases:
        processes += [_moved(process, first) for process in case.processes]
        expected += [replace(one, gpu=one.gpu + first) for one in case.expected]
        first += case.gpus
    return Case(
        name="side by side",
        processes=tuple(dict.fromkeys(processes)),  # what two jobs have next to them runs once
        expected=tuple(expected),
        data_bytes=max(case.data_bytes for case in cases),
    )


def apart(cases: Sequence[Case], results: Sequence[T]) -> list[list[T]]:
    """`results` of `side_by_side(cases)`, by case."""
    left = iter(results)
    return [[next(left) for _ in case.expected] for case in cases]


def _moved(process: Process, first: int) -> Process:
    """`process` with its GPUs counted from `first` on."""
    gpus = process.gpus
    return process if gpus is BESIDE else replace(process, gpus=tuple(i + first for i in gpus))


WAITING, A_CORE_EACH, READING, HELD_BACK = "waiting", "a core each", "reading", "held back"
_DATA = 256
_HOGS = "hog " * (CORES + 1)
"""With more, the GPU is used so little that its job counts as still starting."""
_WELL = _expected("")
_CODE = _expected("host_code", "host_loop_bound")
_DISK = _expected("storage", "local_storage_bound")
_FETCH = _expected("network", "network_storage_bound")
_QUEUE = _expected("cpu_queue", "cpu_oversubscribed")
_PREP = _expected("worker_cpu", "cpu_preprocessing_bound")

CASES = (
    _case("healthy, 2 workers", "healthy", _WELL, stage=WAITING),
    _case("prep, 0 workers", "prep_inline", _CODE, stage=A_CORE_EACH),
    _case(
        "reads and prep, 0 workers",
        "inline_reading",
        _expected("host_code", "inline_loading"),
        data=_DATA,
        stage=A_CORE_EACH,
    ),
    # Of 2 cores it leaves about as much as makes another worker worth while.
    _case(
        "prep, 1 worker",
        "prep_1",
        _expected("worker_cpu", "too_few_workers cpu_preprocessing_bound"),
    ),
    _case("prep, 2 workers", "prep_2", _PREP),
    _case("prep, 3 workers a core", "prep_many", _QUEUE),
    _case("direct disk reads, 1 worker", "disk_1", _DISK, data=_DATA, stage=READING),
    _case("direct disk reads, 4 workers", "disk_4", _DISK, data=_DATA, stage=READING),
    _case("socket fetch, 2 workers", "fetch_2", _FETCH, beside="server", stage=WAITING),
    _case("socket fetch, 8 workers", "fetch_8", _FETCH, beside="server", stage=WAITING),
    _case(
        "quota 0.6 core, 4 workers",
        "prep_4",
        _expected("cpu_quota", "cpu_throttled"),
        limits=Limits(cpu_cores=0.6),
        stage=HELD_BACK,
    ),
    # The quota costs 20 % of the throughput, decoding the rest: either answer is right.
    _case(
        "quota 1.6 cores, 2 workers",
        "prep_2",
        _expected("worker_cpu cpu_quota", "cpu_throttled cpu_preprocessing_bound"),
        limits=Limits(cpu_cores=1.6),
    ),
    _case(
        "data larger than the memory limit",
        "cached",
        _expected("memory", "page_cache_thrash"),
        limits=Limits(memory_bytes=150 * MEBIBYTE),
        data=400,
    ),
    # Starting workers is their CPU time, or the main's; never storage or network.
    _case(
        "workers respawned every epoch",
        "respawning",
        _expected("worker_cpu host_code cpu_queue", "worker_churn"),
    ),
    _case(
        "synchronous checkpoints",
        "checkpointing",
        _expected("storage", "checkpoint_stall"),
        stage=HELD_BACK,
    ),
    _case("CPU hogs beside 2 workers", "prep_2", _QUEUE, beside=_HOGS),
    _case("busy host, GPU fine", "healthy", _WELL, beside="hog disk_hog disk_hog", data=_DATA),
    _case("disk + heavy prep", "disk_heavy_prep", _PREP, data=_DATA),
    _case("disk + light prep", "disk_light_prep", _DISK, data=_DATA, stage=READING),
    _case("slow main loop, disk neighbour", "slow_main", _CODE, stage=READING),
    # They worked before.
    _case("workers locked up", "locked_up", _expected("asleep", "job_stalled"), stage=WAITING),
    # The kernel holds the reads back, so the disk is idle.
    _case(
        "throttled disk reads",
        "disk_trickle",
        _DISK,
        limits=Limits(read_bytes_per_second=8 * MEBIBYTE),
        data=64,
        stage=HELD_BACK,
    ),
    # For an hour, 30 s here, it may be starting.
    _case(
        "held but idle",
        "held",
        _expected("asleep", "allocated_idle", before="startup_stall", seconds=70.0),
        stage=WAITING,
    ),
    _case("shared memory nearly full", "crowded", _expected("", "shm_exhausted"), stage=WAITING),
    _case("uncorrectable memory errors", "broken", _expected("", "gpu_fault"), stage=WAITING),
    _case("power brake", "braked", _expected("", "hw_slowdown"), stage=WAITING),
    Case("no process", (), (_expected("unallocated"),), stage=WAITING),
    Case(
        "a cause that changes",
        (Process("server", BESIDE), Process("changing")),
        (
            replace(_FETCH, title="socket fetch"),
            replace(_CODE, before=_FETCH.alerts, second_half=True, title="slow main loop"),
        ),
        stage=WAITING,
    ),
    Case(
        "two GPUs held, one fed",
        (Process("healthy", (0, 1)),),
        (
            _expected("", title="fed"),
            _expected("peer asleep", "gpu_imbalance", gpu=1, title="idle"),
        ),
        stage=WAITING,
    ),
)
