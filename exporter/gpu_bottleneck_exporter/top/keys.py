"""What the user has chosen, and what each key changes; independent of the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_bottleneck_exporter.nodeview.model import Gpu, Key, Node, likely_cause

UP, DOWN, ENTER, ESCAPE = "up", "down", "enter", "escape"
PAGE_UP, PAGE_DOWN, HOME, END = "page up", "page down", "home", "end"
Order = Callable[[Gpu], float | str | None]


@dataclass(frozen=True, slots=True)
class Choice:
    """How the screen is to look."""

    order: str = "gpu"
    backwards: bool = False
    selected: Key | None = None
    """None: the first row."""
    details: bool = True
    help: bool = False
    ended: bool = False


ORDERS: Mapping[str, Order] = {
    "gpu": lambda _: None,
    "busy": lambda gpu: gpu.busy_ratio,
    "watts": lambda gpu: gpu.power_watts,
    "temperature": lambda gpu: gpu.temperature_celsius,
    "memory": lambda gpu: gpu.memory_used_bytes,
    "cause": likely_cause,
}
"""Largest first, texts from A to Z; unknown values last."""
KEYS = {order[0]: order for order in ORDERS}
HELP = (
    ("q, Ctrl-C", "quit"),
    ("up, down, k, j", "select a GPU"),
    ("PgUp, PgDn", "scroll one screen up or down"),
    ("Home, End", "go to the first or the last GPU"),
    ("Enter", "show or hide its details"),
    ("g b w t m c", "sort by GPU, busy, watts, temperature, memory, cause"),
    ("s, r", "sort by the next column; reverse the order"),
    ("?, h", "show this help; any key closes it"),
)


def pressed(choice: Choice, key: str, node: Node | None, page: int = 10) -> Choice:
    """The choice after `key`, with `page` rows on the screen; other keys change nothing."""
    if choice.help and key not in ("q", "Q"):
        return replace(choice, help=False)
    if key in KEYS:
        return replace(choice, order=KEYS[key])
    rows = len(node.gpus) if node else 0
    up, down = (
        {UP: 1, "k": 1, PAGE_UP: page, HOME: rows},
        {DOWN: 1, "j": 1, PAGE_DOWN: page, END: rows},
    )
    if key in up or key in down:
        return _moved(choice, down.get(key, 0) - up.get(key, 0), node)
    changes = {
        "q": replace(choice, ended=True),
        "Q": replace(choice, ended=True),
        "?": replace(choice, help=True),
        "h": replace(choice, help=True),
        "r": replace(choice, backwards=not choice.backwards),
        "s": replace(choice, order=_after(choice.order)),
        ENTER: replace(choice, details=not choice.details),
    }
    return changes.get(key, choice)


def ordered(choice: Choice, node: Node) -> list[Gpu]:
    """The rows from top to bottom."""
    by = ORDERS[choice.order]
    known = [gpu for gpu in node.gpus if by(gpu) is not None]
    rest = [gpu for gpu in node.gpus if by(gpu) is None]
    downwards = choice.order != "cause"
    known.sort(key=lambda gpu: by(gpu) or 0, reverse=downwards != choice.backwards)
    if choice.order == "gpu" and choice.backwards:
        rest.reverse()
    return known + rest


def place(choice: Choice, rows: Sequence[Gpu]) -> int:
    """Which row is selected."""
    keys = [gpu.key for gpu in rows]
    return keys.index(choice.selected) if choice.selected in keys else 0


def _moved(choice: Choice, by: int, node: Node | None) -> Choice:
    rows = ordered(choice, node) if node else []
    if not rows:
        return choice
    at = min(max(place(choice, rows) + by, 0), len(rows) - 1)
    return replace(choice, selected=rows[at].key)


def _after(order: str) -> str:
    names = list(ORDERS)
    return names[(names.index(order) + 1) % len(names)]
