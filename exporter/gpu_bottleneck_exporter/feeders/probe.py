"""Samples the activity of a process; while a GPU idles, also the reason of its sleep.

A process waits for its threads, connections and children, whatever its first thread sleeps in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting.activity import ACTIVITY_OF, Activity
from gpu_bottleneck_exporter.feeders.rings import RingTracker, Target
from gpu_bottleneck_exporter.feeders.tcp import AnswerTimeouts, TcpTracker, Verdict
from gpu_bottleneck_exporter.host.files import KeptFile, parse_numbers
from gpu_bottleneck_exporter.host.process import ProcessReader
from gpu_bottleneck_exporter.host.programs import is_compiler
from gpu_bottleneck_exporter.host.sockets import Ends
from gpu_bottleneck_exporter.host.threads import MAX_PENDING_USAGE, Thread, Threads, ThreadUsage
from gpu_bottleneck_exporter.host.waits import Wait, awaited_child, waits_on
from gpu_bottleneck_exporter.schedule import CADENCE, SMALL_GROUP, Every

LAUNCHES = ("pt_autograd_",)
"""Name prefixes of threads that launch kernels (torch/csrc/autograd)."""
_ACTIVITY_OF_TARGET = {
    Target.FILES: Activity.DISK,
    Target.NOTHING: Activity.SLEEP,
    Target.UNKNOWN: Activity.UNKNOWN,
}
Descriptors = tuple[int, ...] | None
"""Descriptors that a thread waits on; None: any."""
Verdicts = Mapping[int, Verdict]


class ProbeContext(NamedTuple):
    """Job-level inputs to a deep probe."""

    ours: Collection[Ends] = frozenset()
    """Connection ends of the job's other processes."""
    peers: Collection[Ends] = frozenset()
    """Connection ends of its other GPUs only."""
    sampled_pids: Collection[int] = frozenset()
    """Pids that are sampled separately."""
    launches_elsewhere: bool = False
    """Whether a thread other than the first drives the GPU."""
    fresh_ns: int = 0
    """Maximum age of a reused result, doubled while the process rests."""
    holds: bool = False
    may_serve: bool = False
    """Whether a listening process is a server, which launches kernels during requests."""


@dataclass(slots=True)
class ProbeResult:
    """The result of one probe."""

    first: Activity
    """Activity of the threads that launch kernels, such as the first one."""
    active: dict[Activity, int] = field(default_factory=dict)
    """Other active threads and children, by activity."""
    reason: str = ""
    """Wait of the first thread; empty without a deep probe."""
    serves: bool = False
    """Whether it waits for clients without an open request."""
    peer: bool = False
    """Whether it waits for another GPU of the job."""
    in_file: tuple[int, int] | None = None
    """Pid and tid of a wait for a file."""

    def add(self, activity: Activity) -> None:
        """Count an active thread or child."""
        self.active[activity] = self.active.get(activity, 0) + 1

    @property
    def whole(self) -> Activity:
        """The most frequent activity of its active threads."""
        if self.active:
            counts = dict(self.active)
            if self.first.active:
                counts[self.first] = counts.get(self.first, 0) + 1
            return max(counts, key=lambda activity: counts[activity])
        if self.first.active:
            return self.first
        return Activity.REQUESTS if self.serves else self.first


_SHALLOW_RESULTS = {wait: ProbeResult(activity) for wait, activity in ACTIVITY_OF.items()}


def shallow(pid: int, wait: Wait) -> ProbeResult:
    """Result by the `wait` of the first thread alone."""
    is_io = wait is Wait.DISK
    return ProbeResult(Activity.DISK, in_file=(pid, pid)) if is_io else _SHALLOW_RESULTS[wait]


class DeepProbe:
    """Probes the threads, connections and children of process `pid`. Not thread-safe.

    Attributes are as of the last sample.
    """

    def __init__(
        self, proc: Path, pid: int, timeouts: AnswerTimeouts | None, depth: int = 0
    ) -> None:
        """`timeouts`: of its job; None if descriptors cannot be duplicated."""
        self.threads = Threads(proc, pid, same_pids=timeouts is not None)
        self.tcp = TcpTracker(proc, pid, timeouts) if timeouts else None
        self.rings = RingTracker(proc, pid, self.tcp)
        self._proc = proc
        self._pid = pid
        self._timeouts = timeouts
        self._depth = depth
        self._call = KeptFile(f"{proc}/{pid}/syscall")
        self._children: dict[int, tuple[ProcessReader, DeepProbe]] = {}
        self._child_lists: dict[int, KeptFile] = {}
        self._wait: Wait | None = None
        self._probed_ns = 0
        self._result: ProbeResult | None = None
        self._inspection = Every(CADENCE.probe_ns)
        self._requested_ns: int | None = None
        self.launches_elsewhere = False
        """Whether threads other than the first drove the GPU."""
        self.serving = False
        """Whether it listened without an open request."""
        self.has_request = False
        """Whether a client had a request open."""
        self.lacks_tasks = False
        """Whether it waited for a task."""
        self.lacks_clients = False
        """Whether it listened without a client."""
        self.peer = False
        """Whether it waited for another GPU of the job."""
        self._awaited: set[int | None] = set()
        self.awaits: frozenset[int | None] = frozenset()
        """Descriptors awaited by its first thread, or by threads that this one awaits."""

    @property
    def listens(self) -> bool:
        """Whether it listens on a port."""
        return self.tcp is not None and bool(self.tcp.ports)

    def close(self) -> None:
        """Close all descriptors."""
        self.threads.close()
        self.rings.close()
        if self.tcp:
            self.tcp.arrivals.close()
        self._call.close()
        self._close_except(())
        self._child_lists.clear()

    def drain_used(self) -> list[ThreadUsage]:
        """Usage records of threads since the last call."""
        return self.threads.drain_used()

    def drain_awaited(self) -> set[int | None]:
        """Descriptors awaited since the last call, including clients; None: any."""
        awaited, self._awaited = self._awaited, set()
        return awaited

    def probe(self, now_ns: int, wait: Wait, context: ProbeContext) -> ProbeResult:
        """Probe at monotonic `now_ns`, with the first thread in `wait`.

        A fresh result for the same wait is reused.
        """
        if not wait.asleep:
            self.awaits, self.peer, self.lacks_tasks = frozenset(), False, False
            self._check_requests(now_ns, wait)
            return shallow(self._pid, wait)
        if wait is self._wait and self._result:
            lifetimes = 1 if self._result.whole.active else CADENCE.sparse_factor
            if now_ns - self._probed_ns < lifetimes * context.fresh_ns:
                return self._result
        self._wait, self._probed_ns = wait, now_ns
        self._result = self._probe(now_ns, wait, context)
        return self._result

    def _check_requests(self, now_ns: int, wait: Wait) -> None:
        self.serving = False
        if self.tcp is None or wait is not Wait.RUN:
            return
        if self._inspection.is_due(now_ns, CADENCE.probe_ns):
            self.tcp.sockets.recheck()
        elif not self.listens:
            return
        verdicts = self.tcp.inspect((), whole=True, others_run=bool(self.threads.moving))
        self.has_request = _has_request(verdicts)
        self.serving = self.listens and not self.has_request

    def _probe(self, now_ns: int, wait: Wait, context: ProbeContext) -> ProbeResult:
        result = ProbeResult(ACTIVITY_OF[wait], reason=wait.value)
        self.serving = self.lacks_tasks = False
        self.awaits = frozenset()
        if wait is Wait.FROZEN:  # with all its threads
            return result
        first = self._descriptors(wait)
        threads = [thread for thread in self.threads.sample(now_ns) if thread.wait is not Wait.GONE]
        # A debugger may stop the first thread alone.
        if wait is Wait.STOPPED and all(thread.wait is Wait.STOPPED for thread in threads):
            return result
        if first == (0,):
            result.reason = "input"
        verdicts = self._verdicts(now_ns, wait, first, threads, context)
        clients = tuple(fd for fd, verdict in verdicts.items() if verdict.is_server_side)
        on_threads = [thread.descriptors for thread in threads]
        self._add_awaited([first, clients, *on_threads])
        self.lacks_clients = not clients and Verdict.LISTENS in verdicts.values()
        self._judge_first(result, wait, first, verdicts)
        result.first = self._submitted(now_ns, wait, first, verdicts) or result.first
        if result.first is Activity.DISK:
            result.in_file = self._pid, self._pid
        self.has_request = _has_request(verdicts)
        self._update_launches(now_ns, context)
        for thread in threads:
            self._judge_thread(now_ns, result, thread, verdicts, datagrams=wait.for_threads)
        # Active threads are awaited, not the descriptors of others.
        behind = on_threads if first == () and wait.for_threads and not result.active else ()
        if wait is Wait.CHILD:
            behind = [child_token(awaited_child(self._call.read()))]
        self.awaits = frozenset(chain.from_iterable(_numbers(on) for on in (first, *behind)))
        if not result.first.active and not result.active:
            self._judge_children(result, now_ns, context)
        self.serving = result.serves = self.listens and wait.serves and not self.has_request
        self.peer = result.peer = self._waits_for_peer(first, clients, verdicts, context)
        self.lacks_tasks = any(_lacks_task(on, verdicts) for on in (first, *on_threads))
        return result

    def _waits_for_peer(
        self, on: Descriptors, clients: Collection[int], verdicts: Verdicts, context: ProbeContext
    ) -> bool:
        """Whether it awaits peers only: their responses, or their requests."""
        if self.tcp is None or not context.peers:
            return False
        awaited = verdicts if on is None else on
        pending = [fd for fd in awaited if verdicts.get(fd) is Verdict.OURS]
        if self.serving:
            pending = [*clients]
        return bool(pending) and all(self.tcp.is_connected_to(fd, context.peers) for fd in pending)

    def inspect_connections(self, now_ns: int, *, now: bool = False) -> None:
        """Inspect all connections, so that the job's own are known; every few seconds, or `now`."""
        if self.tcp and (self._inspection.is_due(now_ns, CADENCE.probe_ns) or now):
            self.tcp.sockets.recheck()
            self.tcp.inspect((), whole=True, others_run=bool(self.threads.moving))

    def _add_awaited(self, waits: Iterable[Descriptors]) -> None:
        if len(self._awaited) > MAX_PENDING_USAGE:  # no search for related processes drains them
            self._awaited.clear()
        for descriptors in waits:
            self._awaited.update(_numbers(descriptors))

    def _descriptors(self, wait: Wait) -> Descriptors:
        if not wait.on_descriptors or (self.tcp is None and wait is not Wait.RING):
            return ()
        call = self._call.read()
        awaited = waits_on(self._pid, call)
        return () if call and awaited is None and not wait.on_any else awaited

    def _verdicts(
        self, now_ns: int, wait: Wait, on: Descriptors, threads: list[Thread], context: ProbeContext
    ) -> Verdicts:
        if self.tcp is None:
            return {}
        main_fds = on or () if context.holds else ()
        moving = bool(self.threads.moving)
        # Connections of a holder matter most.
        if self._inspection.is_due(now_ns, CADENCE.probe_ns if context.holds else CADENCE.rare_ns):
            self.tcp.sockets.recheck()
            return self.tcp.inspect((), context.ours, main_fds, whole=True, others_run=moving)
        awaited = set(on or ()) if wait is not Wait.PIPE else set()
        whole = on is None or self._may_submit(wait, on) or bool(self.tcp.ports)
        for thread in threads:
            if thread.descriptors is None or self._may_submit(thread.wait, thread.descriptors):
                whole = True
            elif thread.wait is not Wait.PIPE:
                awaited.update(thread.descriptors)
        if whole or awaited:
            return self.tcp.inspect(awaited, context.ours, main_fds, whole=whole, others_run=moving)
        return {}

    def _judge_first(
        self, result: ProbeResult, wait: Wait, on: Descriptors, verdicts: Verdicts
    ) -> None:
        if self.tcp is None or self.tcp.refused:
            return  # only the wait channel is visible
        if _is_due(on, verdicts, datagrams=True) and wait is not Wait.PIPE:
            result.first = Activity.NETWORK
        elif result.first in (Activity.NETWORK, Activity.UNKNOWN):
            # A sleeping task still on the run queue of a crowded CPU has no wait channel.
            result.first = Activity.SLEEP

    def _may_submit(self, wait: Wait, on: Descriptors) -> bool:
        """Whether a thread may wait in a ring or in kernel AIO."""
        return wait.submitted or (wait is Wait.POLL and self.rings.polled(on))

    def _submitted(
        self, now_ns: int, wait: Wait, on: Descriptors, verdicts: Verdicts
    ) -> Activity | None:
        """Activity of a wait in a ring or in kernel AIO; None if in neither."""
        if wait is Wait.RING:
            target: Target | None = self.rings.ring(now_ns, on)
        elif wait is Wait.AIO:
            target = self.rings.aio(now_ns)
        elif wait is Wait.POLL and self.rings.polled(on):
            target = self.rings.poll(now_ns, on)
            if on is None and target is not Target.FILES:  # an epoll may include other descriptors
                return None
        else:
            return None
        if target is Target.SOCKETS:
            sees = self.tcp is not None and not self.tcp.refused
            # With all sockets polled, it waits for nothing else.
            sole = self.rings.polls >= len(verdicts)
            due = not sees or _is_due(tuple(verdicts) if sole else None, verdicts, datagrams=sole)
            return Activity.NETWORK if due else Activity.SLEEP
        return _ACTIVITY_OF_TARGET[target] if target else None

    def _judge_thread(
        self,
        now_ns: int,
        result: ProbeResult,
        thread: Thread,
        verdicts: Verdicts,
        *,
        datagrams: bool,
    ) -> None:
        datagrams, submitted = datagrams and thread.moves, None
        if thread.moves or thread.wait.submitted:
            submitted = self._submitted(now_ns, thread.wait, thread.descriptors, verdicts)
        if not thread.wait.asleep:
            activity = ACTIVITY_OF[thread.wait]
        elif submitted:
            if not submitted.active:
                return
            activity = submitted
        elif _is_due(thread.descriptors, verdicts, datagrams=datagrams):
            activity = Activity.NETWORK
        else:
            return
        if activity is Activity.DISK:
            result.in_file = self._pid, thread.tid
        launches = self.launches_elsewhere or thread.name.startswith(LAUNCHES)
        if not launches and activity.active:
            result.add(activity)
        elif launches and (not result.first.active or activity is Activity.RUN):
            result.first = activity

    def _update_launches(self, now_ns: int, context: ProbeContext) -> None:
        if context.may_serve and self.has_request:
            self._requested_ns = now_ns
        # A request may make a server work for this long.
        recent = self._requested_ns is not None and now_ns - self._requested_ns < CADENCE.probe_ns
        self.launches_elsewhere = context.launches_elsewhere or (context.may_serve and recent)

    def _judge_children(self, result: ProbeResult, now_ns: int, context: ProbeContext) -> None:
        """Count children as threads, unless sampled separately."""
        max_depth = 2  # children of children
        if self._depth >= max_depth:
            return
        children = [pid for pid in self._list_children() if pid not in context.sampled_pids]
        self._close_except(children)
        for pid in children[:SMALL_GROUP]:  # one active child explains a wait
            if pid not in self._children:
                deep = DeepProbe(self._proc, pid, self._timeouts, self._depth + 1)
                self._children[pid] = ProcessReader(self._proc, pid), deep
            reader, deep = self._children[pid]
            child = deep.probe(now_ns, reader.wait(), context)
            activity = child.whole
            result.in_file = result.in_file or child.in_file
            if activity is Activity.RUN and is_compiler(reader.command()):
                result.first = activity
            elif activity.active:
                result.add(activity)

    def _list_children(self) -> list[int]:
        """Children of the first thread and of those that ran recently."""
        tids = {self._pid, *self.threads.moving}
        if tids != self._child_lists.keys():
            folder = f"{self._proc}/{self._pid}/task"
            lists = self._child_lists
            self._child_lists = {
                t: lists.get(t) or KeptFile(f"{folder}/{t}/children") for t in tids
            }
        texts = (file.read() or b"" for file in self._child_lists.values())
        return [pid for text in texts for pid in parse_numbers(text) or ()]

    def _close_except(self, pids: Collection[int]) -> None:
        for pid in self._children.keys() - pids:
            for part in self._children.pop(pid):
                part.close()


def child_token(pid: int | None) -> tuple[int]:
    """Token for child `pid` among awaited descriptors; 0 or None: any child."""
    return (-(pid or 1),)


def _numbers(on: Descriptors) -> Collection[int | None]:
    return (None,) if on is None else on


def _has_request(verdicts: Verdicts) -> bool:
    return any(verdict.has_request for verdict in verdicts.values())


def _lacks_task(on: Descriptors, verdicts: Verdicts) -> bool:
    return Verdict.TASK in (verdicts.values() if on is None else map(verdicts.get, on))


def _is_due(on: Descriptors, verdicts: Verdicts, *, datagrams: bool) -> bool:
    """Whether a response is pending `on` descriptors; None: any.

    `datagrams`: include them, as the process awaits nothing else.
    """
    if on is not None:
        if len(on) == 1 and verdicts.get(on[0]) is Verdict.UNREAD:
            return True
        awaited = filter(None, map(verdicts.get, on))
        return any(
            verdict.due or (datagrams and verdict.blocks_if_sole_wait) for verdict in awaited
        )
    kinds = {*verdicts.values()}
    if Verdict.REQUEST in kinds:
        return Verdict.ANSWER in kinds
    return any(
        verdict.due or (datagrams and verdict is Verdict.DATAGRAM_STEPS) for verdict in kinds
    )
