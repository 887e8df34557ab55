"""A real pseudo-terminal: shows what a program has drawn, and sends it keys."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pexpect
import pyte

from support.waiting import PATIENCE_SECONDS, until


class Screen(pyte.Screen):
    """pyte's screen, with scrolling by several lines, which curses uses if it can."""

    def scroll_up(self, count: int = 1) -> None:
        """CSI S: lines disappear at the top of the scrolling region."""
        self._at_its_top(self.delete_lines, count)

    def scroll_down(self, count: int = 1) -> None:
        """CSI T: empty lines appear at its top."""
        self._at_its_top(self.insert_lines, count)

    def _at_its_top(self, change: Callable[[int], None], count: int) -> None:
        x, y = self.cursor.x, self.cursor.y
        self.cursor.y = self.margins.top if self.margins else 0
        change(count)
        self.cursor.x, self.cursor.y = x, y


class Stream(pyte.ByteStream):
    """pyte's stream, with these sequences."""

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
        """The lines on the screen now."""
        self._take_in()
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self) -> str:
        """The screen as one text."""
        return "\n".join(self.lines)

    def press(self, keys: str) -> None:
        """Type."""
        self.child.send(keys)

    def resize(self, columns: int, rows: int) -> None:
        """Resize it, and notify the program."""
        self._take_in()
        self.screen.resize(rows, columns)
        self.child.setwinsize(rows, columns)

    def wait_for(self, condition: Callable[[list[str]], bool], what: str) -> list[str]:
        """The screen once `condition` is true of it."""
        return until(
            lambda: lines if condition(lines := self.lines) else None,
            lambda: f"{what}:\n{self.text}",
        )

    def colours(self, row: int) -> set[str]:
        """The colours of the text in a row."""
        cells = self.screen.buffer[row]
        return {
            cells[column].fg for column in range(self.screen.columns) if cells[column].data != " "
        }

    def end(self) -> int:
        """Wait until the program ends; returns its exit status."""
        self.wait_for(lambda _: not self.child.isalive(), "the end")
        self._take_in()  # what it wrote last
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
    """Run `command` in its own terminal; it has ended afterwards."""
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
        # `close` gives a killed program a tenth of a second to be gone.
        child.terminate(force=True)
        until(lambda: not child.isalive(), "the end of the program")
        child.close()
