"""What fired, as a table in Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from causes.heard import Heard

_WRONG = " ✗"
_NONE = "none"
_HEADS = ("situation", "expected", "fired", "primary cause")


def table(heard: Iterable[Heard]) -> str:
    """One line for each GPU and node."""
    lines = [f"| {' | '.join(_HEADS)} |", "|---" * len(_HEADS) + "|"]
    return "\n".join(lines + [_row(one) for one in heard])


def _row(heard: Heard) -> str:
    wanted = heard.expected.alert
    cells = (
        heard.whose.title + (_WRONG if heard.wrong else ""),
        wanted.alert if wanted else "",
        ", ".join(f"{one.alert} ({one.severity})" for one in sorted(heard.fired)),
        f"`{heard.primary}`" if heard.primary else "",
    )
    return f"| {' | '.join(cell or _NONE for cell in cells)} |"
