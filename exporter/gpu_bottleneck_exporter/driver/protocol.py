"""The protocol between the sampler and a GPU driver.

A `Driver` is opened once. Each GPU is then opened by the one thread that will read it, because
any call may hang with its GPU. Methods named after a reading return the whole reading. Parts that
the GPU does not have are None; if it has no part of a reading, the method raises `Unsupported`.
A driver that derives from these classes inherits that for everything it does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gpu_bottleneck_exporter.driver import readings
from gpu_bottleneck_exporter.driver.about import NOT_GIVEN, About
from gpu_bottleneck_exporter.jsontext import Document


class DriverError(Exception):
    """A reading that failed this time; the next one may succeed."""

    def __init__(self, sentence: str = "", remedy: str | None = None) -> None:
        """`remedy`: what to do about it; None: the one in `About` for all errors."""
        super().__init__(sentence)
        self.remedy = remedy


class Unsupported(DriverError):  # noqa: N818 - an answer, not a failure
    """A reading that the GPU or driver does not have, or that we may not have."""


class Forbidden(Unsupported):
    """A reading that another user would get, or one with more permissions."""


class NothingFound(DriverError):  # noqa: N818 - an answer, not a failure
    """Nothing to report at the moment."""


class DeviceLost(DriverError):  # noqa: N818 - the driver's own word
    """A GPU that no longer answers (it fell off the bus, or needs a reset)."""


class DriverMissing(DriverError):  # noqa: N818 - a state, not a failure
    """No driver, no library or no device; it may appear later."""


class AccessLost(DriverError):  # noqa: N818 - a state, not a failure
    """A driver that refuses every call, as when a container loses its devices.

    If that lasts, only a new process or container helps.
    """


class DriverUnusable(DriverError):  # noqa: N818 - a state, not a failure
    """A driver that only a new process can use again (the library was replaced)."""


GPU_WIDE_ERRORS = (DeviceLost, AccessLost, DriverUnusable)
"""Errors that concern every reading once `Device.check` has confirmed them."""


class Device(Protocol):
    """One GPU or MIG instance, read by one thread only."""

    identity: readings.Identity

    @property
    def last_error(self) -> DriverError | None:
        """The reason why the last reading is incomplete; None if it is complete."""
        return None

    def check(self) -> None:
        """Try the simplest calls; raise one of `GPU_WIDE_ERRORS` if none of them is answered.

        Needed because single calls may fail with these codes while all others work. Raises
        Unsupported if the GPU has none of these calls.
        """
        return

    def close(self) -> None:
        """Free what the readings allocated; reads nothing from the GPU."""
        return

    def utilization(self) -> readings.Utilization:
        """Utilization in percent, since the last call; empties the driver's rings."""
        raise Unsupported(NOT_GIVEN)

    def video(self) -> readings.Video:
        """Utilization of the video engines in percent, since the last call; empties their rings."""
        raise Unsupported(NOT_GIVEN)

    def activity(self) -> readings.Activity | None:
        """Activity since the last call, ratios and bytes; None without an earlier call."""
        raise Unsupported(NOT_GIVEN)

    def power(self) -> readings.Power:
        """Power in watts, and energy in joules."""
        raise Unsupported(NOT_GIVEN)

    def thermal(self) -> readings.Thermal:
        """Temperatures and their limits, in degrees Celsius."""
        raise Unsupported(NOT_GIVEN)

    def clocks(self) -> readings.Clocks:
        """Clocks in hertz."""
        raise Unsupported(NOT_GIVEN)

    def throttle(self) -> readings.Throttle:
        """Throttle time by reason, in nanoseconds, and the reasons that hold now."""
        raise Unsupported(NOT_GIVEN)

    def memory(self) -> readings.Memory:
        """Memory in bytes."""
        raise Unsupported(NOT_GIVEN)

    def health(self) -> readings.Health:
        """Counters of ECC errors and remapped rows."""
        raise Unsupported(NOT_GIVEN)

    def link(self) -> readings.Link:
        """The PCIe link: generation, lanes, replayed packets."""
        raise Unsupported(NOT_GIVEN)

    def condition(self) -> readings.Condition:
        """The condition of the GPU as a whole: recovery action, fabric, NVLinks, repairs."""
        raise Unsupported(NOT_GIVEN)

    def processes(self) -> readings.Processes:
        """Processes with a context. Costly: holds the driver's global lock for milliseconds."""
        raise Unsupported(NOT_GIVEN)


class Driver(Protocol):
    """An open driver."""

    name: str
    """Short name for the log, such as `nvml`."""
    about: About
    """Vendor, limits and remedies, the same for all GPUs."""
    system: readings.System
    """Versions of driver and CUDA."""

    @property
    def calls(self) -> int:
        """Calls made into the driver so far."""

    @property
    def seconds(self) -> float:
        """Seconds spent inside driver calls so far."""

    def count(self) -> int:
        """Number of physical GPUs; fixed while the driver is open."""

    def open(self, index: int) -> list[Device]:
        """GPU `index` and, after it, its MIG instances.

        Raises DeviceLost, DriverUnusable or another DriverError.
        """

    def watch_errors(self, index: int) -> None:
        """Register GPU `index` for its error events; costs nothing if it is registered.

        Raises DriverError if a GPU that has these events cannot be registered.
        """
        return

    def instances(self, index: int) -> tuple[str, ...]:
        """UUIDs of the MIG instances that GPU `index` has now; they may change at any time."""
        return ()

    def gpus_of_device(
        self, source: str, device: str, gpus: Sequence[readings.Identity]
    ) -> Sequence[readings.Identity]:
        """The `gpus` that the kubelet may mean by `device`; none if it is not a GPU.

        `source`: the resource of the device plugin that named it (`example.com/gpu`), the DRA
        driver of the claim, or "" for a claim without a driver's name.
        """
        return ()

    def wait_error(self, timeout_seconds: float) -> readings.ErrorEvent | None:
        """The next error event of any registered GPU; None after `timeout_seconds`.

        Raises Unsupported if the driver has no events.
        """
        raise Unsupported(NOT_GIVEN)


class Recording(Protocol):
    """A capture of an open driver's answers, to be replayed in tests."""

    holds: str
    """What the capture contains."""
    identities: str
    """What of it identifies a GPU, and what does not."""

    def write(self, write: Callable[[Document], bool], seconds: float) -> None:
        """Capture for `seconds`; `write` takes one line, and is false once there is no room."""
