"""The list of what jobs, clients and disks do in exporter/OPERATIONS.md, from `abuses.py`."""

from __future__ import annotations

from faults.abuses import ABUSES


def table() -> str:
    """The rows in Markdown; the text above them says what others do not lose."""
    return "\n".join(f"- **{abuse.name}**: {abuse.cost}" for abuse in ABUSES)
