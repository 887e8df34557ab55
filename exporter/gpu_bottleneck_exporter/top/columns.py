"""Columns of the table: content, width, and priority."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpu_bottleneck_exporter.nodeview import text as words
from gpu_bottleneck_exporter.nodeview.model import DASH, GpuStatus

BAR, OWNER, TRY = "busy and waiting", "OWNER", "TRY"


@dataclass(frozen=True, slots=True)
class Column:
    """A column; `width` in cells."""

    title: str
    width: int
    text: Callable[[GpuStatus], str]
    right: bool = True
    drops: int = 0
    """Rank for dropping columns, largest first; 0: never."""


def share(value: float | None) -> str:
    """`12%`."""
    return DASH if value is None else f"{value:.0%}"


def _short(level: str) -> str:
    """`412/700` of `412 of 700 W`."""
    return level.rpartition(" ")[0].replace(" of ", "/") or level


def _setting(gpu: GpuStatus) -> str:
    change = gpu.prescription
    return f"{words.setting(change)}: {words.predicted(change)}" if change else DASH


COLUMNS = (
    Column("GPU", 4, words.label, right=False),
    Column(BAR, 18, lambda _: "", right=False),
    Column("BUSY", 5, lambda gpu: share(gpu.busy_ratio)),
    Column("WATTS", 7, lambda gpu: _short(words.levels(gpu)[0]), drops=2),
    Column("°C", 3, lambda gpu: words.number(gpu.temperature_celsius), drops=3),
    Column("GiB", 7, lambda gpu: _short(words.levels(gpu)[2]), drops=4),
    Column("SM", 4, lambda gpu: share(gpu.sm_active_ratio), drops=5),
    Column("LIKELY CAUSE", 13, words.likely_cause, right=False, drops=1),
    Column(TRY, 36, _setting, right=False, drops=7),
    Column(OWNER, 10, words.owners, right=False, drops=6),
    Column("MODEL", 22, lambda gpu: gpu.name or DASH, right=False, drops=9),
)


def columns(gpus: Sequence[GpuStatus], width: int) -> list[Column]:
    """The columns that fit; bar and owner share the remaining width."""
    label_width = min(max(4, *(len(words.label(gpu)) for gpu in gpus)), 16)  # fits 0 · MIG 3g.40gb
    shown = [replace(COLUMNS[0], width=label_width), *COLUMNS[1:]]
    if not any(gpu.prescription for gpu in gpus):
        shown = [column for column in shown if column.title != TRY]
    while _total_width(shown) > width and any(column.drops for column in shown):
        shown.remove(max(shown, key=lambda column: column.drops))
    spare = max(width - _total_width(shown), 0)
    with_owner = any(column.title == OWNER for column in shown)
    for_owner = min(spare // 3, 38) if with_owner else 0  # 48 cells fit a pod with its namespace
    extra = {BAR: spare - for_owner, OWNER: for_owner}
    return [replace(column, width=column.width + extra.get(column.title, 0)) for column in shown]


def _total_width(shown: Sequence[Column]) -> int:
    return sum(column.width + 1 for column in shown) - 1
