"""What a process mostly does, from many looks."""

from __future__ import annotations

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.stall import MOSTLY
from gpu_bottleneck_exporter.schedule import OFTEN_NS, STEADY_NS, Every

_NEARLY_ALWAYS = 0.75
"""Share of the time, or of that in which the GPU idles."""
NO_ACCIDENT = 3
"""So many looks, or answers that are alike, tell what a process is or a server does."""
WEIGHT = 0.1
"""Of a later look: what was seen ten looks ago hardly counts."""


class Works:
    """Whether a listening main keeps its GPU busy while no client has a request open.

    If so, it is no server: a training loop may open a port for its metrics.
    """

    __slots__ = ("_alone", "_asking", "_looks")  # there may be thousands of processes

    def __init__(self) -> None:
        self._alone = 0.0
        self._looks = 0
        self._asking = Every(STEADY_NS)

    @property
    def by_itself(self) -> bool:
        """Whether it does so most of the time."""
        return self._looks >= NO_ACCIDENT and self._alone > _NEARLY_ALWAYS

    def is_due(self, now_ns: int) -> bool:
        """Whether to look again; if so, it is due again later."""
        return self._asking.is_due(now_ns, STEADY_NS if self._looks < NO_ACCIDENT else OFTEN_NS)

    def note(self, *, clients: bool) -> None:
        """Note whether clients talked to it while the GPU worked."""
        seen = 0.0 if clients else 1.0
        self._looks += 1
        # For whom a GPU works is asked seldom: each look counts twice.
        self._alone += (seen - self._alone) * max(2 * WEIGHT, 1 / self._looks)


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
