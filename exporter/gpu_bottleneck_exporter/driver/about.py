"""Vendor, limits and remedies of a driver as a whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from gpu_bottleneck_exporter.driver.readings import Identity

DOWN = "look for the driver's errors in the kernel log; reset the GPU or reboot the node"
"""The remedy also where only a node's metrics are known, not its driver."""
NO_GPU = (
    "look for the GPU driver's errors in the kernel log (dmesg); if there are none, report a bug "
    "with the driver's version"
)
"""The remedy if a driver does not open and its error has none."""
NOT_GIVEN = "the driver does not give it"


@dataclass(frozen=True, slots=True)
class About:
    """A driver; does not change while it is open. Remedies are phrases without a full stop."""

    title: str
    """The vendor, or what else `check` prints before the version."""
    simulated: bool = False
    sees_all_namespaces: bool = True
    """Whether `Device.processes` also lists processes in other PID namespaces than ours."""
    daemons: frozenset[str] = frozenset()
    """The driver's own processes that hold a GPU for others, by name (comm: 15 characters)."""
    device_nodes: Callable[[Identity], Collection[str]] = lambda _: ()
    """The device nodes that a process with a context on this GPU has open; none: unknown."""
    error_event: str = "error event"
    """The vendor's name for the events that `Driver.wait_error` returns."""
    down: str = DOWN
    """The remedy for a GPU that is down and whose error has no remedy."""
    hung: str = (
        "look for the driver's errors in the kernel log; if it persists, reboot the node: nothing "
        "else frees a call that hangs in the driver"
    )
    """The remedy for a GPU whose driver call does not return."""
    forbidden: str = "give the exporter's user access to the GPU's device files"
    """The remedy for readings that raise Forbidden."""
    signals: Mapping[str, str] = field(default_factory=dict)
    """By missing signal of the GPU: what is lost without it, or the remedy."""
    seen: Callable[[str | None, str | None], bool] = lambda _model, _version: True
    """Whether this model and driver version were seen before; the capture of others helps."""


UNKNOWN = About("unknown")
"""The stand-in while no driver is open."""
