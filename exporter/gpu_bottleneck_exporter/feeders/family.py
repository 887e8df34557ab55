"""The process tree of one GPU: holders (mains), their workers, and helpers that load nothing."""

from __future__ import annotations

from pathlib import Path

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.feeders.crowd import WHOLE, SamplingBudget, chosen
from gpu_bottleneck_exporter.feeders.process import Process
from gpu_bottleneck_exporter.feeders.programs import helpers
from gpu_bottleneck_exporter.feeders.timeouts import AnswerTimeouts
from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.host.process import parse_stat


class Family:
    """As last discovered; processes that stay keep their counters."""

    def __init__(self, proc: Path, timeouts: AnswerTimeouts | None) -> None:
        """`proc`: the host's."""
        self.mains: dict[int, Process] = {}
        self.workers: dict[int, Process] = {}
        self.compilers: list[Process] = []
        """Descendants of mains that compile kernels: who waits for them does so itself."""
        self.unfollowed: frozenset[int] = frozenset()
        """Workers of which nothing is known but that they are there."""
        self.whole = True
        """Whether these and the workers are all."""
        self.ended_ns = 0
        """CPU time of workers that ended and that no parent's counters have told of yet."""
        self._proc = proc
        self._timeouts = timeouts
        self._others: frozenset[int] = frozenset()
        self._helpers: dict[int, Process] = {}
        """They load nothing, but a forkserver starts workers."""
        self._zombies: set[int] = set()
        self._share = WHOLE

    def adopt(
        self,
        mains: set[int],
        workers: set[int],
        others: frozenset[int],
        share: SamplingBudget,
        *,
        whole: bool,
    ) -> tuple[int, int]:
        """Take over a newly discovered tree; how many of its mains and workers are new.

        `others` are the mains of all GPUs, as one main may have started another. `share` limits
        what may be spent on `workers`; `whole` is False where there are more than these.
        """
        self._others, self._share, self.whole = others, share, whole
        came = self._replace(self.mains, mains)
        before = {pid for pid, one in self.workers.items() if not one.gone} | self.unfollowed
        self._follow(workers)
        for process in (*self.mains.values(), *self._helpers.values()):
            process.forget_children()
        return came, len((self.workers.keys() | self.unfollowed) - before)

    def _follow(self, workers: set[int]) -> None:
        followed = chosen(workers, [*self.workers, *self._helpers], self._share.followed)
        self.unfollowed = frozenset(workers - followed)
        # A zombie is a child until its parent asks for it: known, but no worker any more.
        self._zombies = {pid for pid in followed if self._is_zombie(pid)}
        followed -= self._zombies
        new = followed - self.workers.keys() - self._helpers.keys()
        compilers = followed & {one.pid for one in self.compilers}
        helping = followed & self._helpers.keys()
        helping |= helpers(self._proc, new, self.mains, compilers)
        self._replace(self._helpers, helping)
        self._replace(self.workers, followed - helping)
        self.compilers = [self._helpers[pid] for pid in compilers]

    @property
    def worker_count(self) -> int:
        """How many workers there are, as far as `whole` says so."""
        return len(self.workers) + len(self.unfollowed)

    @property
    def rounds(self) -> int:
        """Ticks in which each worker is read once."""
        return self._share.rounds(len(self.workers))

    @property
    def is_prompt(self) -> bool:
        """Whether the workers that are read are read as often as those of a small tree."""
        return self._share.is_prompt(len(self.workers))

    @property
    def follows_all(self) -> bool:
        """Whether all workers are read as often."""
        return self.is_prompt and self.whole and not self.unfollowed

    def knows(self, pid: int) -> bool:
        """Whether a process is sampled by itself, or need not be."""
        return (
            pid in self.workers
            or pid in self._helpers
            or pid in self._zombies
            or pid in self._others
            or pid in self.unfollowed
        )

    def knows_all_children(self) -> bool:
        """Whether no worker has been started since the tree was discovered."""
        processes = (*self.mains.values(), *self._helpers.values())
        return not any(process.has_unknown_child(self.knows) for process in processes)

    def close(self) -> None:
        """Give all descriptors back."""
        for process in (*self.mains.values(), *self.workers.values(), *self._helpers.values()):
            process.close()

    def _replace(self, processes: dict[int, Process], pids: set[int]) -> int:
        gone = {pid for pid, process in processes.items() if process.gone}
        for pid in (processes.keys() - pids) | gone:
            process = processes.pop(pid)
            if processes is self.workers:
                # Its parent's counters will tell of this time once more.
                self.ended_ns += process.used_ns
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
        stat = parse_stat(read(self._proc / str(pid) / "stat"))
        return stat is not None and stat.ended
