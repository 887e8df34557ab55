"""What a driver answers, in the project's units; whatever could not be read is None.

Units follow the metric contract: seconds, bytes, joules, watts, hertz, degrees
Celsius, ratios 0-1. Integer nanoseconds are kept where time is added up, so that
nothing is lost to rounding before it is rendered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class System:
    """The driver as a whole."""

    driver_version: str | None
    cuda_version: str | None


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a GPU or a MIG instance is.

    `index` is the driver's index of the physical GPU, for a MIG instance its parent's.
    """

    index: int
    uuid: str
    name: str | None = None
    architecture: str | None = None
    pci_bus_id: str | None = None
    mig_profile: str | None = None
    parent_uuid: str | None = None
    gpu_instance: int | None = None
    """NVML's id of the MIG instance on its parent."""


class RingSample(NamedTuple):
    """One entry of the driver's utilization ring.

    `timestamp_us` is the end of the sample's window on the driver's own clock
    (since the epoch on most GPUs, since boot on some): only differences mean
    anything. `percent` is the share of the window in which a kernel ran, or in
    which device memory was read or written; None where the driver's figure cannot be one.
    """

    timestamp_us: int
    percent: int | None


class RingState(Enum):
    """What the driver said when its ring was drained."""

    SAMPLES = "samples"
    NOTHING_NEWER = "nothing newer"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, slots=True)
class Ring:
    """Result of draining one ring: the entries newer than the last drain, oldest first."""

    state: RingState
    samples: tuple[RingSample, ...] = ()
    impossible: int = 0
    """Entries of a time that has not come; they are not among `samples`."""


UNSUPPORTED_RING = Ring(RingState.UNSUPPORTED)
EMPTY_RING = Ring(RingState.NOTHING_NEWER)


@dataclass(frozen=True, slots=True)
class Utilization:
    """Busy time of the GPU and of its memory controller since the last reading.

    `gpu_percent` and `memory_percent` are the driver's single reading (one window of
    1/6 to 1 s), asked for only where the rings have nothing to say.
    """

    gpu: Ring = UNSUPPORTED_RING
    memory: Ring = UNSUPPORTED_RING
    gpu_percent: int | None = None
    memory_percent: int | None = None


@dataclass(frozen=True, slots=True)
class Activity:
    """Means over the `interval_ns` since the last reading (GPM, Hopper and later).

    Ratios are 0-1 of the interval, traffic is in bytes within the interval.
    """

    interval_ns: int
    graphics: float | None = None
    sm_active: float | None = None
    sm_occupancy: float | None = None
    dram_active: float | None = None
    pipes: Mapping[str, float] = field(default_factory=dict)
    traffic_bytes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Power:
    """Electrical power; `energy_joules` counts since the driver was loaded."""

    watts: float | None = None
    limit_watts: float | None = None
    energy_joules: float | None = None
    default_limit_watts: float | None = None
    """What the board was made for."""


@dataclass(frozen=True, slots=True)
class Thermal:
    """Degrees Celsius by sensor (gpu, memory) and limit (slowdown, shutdown, max_operating)."""

    sensors: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Clocks:
    """Hertz now and at most, by clock (sm, memory, graphics, video)."""

    now: Mapping[str, float] = field(default_factory=dict)
    maximum: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Throttle:
    """By reason: nanoseconds throttled since the driver was loaded, and whether it is now."""

    spent_ns: Mapping[str, int] = field(default_factory=dict)
    active: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Memory:
    """Device memory in bytes.

    Where the driver cannot tell `reserved_bytes` apart it is None and `used_bytes` includes it.
    """

    total_bytes: int | None = None
    used_bytes: int | None = None
    reserved_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """Memory errors: counts since the driver was loaded, and the state of row remapping."""

    ecc_errors: Mapping[str, int] = field(default_factory=dict)
    remapped_rows: Mapping[str, int] = field(default_factory=dict)
    remap_pending: bool | None = None
    remap_failed: bool | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """The PCIe link now and at best, and how often it had to replay a packet."""

    replays: int | None = None
    generation: int | None = None
    generation_max: int | None = None
    width: int | None = None
    width_max: int | None = None


@dataclass(frozen=True, slots=True)
class Process:
    """A process that holds a context on the GPU.

    `pid` is as the driver translates it: of the reader's own PID namespace.
    """

    pid: int
    used_bytes: int | None = None
    draws_only: bool = False
    """Whether it has a graphics context alone."""


@dataclass(frozen=True, slots=True)
class Processes:
    """All processes that hold a context, each once."""

    processes: tuple[Process, ...] = ()
    others_hidden: bool = False
    """Whether there may be others, in PID namespaces that we do not see: then none may be some."""


@dataclass(frozen=True, slots=True)
class Xid:
    """One XID event of the physical GPU with driver index `index`."""

    index: int
    code: int


Reading = (
    Utilization
    | Activity
    | Power
    | Thermal
    | Clocks
    | Throttle
    | Memory
    | Health
    | Link
    | Processes
)
