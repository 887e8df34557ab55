"""Which tables are generated, and the documents that may hold them."""

from __future__ import annotations

import os
from pathlib import Path

from faults import abuses_table, events_table
from rules import causes_table
from tables import bounds, cadence, commands, metrics, refusals, seen, tested, values

_ROOT = Path(__file__).parents[2]
DOCUMENTS = tuple(
    _ROOT / name
    for name in (
        "SECURITY.md",
        "exporter/README.md",
        "exporter/REFERENCE.md",
        "exporter/OPERATIONS.md",
        "exporter/gpu_bottleneck_exporter/driver/nvml/FINDINGS.md",
        "helm/gpu-bottleneck-exporter/README.md",
        "rules/README.md",
        "tests/README.md",
    )
)


def tables(path: Path) -> dict[str, str]:
    """All of them by name, as they read in the document `path`."""
    return {
        "bounds": bounds.table(),
        "cadence": cadence.table(),
        "metrics": metrics.table(),
        "commands": commands.table(),
        "flags": commands.flags(),
        "causes": causes_table.table(os.path.relpath(causes_table.RUNBOOKS, path.parent)),
        "events": events_table.table(),
        "abuses": abuses_table.table(),
        "refusals": refusals.table(),
        "findings": seen.table(),
        "tested": tested.table(),
        "values": values.table(),
    }
