"""What is staged, what the idle GPU must be found to wait for, and which alert must fire.

The alerts are those on 2 cores, where one saturated worker may or may not leave a core for another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from gpu_bottleneck_exporter.accounting import stall
from scenarios.cgroups import Limits
from scenarios.loops import CORES, MEBIBYTE

BESIDE = None
"""In place of GPUs: a process that runs next to the job."""
ALERT_SECONDS = 40.0
"""Alerts mostly fire within 20 s of the start of the processes."""
SILENT: frozenset[str] = frozenset()
"""The GPU is hardly ever idle; nothing else matters."""


@dataclass(frozen=True, slots=True, order=True)
class Diagnosis:
    """An alert and its cause, which is the primary one while the alert fires."""

    alert: str
    cause: str


CPU_THROTTLED = Diagnosis("GpuCpuThrottled", "cpu_throttled")
WORKER_CHURN = Diagnosis("GpuWorkerChurn", "worker_churn")
CHECKPOINT = Diagnosis("GpuCheckpointStall", "checkpoint_stall")
PAGE_CACHE = Diagnosis("GpuPageCacheThrash", "page_cache_thrash")
LOCAL_STORAGE = Diagnosis("GpuLocalStorageBound", "local_storage_bound")
NETWORK_STORAGE = Diagnosis("GpuNetworkStorageBound", "network_storage_bound")
CPU_OVERSUBSCRIBED = Diagnosis("GpuCpuOversubscribed", "cpu_oversubscribed")
TOO_FEW_WORKERS = Diagnosis("GpuTooFewWorkers", "too_few_workers")
CPU_PREPROCESSING = Diagnosis("GpuCpuPreprocessingBound", "cpu_preprocessing_bound")
GPU_FAULT = Diagnosis("GpuFault", "gpu_fault")
HARDWARE_SLOWDOWN = Diagnosis("GpuHardwareSlowdown", "hw_slowdown")
SHM_EXHAUSTED = Diagnosis("GpuShmExhausted", "shm_exhausted")
INLINE_LOADING = Diagnosis("GpuInlineLoading", "inline_loading")
HOST_LOOP = Diagnosis("GpuHostLoopBound", "host_loop_bound")
IMBALANCE = Diagnosis("GpuImbalance", "gpu_imbalance")
JOB_STALLED = Diagnosis("GpuJobStalled", "job_stalled")
STARTUP = Diagnosis("GpuStartupStall", "startup_stall")
ALLOCATED_IDLE = Diagnosis("GpuAllocatedIdle", "allocated_idle")
NO_ALERT: frozenset[Diagnosis] = frozenset()
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Process:
    """A loop and the GPUs it holds; inside the case's control group or not."""

    loop: str
    gpus: tuple[int, ...] | None = (0,)
    caged: bool = False


@dataclass(frozen=True, slots=True)
class Expected:
    """What is accepted on GPU `gpu`; `second_half`: after the loop was told to change.

    Without `alerts`, none may fire. Those in `before` may fire, but do not suffice.
    """

    waiting_on: frozenset[str]
    alerts: frozenset[Diagnosis] = NO_ALERT
    before: frozenset[Diagnosis] = NO_ALERT
    alert_seconds: float = ALERT_SECONDS
    """How long after the start of the processes one of `alerts` may take to fire."""
    gpu: int = 0
    second_half: bool = False
    title: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One scenario."""

    name: str
    processes: tuple[Process, ...]
    expected: tuple[Expected, ...]
    limits: Limits | None = None
    data_bytes: int = 0
    """Size of the data set; 0: it reads none."""
    note: str = ""
    stage: str = ""
    """Cases with the same stage run together: no limits, and enough CPU or disk left for others."""

    @property
    def gpus(self) -> int:
        """How many GPUs it takes."""
        return 1 + max(expected.gpu for expected in self.expected)

    @property
    def needs_disk(self) -> bool:
        """Whether its files must be on a disk, not in memory."""
        return self.data_bytes > 0 or any(p.loop == "checkpointing" for p in self.processes)


def _case(  # noqa: PLR0913 - a table
    name: str,
    loop: str,
    *causes: str,
    alerts: tuple[Diagnosis, ...] = (),
    before: tuple[Diagnosis, ...] = (),
    alert_seconds: float = ALERT_SECONDS,
    beside: tuple[str, ...] = (),
    limits: Limits | None = None,
    data: int = 0,
    note: str = "",
    stage: str = "",
) -> Case:
    return Case(
        name=name,
        processes=(
            *(Process(other, BESIDE) for other in beside),
            Process(loop, caged=limits is not None),
        ),
        expected=(
            Expected(frozenset(causes), frozenset(alerts), frozenset(before), alert_seconds),
        ),
        limits=limits,
        data_bytes=data * MEBIBYTE,
        note=note,
        stage=stage,
    )


def stages(cases: Sequence[Case]) -> list[tuple[Case, ...]]:
    """Cases that run at the same time: those with the same stage; all others run alone."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.stage or case.name, []).append(case)
    return [tuple(together) for together in found.values()]


def side_by_side(cases: Sequence[Case]) -> Case:
    """One case that combines `cases` without limits, each with its own GPUs."""
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


WAITING, A_CORE_EACH, READING = "waiting", "a core each", "reading"
_DATA = 256
_BUSY_HOST = ("hog", "disk_hog")
_HOGS = ("hog",) * (CORES + 1)
"""With more, the GPU is used so little that its job counts as still starting."""

CASES = (
    _case("healthy, 2 workers", "healthy", stage=WAITING),
    _case(
        "prep, 0 workers", "prep_inline", stall.HOST_CODE, alerts=(HOST_LOOP,), stage=A_CORE_EACH
    ),
    _case(
        "reads and prep, 0 workers",
        "inline_reading",
        stall.HOST_CODE,
        alerts=(INLINE_LOADING,),
        data=_DATA,
    ),
    _case(
        "prep, 1 worker",
        "prep_1",
        stall.WORKER_CPU,
        alerts=(TOO_FEW_WORKERS, CPU_PREPROCESSING),
        note="of 2 cores it leaves about as much as makes another worker worth while",
    ),
    _case("prep, 2 workers", "prep_2", stall.WORKER_CPU, alerts=(CPU_PREPROCESSING,)),
    _case("prep, 3 workers a core", "prep_many", stall.CPU_QUEUE, alerts=(CPU_OVERSUBSCRIBED,)),
    _case(
        "direct disk reads, 1 worker",
        "disk_1",
        stall.STORAGE,
        alerts=(LOCAL_STORAGE,),
        data=_DATA,
        stage=READING,
    ),
    _case(
        "direct disk reads, 4 workers",
        "disk_4",
        stall.STORAGE,
        alerts=(LOCAL_STORAGE,),
        data=_DATA,
        stage=READING,
    ),
    _case(
        "socket fetch, 2 workers",
        "fetch_2",
        stall.NETWORK,
        alerts=(NETWORK_STORAGE,),
        beside=("server",),
        stage=WAITING,
    ),
    _case(
        "socket fetch, 8 workers",
        "fetch_8",
        stall.NETWORK,
        alerts=(NETWORK_STORAGE,),
        beside=("server",),
        stage=WAITING,
    ),
    _case("slow main loop", "slow_main", stall.HOST_CODE, alerts=(HOST_LOOP,), stage=A_CORE_EACH),
    _case(
        "quota 0.6 core, 4 workers",
        "prep_4",
        stall.CPU_QUOTA,
        alerts=(CPU_THROTTLED,),
        limits=Limits(cpu_cores=0.6),
    ),
    _case(
        "quota 1.6 cores, 2 workers",
        "prep_2",
        stall.WORKER_CPU,
        stall.CPU_QUOTA,
        alerts=(CPU_THROTTLED, CPU_PREPROCESSING),
        limits=Limits(cpu_cores=1.6),
        note="the quota costs 20 % of the throughput, decoding the rest: either answer is right",
    ),
    _case(
        "data larger than the memory limit",
        "cached",
        stall.MEMORY,
        alerts=(PAGE_CACHE,),
        limits=Limits(memory_bytes=150 * MEBIBYTE),
        data=400,
    ),
    _case(
        "workers respawned every epoch",
        "respawning",
        stall.WORKER_CPU,
        stall.HOST_CODE,
        stall.CPU_QUEUE,
        alerts=(WORKER_CHURN,),
        note="starting workers is their CPU time, or the main's; never storage or network",
    ),
    _case("synchronous checkpoints", "checkpointing", stall.STORAGE, alerts=(CHECKPOINT,)),
    _case(
        "CPU hogs beside 2 workers",
        "prep_2",
        stall.CPU_QUEUE,
        alerts=(CPU_OVERSUBSCRIBED,),
        beside=_HOGS,
    ),
    _case("busy host, GPU fine", "healthy", beside=_BUSY_HOST, data=_DATA),
    _case("disk neighbour, GPU fine", "healthy", beside=("disk_hog", "disk_hog"), data=_DATA),
    _case(
        "disk + heavy prep",
        "disk_heavy_prep",
        stall.WORKER_CPU,
        alerts=(CPU_PREPROCESSING,),
        data=_DATA,
    ),
    _case(
        "disk + light prep",
        "disk_light_prep",
        stall.STORAGE,
        alerts=(LOCAL_STORAGE,),
        data=_DATA,
        stage=READING,
    ),
    _case(
        "slow main loop, disk neighbour",
        "slow_main",
        stall.HOST_CODE,
        alerts=(HOST_LOOP,),
        beside=("disk_hog",),
        data=_DATA,
    ),
    _case(
        "workers locked up",
        "locked_up",
        stall.ASLEEP,
        alerts=(JOB_STALLED,),
        note="they worked before",
        stage=WAITING,
    ),
    _case(
        "throttled disk reads",
        "disk_trickle",
        stall.STORAGE,
        alerts=(LOCAL_STORAGE,),
        limits=Limits(read_bytes_per_second=8 * MEBIBYTE),
        data=64,
        note="the kernel holds the reads back, so the disk is idle",
    ),
    _case(
        "held but idle",
        "held",
        stall.ASLEEP,
        alerts=(ALLOCATED_IDLE,),
        before=(STARTUP,),
        alert_seconds=70.0,
        note="for an hour, 30 s here, it may be starting",
        stage=WAITING,
    ),
    _case("shared memory nearly full", "crowded", alerts=(SHM_EXHAUSTED,), stage=WAITING),
    _case("uncorrectable memory errors", "broken", alerts=(GPU_FAULT,), stage=WAITING),
    _case("power brake", "braked", alerts=(HARDWARE_SLOWDOWN,), stage=WAITING),
    Case("no process", (), (Expected(frozenset({stall.UNALLOCATED})),), stage=WAITING),
    Case(
        "two jobs on two GPUs",
        (Process("server", BESIDE), Process("fetch_2", (0,)), Process("slow_main", (1,))),
        (
            Expected(
                frozenset({stall.NETWORK}),
                frozenset({NETWORK_STORAGE}),
                gpu=0,
                title="socket fetch",
            ),
            Expected(
                frozenset({stall.HOST_CODE}), frozenset({HOST_LOOP}), gpu=1, title="slow main loop"
            ),
        ),
    ),
    Case(
        "a cause that changes",
        (Process("server", BESIDE), Process("changing")),
        (
            Expected(
                frozenset({stall.NETWORK}), frozenset({NETWORK_STORAGE}), title="socket fetch"
            ),
            Expected(
                frozenset({stall.HOST_CODE}),
                frozenset({HOST_LOOP}),
                before=frozenset({NETWORK_STORAGE}),
                second_half=True,
                title="slow main loop",
            ),
        ),
    ),
    Case(
        "two GPUs held, one fed",
        (Process("healthy", (0, 1)),),
        (
            Expected(SILENT, gpu=0, title="fed"),
            Expected(
                frozenset({stall.PEER, stall.ASLEEP}), frozenset({IMBALANCE}), gpu=1, title="idle"
            ),
        ),
        stage=WAITING,
    ),
)
