"""Readings of a driver; None for unreadable values.

Units: seconds, bytes, joules, watts, hertz, degrees Celsius, ratios 0-1; times in integer
nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class System:
    """The driver as a whole."""

    driver_version: str | None
    cuda_version: str | None


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a GPU or MIG instance; `index`: the driver's, of the parent."""

    index: int
    uuid: str
    name: str | None = None
    architecture: str | None = None
    pci_bus_id: str | None = None
    mig_profile: str | None = None
    parent_uuid: str | None = None
    gpu_instance: int | None = None
    """Driver's id of the GPU instance on its parent."""
    minor: int | None = None
    """Number of the (parent's) device node."""
    coherent: bool = False
    """Whether the kernel also uses its memory (NVLink-C2C)."""
    counted_with: str | None = None
    """UUID of the first MIG device of its GPU instance, with all readings."""


class RingSample(NamedTuple):
    """One entry of the driver's utilization ring.

    `timestamp_us`: end of its window on the driver's clock, for differences only. `percent`: share
    of the window with a kernel, or with device memory access; None if impossible.
    """

    timestamp_us: int
    percent: int | None


Ring = tuple[RingSample, ...]
"""New entries since the last drain, oldest first."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of one method of a device."""


@dataclass(frozen=True, slots=True)
class Utilization(Reading):
    """The busy time of the GPU and its memory controller since the last reading.

    Rings: None if unsupported, empty without news. Percents: the driver's single reading, only if
    the rings are empty.
    """

    gpu: Ring | None = None
    memory: Ring | None = None
    gpu_percent: int | None = None
    memory_percent: int | None = None


@dataclass(frozen=True, slots=True)
class Video(Reading):
    """The utilization of the video engines (encoder, decoder, jpeg, ofa), like `Utilization`.

    The ring of an idle engine may have its newest sample alone.
    """

    rings: Mapping[str, Ring] = field(default_factory=dict)
    percents: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnitActivity(Reading):
    """The means over the last `interval_ns`: ratios 0-1, and bytes."""

    interval_ns: int
    graphics: float | None = None
    sm_active: float | None = None
    sm_occupancy: float | None = None
    dram_active: float | None = None
    pipes: Mapping[str, float] = field(default_factory=dict)
    traffic_bytes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Power(Reading):
    """The power in watts; energy since the driver was loaded."""

    watts: float | None = None
    limit_watts: float | None = None
    energy_joules: float | None = None
    default_limit_watts: float | None = None
    """Factory limit."""
    module_watts: float | None = None
    module_limit_watts: float | None = None
    """Values of a superchip's module with its CPU; else None."""


@dataclass(frozen=True, slots=True)
class Thermal(Reading):
    """The degrees Celsius by sensor (gpu, memory) and limit.

    Limits: slowdown, shutdown and max_operating of the GPU, and memory_max_operating.
    """

    sensors: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    margin: float | None = None
    """Degrees from the hottest sensor to its slowdown threshold; negative above."""


@dataclass(frozen=True, slots=True)
class Clocks(Reading):
    """The current and maximum hertz by clock (sm, memory, graphics, video)."""

    now: Mapping[str, float] = field(default_factory=dict)
    maximum: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Throttle(Reading):
    """The nanoseconds throttled since driver load, and current state, by reason."""

    spent_ns: Mapping[str, int] = field(default_factory=dict)
    active: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Memory(Reading):
    """The device memory in bytes; without `reserved_bytes`, `used_bytes` includes it."""

    total_bytes: int | None = None
    used_bytes: int | None = None
    reserved_bytes: int | None = None
    of_machine: bool = False
    """Whether the GPU uses the machine's: used is that of its processes."""


@dataclass(frozen=True, slots=True)
class Health(Reading):
    """The memory errors since driver load, and row remapping."""

    ecc_errors: Mapping[str, int] = field(default_factory=dict)
    remapped_rows: Mapping[str, int] = field(default_factory=dict)
    remap_pending: bool | None = None
    remap_failed: bool | None = None


@dataclass(frozen=True, slots=True)
class Condition(Reading):
    """The condition of a GPU as a whole."""

    recovery_action: str | None = None
    """Requested action: none, gpu_reset, node_reboot and so on; action_N if unknown."""
    fabric_state: str | None = None
    """NVLink fabric registration: not_started, in_progress, completed, failed; CUDA needs
    completed."""
    nvlinks_active: int | None = None
    nvlink_errors: Mapping[str, int] = field(default_factory=dict)
    """All links since the driver was loaded: replay, recovery."""
    repair_pending: bool | None = None
    """Whether a repair of memory or of an SM cluster awaits a reset."""
    memory_unrepairable: bool | None = None
    problems: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Problems in words, with their remedies."""


@dataclass(frozen=True, slots=True)
class Link(Reading):
    """The PCIe link, the chip's maximum, and replayed packets.

    Boards may connect fewer lanes than `width_max`.
    """

    replays: int | None = None
    generation: int | None = None
    generation_max: int | None = None
    width: int | None = None
    width_max: int | None = None


class Pod(NamedTuple):
    """A container of a pod."""

    namespace: str
    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class Process:
    """A process with a context; `pid` in our PID namespace."""

    pid: int
    used_bytes: int | None = None
    draws_only: bool = False
    """Whether it has a graphics context only."""


@dataclass(frozen=True, slots=True)
class Processes(Reading):
    """The processes with a context, each once."""

    processes: tuple[Process, ...] = ()
    others_hidden: bool = False
    """Whether PID namespaces may hide others: an empty list proves nothing."""
    pod: Pod | None = None
    """Pod of a simulated GPU's processes."""
    bystanders: int = 0
    """Number of omitted processes: a desktop's, and the driver's daemons."""

    @property
    def count(self) -> int | None:
        """Number of processes; None if all may be hidden."""
        return len(self.processes) if self.processes or not self.others_hidden else None


class ProcessSample(NamedTuple):
    """One entry of the driver's ring of processes.

    `timestamp_us`: end of its window on the driver's clock; `percent`: share of the window that the
    driver attributes to the process.
    """

    timestamp_us: int
    pid: int
    percent: int


@dataclass(frozen=True, slots=True)
class ProcessUse(Reading):
    """The use of the GPU by process since the last reading, oldest first."""

    samples: tuple[ProcessSample, ...] = ()


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """An error of physical GPU `index` (NVIDIA: an XID)."""

    index: int
    code: int
