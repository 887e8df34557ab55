"""The closer look at a process whose first thread sleeps: its threads, connections, children.

A process waits for what its threads and its connections wait for, not for what its first thread
sleeps in. Taken only where a GPU idles and the first look explains nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpu_bottleneck_exporter.accounting.state import STATE_OF, State
from gpu_bottleneck_exporter.feeders.compilers import is_compiler
from gpu_bottleneck_exporter.feeders.patience import Patience
from gpu_bottleneck_exporter.feeders.wire import Verdict, Wire
from gpu_bottleneck_exporter.host.files import KeptFile, numbers
from gpu_bottleneck_exporter.host.process import ProcessReader
from gpu_bottleneck_exporter.host.sockets import Ends
from gpu_bottleneck_exporter.host.threads import Thread, Threads, Used
from gpu_bottleneck_exporter.host.waits import Wait, waits_on

ACTIVE = frozenset({State.RUN, State.DISK, State.NETWORK})
LAUNCHES = ("pt_autograd_",)
"""Names of threads that launch kernels, as the first thread does (torch/csrc/autograd)."""
_WORKS = {Wait.RUN: State.RUN, Wait.DISK: State.DISK}
_ON_DESCRIPTORS = frozenset({Wait.SOCKET, Wait.POLL, Wait.ACCEPT, Wait.PIPE, Wait.UNKNOWN})
_CERTAIN = frozenset({Wait.PIPE, Wait.UNKNOWN})
"""Where the system call tells the descriptors, if there are any."""
_SERVES_IN = frozenset({Wait.ACCEPT, Wait.POLL, Wait.LOCK, Wait.SOCKET})
"""What a server's first thread sleeps in: for the next client, or for its serving threads."""
_OF_CLIENTS = frozenset({Verdict.REQUEST, Verdict.SERVED})
_DUE = frozenset({Verdict.ANSWER, Verdict.STUCK})
_MORE = frozenset({Verdict.FEEDS, Verdict.DATAGRAMS})
"""The same for who waits for nothing else."""
_FOR_THREADS = frozenset({Wait.LOCK, Wait.POLL, Wait.PIPE})
"""What a first thread sleeps in until another one has something for it."""
_ALL_EVERY_NS = 5_000_000_000
_SELDOM_NS = 30_000_000_000
"""For processes that hold no GPU, whose servers and links matter less."""
_MOST_CHILDREN = 4
_MOST_AWAITED = 1024
_DEEPEST = 2
_STANDARD_INPUT = 0
_QUIET = 2
"""Resting processes are looked at half as often."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a closer look needs to know of the job."""

    ours: Collection[Ends] = frozenset()
    """Ends of the connections of the job's other processes."""
    known: Callable[[int], bool] = lambda _: False
    """Whether a child is sampled by itself."""
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
    """What was found behind a sleeping first thread."""

    first: State
    """The first thread, and those that launch kernels."""
    active: dict[State, int] = field(default_factory=dict)
    """Other threads and children by state, without those that rest."""
    reason: str = ""
    """What it sleeps in, if nothing explains it."""
    serves: bool = False
    """Whether it waits for clients, and none has a request open."""
    in_file: tuple[int, int] | None = None
    """Process and thread, if one was found that waits for a file."""

    @property
    def whole(self) -> State:
        """The process as a whole: the state of most of its active threads."""
        counts = dict(self.active)
        if self.first in ACTIVE:
            counts[self.first] = counts.get(self.first, 0) + 1
        if counts:
            return max(counts, key=lambda state: counts[state])
        return State.REQUESTS if self.serves else self.first


class Closer:
    """Closer looks at process `pid`."""

    def __init__(self, proc: Path, pid: int, patience: Patience | None, depth: int = 0) -> None:
        """`patience` of its job; None: its descriptors cannot be duplicated."""
        self.threads = Threads(proc, pid, same_pids=patience is not None)
        self.wire = Wire(proc, pid, patience) if patience else None
        self._proc = proc
        self._pid = pid
        self._patience = patience
        self._depth = depth
        self._call = KeptFile(proc / str(pid) / "syscall")
        self._children: dict[int, tuple[ProcessReader, Closer]] = {}
        self._lists: dict[int, KeptFile] = {}
        self._wait: Wait | None = None
        self._looked_ns = 0
        self._seen: Seen | None = None
        self._all_due_ns = 0
        self._asked_ns: int | None = None
        self.launches_elsewhere = False
        """Whether, at the last look, other threads than the first drove the GPU."""
        self.serving = False
        """Whether, at the last look, it listened and no client had a request open."""
        self.lacks_clients = False
        """Whether, at the last look, it listened and no client was connected."""
        self._awaited: set[int | None] = set()

    def close(self) -> None:
        """Close all descriptors."""
        self.threads.close()
        self._call.close()
        for reader, closer in self._children.values():
            reader.close()
            closer.close()
        self._children.clear()
        for file in self._lists.values():
            file.close()
        self._lists.clear()

    def take_used(self) -> list[Used]:
        """What threads used since the last call."""
        used, self.threads.used = self.threads.used, []
        return used

    def take_awaited(self) -> set[int | None]:
        """Descriptors that it waited on since the last call, and those of its clients.

        None: in a way that does not tell.
        """
        awaited, self._awaited = self._awaited, set()
        return awaited

    def look(self, now_ns: int, wait: Wait, around: Surroundings) -> Seen:
        """Look behind the first thread, which is in `wait`, at monotonic `now_ns`.

        A look that is still fresh, with the first thread in the same wait, is returned again.
        """
        if wait is self._wait and self._seen:
            stays = _QUIET if self._seen.whole not in ACTIVE else 1
            if now_ns - self._looked_ns < stays * around.fresh_ns:
                return self._seen
        self._wait, self._looked_ns = wait, now_ns
        self._seen = self._look(now_ns, wait, around)
        return self._seen

    def _look(self, now_ns: int, wait: Wait, around: Surroundings) -> Seen:
        seen = Seen(STATE_OF[wait], reason=wait.value)
        self.serving = False
        if wait is Wait.STOPPED:
            return seen
        threads = [thread for thread in self.threads.look(now_ns) if thread.wait is not Wait.GONE]
        first = self._descriptors(wait)
        self._note_awaited(first, *(thread.descriptors for thread in threads))
        if first == (_STANDARD_INPUT,):
            seen.reason = "input"
        verdicts = self._verdicts(now_ns, wait, first, threads, around)
        self._judge_first(seen, wait, first, verdicts)
        clients = tuple(fd for fd, one in verdicts.items() if one in _OF_CLIENTS)
        self.lacks_clients = not clients and Verdict.LISTENS in verdicts.values()
        self._note_awaited(clients)
        self._follow_requests(now_ns, verdicts, around)
        due = _DUE | _MORE if wait in _FOR_THREADS else _DUE
        for thread in threads:
            self._judge_thread(seen, thread, verdicts, due)
        if seen.first not in ACTIVE and not seen.active:
            self._judge_children(seen, now_ns, around)
        self.serving = seen.serves = self._serves(wait, verdicts)
        return seen

    def learn(self, now_ns: int, *, now: bool = False) -> None:
        """Inspect its connections, so that others know which are the job's own.

        Every few seconds at most, unless `now`.
        """
        if self.wire and (now or now_ns >= self._all_due_ns):
            self._all_due_ns = now_ns + _ALL_EVERY_NS
            self.wire.sockets.forget()
            self.wire.look((), whole=True)

    def _note_awaited(self, *found: tuple[int, ...] | None) -> None:
        if len(self._awaited) > _MOST_AWAITED:  # nobody asks
            self._awaited.clear()
        for descriptors in found:
            self._awaited.update((None,) if descriptors is None else descriptors)

    def _descriptors(self, wait: Wait) -> tuple[int, ...] | None:
        if self.wire is None or wait not in _ON_DESCRIPTORS:
            return ()
        call = self._call.read()
        found = waits_on(self._pid, call)
        if wait in _CERTAIN and call and found is None:
            return ()
        return found

    def _verdicts(
        self,
        now_ns: int,
        wait: Wait,
        first: tuple[int, ...] | None,
        threads: list[Thread],
        around: Surroundings,
    ) -> Mapping[int, Verdict]:
        if self.wire is None:
            return {}
        held = first or () if around.holds else ()
        if now_ns >= self._all_due_ns:
            self._all_due_ns = now_ns + (_ALL_EVERY_NS if around.holds else _SELDOM_NS)
            self.wire.sockets.forget()
            return self.wire.look((), around.ours, held, whole=True)
        wanted = set(first or ()) if wait is not Wait.PIPE else set()
        whole = first is None or bool(self.wire.ports)
        for thread in threads:
            if thread.descriptors is None:
                whole = True
            elif thread.wait is not Wait.PIPE:
                wanted.update(thread.descriptors)
        if whole or wanted:
            return self.wire.look(wanted, around.ours, held, whole=whole)
        return {}

    def _judge_first(
        self,
        seen: Seen,
        wait: Wait,
        descriptors: tuple[int, ...] | None,
        verdicts: Mapping[int, Verdict],
    ) -> None:
        if self.wire is None or self.wire.refused:
            return  # there is no more to see than its wait channel
        if _owed(descriptors, verdicts, _DUE | _MORE) and wait is not Wait.PIPE:
            seen.first = State.NETWORK
        elif seen.first in (State.NETWORK, State.UNKNOWN):
            # A sleeping task that is still on the run queue of a crowded CPU has no wait channel.
            seen.first = State.SLEEP

    def _judge_thread(
        self, seen: Seen, thread: Thread, verdicts: Mapping[int, Verdict], due: frozenset[Verdict]
    ) -> None:
        state = _WORKS.get(thread.wait)
        on = thread.descriptors
        if not thread.moves:
            due = due - {Verdict.DATAGRAMS}
        if state is None and on != () and _owed(on, verdicts, due):
            state = State.NETWORK
        if state is None:
            return
        if state is State.DISK:
            seen.in_file = self._pid, thread.tid
        if self.launches_elsewhere or thread.name.startswith(LAUNCHES):
            if seen.first not in ACTIVE or state is State.RUN:
                seen.first = state
        else:
            seen.active[state] = seen.active.get(state, 0) + 1

    def _follow_requests(
        self, now_ns: int, verdicts: Mapping[int, Verdict], around: Surroundings
    ) -> None:
        if around.may_serve and Verdict.REQUEST in verdicts.values():
            self._asked_ns = now_ns
        asked = self._asked_ns is not None and now_ns - self._asked_ns < _ALL_EVERY_NS
        self.launches_elsewhere = around.launches_elsewhere or (around.may_serve and asked)

    def _judge_children(self, seen: Seen, now_ns: int, around: Surroundings) -> None:
        """Children work for their parent; skip those that are sampled by themselves."""
        if self._depth >= _DEEPEST:
            return
        children = [pid for pid in self._list_children() if not around.known(pid)]
        for pid in self._children.keys() - children:
            for part in self._children.pop(pid):
                part.close()
        for pid in children[:_MOST_CHILDREN]:
            if pid not in self._children:
                closer = Closer(self._proc, pid, self._patience, self._depth + 1)
                self._children[pid] = ProcessReader(self._proc, pid), closer
            reader, closer = self._children[pid]
            wait = reader.wait()
            state = _WORKS.get(wait)
            if state is State.DISK:
                seen.in_file = pid, pid
            if state is None and wait is not Wait.GONE:
                state = closer.look(now_ns, wait, around).whole
            if state is State.RUN and is_compiler(reader.command()):
                seen.first = state
            elif state in ACTIVE:
                seen.active[state] = seen.active.get(state, 0) + 1

    def _list_children(self) -> list[int]:
        """Waits of the first thread and of those that moved lately."""
        if not self.threads.moving and self._pid in self._lists and len(self._lists) == 1:
            return numbers(self._lists[self._pid].read() or b"") or []
        tids = {self._pid, *self.threads.moving}
        for tid in self._lists.keys() - tids:
            self._lists.pop(tid).close()
        found: list[int] = []
        for tid in tids:
            if tid not in self._lists:
                path = self._proc / str(self._pid) / "task" / str(tid) / "children"
                self._lists[tid] = KeptFile(path)
            found += numbers(self._lists[tid].read() or b"") or ()
        return found

    def _serves(self, wait: Wait, verdicts: Mapping[int, Verdict]) -> bool:
        if self.wire is None or not self.wire.ports or wait not in _SERVES_IN:
            return False
        return Verdict.REQUEST not in verdicts.values()


def _owed(
    descriptors: tuple[int, ...] | None, verdicts: Mapping[int, Verdict], due: frozenset[Verdict]
) -> bool:
    """Whether one of `due` is said of one of `descriptors` (None: of any that owes an answer)."""
    if descriptors is None:
        found = {*verdicts.values()}
        return Verdict.ANSWER in found or (Verdict.STUCK in found and Verdict.REQUEST not in found)
    return any(verdicts.get(number) in due for number in descriptors)
