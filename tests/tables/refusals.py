"""The list of reasons for which the exporter prescribes nothing."""

from __future__ import annotations

from gpu_bottleneck_exporter.prescription.model import REFUSALS


def table() -> str:
    """The table in Markdown."""
    return "\n".join(f"- `{reason}`: {result}" for reason, result in REFUSALS.items())
