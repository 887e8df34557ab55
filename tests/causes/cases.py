"""Situations: what runs on which GPU, what the board does, what Prometheus must report.

Each cause has a situation that shows it, and a twin just on the healthy side of its thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from causes import board
from causes.board import Condition
from gpu_bottleneck_exporter.demo.board.create import H100, Model
from gpu_bottleneck_exporter.demo.board.work import Work
from support.models import A100

JUDGED_SECONDS = 60.0
"""By then all alerts fire: the slowest wait for an hour, which is 30 s here."""
ANY = "any"
DAY = "40m"
"""Stands for a day, before division: a real one does not fit into a minute."""
TRAINS = Work()
HALL = "hall"
"""A cluster whose cooling fails."""
NOT_QUITE = ", not quite"
"""The suffix of the healthy twin's name."""


@dataclass(frozen=True, slots=True, order=True)
class Diagnosis:
    """An alert, its cause (what it is blind for, in `GpuCausesBlind`), and its severity.

    "": it has no cause, or its severity does not matter.
    """

    alert: str
    cause: str = ""
    severity: str = ""


@dataclass(frozen=True, slots=True)
class Expected:
    """What must fire for a GPU or a node at the end, and what else may."""

    alert: Diagnosis | None = None
    primary: str | None = None
    """The primary cause at the end, if not that of the alert; "": none."""
    besides: frozenset[Diagnosis] = frozenset()
    seconds: float = JUDGED_SECONDS
    """When it is checked, if not at the end."""

    @property
    def cause(self) -> str:
        """The primary cause at the end; "": none, `ANY`: it does not matter."""
        if self.primary is not None:
            return self.primary
        return self.alert.cause if self.alert else ""


NOTHING = Expected()


@dataclass(frozen=True, slots=True)
class Phase:
    """From second `since` on, the GPU does `work` for a share `busy` of the time."""

    work: Work = TRAINS
    busy: float = 1.0
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, and what must be reported about it."""

    phases: tuple[Phase, ...] = (Phase(),)
    held: float = 0.6
    """Share of its memory that its processes use."""
    held_growth: float = 0.0
    """Growth of that share per second."""
    conditions: tuple[Condition, ...] = ()
    model: Model = H100
    assigned: bool = False
    """The kubelet has given it to a pod."""
    expected: Expected = NOTHING


@dataclass(frozen=True, slots=True)
class Process:
    """A process that holds the GPUs of its case and runs work on them.

    `role`: a training loop, a server with a client, the client, a notebook's kernel.
    """

    role: str = "trains"
    tenant: int = 0
    """Index of its Slurm job among those of the case."""
    starts: float = 0.0
    life: float = math.inf
    """Age in seconds at which it is killed and restarted, each time."""


@dataclass(frozen=True, slots=True)
class Case:
    """One situation."""

    name: str
    gpus: tuple[Gpu, ...]
    processes: tuple[Process, ...] = (Process(),)
    alone: bool = False
    """Has its own node, about which `expected` must be reported."""
    expected: Expected = NOTHING
    exporter_ends: float | None = None
    """When the exporter of its own node is killed, if it is alone."""
    exporter_returns: bool = False
    """Whether another one starts at once."""
    cluster: str = ""
    """The cluster of its own node, if it is alone."""

    @property
    def of_several(self) -> bool:
        """Whether one of its GPUs has several tenants."""
        tenants = {process.tenant for process in self.processes if process.role != "asks"}
        return len(tenants) > 1 or bool(tenants and any(gpu.assigned for gpu in self.gpus))


def gpu(
    *conditions: Condition,
    held: float = 0.6,
    busy: float = 1.0,
    growth: float = 0.0,
    model: Model = H100,
    **work: Any,  # noqa: ANN401 - of Work
) -> Gpu:
    """A GPU that does the same all the time: healthy except for what is given."""
    return Gpu(
        phases=(Phase(replace(TRAINS, **work), busy),),
        held=held,
        held_growth=growth,
        conditions=conditions,
        model=model,
    )


def _ill(one: Gpu, alert: Diagnosis, **more: Any) -> Gpu:  # noqa: ANN401 - of Expected
    """The same GPU, for which `alert` must fire."""
    return replace(one, expected=Expected(alert, **more))


def _twins(
    name: str,
    alert: Diagnosis,
    ill: Gpu,
    well: Gpu,
    *processes: Process,
    **more: Any,  # noqa: ANN401 - of Expected
) -> tuple[Case, Case]:
    """The situation and its healthy twin, on one GPU each."""
    who = processes or (Process(),)
    return (Case(name, (_ill(ill, alert, **more),), who), Case(name + NOT_QUITE, (well,), who))


TELEMETRY_LOST = Diagnosis("GpuTelemetryLost", "telemetry_lost")
FAULT = Diagnosis("GpuFault", "gpu_fault", "critical")
CONTAINED = Diagnosis("GpuFault", "gpu_fault", "warning")
SLOWDOWN = Diagnosis("GpuHardwareSlowdown", "hw_slowdown")
THERMAL = Diagnosis("GpuThermalThrottle", "thermal_throttle", "warning")
THERMAL_INFO = Diagnosis("GpuThermalThrottle", "thermal_throttle", "info")
POWER_CAPPED = Diagnosis("GpuPowerCapped", "power_capped")
CLOCK_LIMITED = Diagnosis("GpuClockLimited", "clock_limited")
LINK = Diagnosis("GpuPcieLinkDegraded", "pcie_link_degraded")
HANG = Diagnosis("GpuCollectiveHang", "collective_hang")
NO_REQUESTS = Diagnosis("GpuWaitsForRequests", "waits_for_requests")
STALLED = Diagnosis("GpuJobStalled", "job_stalled")
STARTUP = Diagnosis("GpuStartupStall", "startup_stall")
NEVER_USED = Diagnosis("GpuAllocatedNeverUsed", "allocated_never_used")
INTERACTIVE = Diagnosis("GpuInteractiveSession", "interactive_session")
IDLE = Diagnosis("GpuAllocatedIdle", "allocated_idle")
IMBALANCE = Diagnosis("GpuImbalance", "gpu_imbalance")
STRAGGLER = Diagnosis("GpuStraggler", "straggler")
COMMUNICATION = Diagnosis("GpuCommunicationBound", "communication_bound")
PCIE = Diagnosis("GpuPcieTransferBound", "pcie_transfer_bound", "warning")
PCIE_INFO = Diagnosis("GpuPcieTransferBound", "pcie_transfer_bound", "info")
SHARING = Diagnosis("GpuSharingContention", "sharing_contention")
MEMORY_CAPPED = Diagnosis("GpuMemoryCapped", "gpu_memory_capped")
SMALL_BATCH = Diagnosis("GpuSmallBatch", "small_batch")
BANDWIDTH = Diagnosis("GpuMemoryBandwidthBound", "memory_bandwidth_bound")
TENSOR_IDLE = Diagnosis("GpuTensorCoresIdle", "tensor_cores_idle")
PARALLELISM = Diagnosis("GpuLowParallelism", "low_parallelism")
UNEXPLAINED = Diagnosis("GpuUnexplainedLowUtilization", "unexplained_low_utilization")
PARTLY_IDLE = Diagnosis("GpuUnderused", "unexplained_low_utilization", "info")
RESTARTS = Diagnosis("GpuRestartLoop", "restart_loop")
FLEET_WIDE = Diagnosis("GpuFleetBottleneck", "thermal_throttle")
IN_PHASES = Diagnosis("GpuUnderused", "unexplained_low_utilization", "warning")
IDLE_FOR_COPIES = Diagnosis("GpuUnderused", "pcie_transfer_bound", "warning")
NEARLY_HOT = Diagnosis("GpuNearThermalLimit", "near_thermal_limit")
NEAR_OOM = Diagnosis("GpuNearOom", "near_oom")
OVERSIZED = Diagnosis("GpuOversized", "oversized_gpu")
EXPORTER_DOWN = Diagnosis("GpuExporterDown")
BLIND = Diagnosis("GpuCausesBlind", "device_causes")
BLIND_FOR_LINKS = Diagnosis("GpuCausesBlind", "link_causes")
BLIND_FOR_JOBS = Diagnosis("GpuCausesBlind", "job_causes")
"""For a GPU with several tenants."""

_IDLES = Gpu(phases=(Phase(busy=0.0),))
_SPINS = replace(
    TRAINS,
    memory=0.0,
    sm_active=0.6,
    tensor=0.0,
    dram=0.0,
    watts=60.0,
    pcie_receive_bytes_per_second=0.0,
    pcie_transmit_bytes_per_second=0.0,
)
"""A kernel that polls a flag until another rank arrives."""
_HUNG_AFTER = 8.0
_NVLINK = 150e9
_SERVED = Process("serves"), Process("asks")
_STARTING = 20.0
"""A job that does nothing counts as starting for half a minute, an hour to the rules."""
_STARTS = 10.0
_LIVES, _LIVES_LONGER = 4.0, 8.0
"""Eight and sixteen minutes: seven and three starts in an hour."""
_PHASE = 6.0
"""Twelve minutes to the rules: too short for a cause of its own."""


def _spinning(**work: float) -> Gpu:
    """A GPU that trains, then spins; with more `work`, that is not a hang."""
    return Gpu(phases=(Phase(), Phase(replace(_SPINS, **work), since=_HUNG_AFTER)))


def _linked(tensor: float) -> Gpu:
    """A GPU with much NVLink traffic."""
    return gpu(
        tensor=tensor,
        nvlink_receive_bytes_per_second=_NVLINK,
        nvlink_transmit_bytes_per_second=_NVLINK,
    )


def _hardware() -> Iterable[Case]:
    yield from _twins("lost", TELEMETRY_LOST, gpu(board.lost), gpu(board.without_thermometer))
    yield Case("hung driver", (_ill(gpu(board.hung), TELEMETRY_LOST),))
    yield from _twins("double-bit error", FAULT, gpu(board.xid(48)), gpu(board.xid(13)))
    yield Case("off the bus", (_ill(gpu(board.xid(79), board.lost), FAULT),))
    yield from _twins("row remap failed", FAULT, gpu(board.remap(failed=True)), gpu(board.remap()))
    yield Case("row remap pending", (_ill(gpu(board.remap(pending=True)), CONTAINED, primary=""),))
    yield Case("contained memory error", (_ill(gpu(board.xid(94)), CONTAINED, primary=""),))
    yield from _twins(
        "power brake",
        SLOWDOWN,
        gpu(board.throttled("hw_power_brake", 0.02)),
        gpu(board.throttled("hw_power_brake", 0.005)),
    )
    hot = board.throttled("sw_thermal", 0.3)
    warm = board.throttled("sw_thermal", 0.1)
    yield from _twins("heat", THERMAL, gpu(hot, board.clock(0.85)), gpu(hot, board.clock(0.95)))
    yield from _twins(
        "heat now and then",
        THERMAL_INFO,
        gpu(warm, board.clock(0.85)),
        gpu(board.throttled("sw_thermal", 0.03), board.clock(0.85)),
    )
    yield from _twins(
        "nearly too hot", NEARLY_HOT, gpu(board.hot(83)), gpu(board.hot(75)), primary=""
    )
    capped = board.throttled("power_cap", 0.8), board.clock(0.7)
    yield from _twins(
        "lowered power limit",
        POWER_CAPPED,
        gpu(*capped, board.power_limit(0.6), watts=300.0),
        gpu(*capped, watts=600.0),
    )
    yield from _twins("locked clocks", CLOCK_LIMITED, gpu(board.clock(0.7)), gpu(board.clock(0.8)))
    yield from _twins("narrow link", LINK, gpu(board.link(width=8)), gpu(board.link()))
    yield Case("old link", (_ill(gpu(board.link(generation=4)), LINK),))
    yield Case(
        "link of an idle GPU", (replace(_IDLES, conditions=(board.link(generation=1),)),), ()
    )
    yield from _twins("replays", LINK, gpu(board.replays(2.0)), gpu(board.replays(0.2)))


def _jobs() -> Iterable[Case]:
    yield Case("collective hang", 2 * (_ill(_spinning(), HANG),))
    moves = _spinning(nvlink_receive_bytes_per_second=2e8, tensor=0.1)
    yield Case("collective hang, not quite", 2 * (moves,))
    # It counts as starting until it is seen to listen; a minute's wait is half a second here.
    at_first = frozenset({STARTUP})
    nobody = _ill(_IDLES, NO_REQUESTS, besides=at_first)
    yield Case("nobody asks", (nobody,), (Process("serves"),))
    yield from _twins("few ask", NO_REQUESTS, gpu(busy=0.3), gpu(busy=0.8), *_SERVED)
    yield Case("start-up", (_ill(_IDLES, STARTUP, seconds=_STARTING),))
    begins = Gpu((Phase(busy=0.0), Phase(since=_STARTS + 3)))
    yield Case("start-up, not quite", (begins,), (Process(starts=_STARTS),))
    crashes, works = Process(life=_LIVES), Process(life=_LIVES_LONGER)
    yield Case("restart loop", (_ill(gpu(busy=0.05), RESTARTS),), (crashes,))
    yield Case("restart loop, not quite", (gpu(busy=0.8),), (works,))
    assigned = replace(_IDLES, assigned=True)
    yield Case("assigned, no process", (_ill(assigned, NEVER_USED),), ())
    yield Case("assigned, no process, not quite", (_IDLES,), ())
    yield Case("assigned, and used", (replace(gpu(busy=0.8), assigned=True),))
    notebook = Process("notebook")
    yield from _twins("notebook", INTERACTIVE, gpu(busy=0.05), gpu(busy=0.9), notebook)
    yield from _twins("unexplained", UNEXPLAINED, gpu(busy=0.2), gpu(busy=0.75))
    phases = tuple(Phase(busy=0.8 * (at % 2), since=_PHASE * at) for at in range(12))
    yield Case("work in phases", (_ill(Gpu(phases), IN_PHASES, primary=ANY),))
    # Its SMs are well above half used over all of the time, or small batches would be a cause.
    partly, hardly = gpu(busy=0.6, sm_active=1.0), gpu(busy=0.75)
    yield from _twins("partly idle", PARTLY_IDLE, partly, hardly, primary="")


def _groups() -> Iterable[Case]:
    yield Case("imbalance", (Gpu(), _ill(gpu(busy=0.4), IMBALANCE)))
    yield Case("imbalance, not quite", (Gpu(), gpu(busy=0.78)))
    yield Case("slow clock", (*3 * (Gpu(),), _ill(gpu(board.clock(0.8)), STRAGGLER)))
    yield Case("slow clock, not quite", (*3 * (Gpu(),), gpu(board.clock(0.95))))
    usual, more = 3 * (gpu(watts=300.0),), gpu(watts=500.0, tensor=0.4)
    yield Case("more to do", (*usual, _ill(more, STRAGGLER)))
    yield Case("more to do, not quite", (*usual, gpu(watts=500.0, tensor=0.2)))
    yield Case("collectives", 2 * (_ill(_linked(0.1), COMMUNICATION),))
    yield Case("collectives, not quite", 2 * (_linked(0.2),))
    several = Process(), Process(tenant=1)
    yield Case("two tenants", (_ill(gpu(), SHARING),), several)
    yield Case("two tenants, not quite", (gpu(busy=0.8),), several)
    yield Case("two processes of one tenant", (gpu(),), (Process(), Process()))


def _on_the_gpu() -> Iterable[Case]:
    copies: dict[str, Any] = {"pcie_receive_bytes_per_second": 26e9}
    some = gpu(busy=0.25, pcie_receive_bytes_per_second=10e9)
    full: dict[str, Any] = {"held": 0.9}
    free: dict[str, Any] = {"held": 0.3, "dram": 0.2}
    few: dict[str, Any] = {"sm_active": 0.35}
    many: dict[str, Any] = {"sm_active": 0.6}
    fp32: dict[str, Any] = {"sm_active": 0.8, "fp32": 0.5}
    yield from _twins("copies", PCIE, gpu(**copies, **few), gpu(**copies, **many))
    # An info hides no loss: more than half of it is idle.
    yield Case("some copies", (_ill(some, PCIE_INFO, besides=frozenset({IDLE_FOR_COPIES})),))
    yield from _twins("full memory", MEMORY_CAPPED, gpu(**full, **few), gpu(**full, **many))
    yield from _twins("small batch", SMALL_BATCH, gpu(**free, **few), gpu(**free, **many))
    yield from _twins(
        "memory bandwidth", BANDWIDTH, gpu(dram=0.7, tensor=0.2), gpu(dram=0.5, tensor=0.2)
    )
    yield from _twins(
        "memory controller",
        BANDWIDTH,
        gpu(model=A100, memory=0.9, watts=160.0),
        gpu(model=A100, memory=0.7, watts=160.0),
    )
    yield from _twins("FP32", TENSOR_IDLE, gpu(tensor=0.02, **fp32), gpu(tensor=0.1, **fp32))
    yield from _twins("few SMs", PARALLELISM, gpu(dram=0.5, **few), gpu(dram=0.5, **many))
    grows = gpu(held=0.94, growth=0.001)
    yield from _twins("memory fills up", NEAR_OOM, grows, gpu(held=0.98), primary="")
    small = Expected(OVERSIZED, NO_REQUESTS.cause, frozenset({NO_REQUESTS}))
    yield Case("small job", (replace(gpu(busy=0.06, held=0.1), expected=small),), _SERVED)
    yield Case("small job, not quite", (_ill(gpu(busy=0.06, held=0.3), NO_REQUESTS),), _SERVED)


def _nodes() -> Iterable[Case]:
    yield Case(
        "exporter down",
        (Gpu(),),
        alone=True,
        expected=Expected(EXPORTER_DOWN),
        exporter_ends=_STARTING,
    )
    yield Case(
        "exporter restarts", (Gpu(),), alone=True, exporter_ends=_STARTING, exporter_returns=True
    )
    hot = _ill(gpu(board.throttled("sw_thermal", 0.3), board.clock(0.85)), THERMAL)
    for name in ("hot hall, first", "hot hall, second", "hot hall, third"):
        yield Case(name, (hot,), alone=True, cluster=HALL)
    blind = Expected(BLIND, primary="", besides=frozenset({BLIND_FOR_LINKS}))
    yield Case("no GPM", (gpu(board.without_gpm),), alone=True, expected=blind)


CASES = (*_hardware(), *_jobs(), *_groups(), *_on_the_gpu(), *_nodes())
CLUSTERS: Mapping[str, Expected] = {HALL: Expected(FLEET_WIDE, primary="")}
"""What must be reported about a cluster as a whole."""
