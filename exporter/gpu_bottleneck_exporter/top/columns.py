"""The columns of the table: content, width, and which ones make room first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpu_bottleneck_exporter.nodeview import text as words
from gpu_bottleneck_exporter.nodeview.model import DASH, Gpu

_LONGEST_LABEL = 16
"""Cells for `0 · MIG 3g.40gb`."""
_WIDEST_OWNER, _LEAST_OWNER = 48, 10
"""Cells: a pod with its namespace, or enough of it to be recognised."""
BAR, OWNER, TRY = "busy and waiting", "OWNER", "TRY"


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `width` in cells."""

    title: str
    width: int
    text: Callable[[Gpu], str]
    right: bool = True
    drops: int = 0
    """Columns with larger numbers are dropped first; 0 always stays."""


def share(value: float | None) -> str:
    """12 %, as short as can be."""
    return DASH if value is None else f"{value:.0%}"


def _short(level: str) -> str:
    """`412/700` of `412 of 700 W`."""
    return level.rpartition(" ")[0].replace(" of ", "/") or level


def _tried(gpu: Gpu) -> str:
    change = gpu.prescription
    return words.in_full(change).partition(" busy")[0] if change else DASH


COLUMNS = (
    Column("GPU", 4, words.label, right=False),
    Column(BAR, 18, lambda _: "", right=False),
    Column("BUSY", 5, lambda gpu: share(gpu.busy_ratio)),
    Column("WATTS", 7, lambda gpu: _short(words.levels(gpu)[0]), drops=2),
    Column("°C", 3, lambda gpu: words.number(gpu.temperature_celsius), drops=3),
    Column("GiB", 7, lambda gpu: _short(words.levels(gpu)[2]), drops=4),
    Column("SM", 4, lambda gpu: share(gpu.sm_active_ratio), drops=5),
    Column("LIKELY CAUSE", 13, words.likely_cause, right=False, drops=1),
    Column(TRY, 32, _tried, right=False, drops=7),
    Column(OWNER, _LEAST_OWNER, words.owners, right=False, drops=6),
    Column("MODEL", 22, lambda gpu: gpu.name or DASH, right=False, drops=9),
)


def columns(gpus: Sequence[Gpu], width: int) -> list[Column]:
    """The columns that fit; the bar and the owner share the remaining width."""
    longest = min(max(4, *(len(words.label(gpu)) for gpu in gpus)), _LONGEST_LABEL)
    found = [replace(COLUMNS[0], width=longest), *COLUMNS[1:]]
    if not any(gpu.prescription for gpu in gpus):
        found = [column for column in found if column.title != TRY]
    while _taken(found) > width and any(column.drops for column in found):
        found.remove(max(found, key=lambda column: column.drops))
    spare = max(width - _taken(found), 0)
    with_owner = any(column.title == OWNER for column in found)
    for_owner = min(spare // 3, _WIDEST_OWNER - _LEAST_OWNER) if with_owner else 0
    extra = {BAR: spare - for_owner, OWNER: for_owner}
    return [replace(column, width=column.width + extra.get(column.title, 0)) for column in found]


def _taken(found: Sequence[Column]) -> int:
    return sum(column.width + 1 for column in found) - 1
