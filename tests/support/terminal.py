"""A real pseudo-terminal: what a program has drawn on it, and keys for it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pexpect
import pyte

PATIENCE_SECONDS = 60
"""How long to wait for what must come; never a measure of speed."""


class Screen(pyte.Screen):
    """pyte's, and scrolling by so many lines, which curses does where it can."""

    def scroll_up(self, count: int = 1) -> None:
        """CSI S: lines leave at the top of the scrolling region."""
        self._at_its_top(self.delete_lines, count)

    def scroll_down(self, count: int = 1) -> None:
        """CSI T: empty lines come in at its top."""
        self._at_its_top(self.insert_lines, count)

    def _at_its_top(self, change: Callable[[int], None], count: int) -> None:
        x, y = self.cursor.x, self.cursor.y
        self.cursor.y = self.margins.top if self.margins else 0
        change(count)
        self.cursor.x, self.cursor.y = x, y


class Stream(pyte.ByteStream):
    """pyte's, which knows of them."""

    csi = {  # noqa: RUF012 - pyte's is one too
        **pyte.ByteStream.csi,
        "S": "scroll_up",
        "T": "scroll_down",
    }
    events = pyte.ByteStream.events | {"scroll_up", "scroll_down"}


@dataclass
class Terminal:
    """A program and its screen."""

    child: pexpect.spawn[bytes]
    screen: Screen
    stream: Stream
    written: bytes = b""

    @property
    def lines(self) -> list[str]:
        """What stands on the screen now."""
        self._take_in()
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self) -> str:
        """The same in one piece."""
        return "\n".join(self.lines)

    def press(self, keys: str) -> None:
        """Type."""
        self.child.send(keys)

    def resize(self, columns: int, rows: int) -> None:
        """Make it another size, and tell the program."""
        self._take_in()
        self.screen.resize(rows, columns)
        self.child.setwinsize(rows, columns)

    def wait_for(self, condition: Callable[[list[str]], bool], what: str) -> list[str]:
        """The screen once `condition` holds of it."""
        give_up = time.monotonic() + PATIENCE_SECONDS
        while not condition(lines := self.lines):
            assert time.monotonic() < give_up, f"{what} did not come:\n{self.text}"
        return lines

    def colours(self, row: int) -> set[str]:
        """Of the text in a row."""
        cells = self.screen.buffer[row]
        return {
            cells[column].fg for column in range(self.screen.columns) if cells[column].data != " "
        }

    def end(self) -> int:
        """Wait until the program has ended; its exit status."""
        self.wait_for(lambda _: not self.child.isalive(), "the end")
        assert self.child.exitstatus is not None
        return int(self.child.exitstatus)

    def _take_in(self) -> None:
        try:
            while True:
                piece = self.child.read_nonblocking(65536, timeout=0.05)
                self.written += piece
                self.stream.feed(piece)
        except (pexpect.TIMEOUT, pexpect.EOF):
            return


@contextmanager
def terminal(
    command: Sequence[str], columns: int = 80, rows: int = 24, **variables: str
) -> Iterator[Terminal]:
    """Runs `command` in a terminal of its own; afterwards it has ended."""
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "LC_ALL")}
    environment |= {"TERM": "screen-256color", "LANG": "C.UTF-8", **variables}
    child: pexpect.spawn[bytes] = pexpect.spawn(
        command[0],
        list(command[1:]),
        env=environment,
        dimensions=(rows, columns),
        timeout=PATIENCE_SECONDS,
    )
    screen = Screen(columns, rows)
    try:
        yield Terminal(child, screen, Stream(screen))
    finally:
        child.close(force=True)
