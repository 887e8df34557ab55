"""Calls that a process may block forever, as they need its memory or its descriptors.

Its command line, its environment and its poll arguments lie in pages that may belong to a FUSE
file system that never answers, or to a userfaultfd handler: a reader then hangs as the process
would. So a separate thread calls, and is abandoned if it takes too long. Answers that are late,
but in time, would hold up the caller again and again: so each tenant has a budget of wall time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

from gpu_bottleneck_exporter.host.files import FileLimitError, read

PATIENCE_SECONDS = 0.25
"""A read takes microseconds unless it hangs; meanwhile two passes over the feeders are missed."""
MOST_LEFT_BEHIND = 64
"""Threads that hang; with this many, no process is asked, with half of them no tenant with one."""
MOST_OF_A_TENANT = 4
"""Threads that hang in reads of one tenant's processes; with this many, none of them is asked."""
_LATE_SECONDS = 0.005
"""Blocked time of a call that is not charged: the time for which a thread keeps Python's lock."""
_MAX_BLOCKED_SHARE = 0.02
"""Share of the time for which one tenant may block callers in the long run."""
_MAX_BLOCKED_SECONDS = 1.0
"""Blocked time that a tenant may run up at once: four calls that hang."""
_FULL_SHARES = 5
"""Tenants with the full share; more of them divide the sum of these, a tenth of the time."""
_MIN_PART = 1 / 8
"""Smallest part of its patience and of its time at once that a tenant keeps, as others hold callers
up, too; who owes more than this part of the time at once holds them up."""
_MAX_IDLE_SECONDS = 10.0
"""Time after which a helper thread without a call ends."""
T = TypeVar("T")
_Answer = tuple[Exception | None, float]
"""The error of a call, and the seconds for which it was blocked."""
_Call = tuple[Callable[[], object], SimpleQueue[_Answer]]
_Calls = SimpleQueue[_Call | None]
"""The calls for one helper thread; None at the end."""


class Aside:
    """Runs calls on helper threads, one for each caller at a time."""

    def __init__(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._patience = patience_seconds
        self._lock = threading.Lock()
        self._idle: list[_Calls] = []
        self._clocks: set[int] = set()
        """CPU clocks of the helper threads that live."""
        self._ended_seconds = 0.0
        """CPU time of helper threads that ended."""
        self._held_up: dict[_Calls, tuple[int, Hashable, float]] = {}
        """Pid, tenant and patience of each call that was abandoned and has not returned."""
        self.share_by(int)

    def share_by(self, tenant_of: Callable[[int], Hashable]) -> None:
        """Give each tenant a budget; `tenant_of` maps a pid to it. At first, each pid is one."""
        self._tenant_of = tenant_of
        self._paid_at: dict[Hashable, float] = {}
        """Monotonic seconds at which the blocked time of a tenant will have been made up for."""

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all calls so far, abandoned ones included."""
        with self._lock:
            return self._ended_seconds + sum(map(time.clock_gettime, self._clocks))

    def call(self, pid: int, what: Callable[[], T]) -> T | None:
        """The result of `what`, which asks process `pid`; None if that hangs, or often is late.

        Raises what `what` raises.
        """
        patience = self._allowed(pid) if self._held_up or self._paid_at else self._patience
        if not patience:
            return None
        results: list[T] = []
        answers: SimpleQueue[_Answer] = SimpleQueue()
        calls = self._helper()
        calls.put((lambda: results.append(what()), answers))
        try:
            error, blocked = answers.get(timeout=patience)
        except Empty:
            # The thread ends if the call ever returns.
            self._held_up[calls] = pid, self._tenant_of(pid), patience
            calls.put(None)
            return None
        self._idle.append(calls)
        if blocked > _LATE_SECONDS:
            self._charge(self._tenant_of(pid), blocked - _LATE_SECONDS)
        if error is not None:
            raise error
        return results[0]

    def _allowed(self, pid: int) -> float:
        """Patience with a call that asks process `pid`; 0 if none is to be made."""
        tenant, held_up = self._tenant_of(pid), [*self._held_up.values()]
        with self._lock:
            owed = self._owed()
        pids, tenants = [held for held, *_ in held_up], [holder for _, holder, _ in held_up]
        most = MOST_OF_A_TENANT if 2 * len(pids) < MOST_LEFT_BEHIND else 1
        if len(pids) >= MOST_LEFT_BEHIND or tenants.count(tenant) >= most or pid in pids:
            return 0.0
        part = max(1 / (1 + len({*tenants, *_late(owed)} - {tenant})), _MIN_PART)
        if owed.get(tenant, 0.0) > part * _MAX_BLOCKED_SECONDS:
            return 0.0
        # A call of a tenant that held up none must not be given up as it waits for a CPU.
        first = tenant not in owed and tenant not in tenants
        return max(part * self._patience, min(self._patience, PATIENCE_SECONDS) if first else 0.0)

    def _owed(self) -> dict[Hashable, float]:
        """Blocked seconds that each tenant has not made up for."""
        now = time.monotonic()
        self._paid_at = {tenant: at for tenant, at in self._paid_at.items() if at > now}
        return {tenant: (at - now) * _MAX_BLOCKED_SHARE for tenant, at in self._paid_at.items()}

    def _charge(self, tenant: Hashable, seconds: float) -> None:
        with self._lock:
            share = _MAX_BLOCKED_SHARE / max(1, len(_late(self._owed())) / _FULL_SHARES)
            since = max(self._paid_at.get(tenant, 0.0), time.monotonic())
            self._paid_at[tenant] = since + seconds / share

    def _helper(self) -> _Calls:
        """The queue of an idle helper thread, or of a new one."""
        try:
            return self._idle.pop()
        except IndexError:
            calls: _Calls = SimpleQueue()
            threading.Thread(target=self._serve, args=(calls,), name="aside", daemon=True).start()
            return calls

    def _serve(self, calls: _Calls) -> None:
        clock = time.pthread_getcpuclockid(threading.get_ident())
        cpu = waited = blocked = 0.0
        with self._lock:
            self._clocks.add(clock)
        while call := self._next(calls):
            what, answers = call
            began, error = time.monotonic(), None
            try:
                what()
            except Exception as raised:  # noqa: BLE001 - raised again in the calling thread
                error = raised
            before, cpu = cpu, time.thread_time()
            blocked = time.monotonic() - began - (cpu - before)
            if blocked > _LATE_SECONDS:
                before, waited = waited, waited_seconds()
                blocked -= waited - before
            answers.put((error, blocked))
        with self._lock:
            self._clocks.remove(clock)
            self._ended_seconds += time.thread_time()
        # Its last call may have been abandoned, but has returned after all.
        if held_up := self._held_up.pop(calls, None):
            _, tenant, patience = held_up
            self._charge(tenant, min(blocked, patience))

    def _next(self, calls: _Calls) -> _Call | None:
        """The next call of a helper thread; None at the end."""
        with suppress(Empty):
            return calls.get(timeout=_MAX_IDLE_SECONDS)
        with suppress(ValueError):
            self._idle.remove(calls)
            return None
        return calls.get()  # a caller has just taken it


def _late(owed: Mapping[Hashable, float]) -> set[Hashable]:
    """The tenants that hold callers up, given the blocked seconds that each has `owed`."""
    return {tenant for tenant, due in owed.items() if due > _MIN_PART * _MAX_BLOCKED_SECONDS}


def waited_seconds() -> float:
    """Time for which the calling thread was runnable without a CPU; 0 if that is unknown."""
    with suppress(FileLimitError):
        return int((read("/proc/thread-self/schedstat") or "0 0").split()[1]) / 1e9
    return 0.0


aside = Aside()
"""For all reads of processes' memory."""
lending = Aside()
"""For their sockets, which those that hold up reads of their memory must not hold up for others."""
proc_reads = Aside(4 * PATIENCE_SECONDS)
"""For files of /proc that wait for an execve only: those above may hang where these do not.

They wait longer, as a process whose stat is not read counts as ended.
"""
device_reads = Aside(4 * PATIENCE_SECONDS)
"""For counters that a card's firmware returns."""
