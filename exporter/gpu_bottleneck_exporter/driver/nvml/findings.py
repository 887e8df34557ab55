"""Tested GPUs: `findings.csv` beside this file."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Finding(NamedTuple):
    """A peculiarity of a model."""

    model: str
    driver: str
    """Branch and minor version; empty: not recorded."""
    seen: str
    source: str


def findings() -> list[Finding]:
    """All rows."""
    import csv  # noqa: PLC0415 - a server never reads the table

    table = Path(__file__).with_name("findings.csv")
    with table.open(encoding="utf-8", newline="") as file:
        return [Finding(**row) for row in csv.DictReader(file)]


def seen(model: str | None, driver_version: str | None) -> bool:
    """Whether the model is in the table, and the driver's branch with any model."""
    rows = findings()
    branches = {row.driver.partition(".")[0] for row in rows if row.driver}
    branch = (driver_version or "").partition(".")[0]
    return model in {row.model for row in rows} and branch in branches
