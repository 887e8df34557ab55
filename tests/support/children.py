"""A process that forks, burns CPU and kills its children on command."""

from __future__ import annotations

import os
import signal

from support.programs import Program

CODE = """
import os, signal, sys, time

def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])  # children wait for it
for line in sys.stdin:
    word, argument = line.split()
    if word == "fork":
        pid = os.fork()
        if pid == 0:
            if float(argument):
                signal.sigwait([signal.SIGUSR1])
            burn(float(argument))
            time.sleep(600)
            os._exit(0)
        print(pid, flush=True)
    elif word == "end":
        os.kill(int(argument), signal.SIGKILL)
        os.waitpid(int(argument), 0)
        print(argument, flush=True)
    else:
        burn(float(argument))
        print(argument, flush=True)
"""


class Parent(Program):
    """The process, controlled through its pipes."""

    def fork(self, burn_seconds: float = 0.0) -> int:
        """Start a child that burns CPU once it is let; returns its pid."""
        return int(self.ask(f"fork {burn_seconds}")[0])

    def let_burn(self, pid: int) -> None:
        """Let a child begin, whose CPU time counts from when it was discovered."""
        os.kill(pid, signal.SIGUSR1)

    def end_child(self, pid: int) -> None:
        """Kill a child and wait for it, so that nothing is left of it."""
        self.ask(f"end {pid}")

    def burn(self, seconds: float) -> None:
        """Use this much CPU time in the process itself."""
        self.ask(f"burn {seconds}")
