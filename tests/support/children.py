"""A process that forks and kills its children on command."""

from __future__ import annotations

from support.programs import Program

CODE = """
import os, signal, sys, time

for line in sys.stdin:
    word, argument = line.split()
    if word == "fork":
        argument = os.fork() or time.sleep(600)
    else:
        os.kill(int(argument), signal.SIGKILL)
        os.waitpid(int(argument), 0)
    print(argument, flush=True)
"""


class Parent(Program):
    """The process, controlled through its pipes."""

    def fork(self) -> int:
        """Start a child that sleeps; returns its pid."""
        return int(self.ask("fork 0")[0])

    def end_child(self, pid: int) -> None:
        """Kill a child and wait for it, so that nothing is left of it."""
        self.ask(f"end {pid}")
