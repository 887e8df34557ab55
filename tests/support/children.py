"""A process that forks and kills its children on command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from support.programs import Program, program

_CODE = """
ready()
for line in sys.stdin:
    word, argument = line.split()
    if word == "fork":
        argument = os.fork() or time.sleep(600)
    else:
        os.kill(int(argument), signal.SIGKILL)
        os.waitpid(int(argument), 0)
    ready(argument)
"""


class Parent(Program):
    """The process, controlled through its pipes."""

    def fork(self) -> int:
        """Start a child that sleeps; returns its pid."""
        return int(self.ask("fork 0")[0])

    def end_child(self, pid: int) -> None:
        """Kill a child and wait for it, so that nothing is left of it."""
        self.ask(f"end {pid}")


@contextmanager
def parent() -> Iterator[Parent]:
    """One, with its children, until the end of the block."""
    with program(_CODE) as process:
        yield Parent(process.process)
