"""A shell pipeline: its left side decodes, its right side trains: `... pipeline SECONDS`."""

from __future__ import annotations

import subprocess
import sys

from stacks.loops.common import burn
from stacks.loops.gpu import train

_BATCH = 65536


def _join(seconds: str) -> None:
    """Be the shell."""
    command = [sys.executable, "-m", "stacks.loops", "pipeline"]
    left = subprocess.Popen([*command, seconds, "decode"], stdout=subprocess.PIPE)
    right = subprocess.Popen([*command, seconds, "train"], stdin=left.stdout)
    if left.stdout:
        left.stdout.close()
    sys.exit(right.wait())


def main(seconds: str, side: str = "") -> None:
    """Be one of the sides, or who joins them."""
    if side == "train":
        train(lambda: sys.stdin.buffer.read(_BATCH))
    if not side:
        _join(seconds)
    while True:
        burn(float(seconds))
        sys.stdout.buffer.write(bytes(_BATCH))
