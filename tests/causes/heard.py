"""Reports of Prometheus about a GPU or a node over time, compared with the expectation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from causes.cases import ANY, Expected
from scenarios.diagnoses import Diagnosis, Heard
from support.prometheus import Labels

LATELY_SECONDS = 8.0
"""Two cores are shared: whatever is true for most of this time counts."""
_MOST = 0.6
Series = tuple[Labels, list[tuple[float, float]]]


HELD, FREE, SCRAPED = "gpu:gate:warm", "gpu:held:bool", "up"
LOOKED_AT = f"{HELD} or {FREE} == 0 or {SCRAPED}"
"""GPUs held long enough to be judged, GPUs without a holder, and nodes."""


@dataclass(frozen=True, slots=True)
class Whose:
    """A GPU of a case, or a node."""

    title: str
    case: str = ""
    """Empty for a node that several cases share."""


@dataclass(frozen=True, slots=True)
class Told:
    """All that Prometheus evaluated since Unix time `began`, second by second."""

    began: float
    alerts: Sequence[Series]
    primary: Sequence[Series]
    looked_at: Sequence[Series]
    """The series of `HELD`, `FREE` and `SCRAPED`."""

    def heard(self, expected: Expected, looked_at: str, **labels: str) -> Heard:
        """Reports with all `labels`; an empty one must be absent.

        `looked_at` is the series that it must have.
        """
        end = self.began + expected.seconds
        mine = [
            (Diagnosis.of(series), samples)
            for series, samples in self.alerts
            if series["alertstate"] == "firing" and _has(series, labels)
        ]
        return Heard(
            wanted=frozenset({expected.alert} if expected.alert else ()),
            besides=expected.besides,
            causes=None if expected.cause == ANY else frozenset({expected.cause}),
            fired=frozenset(item for item, samples in mine if _within(samples, self.began, end)),
            firing=frozenset(
                item for item, samples in mine if _within(samples, end - LATELY_SECONDS / 2, end)
            ),
            primary=self._primary(end, labels),
            looked_at=any(
                _within(samples, self.began, end) >= LATELY_SECONDS
                for series, samples in self.looked_at
                if series["__name__"] == looked_at and _has(series, labels)
            ),
        )

    def _primary(self, end: float, labels: Labels) -> str:
        seconds: Counter[str] = Counter()
        for series, samples in self.primary:
            if _has(series, labels):
                seconds[series["cause"]] += _within(samples, end - LATELY_SECONDS, end)
        for cause, count in seconds.most_common(1):
            if count >= _MOST * LATELY_SECONDS:
                return cause
        return ""


def _has(told: Labels, labels: Labels) -> bool:
    return all(told.get(name, "") == value for name, value in labels.items())


def _within(samples: Sequence[tuple[float, float]], start: float, end: float) -> int:
    return sum(start <= at <= end for at, _ in samples)
