"""The processes that feed one GPU: its holders (mains), their workers, and related ones."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.feeders.crowd import WHOLE, SamplingBudget, chosen
from gpu_bottleneck_exporter.feeders.helpers import HelperFinder, Waits
from gpu_bottleneck_exporter.feeders.process import Process
from gpu_bottleneck_exporter.feeders.programs import loads_nothing
from gpu_bottleneck_exporter.feeders.timeouts import AnswerTimeouts
from gpu_bottleneck_exporter.host.process import stat_of
from gpu_bottleneck_exporter.schedule import SHORTLY_NS, RefreshSchedule


class Holders(NamedTuple):
    """The processes that hold a GPU."""

    pids: frozenset[int] | None = None
    """None: unknown."""
    parent_uuid: str | None = None
    """Of a MIG instance: its board."""


class ProcessTree(NamedTuple):
    """Who belongs to a GPU, as discovered."""

    mains: AbstractSet[int]
    """Those of its holders that are there."""
    workers: AbstractSet[int] = frozenset()
    """Their descendants."""
    others: AbstractSet[int] = frozenset()
    """The mains of all GPUs, as one main may have started another; and ourselves."""
    holders: Holders = Holders()
    whole: bool = True
    """Whether `workers` are all of them."""
    share: SamplingBudget = WHOLE
    """What may be spent on them."""


class Family:
    """The processes around a GPU as last discovered; those that stay keep their counters."""

    def __init__(self, proc: Path, timeouts: AnswerTimeouts | None) -> None:
        """`proc`: the host's."""
        self.mains: dict[int, Process] = {}
        self.workers: dict[int, Process] = {}
        self.related: dict[int, Process] = {}
        """They feed it without descending from a main: kin, and strangers that may do enough."""
        self.searched_ns: int | None = None
        """When kin were last sought."""
        self.compilers: list[Process] = []
        """Descendants of mains that compile kernels: who waits for them does so itself."""
        self.unfollowed: frozenset[int] = frozenset()
        """Workers of which nothing is known but that they are there."""
        self.whole = True
        """Whether these and the workers are all."""
        self._ended_ns = 0
        """CPU time of workers that ended and that no parent's counters have told of yet."""
        self._proc = proc
        self._timeouts = timeouts
        self._searching = RefreshSchedule()
        self.known: frozenset[int] = frozenset()
        """Processes that are sampled by themselves, or need not be."""
        self.waits: dict[int, Waits] = {}
        """By main, what it waits on."""
        self._auxiliary: dict[int, Process] = {}
        """They load nothing, but a forkserver starts workers."""
        self._finder = HelperFinder(proc) if timeouts else None
        self.share = WHOLE
        """What may be spent on workers."""

    def adopt(self, tree: ProcessTree) -> tuple[int, int]:
        """Take over a newly discovered tree; how many of its mains and workers are new."""
        self.whole, self.share = tree.whole, tree.share
        self.known = frozenset(tree.others | tree.workers)
        came = self._replace(self.mains, tree.mains)
        self.waits = {pid: self.waits.get(pid) or Waits() for pid in self.mains}
        before = {pid for pid, one in self.workers.items() if not one.gone} | self.unfollowed
        self._follow(tree.workers)
        return came, len((self.workers.keys() | self.unfollowed) - before)

    def _follow(self, workers: AbstractSet[int]) -> None:
        followed = chosen(workers, [*self.workers, *self._auxiliary], self.share.followed)
        self.unfollowed = frozenset(workers - followed)
        # A zombie is a child until its parent asks for it: known, but no worker any more.
        followed -= {pid for pid in followed if self._is_zombie(pid)}
        new = followed - self.workers.keys() - self._auxiliary.keys()
        compilers = followed & {one.pid for one in self.compilers}
        # Helpers may turn out to be workers.
        before = self._finder.helpers if self._finder else set()
        auxiliary = followed & self._auxiliary.keys() - before
        auxiliary |= {
            pid for pid in sorted(new) if loads_nothing(self._proc, pid, self.mains, compilers)
        }
        if self._finder:
            helpers = self._finder.find(self.waits, followed - auxiliary)
            self._move(helpers, self.workers, self._auxiliary)
            self._move(before & followed - helpers, self._auxiliary, self.workers)
            auxiliary |= helpers
        self._replace(self._auxiliary, auxiliary)
        self._replace(self.workers, followed - auxiliary)
        self.compilers = [self._auxiliary[pid] for pid in compilers]

    @staticmethod
    def _move(pids: set[int], before: dict[int, Process], now: dict[int, Process]) -> None:
        """Change the role of those of `pids` that are known; their counters go on."""
        now |= {pid: before.pop(pid) for pid in pids & before.keys()}

    @property
    def is_undecided(self) -> bool:
        """Whether too little is known of a main's waits to tell its helpers from its workers."""
        return self._finder is not None and self._finder.undecided

    @property
    def worker_count(self) -> int:
        """Number of workers, as far as `whole` says so."""
        return len(self.workers) + len(self.unfollowed)

    @property
    def is_prompt(self) -> bool:
        """Whether the workers that are read are read as often as those of a small tree."""
        return self.share.is_prompt(len(self.workers))

    @property
    def follows_all(self) -> bool:
        """Whether all workers are read as often."""
        return self.is_prompt and self.whole and not self.unfollowed

    def is_outdated(self) -> bool:
        """Whether a main or a forkserver has started a process since the tree was discovered.

        Or whether by now more is known of those that may be helpers.
        """
        processes = (*self.mains.values(), *self._auxiliary.values())
        return any(process.has_unknown_child(self.known) for process in processes) or (
            self._finder is not None and self._finder.is_due(self.waits)
        )

    def is_kin_search_due(self, now_ns: int, holders: frozenset[int]) -> bool:
        """Whether to seek kin; `holders` of all GPUs are none. If so, it is due again later."""
        since_ns = now_ns - (self.searched_ns or 0)
        # Kin may come and go many times a second.
        lost = any(self.related[pid].gone for pid in self.kin) and since_ns >= SHORTLY_NS
        if not self._searching.is_due(now_ns, holders) and not lost:
            return False
        self.searched_ns = now_ns
        return True

    def adopt_kin(self, pids: set[int]) -> None:
        """Take over newly found kin; strangers stay."""
        self._adopt_related(pids, self.related.keys() - self.kin - pids)

    def adopt_strangers(self, pids: set[int]) -> None:
        """Take over newly found strangers."""
        self._adopt_related(self.kin, pids - self.kin)

    def _adopt_related(self, kin: set[int], strangers: set[int]) -> None:
        for pid in self.related.keys() - kin - strangers:
            self.related.pop(pid).close()
        for pid in kin | strangers:
            if pid not in self.related:
                # The kernel names peers without asking them: one may hang in an execve.
                if stat_of(self._proc, pid) is None:
                    continue
                self.related[pid] = Process(self._proc, pid, self._timeouts)
            self.related[pid].join(kin=pid in kin)

    def forget_related(self) -> None:
        """Drop kin and strangers, to be sought again."""
        self._adopt_related(set(), set())
        self._searching = RefreshSchedule()

    @property
    def kin(self) -> set[int]:
        """Related processes that are no strangers."""
        return {pid for pid, one in self.related.items() if one.stranger is None}

    def take_ended(self, children_ns: int) -> int:
        """How much of `children_ns`, which parents tell of ended children, has been counted before.

        The rest is halved at each call, as a parent may reap late, or never.
        """
        known = min(self._ended_ns, children_ns)
        self._ended_ns = (self._ended_ns - known) // 2
        return known

    def in_the_job(self, idle: float) -> list[Process]:
        """The kin, with strangers whose work, not the network, is what is waited for."""
        related = self.related.values()
        return [one for one in related if one.stranger is None or one.stranger.works(idle)]

    def close(self) -> None:
        """Give all descriptors back."""
        self.forget_related()
        for process in (*self.mains.values(), *self.workers.values(), *self._auxiliary.values()):
            process.close()

    def _replace(self, processes: dict[int, Process], pids: AbstractSet[int]) -> int:
        gone = {pid for pid, process in processes.items() if process.gone}
        for pid in (processes.keys() - pids) | gone:
            process = processes.pop(pid)
            if processes is self.workers:
                # Its parent's counters will tell of this time once more.
                self._ended_ns += process.used_ns
            process.close()
        new = pids - processes.keys()
        for pid in new:
            processes[pid] = Process(self._proc, pid, self._timeouts)
        return len(new)

    def _is_zombie(self, pid: int) -> bool:
        if pid in self.workers and not self.workers[pid].gone:
            if not self.follows_all:
                last = self.workers[pid].reader.last
                return last is not None and last.ended
            return self.workers[pid].probe(0).first is Activity.GONE
        stat = stat_of(self._proc, pid)
        return stat is None or stat.ended
