"""The user's choices, and the keys that change them, by curses' names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_bottleneck_exporter.nodeview.model import GpuStatus, Key, Node
from gpu_bottleneck_exporter.nodeview.text import badness, likely_cause


@dataclass(frozen=True, slots=True)
class Choice:
    """The state of the screen."""

    order: str = "idle"
    backwards: bool = False
    selected: Key | None = None
    """Selected row; None: the first."""
    details: bool = True
    help: bool = False
    ended: bool = False


ORDERS: Mapping[str, Callable[[GpuStatus], float | str | None]] = {
    "idle": badness,
    "gpu": lambda _: None,
    "watts": lambda gpu: gpu.power_watts,
    "temperature": lambda gpu: gpu.temperature_celsius,
    "memory": lambda gpu: gpu.memory_used_bytes,
    "cause": likely_cause,
}
"""Sort keys: largest first, texts from A to Z."""
HELP = (
    ("q, Ctrl-C", "quit"),
    ("up, down, k, j", "select a GPU"),
    ("PgUp, PgDn", "scroll one screen up or down"),
    ("Home, End", "go to the first or the last GPU"),
    ("Enter", "show or hide its details"),
    ("i g w t m c", "sort by idle share, GPU, watts, temperature, memory, cause"),
    ("s, r", "sort by the next column; reverse the order"),
    ("?, h", "show this help; any key closes it"),
)


def pressed(choice: Choice, key: str, node: Node | None, page: int = 10) -> Choice:
    """The choice after `key`, with `page` rows on the screen."""
    if key in ("q", "Q"):
        return replace(choice, ended=True)
    if choice.help or key in ("?", "h"):
        return replace(choice, help=not choice.help)
    rows = ordered(choice, node) if node else []
    steps = {"KEY_UP": -1, "k": -1, "KEY_PPAGE": -page, "KEY_HOME": -len(rows)}
    steps |= {"KEY_DOWN": 1, "j": 1, "KEY_NPAGE": page, "KEY_END": len(rows)}
    if key in steps and rows:
        at = min(max(place(choice, rows) + steps[key], 0), len(rows) - 1)
        return replace(choice, selected=rows[at].key)
    names = [*ORDERS]
    changes = {
        **dict.fromkeys(("\n", "KEY_ENTER"), replace(choice, details=not choice.details)),
        "r": replace(choice, backwards=not choice.backwards),
        "s": replace(choice, order=names[(names.index(choice.order) + 1) % len(names)]),
        **{name[0]: replace(choice, order=name) for name in names},
    }
    return changes.get(key, choice)


def ordered(choice: Choice, node: Node) -> list[GpuStatus]:
    """The rows from top to bottom."""
    by = ORDERS[choice.order]
    rows = [gpu for gpu in node.gpus if by(gpu) is not None]
    rest = [gpu for gpu in node.gpus if by(gpu) is None]
    downwards = choice.order != "cause"
    rows.sort(key=lambda gpu: by(gpu) or 0, reverse=downwards != choice.backwards)
    if choice.order == "gpu" and choice.backwards:
        rest.reverse()
    return rows + rest


def place(choice: Choice, rows: Sequence[GpuStatus]) -> int:
    """Index of the selected row."""
    keys = [gpu.key for gpu in rows]
    return keys.index(choice.selected) if choice.selected in keys else 0
