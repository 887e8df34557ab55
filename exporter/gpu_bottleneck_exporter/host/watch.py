"""The host as the watching thread last saw it."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpu_bottleneck_exporter.ageing import Ageing
from gpu_bottleneck_exporter.host.machine import Machine, MachineReader
from gpu_bottleneck_exporter.host.signals import host_signals
from gpu_bottleneck_exporter.news import News

log = logging.getLogger(__name__)

_LOOKING = "looking for the host's signals"


@dataclass(frozen=True, slots=True)
class HostSnapshot:
    """The host as of `at_ns` (monotonic); `machine` is None where nobody wants it."""

    at_ns: int
    machine: Machine | None = None
    signals: Mapping[str, bool] = field(default_factory=dict)
    """Whether each signal of the host can be read."""
    watched: Mapping[str, int] = field(default_factory=dict)
    """How many processes that feed GPUs are watched `whole`, `sampled`, or only `counted`."""


class HostWatch:
    """Only the watching thread calls `look`; any may read `snapshot`."""

    def __init__(
        self, proc: Path, sysfs: Path, *, machine: bool, without: frozenset[str] = frozenset()
    ) -> None:
        """`machine`: whether to read it, or the signals only, but for those in `without`."""
        self.snapshot: HostSnapshot | None = None
        self._proc = proc
        self._sysfs = sysfs
        self._machine = MachineReader(proc) if machine else None
        self._without = without
        self._signals: Mapping[str, bool] = {}
        self._news = News()
        self._ageing = Ageing()
        self._tried: frozenset[int] = frozenset()

    def look(
        self,
        feeding: Collection[int] = (),
        complete: Mapping[str, bool] | None = None,
        watched: Mapping[str, int] | None = None,
    ) -> None:
        """Read it now; signals less often. `feeding`: processes that hold GPUs.

        `complete`: signals of what was, or was not, looked at in full; `watched`: see
        `HostSnapshot`.
        """
        now = time.monotonic_ns()
        tried = frozenset(feeding)
        if self._ageing.is_due(now, new=tried != self._tried):
            self._tried = tried
            try:
                self._take_signals(host_signals(self._proc, self._sysfs, tried))
            except Exception as error:  # noqa: BLE001 - whatever /proc says, it goes on
                self._news.fault(log, _LOOKING, error)
            else:
                self._news.fault(log, _LOOKING, None)
        if complete:
            self._take_signals(complete)
        machine = self._machine.read(now) if self._machine else None
        self.snapshot = HostSnapshot(now, machine, self._signals, watched or {})

    def _take_signals(self, signals: Mapping[str, bool]) -> None:
        # One that cannot be judged at the moment stays as it was.
        known = {**self._signals, **signals}
        self._signals = {name: known[name] for name in known if name not in self._without}
        for name, given in sorted(self._signals.items()):
            if self._news.is_new(name, given, usual=True):
                log.info("signal %s is %s", name, "available" if given else "not available")
