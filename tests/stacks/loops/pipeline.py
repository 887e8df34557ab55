"""A shell pipeline: its left side decodes, its right side trains: `... pipeline SECONDS`."""

from __future__ import annotations

import subprocess
import sys

from stacks.loops.common import burn
from stacks.loops.gpu import train

_BATCH = 65536


def _join(seconds: str) -> None:
    """Be the shell."""
    command = [sys.executable, "-m", "stacks.loops.pipeline"]
    left = subprocess.Popen([*command, seconds, "decode"], stdout=subprocess.PIPE)
    right = subprocess.Popen([*command, seconds, "train"], stdin=left.stdout)
    if left.stdout:
        left.stdout.close()
    sys.exit(right.wait())


if __name__ == "__main__":
    match sys.argv[2:]:
        case ["train"]:
            train(lambda: sys.stdin.buffer.read(_BATCH))
        case ["decode"]:
            while True:
                burn(float(sys.argv[1]))
                sys.stdout.buffer.write(bytes(_BATCH))
        case _:
            _join(sys.argv[1])
