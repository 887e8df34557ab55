"""Changes that `make bench-prescriptions` measured: what was seen before, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from gpu_bottleneck_exporter.prescription.observed import Observed

RECORDED = Path(__file__).with_name("recorded.jsonl")


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a knob. Shares of the time, 0-1."""

    family: str
    name: str
    knob: str
    value: float
    """Of the knob, afterwards."""
    seen: Observed
    """Before the change."""
    outcome: float
    """Busy share afterwards, by the board."""
    strangers: float
    """Cores that other programs used meanwhile."""


def load() -> list[Change]:
    """The recorded changes."""
    rows = map(json.loads, RECORDED.read_text(encoding="utf-8").splitlines())
    return [Change(**{**row, "seen": Observed(**row["seen"])}) for row in rows]


def save(changes: Iterable[Change]) -> None:
    """Replace the recorded changes."""
    lines = (json.dumps(asdict(change)) for change in changes)
    RECORDED.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
