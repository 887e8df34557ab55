"""The host, as the host sampler's thread last saw it."""

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
    """The host as of `at_ns` (monotonic); `machine` is None if no collector wants it."""

    at_ns: int
    machine: Machine | None = None
    signals: Mapping[str, bool] = field(default_factory=dict)
    """By signal, whether it can be read."""
    watched: Mapping[str, int] = field(default_factory=dict)
    """Number of feeders that are watched `whole`, `sampled`, or only `counted`."""


class HostReader:
    """Reads machine and signals. `read` is for the host sampler's thread, `snapshot` for any."""

    def __init__(
        self, proc: Path, sysfs: Path, *, machine: bool, without: frozenset[str] = frozenset()
    ) -> None:
        """`machine`: read it too, not only the signals; signals in `without` are left out."""
        self.snapshot: HostSnapshot | None = None
        self._proc = proc
        self._sysfs = sysfs
        self._machine = MachineReader(proc, sysfs) if machine else None
        self._without = without
        self._signals: Mapping[str, bool] = {}
        self._throttle = LogThrottle(log)
        self._refreshing = RefreshSchedule()

    def read(
        self,
        feeding: Collection[int] = (),
        complete: Mapping[str, bool] | None = None,
        watched: Mapping[str, int] | None = None,
        *,
        settled: bool = True,
    ) -> None:
        """Read the machine now, and signals when they are due. `feeding`: processes that hold GPUs.

        `settled`: whether GPUs are known, or long enough awaited; before that, signals that depend
        on processes would be judged by another one.
        `complete`: signals that the caller determined itself: whether it could look at everything.
        `watched`: see `HostSnapshot`.
        """
        now = time.monotonic_ns()
        tried = frozenset(feeding)
        if settled and self._refreshing.is_due(now, tried):
            with self._throttle.guarded("reading the host's signals"):
                self._update_signals(host_signals(self._proc, self._sysfs, tried))
        if complete:
            self._update_signals(complete)
        machine = self._machine.read(now) if self._machine else None
        self.snapshot = HostSnapshot(now, machine, self._signals, watched or {})

    def close(self) -> None:
        """Close the files of the machine."""
        if self._machine:
            self._machine.close()

    def _update_signals(self, read: Mapping[str, bool]) -> None:
        # A signal that cannot be judged at the moment keeps its last value.
        known = {**self._signals, **read}
        self._signals = {name: known[name] for name in known if name not in self._without}
        for name, given in sorted(self._signals.items()):
            if self._throttle.is_new(name, given, usual=True):
                text = "signal is available" if given else "signal is not available"
                log.info(text, {"signal": name})
