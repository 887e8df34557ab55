"""Who keeps a connection when more come than there is room for.

Nobody who comes is turned away: somebody else makes way. Those who never got an answer and
those who did have a half of the places each, should both want them. In a half the address
that holds most pays, if it holds more than a few; there, a connection on which the client
owes us something before one on which we owe an answer, then the one with the fewest
answers, then the one that has rested longest. So a scraper, which asks again and again on one
connection, keeps it while others come and go. Who has just come may stay for a moment, and
who comes then waits for so long: else nobody would have the time for a handshake.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

FEW = 8
"""Connections that an address may hold before it pays for holding more than others."""


class Guest(Protocol):
    """A connection."""

    address: str
    answers: int
    came: float
    """When, in seconds of any clock."""
    since: float
    """When it came or was last answered."""

    @property
    def owed(self) -> bool:
        """Whether the exporter is making an answer for it."""
        ...

    def hang_up(self) -> None:
        """Ends it at once."""
        ...


class Places:
    """The connections that hold a place; not thread-safe."""

    def __init__(self, limit: int, stay: float = 0.0) -> None:
        """Prepares for guests.

        Args:
            limit: How many there are places for.
            stay: How long everyone may do so at least, in seconds.
        """
        self._limit = limit
        self._stay = stay
        self._strangers: dict[str, dict[Guest, None]] = {}
        self._known: dict[str, dict[Guest, None]] = {}

    def enter(self, guest: Guest) -> None:
        """Gives a place to a connection that comes; another one makes way for it if needed."""
        if self._full:
            self._make_way()
        self._strangers.setdefault(guest.address, {})[guest] = None

    def wait(self, now: float) -> float:
        """How long one who comes has to wait, in seconds: until another has been long enough."""
        guest = self._least() if self._full else None
        return 0.0 if guest is None else max(0.0, guest.came + self._stay - now)

    def answered(self, guest: Guest, now: float) -> None:
        """Notes that the connection got what it asked for, and may be remembered for it."""
        guest.answers += 1
        guest.since = now
        if self._remove(self._strangers, guest):
            self._known.setdefault(guest.address, {})[guest] = None

    def leave(self, guest: Guest) -> None:
        """Gives the place of a connection back, if it still has one."""
        if not self._remove(self._strangers, guest):
            self._remove(self._known, guest)

    def shed(self, number: int) -> None:
        """Hangs up on some that are owed nothing, for files are short."""
        for _ in range(number):
            guest = self._least()
            if guest is None or guest.owed:
                return
            self._show_out(guest)

    @property
    def _full(self) -> bool:
        return self._count(self._strangers) + self._count(self._known) >= self._limit

    def _make_way(self) -> None:
        guest = self._least()
        if guest is not None:
            self._show_out(guest)

    def _show_out(self, guest: Guest) -> None:
        self.leave(guest)
        guest.hang_up()

    def _least(self) -> Guest | None:
        """The one that is missed least."""
        half = max(1, self._limit // 2)
        crowded = self._count(self._strangers) >= half or not self._known
        return min(_payers(self._strangers if crowded else self._known), key=_worth, default=None)

    @staticmethod
    def _count(room: dict[str, dict[Guest, None]]) -> int:
        return sum(map(len, room.values()))

    @staticmethod
    def _remove(room: dict[str, dict[Guest, None]], guest: Guest) -> bool:
        neighbours = room.get(guest.address, {})
        if guest not in neighbours:
            return False
        del neighbours[guest]
        if not neighbours:
            del room[guest.address]
        return True


def _payers(room: dict[str, dict[Guest, None]]) -> Iterable[Guest]:
    """Those of the address that holds most; of all where none holds more than a few."""
    largest = max(room.values(), key=len, default={})
    if len(largest) > FEW:
        return largest
    return [guest for neighbours in room.values() for guest in neighbours]


def _worth(guest: Guest) -> tuple[bool, int, float]:
    # Where all are being answered, those that were answered most can miss one.
    owed = guest.owed
    return owed, -guest.answers if owed else guest.answers, guest.since
