"""How long the answers of a job's servers may take: learned from those that fed its GPU.

One that holds the GPU up comes, the GPU works, and the next one is waited for. A poll that brings
nothing new, a ping or a heartbeat is followed by no work: such a wait is for somebody else to have
work.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from gpu_bottleneck_exporter.host.files import MOST_REMEMBERED
from gpu_bottleneck_exporter.host.sockets import Endpoint
from gpu_bottleneck_exporter.schedule import LATELY_MS

PATIENCE_MS = 3_000
"""A request older than this is no slow answer, unless answers that took longer were seen.

A worker that polls its job queue, a long poll, or a wait for a dead peer may last for ever and
are no slow answers. Object stores answer within about a second.
"""
_GROWTH = 2
"""How many times as long as known answers the next one may take."""
ENOUGH, REMEMBERED = 2, 8
"""So many answers that fed the GPU tell how long they take, and so many parts in a row make a
stream, as a single answer between two looks resembles one; of more, so many are remembered."""


@dataclass(slots=True)
class _Answers:
    """What came from one remote address."""

    at_ns: int = 0
    """When the last one came (monotonic)."""
    longest_ms: int = 0
    """What the slowest one took since the GPU last worked."""
    fed: deque[int] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    """The same of earlier times: the GPU worked after each."""

    def settle(self, worked_ns: int) -> None:
        """The GPU last worked at `worked_ns`."""
        if self.at_ns and worked_ns > self.at_ns:
            self.fed.append(self.longest_ms)
            self.at_ns = self.longest_ms = 0


class AnswerTimeouts:
    """Oldest age of a request by remote address; grows with slow answers that fed the GPU."""

    def __init__(self, longest_ms: int) -> None:
        """`longest_ms`: at most."""
        self.longest_ms = longest_ms
        self.worked_ns = time.monotonic_ns()
        """When the GPU last worked as far as anybody saw (monotonic); set by whoever knows."""
        self.polled: set[Endpoint] = set()
        """Remotes that are polled and mostly have nothing new, until they send data."""
        self._of: dict[Endpoint, _Answers] = {}

    def longest_for(self, remote: Endpoint) -> int:
        """Oldest age of a request to `remote`, in ms."""
        fed = self._fed(remote)
        # The second slowest: one that was slow by chance, or a job after a long poll, teaches
        # nothing.
        slow = _GROWTH * sorted(fed)[-ENOUGH] if len(fed) >= ENOUGH else 0
        return min(max(slow, PATIENCE_MS), self.longest_ms)

    def feeds(self, remote: Endpoint) -> bool:
        """Whether what comes from `remote` feeds the GPU, which worked lately."""
        if len(self._fed(remote)) < ENOUGH:
            return False
        # What came while the GPU has not worked for so long does not feed it, however quick it is.
        return not self._idles(max(self.longest_for(remote), LATELY_MS))

    def never_fed(self, remote: Endpoint) -> bool:
        """Whether nothing from `remote` ever fed the GPU, which has not worked for long."""
        return not self._fed(remote) and self._idles(LATELY_MS)

    def note_answer(self, remote: Endpoint, took_ms: int, ago_ms: int = 0) -> bool:
        """An answer came from `remote` after at least `took_ms`, which may feed the GPU.

        It came `ago_ms` ago: a GPU that rested for long is looked at seldom, and may have worked.

        Returns whether the one before fed it: whether the GPU worked since.
        """
        known = len(self._fed(remote))
        if remote not in self._of and len(self._of) >= MOST_REMEMBERED:
            self._of.clear()
        answers = self._of.setdefault(remote, _Answers())
        fed = not answers.at_ns and known > 0
        if took_ms <= self.longest_ms:
            answers.longest_ms = max(answers.longest_ms, took_ms)
            answers.at_ns = time.monotonic_ns() - ago_ms * 1_000_000
        return fed

    def note_polled(self, remote: Endpoint) -> None:
        """Nothing came from `remote` for so long that it is polled, unless it feeds the GPU."""
        if len(self.polled) >= MOST_REMEMBERED:
            self.polled.clear()
        if not self.feeds(remote):
            self.polled.add(remote)

    def _idles(self, for_ms: int) -> bool:
        return time.monotonic_ns() - self.worked_ns > for_ms * 1_000_000

    def _fed(self, remote: Endpoint) -> deque[int]:
        answers = self._of.get(remote)
        if answers is None:
            return deque()
        answers.settle(self.worked_ns)
        return answers.fed
