"""What a process does at one moment; where a GPU idles, also what is behind its sleep.

A process waits for what its threads and its connections wait for, not for what its first thread
sleeps in. So where the first thread sleeps, a deep probe looks at threads, connections, children.
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
from gpu_bottleneck_exporter.schedule import FEW, HALF_AS_OFTEN, SELDOM_NS, SHORTLY_NS, Every

LAUNCHES = ("pt_autograd_",)
"""Names of threads that launch kernels, as the first thread does (torch/csrc/autograd)."""
_DEEPEST = 2
"""Children of children are looked at, and no further."""
_TARGETS = {
    Target.FILES: Activity.DISK,
    Target.NOTHING: Activity.SLEEP,
    Target.UNKNOWN: Activity.UNKNOWN,
}
_STANDARD_INPUT = 0
Descriptors = tuple[int, ...] | None
"""Those that a thread waits on; None: any of the process's."""
Verdicts = Mapping[int, Verdict]
"""By descriptor."""


class Surroundings(NamedTuple):
    """What a deep probe needs to know of the job."""

    ours: Collection[Ends] = frozenset()
    """Ends of the connections of the job's other processes."""
    peers: Collection[Ends] = frozenset()
    """The same of processes of its other GPUs only."""
    known: Collection[int] = frozenset()
    """Children that are sampled by themselves."""
    launches_elsewhere: bool = False
    """Whether another thread than the first drives the GPU."""
    fresh_ns: int = 0
    """What is younger than this is not read again."""
    holds: bool = False
    """Whether the process holds the GPU."""
    may_serve: bool = False
    """Whether a listening process is a server: its threads launch kernels while a client waits."""


@dataclass(slots=True)
class Seen:
    """What was found at one look at a process."""

    first: Activity
    """The first thread, and those that launch kernels."""
    active: dict[Activity, int] = field(default_factory=dict)
    """Other threads and children by activity, without those that rest."""
    reason: str = ""
    """What the first thread sleeps in; empty without a deep probe."""
    serves: bool = False
    """Whether it waits for clients, and none has a request open."""
    peer: bool = False
    """Whether it waits for a process of another GPU of the job: an answer, or a request."""
    in_file: tuple[int, int] | None = None
    """Process and thread, if one was found that waits for a file."""

    def add(self, activity: Activity) -> None:
        """Another thread or child is active."""
        self.active[activity] = self.active.get(activity, 0) + 1

    @property
    def whole(self) -> Activity:
        """The process as a whole: what most of its active threads do."""
        if self.active:
            counts = dict(self.active)
            if self.first.active:
                counts[self.first] = counts.get(self.first, 0) + 1
            return max(counts, key=lambda activity: counts[activity])
        if self.first.active:
            return self.first
        return Activity.REQUESTS if self.serves else self.first


_SHALLOW = {wait: Seen(activity) for wait, activity in ACTIVITY_OF.items()}


def shallow(pid: int, wait: Wait) -> Seen:
    """Process `pid` by the `wait` of its first thread alone."""
    return Seen(Activity.DISK, in_file=(pid, pid)) if wait is Wait.DISK else _SHALLOW[wait]


class DeepProbe:
    """Looks behind the first thread of process `pid`."""

    def __init__(
        self, proc: Path, pid: int, timeouts: AnswerTimeouts | None, depth: int = 0
    ) -> None:
        """`timeouts`: of its job; None: its descriptors cannot be duplicated."""
        self.threads = Threads(proc, pid, same_pids=timeouts is not None)
        self.tcp = TcpTracker(proc, pid, timeouts) if timeouts else None
        self.rings = RingTracker(proc, pid, self.tcp)
        self._proc = proc
        self._pid = pid
        self._timeouts = timeouts
        self._depth = depth
        self._call = KeptFile(f"{proc}/{pid}/syscall")
        self._children: dict[int, tuple[ProcessReader, DeepProbe]] = {}
        self._lists: dict[int, KeptFile] = {}
        """Of children, by thread."""
        self._wait: Wait | None = None
        self._looked_ns = 0
        self._seen: Seen | None = None
        self._inspecting = Every(SHORTLY_NS)
        self._asked_ns: int | None = None
        self.launches_elsewhere = False
        """Whether, at the last look, other threads than the first drove the GPU."""
        self.serving = False
        """Whether, at the last look, it listened and no client had a request open."""
        self.asked = False
        """Whether, at the last look, a client had a request open."""
        self.lacks_tasks = False
        """Whether, at the last look, it waited for the next task."""
        self.lacks_clients = False
        """Whether, at the last look, it listened and no client was connected."""
        self.peer = False
        """Whether, at the last look, it waited for a process of another GPU of the job."""
        self._awaited: set[int | None] = set()
        self.awaits: frozenset[int | None] = frozenset()
        """What its first thread, or threads for which that waits, waited on at the last look."""

    @property
    def listens(self) -> bool:
        """Whether it listens on a port, as far as was seen."""
        return self.tcp is not None and bool(self.tcp.ports)

    def close(self) -> None:
        """Close all descriptors."""
        self.threads.close()
        self.rings.close()
        if self.tcp:
            self.tcp.arrivals.close()
        self._call.close()
        self._keep_children(())
        self._lists.clear()

    def drain_used(self) -> list[ThreadUsage]:
        """What threads used since the last call."""
        return self.threads.drain_used()

    def drain_awaited(self) -> set[int | None]:
        """Descriptors that it waited on since the last call, and those of its clients.

        None: in a way that does not tell.
        """
        awaited, self._awaited = self._awaited, set()
        return awaited

    def probe(self, now_ns: int, wait: Wait, around: Surroundings) -> Seen:
        """Look behind the first thread, which is in `wait`, at monotonic `now_ns`.

        A look that is still fresh, with the first thread in the same wait, is returned again.
        """
        if not wait.asleep:
            self.awaits, self.peer, self.lacks_tasks = frozenset(), False, False
            self._ask_for_requests(now_ns, wait)
            return shallow(self._pid, wait)
        if wait is self._wait and self._seen:
            stays = 1 if self._seen.whole.active else HALF_AS_OFTEN
            if now_ns - self._looked_ns < stays * around.fresh_ns:
                return self._seen
        self._wait, self._looked_ns = wait, now_ns
        self._seen = self._probe(now_ns, wait, around)
        return self._seen

    def _ask_for_requests(self, now_ns: int, wait: Wait) -> None:
        """See whether a client of a process that runs has a request open."""
        self.serving = False
        if self.tcp is None or wait is not Wait.RUN:
            return
        if self._inspecting.is_due(now_ns, SHORTLY_NS):
            self.tcp.sockets.recheck()
        elif not self.listens:
            return
        verdicts = self.tcp.inspect((), whole=True, others_run=bool(self.threads.moving))
        self.asked = _has_request(verdicts)
        self.serving = self.listens and not self.asked

    def _probe(self, now_ns: int, wait: Wait, around: Surroundings) -> Seen:
        seen = Seen(ACTIVITY_OF[wait], reason=wait.value)
        self.serving = self.lacks_tasks = False
        self.awaits = frozenset()
        if wait is Wait.FROZEN:  # all its threads are
            return seen
        first = self._descriptors(wait)
        threads = [thread for thread in self.threads.sample(now_ns) if thread.wait is not Wait.GONE]
        # A debugger may stop the first thread alone.
        if wait is Wait.STOPPED and all(thread.wait is Wait.STOPPED for thread in threads):
            return seen
        if first == (_STANDARD_INPUT,):
            seen.reason = "input"
        verdicts = self._verdicts(now_ns, wait, first, threads, around)
        clients = tuple(fd for fd, verdict in verdicts.items() if verdict.is_server_side)
        on_threads = [thread.descriptors for thread in threads]
        self._note_awaited([first, clients, *on_threads])
        self.lacks_clients = not clients and Verdict.LISTENS in verdicts.values()
        self._judge_first(seen, wait, first, verdicts)
        seen.first = self._submitted(now_ns, wait, first, verdicts) or seen.first
        if seen.first is Activity.DISK:
            seen.in_file = self._pid, self._pid
        self.asked = _has_request(verdicts)
        self._follow_requests(now_ns, around)
        for thread in threads:
            self._judge_thread(now_ns, seen, thread, verdicts, datagrams=wait.for_threads)
        # Where a thread is active, it waits for that one, and not for what others read.
        behind = on_threads if first == () and wait.for_threads and not seen.active else ()
        if wait is Wait.CHILD:
            behind = [child_token(awaited_child(self._call.read()))]
        self.awaits = frozenset(chain.from_iterable(_numbers(on) for on in (first, *behind)))
        if not seen.first.active and not seen.active:
            self._judge_children(seen, now_ns, around)
        self.serving = seen.serves = self.listens and wait.serves and not self.asked
        self.peer = seen.peer = self._waits_for_peer(first, clients, verdicts, around)
        self.lacks_tasks = any(_lacks_task(on, verdicts) for on in (first, *on_threads))
        return seen

    def _waits_for_peer(
        self, on: Descriptors, clients: Collection[int], verdicts: Verdicts, around: Surroundings
    ) -> bool:
        """Whether a peer owes it an answer, or all its clients are peers that were answered."""
        if self.tcp is None or not around.peers:
            return False
        awaited = verdicts if on is None else on
        asked = [one for one in awaited if verdicts.get(one) is Verdict.OURS]
        if self.serving:
            asked = [*clients]
        return bool(asked) and all(self.tcp.is_connected_to(one, around.peers) for one in asked)

    def inspect_connections(self, now_ns: int, *, now: bool = False) -> None:
        """Inspect all its connections, so that others know which are the job's own.

        Every few seconds at most, unless `now`.
        """
        if self.tcp and (self._inspecting.is_due(now_ns, SHORTLY_NS) or now):
            self.tcp.sockets.recheck()
            self.tcp.inspect((), whole=True, others_run=bool(self.threads.moving))

    def _note_awaited(self, found: Iterable[Descriptors]) -> None:
        if len(self._awaited) > MAX_PENDING_USAGE:  # no search for strangers wants them
            self._awaited.clear()
        for descriptors in found:
            self._awaited.update(_numbers(descriptors))

    def _descriptors(self, wait: Wait) -> Descriptors:
        """The descriptors that the first thread waits on."""
        if not wait.on_descriptors or (self.tcp is None and wait is not Wait.RING):
            return ()
        call = self._call.read()
        found = waits_on(self._pid, call)
        return () if call and found is None and not wait.on_any else found

    def _verdicts(
        self, now_ns: int, wait: Wait, on: Descriptors, threads: list[Thread], around: Surroundings
    ) -> Verdicts:
        if self.tcp is None:
            return {}
        held = on or () if around.holds else ()
        moving = bool(self.threads.moving)
        # The connections of a holder matter more than those of others.
        if self._inspecting.is_due(now_ns, SHORTLY_NS if around.holds else SELDOM_NS):
            self.tcp.sockets.recheck()
            return self.tcp.inspect((), around.ours, held, whole=True, others_run=moving)
        wanted = set(on or ()) if wait is not Wait.PIPE else set()
        whole = on is None or self._submits(wait, on) or bool(self.tcp.ports)
        for thread in threads:
            if thread.descriptors is None or self._submits(thread.wait, thread.descriptors):
                whole = True
            elif thread.wait is not Wait.PIPE:
                wanted.update(thread.descriptors)
        if whole or wanted:
            return self.tcp.inspect(wanted, around.ours, held, whole=whole, others_run=moving)
        return {}

    def _judge_first(self, seen: Seen, wait: Wait, on: Descriptors, verdicts: Verdicts) -> None:
        if self.tcp is None or self.tcp.refused:
            return  # there is no more to see than its wait channel
        if _is_due(on, verdicts, datagrams=True) and wait is not Wait.PIPE:
            seen.first = Activity.NETWORK
        elif seen.first in (Activity.NETWORK, Activity.UNKNOWN):
            # A sleeping task that is still on the run queue of a crowded CPU has no wait channel.
            seen.first = Activity.SLEEP

    def _submits(self, wait: Wait, on: Descriptors) -> bool:
        """Whether it may be a ring or kernel AIO in which a thread waits."""
        return wait.submitted or (wait is Wait.POLL and self.rings.polled(on))

    def _submitted(
        self, now_ns: int, wait: Wait, on: Descriptors, verdicts: Verdicts
    ) -> Activity | None:
        """What a thread waits for in a ring or in kernel AIO; None if in neither."""
        if wait is Wait.RING:
            target: Target | None = self.rings.ring(now_ns, on)
        elif wait is Wait.AIO:
            target = self.rings.aio(now_ns)
        elif wait is Wait.POLL and self.rings.polled(on):
            target = self.rings.poll(now_ns, on)
            if on is None and target is not Target.FILES:  # an epoll, of other descriptors, too
                return None
        else:
            return None
        if target is Target.SOCKETS:
            sees = self.tcp is not None and not self.tcp.refused
            # Where each of its sockets is waited for, it waits for nothing else.
            sole = self.rings.polls >= len(verdicts)
            due = not sees or _is_due(tuple(verdicts) if sole else None, verdicts, datagrams=sole)
            return Activity.NETWORK if due else Activity.SLEEP
        return _TARGETS[target] if target else None

    def _judge_thread(
        self, now_ns: int, seen: Seen, thread: Thread, verdicts: Verdicts, *, datagrams: bool
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
            seen.in_file = self._pid, thread.tid
        launches = self.launches_elsewhere or thread.name.startswith(LAUNCHES)
        if not launches and activity.active:
            seen.add(activity)
        elif launches and (not seen.first.active or activity is Activity.RUN):
            seen.first = activity

    def _follow_requests(self, now_ns: int, around: Surroundings) -> None:
        if around.may_serve and self.asked:
            self._asked_ns = now_ns
        # So long a request makes a server work.
        asked = self._asked_ns is not None and now_ns - self._asked_ns < SHORTLY_NS
        self.launches_elsewhere = around.launches_elsewhere or (around.may_serve and asked)

    def _judge_children(self, seen: Seen, now_ns: int, around: Surroundings) -> None:
        """Children work for their parent; skip those that are sampled by themselves."""
        if self._depth >= _DEEPEST:
            return
        children = [pid for pid in self._list_children() if pid not in around.known]
        self._keep_children(children)
        for pid in children[:FEW]:  # one that is active is enough to explain a wait
            if pid not in self._children:
                deep = DeepProbe(self._proc, pid, self._timeouts, self._depth + 1)
                self._children[pid] = ProcessReader(self._proc, pid), deep
            reader, deep = self._children[pid]
            child = deep.probe(now_ns, reader.wait(), around)
            activity = child.whole
            seen.in_file = seen.in_file or child.in_file
            if activity is Activity.RUN and is_compiler(reader.command()):
                seen.first = activity
            elif activity.active:
                seen.add(activity)

    def _list_children(self) -> list[int]:
        """Children of the first thread and of those that moved lately."""
        tids = {self._pid, *self.threads.moving}
        if tids != self._lists.keys():
            folder = f"{self._proc}/{self._pid}/task"
            known = self._lists
            self._lists = {t: known.get(t) or KeptFile(f"{folder}/{t}/children") for t in tids}
        texts = (file.read() or b"" for file in self._lists.values())
        return [pid for text in texts for pid in parse_numbers(text) or ()]

    def _keep_children(self, pids: Collection[int]) -> None:
        """Close those that are not among `pids`."""
        for pid in self._children.keys() - pids:
            for part in self._children.pop(pid):
                part.close()


def child_token(pid: int | None) -> tuple[int]:
    """What stands for child `pid` among the descriptors that are awaited; 0 or None: any child."""
    return (-(pid or 1),)


def _numbers(on: Descriptors) -> Collection[int | None]:
    return (None,) if on is None else on


def _has_request(verdicts: Verdicts) -> bool:
    """Whether a client's request is open."""
    return any(one.has_request for one in verdicts.values())


def _lacks_task(on: Descriptors, verdicts: Verdicts) -> bool:
    """Whether no task is due of a descriptor `on` which it waits; None: of any."""
    return Verdict.TASK in (verdicts.values() if on is None else map(verdicts.get, on))


def _is_due(on: Descriptors, verdicts: Verdicts, *, datagrams: bool) -> bool:
    """Whether a descriptor `on` which it waits owes something; None: any of the process's.

    `datagrams`: count them, too, as it waits for nothing else.
    """
    if on is not None:
        said = filter(None, map(verdicts.get, on))
        return any(one.due or (datagrams and one.datagrams) for one in said)
    found = {*verdicts.values()}
    if Verdict.REQUEST in found:
        return Verdict.ANSWER in found
    return any(one.due or (datagrams and one is Verdict.DATAGRAM_STEPS) for one in found)
