"""The list of events and what they cost in exporter/OPERATIONS.md, written from `events.py`."""

from __future__ import annotations

from collections.abc import Iterator

from faults.events import AT_THE_NEXT_READING, COLLECTOR_FAILS, EVENTS, LEFT, Event


def table() -> str:
    """The table in Markdown; the text above it names the usual report and end of an event."""
    return "\n".join(f"- **{event.name}**: {'; '.join(_told(event))}" for event in EVENTS)


def _told(event: Event) -> Iterator[str]:
    names = ", ".join(f"`{name}`" for name in sorted(event.goes.split() or LEFT))
    yield names if event.goes else f"all except {names}"
    if event.besides not in {"", COLLECTOR_FAILS}:
        yield event.besides
    if event.back != AT_THE_NEXT_READING:
        yield f"back {event.back}"
