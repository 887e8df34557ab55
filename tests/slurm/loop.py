"""The work of a Slurm job: keeps its GPUs busy in bursts, computes in between, and keeps a record.

    python -m slurm.loop SECONDS

on each GPU that Slurm gave it, of the node's board. Prints what it recorded, as JSON.
"""

import json
import os
import random
import sys
import time
from pathlib import Path

from gpu_bottleneck_exporter.demo.board.board import Board

HELD = 2**30


def main(seconds: str, folder: str) -> None:
    board = Board(Path(folder) / os.environ["SLURMD_NODENAME"])
    gpus = [board.gpus[int(index)] for index in os.environ["CUDA_VISIBLE_DEVICES"].split(",")]
    for gpu in gpus:
        gpu.hold(os.getpid(), HELD)
    end, busy = time.monotonic() + float(seconds), 0.0
    while time.monotonic() < end:
        burst = random.uniform(0.05, 0.2)  # noqa: S311 - no secret
        ends = [gpu.launch(burst) for gpu in gpus]
        gpus[0].synchronize(max(ends))
        busy += burst
        until = time.monotonic() + random.uniform(0.02, 0.2)  # noqa: S311 - no secret
        while time.monotonic() < until:
            sum(range(1000))
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    lasted = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    gpu_indices = [gpu.index for gpu in gpus]
    json.dump({"busy": busy, "lasted": lasted, "gpus": gpu_indices}, sys.stdout)
    sys.stdout.flush()
    for gpu in gpus:  # else the next process with our number holds it
        next(process for process in gpu.record.processes if process.pid == os.getpid()).pid = 0
    os._exit(0)  # Python would take a while to end, which the record does not have


if __name__ == "__main__":
    main(*sys.argv[1:])
