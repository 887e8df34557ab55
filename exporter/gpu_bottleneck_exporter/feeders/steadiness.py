"""Whether a GPU goes on as it did: what has been the same for long is looked at less often.

That is one that works all the time, where there is nothing to explain, and one whose idle time has
had one cause. Where it has several, such as a CPU limit and the workers that it holds back, all
looks are needed to tell how much each of them takes.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpu_bottleneck_exporter.accounting.stall import IDLES, MOSTLY
from gpu_bottleneck_exporter.schedule import LATELY_NS

_LASTS, _OVER = 0.9, 0.8
"""Of the last `LATELY_NS`: of ticks of 1 s, one that differs is an accident, and three in a row end
what was."""
_BUSY = "busy"


class Steadiness:
    """Whether one GPU goes on as before; its reader notes ticks, the watching thread asks."""

    def __init__(self) -> None:
        self._what: str | None = None
        self._now = 0.0
        """The share of the last tick that it explains, and of the last ticks on average."""
        self._share = 0.0
        self._lasted_ns = 0

    def __bool__(self) -> bool:
        """Whether the last ticks were alike."""
        return self._lasted_ns >= LATELY_NS and self._share >= _LASTS and self._now >= MOSTLY

    def note(self, active_ns: int, stalls: Mapping[str, int]) -> None:
        """Note how a tick was split: busy time, and idle time by cause."""
        elapsed_ns = active_ns + sum(stalls.values())
        shares = _shares(active_ns, elapsed_ns, stalls)
        self._now = shares.get(self._what or "", 0.0)
        self._share += (self._now - self._share) * min(elapsed_ns / LATELY_NS, 1.0)
        self._lasted_ns += elapsed_ns
        if self._share < _OVER:
            self._what = max(shares, key=lambda name: shares[name], default=None)
            self._now, self._share, self._lasted_ns = 0.0, 1.0, 0

    def restart(self) -> None:
        """Other processes feed it now."""
        self._lasted_ns = 0


def _shares(active_ns: int, elapsed_ns: int, stalls: Mapping[str, int]) -> dict[str, float]:
    """What a tick went by: one that is busy all the time, or each cause of its idle time."""
    if active_ns >= (1 - IDLES) * elapsed_ns:  # what is so little is no wait
        return {_BUSY: 1.0}
    return {cause: ns / (elapsed_ns - active_ns) for cause, ns in stalls.items()}
