"""The table of events and what they cost in exporter/OPERATIONS.md, written from `events.py`."""

from __future__ import annotations

from faults.events import EVENTS, LEFT, Event


def table() -> str:
    """In Markdown."""
    head = "| Event | What that GPU loses | What reports it | When it returns |\n|---|---|---|---|"
    return "\n".join([head, *map(_row, EVENTS)])


def _row(event: Event) -> str:
    names = ", ".join(f"`{name}`" for name in sorted(event.goes.split() or LEFT))
    gone = names if event.goes else f"all except {names}"
    return f"| {event.name} | {gone} | {event.besides} | {event.back} |"
