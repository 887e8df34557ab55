"""The list of events and what they cost in exporter/OPERATIONS.md, written from `events.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from faults.events import AT_THE_NEXT_READING, COLLECTOR_FAILS, EVENTS, Event


def table() -> str:
    """In Markdown; the text above it says what usually reports an event, and when it ends."""
    return "\n".join(f"- **{event.name}**: {'; '.join(_told(event))}" for event in EVENTS)


def _told(event: Event) -> Iterator[str]:
    yield _names(event.goes) if event.goes else f"all except {_names(event.leaves)}"
    if event.reported != COLLECTOR_FAILS:
        yield event.reported
    if event.back != AT_THE_NEXT_READING:
        yield f"back {event.back}"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))
