"""One thread per physical GPU: has it read every tick, and if it hangs, hangs alone."""

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
from gpu_bottleneck_exporter.sampling.collector import SLOWLY, Collector
from gpu_bottleneck_exporter.sampling.gpureader import GpuReader, Outcome
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot
from gpu_bottleneck_exporter.sampling.starvation import OwnCpu, run_delay_ns, schedstat_of
from gpu_bottleneck_exporter.sampling.watching import HostSampler
from gpu_bottleneck_exporter.schedule import LONG_NS, Backoff, Every
from gpu_bottleneck_exporter.settings import MIN_SAMPLING_INTERVAL_SECONDS, Settings

log = logging.getLogger(__name__)

_STAYS_SECONDS = LONG_NS / 1e9
"""A GPU that was up for so long is not one that comes and goes."""
_JUST_NS = int(MIN_SAMPLING_INTERVAL_SECONDS * 1e9)
APART_SECONDS = 0.001
"""Between the ticks of two GPUs: one after the other, they find warm caches and never wait for
Python's lock. A thread that wakes early by less has reached its tick."""


class Down(NamedTuple):
    """Why a GPU is down, and what to do about it."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return self.reason


class GpuWorker(Loop):
    """The thread that has physical GPU `index` read, every tick."""

    def __init__(  # noqa: PLR0913 - what one GPU's reader needs of the whole
        self,
        index: int,
        driver: Driver,
        collectors: Sequence[Collector],
        settings: Settings,
        watch: HostSampler | None = None,
        *,
        own_cpu: OwnCpu,
    ) -> None:
        """`watch` learns who holds the GPU and says what they did; without it, no stalls.

        `own_cpu` measures how late a thread wakes that never calls the driver.
        """
        super().__init__(f"gpu{index}", self._read, log=log, last=self._close)
        self._throttle = LogThrottle(log)
        self.index = index
        self._own_cpu = own_cpu
        self.reader = GpuReader(index, driver, collectors, settings, watch)
        self.attempted = False
        """Whether the first tick is over, successful or not."""
        self.access_lost_since: float | None = None
        """Monotonic seconds since which the driver has refused every call; None if it does not."""
        self.unusable: str | None = None
        """Why only a new process can talk to the driver again, if that is so."""
        self._about = driver.about
        self._interval_seconds = settings.interval_seconds
        self._tick_ns = int(settings.interval_seconds * 1e9)
        self._deadline_ns = int(settings.deadline_seconds * 1e9)
        self._asked = False
        """Whether `refresh` waits for the next tick."""
        self._finished = threading.Condition()
        """Notified at the end of a reading."""
        self._snapshots: tuple[GpuSnapshot, ...] = ()
        self._due_ns = time.monotonic_ns()
        """When the GPU is to be read next, or the end of its last reading if that is later."""
        self._late_ns = own_cpu.late_ns(self._due_ns)
        self._schedstat: KeptFile | None = None
        """This thread's, once it runs."""
        self._delay_ns: int | None = 0
        """This thread's run-queue delay as of the end of the last tick."""
        self._down: Down | None = None
        self._retry = Backoff()
        self._up_since: float | None = None
        """Monotonic seconds since which it has been open and was read; None while it is down."""
        self._checking_layout = Every(SLOWLY)

    def down(self, now_ns: int) -> Down | None:
        """Why this GPU is down; None while it is up."""
        if self._down or (hung := self.hung_seconds(now_ns)) is None:
            return self._down
        return Down(f"a driver call has not returned for {hung:.0f} s", self._about.hung)

    def hung_seconds(self, now_ns: int) -> float | None:
        """Time that the thread has been inside the driver, if past the deadline.

        Time without a CPU is not the driver's fault, and does not count towards the deadline.
        """
        silent_ns = now_ns - self._due_ns
        if silent_ns <= self._deadline_ns or self._down:
            return None
        hung = silent_ns - self._starved_ns(now_ns) > self._deadline_ns
        return silent_ns / 1e9 if hung else None

    def _starved_ns(self, now_ns: int) -> int:
        """Longest time that the thread could not run since the last tick.

        Its own run-queue delay, plus the delay that every thread had: it may wait for a lock
        whose owner has no CPU. Some time may be in both; better to report a hang late than to
        blame the driver.
        """
        late_ns = self._own_cpu.late_ns(now_ns) - self._late_ns
        delay_ns = run_delay_ns(self._schedstat) if self._schedstat else None
        if delay_ns is None or self._delay_ns is None:
            return late_ns
        return late_ns + delay_ns - self._delay_ns

    def refresh(self, until: float) -> None:
        """Have the GPU read, unless what scrapes show is fresh. For any thread.

        Waits for it until monotonic `until`, but not for a GPU that is down or being read.
        """
        asked_ns = time.monotonic_ns()
        old = self.reader.ask(asked_ns)
        if not self._snapshots or (asked_ns - self._snapshots[0].at_ns < self._tick_ns and not old):
            return
        if self._down is None and asked_ns < self._due_ns:
            with self._finished:
                self._asked = True
                self.wake()
                self._finished.wait_for(
                    lambda: self._down or self._snapshots[0].at_ns > asked_ns,
                    until - time.monotonic(),
                )

    def look(self, uuids: Collection[str], *, now: bool) -> None:
        """Have the holders of these GPUs read at the next tick. For any thread.

        That is `now`, or soon after the last one if that was just before.
        """
        if self.reader.look(uuids) and now:
            self.wake()

    def _finish_tick(self, now_ns: int) -> None:
        self._delay_ns = run_delay_ns(self._schedstat) if self._schedstat else None
        self._late_ns = self._own_cpu.late_ns(now_ns)
        self._due_ns = now_ns
        with self._finished:
            self._finished.notify_all()

    def snapshots(self, now_ns: int) -> list[GpuSnapshot]:
        """The GPU and its MIG instances, as far as they may be shown now."""
        if self.down(now_ns) is None:
            late = now_ns - self._due_ns > self._deadline_ns
            return [shot.stale() for shot in self._snapshots] if late else list(self._snapshots)
        return self.reader.down_snapshots(now_ns)

    def outcomes(self, now_ns: int) -> list[tuple[str, Outcome]]:
        """The last result of each collector on each device it is supported on."""
        found, down = self.reader.outcomes(), self.down(now_ns)
        if down is None:
            return found
        return [(name, how._replace(error=down.reason, down=True)) for name, how in found]

    def _read(self) -> float:
        """Read the GPU, which is opened first if it is not; returns the pause until the next tick.

        Whatever fails, the GPU is down, and tried again.
        """
        if self._schedstat is None:
            self._schedstat = schedstat_of(threading.get_native_id())
            self._delay_ns = run_delay_ns(self._schedstat)  # opens it, before others read it
        if self._up_since and time.monotonic_ns() < self._due_ns:  # somebody wants it sooner
            rest_ns = self._snapshots[0].at_ns + _JUST_NS - time.monotonic_ns()
            self.rest(0 if self._asked else rest_ns / 1e9)  # many may come and go
            self._due_ns = min(self._due_ns, time.monotonic_ns())
        if self.stopping:
            return 0.0
        self._asked = False
        try:
            self._read_open()
        except DriverError as error:
            self._fail(error)
        except Exception as error:  # a bug must not end the only reader of this GPU
            log.debug("reading a GPU failed", {"gpu": self.index}, exc_info=True)
            self._fail(DriverError(f"{type(error).__name__}: {error}"))
        else:
            usual, apart = self._interval_seconds, self.index * APART_SECONDS
            tick = _next_tick(time.monotonic(), usual, apart, self.reader.interval())
            self._due_ns = int(tick * 1e9)
            return max(tick - time.monotonic(), 0.0)
        if self._up_since and time.monotonic() - self._up_since > _STAYS_SECONDS:
            self._retry = Backoff()
        self._up_since = None
        self.rest(self._retry.pause())  # whoever wants it sooner
        return 0.0

    def _close(self) -> None:
        if self._schedstat:
            self._schedstat.close()

    def _read_open(self) -> None:
        """Open the GPU, or open it anew if its MIG instances are others now; then read it."""
        if self._up_since is None:
            self.reader.open()
            self._tick()
            self._up_since = time.monotonic()
            self._checking_layout = Every(SLOWLY, self._up_since + SLOWLY)
            return
        if self._checking_layout.is_due(time.monotonic()):
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
        """Log whether the GPU is down, if that or the kind of `error` is new.

        Each call that meets the same loss words it differently.
        """
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
    """The next tick, `interval` after the last one on the grid of all GPUs, each with `offset`."""
    passed = (now - offset + APART_SECONDS) // usual
    return passed * usual + interval + offset
