"""Runs calls that a process may block forever, as they need its memory or its descriptors.

Its command line, environment and poll arguments may lie in pages of a FUSE file system or a
userfaultfd handler that never responds. A helper thread makes the call and is abandoned on a
timeout. A budget per tenant bounds slow calls.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue

from gpu_bottleneck_exporter.host.files import FileLimitError, T, read

CALL_TIMEOUT_SECONDS = 0.25
"""Timeout of a call, which takes microseconds: two missed passes."""
MAX_HUNG_THREADS = 64
"""Maximum of hung threads; above half of it, one per tenant."""
MAX_HUNG_THREADS_PER_TENANT = 4
_UNCHARGED_SECONDS = 0.005
"""Free blocked time per call: the switch interval of the GIL."""
_MAX_BLOCKED_SHARE = 0.02
"""Long-term share of time for which a tenant may block callers."""
_MAX_DEBT_SECONDS = 1.0
"""Maximum debt of blocked time: four calls that hang."""
_MIN_BUDGET_RATIO = 1 / 8
"""Minimum part of its timeout and maximum debt that a tenant retains while others block callers, by
debts above this part."""
_MAX_IDLE_SECONDS = 10.0
_Reply = tuple[Exception | None, float]
"""Error and blocked seconds of a call."""
_Call = tuple[Callable[[], object], SimpleQueue[_Reply]]
_Calls = SimpleQueue[_Call | None]
"""Calls for one helper thread; None at the end."""


class GuardedExecutor:
    """Runs calls with a timeout, on one helper thread per caller. Thread-safe."""

    def __init__(self, timeout_seconds: float = CALL_TIMEOUT_SECONDS) -> None:
        self._timeout = timeout_seconds
        self._lock = threading.Lock()
        self._idle: list[_Calls] = []
        self._clocks: set[int] = set()
        """CPU clocks of live helper threads."""
        self._ended_seconds = 0.0
        """CPU time of ended helper threads."""
        self._hung: dict[_Calls, tuple[int, Hashable, float]] = {}
        """Pid, tenant and timeout of abandoned calls that have not returned."""
        self.share_by(int)

    def share_by(self, tenant_of: Callable[[int], Hashable]) -> None:
        """Keep one budget per tenant of `tenant_of`; initially, each pid is a tenant."""
        self._tenant_of = tenant_of
        self._repaid_at: dict[Hashable, float] = {}
        """Monotonic seconds at which a tenant's debt is repaid."""

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all calls, including abandoned ones."""
        with self._lock:
            return self._ended_seconds + sum(map(time.clock_gettime, self._clocks))

    def call(self, pid: int, function: Callable[[], T]) -> T | None:
        """The result of `function`, which reads process `pid`; None if late or over budget.

        Raises its exceptions.
        """
        timeout = self._timeout_for(pid) if self._hung or self._repaid_at else self._timeout
        if not timeout:
            return None
        results: list[T] = []
        replies: SimpleQueue[_Reply] = SimpleQueue()
        calls = self._helper()
        calls.put((lambda: results.append(function()), replies))
        try:
            error, blocked = replies.get(timeout=timeout)
        except Empty:
            # The thread ends if the call returns.
            self._hung[calls] = pid, self._tenant_of(pid), timeout
            calls.put(None)
            return None
        self._idle.append(calls)
        if blocked > _UNCHARGED_SECONDS:
            self._charge(self._tenant_of(pid), blocked - _UNCHARGED_SECONDS)
        if error is not None:
            raise error
        return results[0]

    def _timeout_for(self, pid: int) -> float:
        """Timeout of a call for process `pid`; 0 to skip it."""
        tenant, hung = self._tenant_of(pid), [*self._hung.values()]
        with self._lock:
            debts = self._debts()
        pids, tenants = (
            [hung_pid for hung_pid, *_ in hung],
            [hung_tenant for _, hung_tenant, _ in hung],
        )
        max_hung = MAX_HUNG_THREADS_PER_TENANT if 2 * len(pids) < MAX_HUNG_THREADS else 1
        if len(pids) >= MAX_HUNG_THREADS or tenants.count(tenant) >= max_hung or pid in pids:
            return 0.0
        part = max(1 / (1 + len({*tenants, *_blocking(debts)} - {tenant})), _MIN_BUDGET_RATIO)
        if debts.get(tenant, 0.0) > part * _MAX_DEBT_SECONDS:
            return 0.0
        # A tenant without debt must not time out while it waits for a CPU.
        first = tenant not in debts and tenant not in tenants
        return max(part * self._timeout, min(self._timeout, CALL_TIMEOUT_SECONDS) if first else 0.0)

    def _debts(self) -> dict[Hashable, float]:
        """Blocked seconds owed, by tenant."""
        now = time.monotonic()
        self._repaid_at = {tenant: at for tenant, at in self._repaid_at.items() if at > now}
        return {tenant: (at - now) * _MAX_BLOCKED_SHARE for tenant, at in self._repaid_at.items()}

    def _charge(self, tenant: Hashable, seconds: float) -> None:
        with self._lock:
            # More than five such tenants share a tenth of the time.
            share = _MAX_BLOCKED_SHARE / max(1, len(_blocking(self._debts())) / 5)
            since = max(self._repaid_at.get(tenant, 0.0), time.monotonic())
            self._repaid_at[tenant] = since + seconds / share

    def _helper(self) -> _Calls:
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
            function, replies = call
            began, error = time.monotonic(), None
            try:
                function()
            except Exception as raised:  # noqa: BLE001 - raised again in the calling thread
                error = raised
            before, cpu = cpu, time.thread_time()
            blocked = time.monotonic() - began - (cpu - before)
            if blocked > _UNCHARGED_SECONDS:
                before, waited = waited, waited_seconds()
                blocked -= waited - before
            replies.put((error, blocked))
        with self._lock:
            self._clocks.remove(clock)
            self._ended_seconds += time.thread_time()
        # An abandoned last call has returned.
        if hung := self._hung.pop(calls, None):
            _, tenant, timeout = hung
            self._charge(tenant, min(blocked, timeout))

    def _next(self, calls: _Calls) -> _Call | None:
        with suppress(Empty):
            return calls.get(timeout=_MAX_IDLE_SECONDS)
        with suppress(ValueError):
            self._idle.remove(calls)
            return None
        return calls.get()  # a caller has just taken it


def _blocking(debts: Mapping[Hashable, float]) -> set[Hashable]:
    return {
        tenant for tenant, debt in debts.items() if debt > _MIN_BUDGET_RATIO * _MAX_DEBT_SECONDS
    }


def waited_seconds() -> float:
    """Run-queue delay of the calling thread; 0 if unknown."""
    with suppress(FileLimitError):
        return int((read("/proc/thread-self/schedstat") or "0 0").split()[1]) / 1e9
    return 0.0


memory_reads = GuardedExecutor()
"""Reads of processes' memory."""
socket_queries = GuardedExecutor()
"""Socket queries, unaffected by hung reads of memory."""
proc_reads = GuardedExecutor(4 * CALL_TIMEOUT_SECONDS)
"""Reads of /proc files that may wait for an execve, but not for a fault.

Their timeout is longer, as a process without stat counts as ended.
"""
device_reads = GuardedExecutor(4 * CALL_TIMEOUT_SECONDS)
"""Reads of counters from a card's firmware."""
