"""Reads the host's metrics and signals."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpu_bottleneck_exporter.host.machine import Machine, MachineReader
from gpu_bottleneck_exporter.host.signals import host_signals
from gpu_bottleneck_exporter.logthrottle import LogThrottle
from gpu_bottleneck_exporter.schedule import RefreshSchedule

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostSnapshot:
    """The host as of `at_ns` (monotonic); `machine` only if a collector needs it."""

    at_ns: int
    machine: Machine | None = None
    signals: Mapping[str, bool] = field(default_factory=dict)
    """Availability by signal."""
    watched: Mapping[str, int] = field(default_factory=dict)
    """Number of feeders watched `whole`, `sampled` or only `counted`."""


class HostReader:
    """Reads machine and signals. Not thread-safe, except for `snapshot`."""

    def __init__(
        self, proc: Path, sysfs: Path, *, machine: bool, without: frozenset[str] = frozenset()
    ) -> None:
        """`machine`: also read metrics; `without`: signals to omit."""
        self.snapshot: HostSnapshot | None = None
        self._proc = proc
        self._sysfs = sysfs
        self._machine = MachineReader(proc, sysfs) if machine else None
        self._without = without
        self._signals: Mapping[str, bool] = {}
        self._throttle = LogThrottle(log)
        self._signals_schedule = RefreshSchedule()

    def read(
        self,
        feeding: Collection[int] = (),
        complete: Mapping[str, bool] | None = None,
        watched: Mapping[str, int] | None = None,
        *,
        settled: bool = True,
    ) -> None:
        """Read the machine, and due signals.

        Args:
            feeding: Pids on which signals are tested.
            complete: Signals tested by the caller.
            watched: Becomes part of the snapshot.
            settled: Whether holders are known or overdue; signals are read only then.
        """
        now = time.monotonic_ns()
        holders = frozenset(feeding)
        if settled and self._signals_schedule.is_due(now, holders):
            with self._throttle.guarded("reading the host's signals"):
                self._update_signals(host_signals(self._proc, self._sysfs, holders))
        if complete:
            self._update_signals(complete)
        machine = self._machine.read(now) if self._machine else None
        self.snapshot = HostSnapshot(now, machine, self._signals, watched or {})

    def close(self) -> None:
        """Close the machine's files."""
        if self._machine:
            self._machine.close()

    def _update_signals(self, read: Mapping[str, bool]) -> None:
        # Signals that cannot be tested now keep their value.
        signals = {**self._signals, **read}
        self._signals = {name: signals[name] for name in signals if name not in self._without}
        for name, available in sorted(self._signals.items()):
            if self._throttle.is_new(name, available, usual=True):
                text = "signal is available" if available else "signal is not available"
                log.info(text, {"signal": name})
