"""The protocol between the sampler and whatever drives the GPUs.

A `Driver` is opened once. Each GPU is then opened by the one thread that will read
it, because any call may hang with its GPU. Methods named after a reading return it
whole; a part that the GPU does not have is None in it, and a reading of which the
GPU has nothing raises `Unsupported`.
"""

from __future__ import annotations

from typing import Protocol

from gpu_bottleneck_exporter.driver.readings import (
    Activity,
    Clocks,
    Health,
    Identity,
    Link,
    Memory,
    Power,
    Processes,
    System,
    Thermal,
    Throttle,
    Utilization,
    Xid,
)

NO_PERMISSION = "no_permission"
"""A cause of errors: asked by another user, or with more rights, the driver would answer."""


class DriverError(Exception):
    """A reading failed this time; the next one may succeed."""

    def __init__(self, sentence: str = "", cause: str | None = None) -> None:
        """`cause` is a key of `remedies.OF_DRIVER`, if there is a remedy of its own."""
        super().__init__(sentence)
        self.cause = cause


class Unsupported(DriverError):  # noqa: N818 - an answer, not a failure
    """This GPU, driver or permission does not give this reading."""


class NothingFound(DriverError):  # noqa: N818 - an answer, not a failure
    """There is nothing to tell at the moment."""


class DeviceLost(DriverError):  # noqa: N818 - the driver's own word
    """The GPU does not answer any more (fell off the bus, needs a reset)."""


class DriverMissing(DriverError):  # noqa: N818 - a state, not a failure
    """No driver, no library or no device: may appear later."""


class AccessLost(DriverError):  # noqa: N818 - a state, not a failure
    """The driver refuses everything, as after a lost device cgroup; lasting, only exit helps."""


class DriverUnusable(DriverError):  # noqa: N818 - a state, not a failure
    """Only a new process can talk to the driver again (the library was replaced)."""


CONCERNS_ALL = (DeviceLost, AccessLost, DriverUnusable)
"""Errors that, once `Device.check` has confirmed them, concern every reading."""


class Device(Protocol):
    """One GPU or MIG instance, read by one thread only."""

    @property
    def identity(self) -> Identity:
        """Who it is."""

    @property
    def trouble(self) -> DriverError | None:
        """Why the last reading is incomplete though the GPU should have given all of it."""

    def check(self) -> None:
        """Ask the simplest things; raises one of `CONCERNS_ALL` when none of them is answered.

        Single calls fail with the same codes while all else works.
        """

    def close(self) -> None:
        """Give back what reading it took; the driver is not asked for anything."""

    def utilization(self) -> Utilization:
        """Drain the utilization rings."""

    def activity(self) -> Activity | None:
        """Activity since the last call; None while there is no earlier one to compare with."""

    def power(self) -> Power:
        """Power and energy."""

    def thermal(self) -> Thermal:
        """Temperatures and their limits."""

    def clocks(self) -> Clocks:
        """Clocks."""

    def throttle(self) -> Throttle:
        """Throttle counters and reasons."""

    def memory(self) -> Memory:
        """Device memory."""

    def health(self) -> Health:
        """ECC and row remapping."""

    def link(self) -> Link:
        """PCIe link."""

    def processes(self) -> Processes:
        """Processes with a context. Costly: takes the driver's global lock for milliseconds."""


class Driver(Protocol):
    """An open driver."""

    @property
    def name(self) -> str:
        """`nvml` or `virtual`."""

    @property
    def system(self) -> System:
        """Versions."""

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

    def watch_xids(self, index: int) -> None:
        """Have GPU `index` report its XIDs, if it does not; costs nothing where it does.

        Raises DriverError where it should and cannot.
        """

    def instances(self, index: int) -> tuple[str, ...]:
        """UUIDs of the MIG instances that GPU `index` has now; they change while we run."""

    def wait_xid(self, timeout_seconds: float) -> Xid | None:
        """Wait for the next XID of any GPU opened so far; None when none came in time.

        Raises Unsupported where the driver has no events.
        """
