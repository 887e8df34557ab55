"""Readings of a driver in the project's units; None stands for what could not be read.

Units follow the metric contract: seconds, bytes, joules, watts, hertz, degrees Celsius, ratios
0-1. Times that are summed up stay integer nanoseconds, so that nothing is lost to rounding.
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
    """Identity of a GPU or MIG instance.

    `index` is the driver's index of the physical GPU; for a MIG instance, its parent's.
    """

    index: int
    uuid: str
    name: str | None = None
    architecture: str | None = None
    pci_bus_id: str | None = None
    mig_profile: str | None = None
    parent_uuid: str | None = None
    gpu_instance: int | None = None
    """The driver's id of the GPU instance on its parent."""
    minor: int | None = None
    """The number of the device node; for a MIG instance, its parent's."""
    coherent: bool = False
    """Whether NVLink-C2C makes its memory a part of the host's, which the kernel uses, too."""
    counted_with: str | None = None
    """UUID of the first MIG device of the same GPU instance, which has the readings of all of them.

    Compute instances of one GPU instance share its memory and its counters.
    """


class RingSample(NamedTuple):
    """One entry of the driver's utilization ring.

    `timestamp_us` is the end of the sample's window on the driver's own clock (since the epoch on
    most GPUs, since boot on some): only differences are meaningful. `percent` is the share of the
    window in which a kernel ran, or in which device memory was read or written; None if the
    driver's figure is impossible.
    """

    timestamp_us: int
    percent: int | None


Ring = tuple[RingSample, ...]
"""The entries of one ring newer than the last drain, oldest first."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one method of a device returns."""


@dataclass(frozen=True, slots=True)
class Utilization(Reading):
    """Busy time of the GPU and of its memory controller since the last reading.

    A ring is None if it is unsupported, and empty if the driver has nothing newer. `gpu_percent`
    and `memory_percent` are the driver's single reading (one window of 1/6 to 1 s), read only if
    the rings return nothing.
    """

    gpu: Ring | None = None
    memory: Ring | None = None
    gpu_percent: int | None = None
    memory_percent: int | None = None


@dataclass(frozen=True, slots=True)
class Video(Reading):
    """Utilization of the video engines (encoder, decoder, jpeg, ofa) since the last reading.

    By engine that the GPU has, like `Utilization`: a ring, which may be empty, or the driver's
    single reading where the ring returns nothing. The ring of an engine that was idle may hold its
    newest sample alone.
    """

    rings: Mapping[str, Ring] = field(default_factory=dict)
    percents: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Activity(Reading):
    """Means over the `interval_ns` since the last reading (GPM, Hopper and later).

    Ratios are 0-1 of the interval; traffic is in bytes within the interval.
    """

    interval_ns: int
    graphics: float | None = None
    sm_active: float | None = None
    sm_occupancy: float | None = None
    dram_active: float | None = None
    pipes: Mapping[str, float] = field(default_factory=dict)
    traffic_bytes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Power(Reading):
    """Electrical power in watts; `energy_joules` counts since the driver was loaded."""

    watts: float | None = None
    limit_watts: float | None = None
    energy_joules: float | None = None
    default_limit_watts: float | None = None
    """The limit with which the board ships."""
    module_watts: float | None = None
    module_limit_watts: float | None = None
    """Power and limit of a superchip's module, its CPU included; None elsewhere."""


@dataclass(frozen=True, slots=True)
class Thermal(Reading):
    """Degrees Celsius by sensor (gpu, memory) and limit.

    Limits are those of the GPU (slowdown, shutdown, max_operating) and memory_max_operating.
    """

    sensors: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    margin: float | None = None
    """Degrees from the hottest sensor to its slowdown threshold; negative above it."""


@dataclass(frozen=True, slots=True)
class Clocks(Reading):
    """Hertz now and maximum, by clock (sm, memory, graphics, video)."""

    now: Mapping[str, float] = field(default_factory=dict)
    maximum: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Throttle(Reading):
    """Nanoseconds throttled since the driver was loaded, and whether it is now, by reason."""

    spent_ns: Mapping[str, int] = field(default_factory=dict)
    active: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Memory(Reading):
    """Device memory in bytes.

    If the driver does not report reserved memory, it is None and `used_bytes` includes it.
    """

    total_bytes: int | None = None
    used_bytes: int | None = None
    reserved_bytes: int | None = None
    of_machine: bool = False
    """Whether the GPU has none of its own: then its processes' memory is what is used."""


@dataclass(frozen=True, slots=True)
class Health(Reading):
    """Memory errors: counters since the driver was loaded, and the state of row remapping."""

    ecc_errors: Mapping[str, int] = field(default_factory=dict)
    remapped_rows: Mapping[str, int] = field(default_factory=dict)
    remap_pending: bool | None = None
    remap_failed: bool | None = None


@dataclass(frozen=True, slots=True)
class Condition(Reading):
    """The condition of a GPU as a whole, as its driver reports it."""

    recovery_action: str | None = None
    """What it asks for: none, gpu_reset, node_reboot and so on; action_N for an unknown number."""
    fabric_state: str | None = None
    """Registration with the NVLink fabric: not_started, in_progress, completed, failed.

    None where there is no fabric. CUDA does not start before it is completed.
    """
    nvlinks_active: int | None = None
    nvlink_errors: Mapping[str, int] = field(default_factory=dict)
    """Over all links, since the driver was loaded: replay, recovery."""
    repair_pending: bool | None = None
    """Whether a repair of memory or of an SM cluster awaits a reset."""
    memory_unrepairable: bool | None = None
    problems: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Each problem in words, with its remedy."""


@dataclass(frozen=True, slots=True)
class Link(Reading):
    """The PCIe link now, the chip's maximum, and the count of replayed packets.

    Boards and virtual machines may connect fewer lanes than `width_max`: it is no reference for
    `width`.
    """

    replays: int | None = None
    generation: int | None = None
    generation_max: int | None = None
    width: int | None = None
    width_max: int | None = None


class Pod(NamedTuple):
    """Names of a pod and of a container in it."""

    namespace: str
    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class Process:
    """A process that holds a context on the GPU.

    The driver translates `pid` into the reader's PID namespace.
    """

    pid: int
    used_bytes: int | None = None
    draws_only: bool = False
    """Whether it has a graphics context only."""


@dataclass(frozen=True, slots=True)
class Processes(Reading):
    """All processes that hold a context, each once."""

    processes: tuple[Process, ...] = ()
    others_hidden: bool = False
    """Whether PID namespaces may hide others from us: then an empty list proves nothing."""
    pod: Pod | None = None
    """Of all processes of a simulated GPU, which run in none."""
    bystanders: int = 0
    """Processes that are left out: those of a desktop, and the driver's daemons."""

    @property
    def count(self) -> int | None:
        """Number of processes; None if there may be some that all are hidden."""
        return len(self.processes) if self.processes or not self.others_hidden else None


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """An error of the physical GPU with driver index `index` (NVIDIA: an XID)."""

    index: int
    code: int
