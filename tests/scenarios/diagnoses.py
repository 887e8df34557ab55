"""Diagnoses that Prometheus may report of a GPU, and those reported."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from support.prometheus import Labels


@dataclass(frozen=True, slots=True, order=True)
class Diagnosis:
    """An alert, its cause (what it is blind for, in `GpuCausesBlind`), and its severity.

    "": it has no cause, or its severity does not matter.
    """

    alert: str
    cause: str = ""
    severity: str = ""

    @classmethod
    def of(cls, told: Labels) -> Diagnosis:
        """The diagnosis of a series of ALERTS."""
        cause = told.get("cause") or told.get("blind", "")
        return cls(told["alertname"], cause, told["severity"])

    def is_of(self, accepted: Iterable[Diagnosis]) -> bool:
        """Whether it is one of them, with that severity if one is given."""
        mine = self.alert, self.cause
        return any(
            mine == (item.alert, item.cause) and item.severity in ("", self.severity)
            for item in accepted
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """The diagnoses reported of one GPU or node, and those expected."""

    wanted: frozenset[Diagnosis]
    """One of them must fire at the end; none: no alert may ever fire."""
    besides: frozenset[Diagnosis]
    """May fire, but do not suffice."""
    causes: frozenset[str] | None
    """The primary ones that are accepted; "": none. None: it does not matter."""
    fired: frozenset[Diagnosis]
    """Diagnoses at any time."""
    firing: frozenset[Diagnosis]
    """Diagnoses at the end."""
    primary: str
    """The primary cause at the end; "": none."""
    looked_at: bool = True
    """Whether the rules evaluated it at all: otherwise silence means nothing."""

    @property
    def wrong(self) -> str | None:
        """Mismatches with the expectation; None if there are none."""
        others = sorted(item for item in self.fired if not item.is_of(self.wanted | self.besides))
        faults = [f"{other.alert} ({other.severity}) fired" for other in others]
        if self.wanted and not any(item.is_of(self.wanted) for item in self.firing):
            faults.append(f"none of {', '.join(item.alert for item in sorted(self.wanted))} fires")
        if self.causes is not None and self.primary not in self.causes:
            faults.append(f"the primary cause is {self.primary or 'none'}")
        if not self.wanted and not self.looked_at:
            faults.append("the rules did not look at it")
        return ", ".join(faults) or None
