"""Protocol between the sampler and a GPU driver.

Each GPU is opened by the one thread that reads it, as any call may hang with its GPU. Methods named
after a reading return all of it; absent parts are None, and `Unsupported` means no part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gpu_bottleneck_exporter.driver import readings
from gpu_bottleneck_exporter.driver.about import NOT_REPORTED, About
from gpu_bottleneck_exporter.jsontext import Document


class DriverError(Exception):
    """A failed reading; the next one may succeed."""

    def __init__(self, sentence: str = "", remedy: str | None = None) -> None:
        """`remedy`: None for the one in `About`."""
        super().__init__(sentence)
        self.remedy = remedy


class Unsupported(DriverError):  # noqa: N818 - an answer, not a failure
    """A reading that the GPU or driver lacks or refuses."""


class Forbidden(Unsupported):
    """A reading that takes another user or more permissions."""


class NothingFound(DriverError):  # noqa: N818 - an answer, not a failure
    """An answer without data at the moment."""


class DeviceLost(DriverError):  # noqa: N818 - the driver's own word
    """A GPU that does not respond (fell off the bus, or needs a reset)."""


class DriverMissing(DriverError):  # noqa: N818 - a state, not a failure
    """A missing driver, library or device, which may appear later."""


class AccessLost(DriverError):  # noqa: N818 - a state, not a failure
    """A driver that refuses every call, as in a container that lost its devices.

    If it lasts, only a new process or container helps.
    """


class DriverUnusable(DriverError):  # noqa: N818 - a state, not a failure
    """A driver that takes a new process (the library was replaced)."""


GPU_WIDE_ERRORS = (DeviceLost, AccessLost, DriverUnusable)
"""Errors of every reading once `Device.check` confirms them."""


class Device(Protocol):
    """One GPU or MIG instance. Not thread-safe."""

    identity: readings.Identity

    @property
    def last_error(self) -> DriverError | None:
        """The reason why the last reading is incomplete, if it is."""
        return None

    def check(self) -> None:
        """Try the simplest calls, as single ones may fail while all others work.

        Raises one of `GPU_WIDE_ERRORS` if all fail, Unsupported if there are none.
        """
        return

    def close(self) -> None:
        """Free the memory of readings, without a call to the GPU."""
        return

    def utilization(self) -> readings.Utilization:
        """Utilization in percent since the last call; drains the driver's rings."""
        raise Unsupported(NOT_REPORTED)

    def video(self) -> readings.Video:
        """Utilization of video engines in percent since the last call; drains their rings."""
        raise Unsupported(NOT_REPORTED)

    def activity(self) -> readings.UnitActivity | None:
        """Activity since the last call, ratios and bytes; None initially."""
        raise Unsupported(NOT_REPORTED)

    def power(self) -> readings.Power:
        """Power in watts, and energy in joules."""
        raise Unsupported(NOT_REPORTED)

    def thermal(self) -> readings.Thermal:
        """Temperatures and limits in degrees Celsius."""
        raise Unsupported(NOT_REPORTED)

    def clocks(self) -> readings.Clocks:
        """Clocks in hertz."""
        raise Unsupported(NOT_REPORTED)

    def throttle(self) -> readings.Throttle:
        """Throttle time by reason in nanoseconds, and current reasons."""
        raise Unsupported(NOT_REPORTED)

    def memory(self) -> readings.Memory:
        """Memory in bytes."""
        raise Unsupported(NOT_REPORTED)

    def health(self) -> readings.Health:
        """Counters of ECC errors and remapped rows."""
        raise Unsupported(NOT_REPORTED)

    def link(self) -> readings.Link:
        """The PCIe link: generation, lanes, replayed packets."""
        raise Unsupported(NOT_REPORTED)

    def condition(self) -> readings.Condition:
        """Recovery action, fabric, NVLinks, repairs."""
        raise Unsupported(NOT_REPORTED)

    def processes(self) -> readings.Processes:
        """Processes with a context. Costly: locks the whole driver for milliseconds."""
        raise Unsupported(NOT_REPORTED)

    def process_use(self) -> readings.ProcessUse:
        """Use of the GPU by process since the last call; drains the driver's ring."""
        raise Unsupported(NOT_REPORTED)


class Driver(Protocol):
    """An open driver."""

    name: str
    """Short name for the log, as `nvml`."""
    about: About
    system: readings.System

    @property
    def calls(self) -> int:
        """Number of driver calls."""

    @property
    def seconds(self) -> float:
        """Time in driver calls."""

    def count(self) -> int:
        """Number of physical GPUs, fixed while open."""

    def open(self, index: int) -> list[Device]:
        """GPU `index`, then its MIG instances.

        Raises DeviceLost, DriverUnusable, DriverError.
        """

    def watch_errors(self, index: int) -> None:
        """Register GPU `index` for its error events, once. Raises DriverError."""
        return

    def instances(self, index: int) -> tuple[str, ...]:
        """UUIDs of the current MIG instances of GPU `index`."""
        return ()

    def gpus_of_device(
        self, source: str, device: str, gpus: Sequence[readings.Identity]
    ) -> Sequence[readings.Identity]:
        """The `gpus` that the kubelet may mean by `device`; none if it is not a GPU.

        `source`: resource of the device plugin (`example.com/gpu`), DRA driver of the claim, or "".
        """
        return ()

    def wait_error(self, timeout_seconds: float) -> readings.ErrorEvent | None:
        """The next error event; None after `timeout_seconds`. Raises Unsupported."""
        raise Unsupported(NOT_REPORTED)


class Recording(Protocol):
    """A capture of a driver's answers for replay in tests."""

    holds: str
    """Its contents."""
    identities: str
    """Its identifiers of a GPU, and the masked ones."""

    def write(self, write: Callable[[Document], bool], seconds: float) -> None:
        """Capture for `seconds`; `write` takes a line, and is false when full."""
