"""A shell pipeline: its left side decodes, its right side trains: `... pipeline [healthy]`."""

from __future__ import annotations

import subprocess
import sys

from stacks.loops.common import QUICK, WAIT, burn, train

_BATCH = 65536


def _decode(seconds: float) -> None:
    while True:
        burn(seconds)
        sys.stdout.buffer.write(bytes(_BATCH))


def _join(how: str) -> None:
    """Be the shell."""
    command = [sys.executable, "-m", "stacks.loops.pipeline"]
    left = subprocess.Popen([*command, how], stdout=subprocess.PIPE)
    right = subprocess.Popen([*command, "train"], stdin=left.stdout)
    if left.stdout:
        left.stdout.close()
    sys.exit(right.wait())


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["train"]:
            train(lambda: sys.stdin.buffer.read(_BATCH))
        case ["decode"]:
            _decode(WAIT)
        case ["decode-quickly"]:
            _decode(QUICK)
        case ["healthy"]:
            _join("decode-quickly")
        case _:
            _join("decode")
