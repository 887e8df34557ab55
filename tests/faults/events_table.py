"""The table of events and what they cost in exporter/OPERATIONS.md, written from `events.py`."""

from __future__ import annotations

from collections.abc import Iterable

from faults.events import EVENTS, Event


def table() -> str:
    """In Markdown."""
    head = "| Event | What that GPU loses | What reports it | When it returns |\n|---|---|---|---|"
    return "\n".join([head, *map(_row, EVENTS)])


def _row(event: Event) -> str:
    gone = _names(event.goes) if event.goes else f"all except {_names(event.leaves)}"
    return f"| {event.name} | {gone} | {event.besides} | {event.back} |"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))
