"""Which tables are generated, and the documents that may hold them."""

from __future__ import annotations

import os
from pathlib import Path

from faults import events_table
from helm import values_table
from rules import causes_table
from tables import metrics, refusals, tested

_ROOT = Path(__file__).parents[2]
DOCUMENTS = tuple(
    _ROOT / folder / "README.md"
    for folder in ("exporter", "rules", "helm/gpu-bottleneck-exporter", "tests")
)


def tables(path: Path) -> dict[str, str]:
    """All of them by name, as they read in the document `path`."""
    return {
        "metrics": metrics.table(),
        "causes": causes_table.table(os.path.relpath(causes_table.RUNBOOKS, path.parent)),
        "values": values_table.table(values_table.VALUES.read_text(encoding="utf-8")),
        "events": events_table.table(),
        "refusals": refusals.table(),
        "tested": tested.table(),
    }
