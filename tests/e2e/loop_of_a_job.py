"""A short job on a virtual GPU that keeps its own record.

    python tests/e2e/loop_of_a_job.py BOARD SECONDS

works in bursts, computing in between, and prints how many seconds of work it gave the GPU.
"""

import os
import random
import sys
import time
from pathlib import Path

from gpu_bottleneck_exporter.demo.board.board import Board

CONTEXT_SECONDS = 0.25
"""CUDA takes longer to create a context: no process works in the window in which it started."""


def main(board: str, seconds: str) -> None:
    gpu = Board(Path(board)).gpus[0]
    time.sleep(CONTEXT_SECONDS)
    gpu.hold(os.getpid(), 2**30)
    end, busy = time.monotonic() + float(seconds), 0.0
    while time.monotonic() < end:
        burst = random.uniform(0.05, 0.2)  # noqa: S311 - no secret
        gpu.run(burst)
        busy += burst
        until = time.monotonic() + random.uniform(0.02, 0.2)  # noqa: S311 - no secret
        while time.monotonic() < until:
            sum(range(1000))
    sys.stdout.write(f"{busy}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
