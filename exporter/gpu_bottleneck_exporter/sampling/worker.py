"""Reads each physical GPU in its own thread, as GPUs may hang."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from gpu_bottleneck_exporter.driver.protocol import (
    AccessLost,
    Driver,
    DriverError,
    DriverUnusable,
)
from gpu_bottleneck_exporter.host.files import KeptFile
from gpu_bottleneck_exporter.logthrottle import LogThrottle
from gpu_bottleneck_exporter.loop import Loop
from gpu_bottleneck_exporter.sampling.collector import Collector
from gpu_bottleneck_exporter.sampling.gpureader import GpuReader, Outcome
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot
from gpu_bottleneck_exporter.sampling.starvation import OwnCpu, run_delay_ns, schedstat_of
from gpu_bottleneck_exporter.sampling.watching import HostSampler
from gpu_bottleneck_exporter.schedule import CADENCE, Backoff, Every
from gpu_bottleneck_exporter.settings import MIN_SAMPLING_INTERVAL_SECONDS, Settings

log = logging.getLogger(__name__)


class Down(NamedTuple):
    """The reason and remedy of a GPU that is down."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return self.reason


class GpuWorker(Loop):
    """Reads physical GPU `index` every tick."""

    def __init__(  # noqa: PLR0913 - dependencies of one GPU's reader
        self,
        index: int,
        driver: Driver,
        collectors: Sequence[Collector],
        settings: Settings,
        watch: HostSampler | None = None,
        *,
        own_cpu: OwnCpu,
    ) -> None:
        """`watch`: see `GpuReader`."""
        super().__init__(f"gpu{index}", self._read, log=log, last=self._close)
        self._throttle = LogThrottle(log)
        self.index = index
        self._own_cpu = own_cpu
        self.reader = GpuReader(index, driver, collectors, settings, watch)
        self.attempted = False
        """Whether a tick has ended, successful or not."""
        self.access_lost_since: float | None = None
        """Monotonic seconds of the first consecutive denial."""
        self.unusable: str | None = None
        """Reason why the process must be replaced."""
        self._about = driver.about
        self._interval_seconds = settings.interval_seconds
        self._tick_ns = int(settings.interval_seconds * 1e9)
        self._deadline_ns = int(settings.deadline_seconds * 1e9)
        self._refresh_pending = False
        self._finished = threading.Condition()
        self._snapshots: tuple[GpuSnapshot, ...] = ()
        self._due_ns = time.monotonic_ns()
        """Next tick, or end of the last one if later."""
        self._late_ns = own_cpu.late_ns(self._due_ns)
        self._schedstat: KeptFile | None = None
        self._delay_ns: int | None = 0
        """Run-queue delay at the end of the last tick."""
        self._down: Down | None = None
        self._retry = Backoff()
        self._up_since: float | None = None
        """Monotonic seconds of the first tick since it was opened; None while down."""
        self._layout_check = Every(CADENCE.slow_ns / 1e9)

    def down(self, now_ns: int) -> Down | None:
        """Reason and remedy; None while the GPU is up."""
        if self._down or (hung := self.hung_seconds(now_ns)) is None:
            return self._down
        return Down(f"a driver call has not returned for {hung:.0f} s", self._about.hung)

    def hung_seconds(self, now_ns: int) -> float | None:
        """Duration of a driver call, if past the deadline without counting lack of CPU."""
        silent_ns = now_ns - self._due_ns
        if silent_ns <= self._deadline_ns or self._down:
            return None
        hung = silent_ns - self._starved_ns(now_ns) > self._deadline_ns
        return silent_ns / 1e9 if hung else None

    def _starved_ns(self, now_ns: int) -> int:
        """Upper bound on the time without a CPU since the last tick.

        Run-queue delay plus the heartbeat's: lock owners may lack CPU, too.
        """
        late_ns = self._own_cpu.late_ns(now_ns) - self._late_ns
        delay_ns = run_delay_ns(self._schedstat) if self._schedstat else None
        if delay_ns is None or self._delay_ns is None:
            return late_ns
        return late_ns + delay_ns - self._delay_ns

    def refresh(self, until: float) -> None:
        """Update outdated snapshots until monotonic `until`. Thread-safe.

        Does not wait for a GPU that is down or being read.
        """
        now_ns = time.monotonic_ns()
        old = self.reader.request_refresh(now_ns)
        if not self._snapshots or (now_ns - self._snapshots[0].at_ns < self._tick_ns and not old):
            return
        if self._down is None and now_ns < self._due_ns:
            with self._finished:
                self._refresh_pending = True
                self.wake()
                self._finished.wait_for(
                    lambda: self._down or self._snapshots[0].at_ns > now_ns,
                    until - time.monotonic(),
                )

    def request_holders(self, uuids: Collection[str], *, now: bool) -> None:
        """Have holders read at the next tick; `now`: soon."""
        if self.reader.request_holders(uuids) and now:
            self.wake()

    def _finish_tick(self, now_ns: int) -> None:
        self._delay_ns = run_delay_ns(self._schedstat) if self._schedstat else None
        self._late_ns = self._own_cpu.late_ns(now_ns)
        self._due_ns = now_ns
        with self._finished:
            self._finished.notify_all()

    def snapshots(self, now_ns: int) -> list[GpuSnapshot]:
        """The GPU and its MIG instances, without outdated readings."""
        if self.down(now_ns) is None:
            late = now_ns - self._due_ns > self._deadline_ns
            return [gpu.stale() for gpu in self._snapshots] if late else list(self._snapshots)
        return self.reader.down_snapshots(now_ns)

    def outcomes(self, now_ns: int) -> list[tuple[str, Outcome]]:
        """Outcomes by collector and device."""
        outcomes, down = self.reader.outcomes(), self.down(now_ns)
        if down is None:
            return outcomes
        return [(name, last._replace(error=down.reason, down=True)) for name, last in outcomes]

    def _read(self) -> float:
        """Read the GPU, which is down after any error; returns the pause."""
        if self._schedstat is None:
            self._schedstat = schedstat_of(threading.get_native_id())
            self._delay_ns = run_delay_ns(self._schedstat)  # opened before other threads read it
        if self._up_since and time.monotonic_ns() < self._due_ns:  # woken early
            # Rate limit, as many processes may start and exit.
            until = self._snapshots[0].at_ns / 1e9 + MIN_SAMPLING_INTERVAL_SECONDS
            self.rest(0 if self._refresh_pending else until - time.monotonic())
            self._due_ns = min(self._due_ns, time.monotonic_ns())
        if self.stopping:
            return 0.0
        self._refresh_pending = False
        try:
            self._read_open()
        except DriverError as error:
            self._fail(error)
        except Exception as error:  # a bug must not end the thread
            log.debug("reading a GPU failed", {"gpu": self.index}, exc_info=True)
            self._fail(DriverError(f"{type(error).__name__}: {error}"))
        else:
            usual, offset = self._interval_seconds, self.index * CADENCE.stagger_seconds
            tick = _next_tick(time.monotonic(), usual, offset, self.reader.interval())
            self._due_ns = int(tick * 1e9)
            return max(tick - time.monotonic(), 0.0)
        # A flapping GPU retains its back-off.
        if self._up_since and time.monotonic() - self._up_since > CADENCE.cache_ttl_ns / 1e9:
            self._retry = Backoff()
        self._up_since = None
        self.rest(self._retry.pause())  # requests do not shorten it
        return 0.0

    def _close(self) -> None:
        if self._schedstat:
            self._schedstat.close()

    def _read_open(self) -> None:
        """Open the GPU if needed, or follow its MIG layout; then read it."""
        if self._up_since is None:
            self.reader.open()
            self._tick()
            self._up_since = time.monotonic()
            self._layout_check = Every(
                CADENCE.slow_ns / 1e9, self._up_since + CADENCE.slow_ns / 1e9
            )
            return
        if self._layout_check.is_due(time.monotonic()):
            self.reader.follow_layout()
        self._tick()

    def _tick(self) -> None:
        now = self.reader.read()
        self._snapshots = self.reader.snapshots(now)
        self._finish_tick(now)
        self.attempted = True
        self.access_lost_since = None
        self._down = None
        self._log_state()

    def _log_state(self, error: DriverError | None = None) -> None:
        """Log a change of state or of the kind of `error`."""
        kind = None if error is None else (type(error), error.remedy)
        texts = "GPU is down", "GPU is back"
        self._throttle.log_change(logging.ERROR, "gpu", kind, texts, gpu=self.index, err=self._down)

    def _fail(self, error: DriverError) -> None:
        if isinstance(error, DriverUnusable):
            self.unusable = str(error)
        if isinstance(error, AccessLost):
            self.access_lost_since = self.access_lost_since or time.monotonic()
        else:
            self.access_lost_since = None
        self._down = Down(str(error), error.remedy or self._about.down)
        self._log_state(error)
        self.reader.close()
        self._finish_tick(time.monotonic_ns())
        self.attempted = True


def _next_tick(now: float, usual: float, offset: float, interval: float) -> float:
    """Monotonic seconds of the next tick, on the GPUs' common grid plus `offset`."""
    passed = (now - offset + CADENCE.stagger_seconds) // usual
    return passed * usual + interval + offset
