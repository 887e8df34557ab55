"""The table of events and what they cost in the exporter's README, written from `events.py`.

`PYTHONPATH=tests python -m faults.events_table exporter/README.md` puts it in place.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from faults.events import EVENTS, Event

BEGIN = "<!-- events: begin -->"
END = "<!-- events: end -->"


def table() -> str:
    """In Markdown."""
    head = "| Event | Gone of that GPU | What says so | Back |\n|---|---|---|---|"
    return "\n".join([head, *map(_row, EVENTS)])


def with_table(text: str) -> str:
    """`text` with the table between the markers. Raises ValueError when it does not have both."""
    parts = re.split(f"({BEGIN}\n|{END})", text)
    if parts[1::2] != [f"{BEGIN}\n", END]:
        raise ValueError(f"markers {BEGIN} and {END} are needed once, in this order")
    parts[2] = table() + "\n"
    return "".join(parts)


def _row(event: Event) -> str:
    gone = _names(event.goes) if event.goes else f"all but {_names(event.leaves)}"
    return f"| {event.name} | {gone} | {event.besides} | {event.back} |"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
