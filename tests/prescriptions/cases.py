"""The chains of `cases.yml`: what is staged together, and what is changed."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any

from gpu_bottleneck_exporter.prescription.model import KNOBS, NUM_WORKERS, Prescription, Refusal
from prescriptions.settings import Setting
from support.rows import beside


@dataclass(frozen=True, slots=True)
class Chain:
    """A loop on one GPU whose knob is changed in turn: each `after` is the next `before`."""

    title: str
    """`family: case`."""
    first: Setting
    knob: str = NUM_WORKERS
    changes: Sequence[float] = ()
    """The values that the knob takes after the first."""
    follow: bool = False
    """Whether the last change is the one that the exporter prescribes, whatever it is."""
    never: Collection[str] = ()
    """Knobs that must not be prescribed."""

    @property
    def pairs(self) -> int:
        """How many there are, of before and after."""
        return len(self.changes) + self.follow

    def value(self, turn: int, advice: Prescription | Refusal | None) -> float | None:
        """Value of the setting after the next change; None if that follows advice on another."""
        if turn < len(self.changes):
            return self.changes[turn]
        if isinstance(advice, Prescription) and advice.knob == self.knob:
            return advice.value
        return None


def is_fitted(title: str) -> bool:
    """Whether `ADVICE.prediction_error` was fitted on it: a third, drawn by their titles' hash."""
    return hashlib.sha256(title.encode()).digest()[0] % 3 == 0


def _chain(told: dict[str, Any]) -> Chain:
    of_chain = {field.name: told.pop(field.name) for field in fields(Chain) if field.name in told}
    if of_chain.get("never") == "any":
        of_chain["never"] = KNOBS
    return Chain(first=Setting(**told), **of_chain)


_TOLD = beside(__file__, "cases.yml")
GROUPS = [[*map(_chain, group)] for group in (*_TOLD["new"], *_TOLD["tried"])]
CHAINS = [chain for group in GROUPS for chain in group]
