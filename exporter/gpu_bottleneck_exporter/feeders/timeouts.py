"""What a job's servers send it, learned from what the GPU worked on: data or tasks; how late.

Data that holds the GPU up comes, the GPU works, and more is waited for. A task also makes the GPU
work, but a wait for the next one is for demand. Tasks are small, come after long waits, and the
process asks for each or replies to it. Polls that bring nothing new, pings and heartbeats are
followed by no work.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_bottleneck_exporter.feeders.habits import NO_ACCIDENT
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
_TASK_BYTES = range(16, 4096)
"""Mean size of tasks: fewer bytes are an acknowledgement, as a task has a name and a payload; more
are data."""
_MIN_TASK_WAIT_MS = 250
"""Wait from which a small answer is a task: services answer a small request sooner."""


class _Fed(NamedTuple):
    """What came from one remote address before the GPU worked once."""

    longest_ms: int
    """Wait for the slowest answer."""
    messages: int
    received: int
    """Bytes."""
    asked: bool
    """Whether something was sent before: a request, or the reply to a task."""


@dataclass(slots=True)
class _Answers:
    """What came from one remote address."""

    at_ns: int = 0
    """When the last one came (monotonic)."""
    longest_ms: int = 0
    """What the slowest one took since the GPU last worked."""
    messages: int = 0
    received: int = 0
    asked: bool = False
    fed: deque[_Fed] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    """The same of earlier times: the GPU worked after each."""

    def settle(self, worked_ns: int) -> None:
        """The GPU last worked at `worked_ns`."""
        if self.at_ns and worked_ns > self.at_ns:
            self.fed.append(_Fed(self.longest_ms, self.messages, self.received, self.asked))
            self.at_ns = self.longest_ms = self.messages = self.received = 0
            self.asked = False

    @property
    def are_tasks(self) -> bool:
        """Whether each message is work for the GPU, rather than a part of its data."""
        if len(self.fed) < ENOUGH or 2 * sum(fed.asked for fed in self.fed) <= len(self.fed):
            return False
        messages, received = sum(f.messages for f in self.fed), sum(f.received for f in self.fed)
        slow = sorted(fed.longest_ms for fed in self.fed)[-ENOUGH] >= _MIN_TASK_WAIT_MS
        return slow and received // messages in _TASK_BYTES


class AnswerTimeouts:
    """Oldest age of a request by remote address; grows with slow answers that fed the GPU."""

    def __init__(self, longest_ms: int) -> None:
        """`longest_ms`: at most."""
        self.longest_ms = longest_ms
        self.worked_ns = time.monotonic_ns()
        """When the GPU last worked as far as anybody saw (monotonic)."""
        self.polled: set[Endpoint] = set()
        """Remotes that are polled and mostly have nothing new, until they send data."""
        self._of: dict[Endpoint, _Answers] = {}

    def note_work(self, now_ns: int) -> None:
        """Note that the GPU has worked."""
        self.worked_ns = now_ns

    def longest_for(self, remote: Endpoint) -> int:
        """Oldest age of a request to `remote`, in ms."""
        fed = self._fed(remote)
        # The second slowest: one that was slow by chance, or a job after a long poll, teaches
        # nothing.
        longest = sorted(answers.longest_ms for answers in fed)
        slow = _GROWTH * longest[-ENOUGH] if len(fed) >= ENOUGH else 0
        return min(max(slow, PATIENCE_MS), self.longest_ms)

    def feeds(self, remote: Endpoint) -> bool:
        """Whether what comes from `remote` feeds the GPU, which worked lately."""
        if len(self._fed(remote)) < ENOUGH:
            return False
        # What came while the GPU has not worked for so long does not feed it, however quick it is.
        return not self._idles(max(self.longest_for(remote), LATELY_MS))

    def are_vain(self, remote: Endpoint, answers: int) -> bool:
        """Whether so many late answers from `remote`, without much data, do not feed the GPU.

        It has not worked for long, and never took as many to work, or half as many.
        """
        before = max((fed.messages for fed in self._fed(remote)), default=0)
        return answers >= max(2 * before, NO_ACCIDENT) and self._idles(LATELY_MS)

    def brings_tasks(self, remote: Endpoint) -> bool:
        """Whether messages from `remote` are tasks: each makes the GPU work."""
        return bool(self._fed(remote)) and self._of[remote].are_tasks

    def note_answer(
        self,
        remote: Endpoint,
        took_ms: int,
        ago_ms: int = 0,
        size: int = 0,
        *,
        asked: bool = True,
    ) -> bool:
        """An answer of `size` bytes came from `remote` after at least `took_ms`.

        It may feed the GPU. `asked`: something was sent before. It came `ago_ms` ago: a GPU
        that rested for long is looked at seldom, and may have worked.

        Returns whether the one before fed it: whether the GPU worked since.
        """
        known = len(self._fed(remote))
        if remote not in self._of and len(self._of) >= MOST_REMEMBERED:
            self._of.clear()
        answers = self._of.setdefault(remote, _Answers())
        fed = not answers.at_ns and known > 0
        if took_ms <= self.longest_ms:
            answers.longest_ms = max(answers.longest_ms, took_ms)
            answers.messages += 1
            answers.received += size
            answers.asked |= asked
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

    def _fed(self, remote: Endpoint) -> deque[_Fed]:
        answers = self._of.get(remote)
        if answers is None:
            return deque()
        answers.settle(self.worked_ns)
        return answers.fed
