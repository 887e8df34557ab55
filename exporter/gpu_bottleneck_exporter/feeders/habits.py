"""What a process mostly does, from many looks."""

from __future__ import annotations

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.stall import MOSTLY
from gpu_bottleneck_exporter.schedule import OFTEN_NS, STEADY_NS, Every

_NEARLY_ALWAYS = 0.75
"""Share of the time, or of that in which the GPU idles."""
NO_ACCIDENT = 3
"""So many looks, or answers that are alike, tell what a process is or a server does."""
_EXPECTED = 8.0
"""Samples in which a GPU works: by chance, fewer than two have an open request once in 300."""
_ALONE = 0.25
"""Open requests per sample in which the GPU works, below which it works by itself."""
_REMEMBERED = 60.0
"""Samples in which a GPU works above which older ones are halved."""
WEIGHT = 0.1
"""Of a later look: what was seen ten looks ago hardly counts."""


class Works:
    """Whether the GPU of a main works for clients: while their requests are open, or without.

    A training loop may open a port for its metrics, and an actor one for its cluster. A server's
    GPU works while a request is open, so requests are open for at least as long as it works.
    """

    __slots__ = ("_asking", "_busy", "_open", "_samples")  # there may be thousands of processes

    def __init__(self) -> None:
        self._busy = self._open = 0.0
        self._samples = 0
        self._asking = Every(STEADY_NS)

    @property
    def by_itself(self) -> bool:
        """Whether its GPU works without clients."""
        return self._busy >= _EXPECTED and self._open < _ALONE * self._busy

    @property
    def for_clients(self) -> bool:
        """Whether it works for clients only, as far as was seen."""
        return self._busy >= 1 and self._open >= MOSTLY * self._busy

    def is_due(self, now_ns: int) -> bool:
        """Whether to look again; if so, it is due again later."""
        return self._asking.is_due(now_ns, STEADY_NS if self._samples < NO_ACCIDENT else OFTEN_NS)

    def note(self, *, clients: bool, busy: float, looks: int = 1) -> None:
        """Note whether a client's request was open, and the GPU's `busy` share, of some looks."""
        if not busy and not self._busy:
            return
        self._samples += 1
        self._busy += looks * busy
        self._open += looks * clients
        if self._busy > _REMEMBERED:
            self._busy, self._open = self._busy / 2, self._open / 2


class StrangerRecord:
    """The part of its looks in which a stranger was active."""

    def __init__(self) -> None:
        self._active = self._works = 0.0
        self._looks = 0

    def note(self, activity: Activity) -> None:
        """Take in the next look."""
        self._looks += 1
        weight = max(WEIGHT, 1 / self._looks)
        works = activity.active and activity is not Activity.NETWORK
        self._works += (works - self._works) * weight
        self._active += (activity.active - self._active) * weight

    def counts(self, idle: float) -> bool:
        """Whether it was active for most of the time that the GPU is idle, a share of `idle`.

        As a database or a proxy serves everybody, being connected says little.
        """
        return self._looks >= NO_ACCIDENT and self._active > MOSTLY * idle

    def works(self, idle: float) -> bool:
        """Whether it ran or read files for nearly all of that time.

        Then its answers are late for that, and not for the network.
        """
        return self.counts(idle) and self._works > _NEARLY_ALWAYS * idle
