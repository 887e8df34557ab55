"""A tenant of a virtual GPU that keeps it busy in turns with others.

    python tests/e2e/loop_in_turns.py BOARD GPU SECONDS

runs kernels of SECONDS, each once the one before has ended.
"""

import os
import sys
from pathlib import Path

from gpu_bottleneck_exporter.demo.board.board import Board


def main(board: str, index: str, seconds: str) -> None:
    gpu = Board(Path(board)).gpus[int(index)]
    gpu.hold(os.getpid(), 2**30)
    while True:
        gpu.run(float(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
