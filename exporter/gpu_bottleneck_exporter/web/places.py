"""Which connections stay when more arrive than there are places.

No new connection is refused: another one makes way. Connections that were answered and those that
never were get half of the places each, if both kinds want them. Within a half, the address with
the most connections pays, if it has more than a few. Of its connections, the first to go is one
where the client owes us something, not we an answer; then the one with the fewest answers; then
the one that has rested longest. So a scraper that keeps using one connection keeps it while others
come and go. A new connection may stay for a moment, and the next ones wait that long: otherwise
nobody would have time for a handshake.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Protocol

FEW = 8
"""Connections that an address may hold before it pays for holding the most."""


class Guest(Protocol):
    """A connection."""

    address: str
    answers: int
    came: float
    """When it was accepted, in seconds of any clock."""
    since: float
    """When it was accepted or last answered."""

    @property
    def owed(self) -> bool:
        """Whether the exporter is making an answer for it."""

    def hang_up(self) -> None:
        """Close it at once."""


class Places:
    """The connections that hold a place; not thread-safe."""

    def __init__(self, limit: int, stay: float = 0.0) -> None:
        """Prepare for guests.

        Args:
            limit: How many places there are.
            stay: How long each may stay at least, in seconds.
        """
        self._limit = limit
        self._stay = stay
        self._strangers: dict[Guest, None] = {}
        self._known: dict[Guest, None] = {}

    def enter(self, guest: Guest) -> None:
        """Give a new connection a place; if none is free, another one makes way."""
        if self._full:
            self._show_out(self._least())
        self._strangers[guest] = None

    def wait(self, now: float) -> float:
        """Seconds until a new connection may enter: until another one has stayed long enough."""
        guest = self._least() if self._full else None
        return 0.0 if guest is None else max(0.0, guest.came + self._stay - now)

    def answered(self, guest: Guest, now: float) -> None:
        """Note that the connection got what it asked for, and moves to the known ones."""
        guest.answers += 1
        guest.since = now
        if guest in self._strangers:
            del self._strangers[guest]
            self._known[guest] = None

    def leave(self, guest: Guest) -> None:
        """Gives the place of a connection back, if it still has one."""
        self._strangers.pop(guest, None)
        self._known.pop(guest, None)

    def shed(self, number: int) -> None:
        """Close up to `number` connections that are owed nothing, as descriptors are short."""
        for _ in range(number):
            guest = self._least()
            if guest is None or guest.owed:
                return
            self._show_out(guest)

    @property
    def _full(self) -> bool:
        return len(self._strangers) + len(self._known) >= self._limit

    def _show_out(self, guest: Guest | None) -> None:
        if guest is not None:
            self.leave(guest)
            guest.hang_up()

    def _least(self) -> Guest | None:
        """The connection that makes way next."""
        # Strangers make way while they hold half of the places or more, else the known do.
        half = max(1, self._limit // 2)
        crowded = len(self._strangers) >= half or not self._known
        return min(_payers(self._strangers if crowded else self._known), key=_worth, default=None)


def _payers(room: Collection[Guest]) -> Collection[Guest]:
    """Those of the address that holds most; of all where none holds more than a few."""
    held = Counter(guest.address for guest in room)
    most = max(held, key=held.__getitem__, default="")
    return [guest for guest in room if guest.address == most] if held[most] > FEW else room


def _worth(guest: Guest) -> tuple[bool, int, float]:
    # If all are being answered, the one with the most answers can best miss one.
    owed = guest.owed
    return owed, -guest.answers if owed else guest.answers, guest.since
