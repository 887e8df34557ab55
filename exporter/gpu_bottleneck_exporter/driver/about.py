"""Vendor, limits and remedies of a driver."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from gpu_bottleneck_exporter.driver.readings import Identity

DOWN = "look for the driver's errors in the kernel log; reset the GPU or reboot the node"
"""Remedy for a GPU that is down."""
NO_GPU = (
    "look for the GPU driver's errors in the kernel log (dmesg); if there are none, report a bug "
    "with the driver's version"
)
"""Remedy for a driver that does not open."""
NOT_REPORTED = "the driver does not report it"


@dataclass(frozen=True, slots=True)
class About:
    """The constant properties of a driver; remedies are phrases."""

    title: str
    """Vendor, or other text before the version in `check`."""
    simulated: bool = False
    sees_all_namespaces: bool = True
    """Whether `Device.processes` includes other PID namespaces."""
    daemons: frozenset[str] = frozenset()
    """Names (comm) of driver processes that hold a GPU for others."""
    device_nodes: Callable[[Identity], Collection[str]] = lambda _: ()
    """Device nodes open in each process on this GPU."""
    error_event: str = "error event"
    """Name of `Driver.wait_error` events."""
    down: str = DOWN
    """Remedy for a GPU that is down, if its error has none."""
    hung: str = (
        "look for the driver's errors in the kernel log; if it persists, reboot the node: nothing "
        "else frees a call that hangs in the driver"
    )
    """Remedy for a driver call that does not return."""
    forbidden: str = "give the exporter's user access to the GPU's device files"
    """Remedy for Forbidden."""
    signals: Mapping[str, str] = field(default_factory=dict)
    """Consequence or remedy by missing signal."""
    seen: Callable[[str | None, str | None], bool] = lambda _model, _version: True
    """Whether this model and driver version are known: captures of others help."""


UNKNOWN_DRIVER = About("unknown")
