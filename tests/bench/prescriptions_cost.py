"""Measures what prescriptions cost: two exporters at once on one stand-in, one without them.

    python tests/bench/prescriptions_cost.py [SECONDS]

A starved GPU works for a fifth of the time: its workers wait on a timer for batches that differ, so
that the model is played for each.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.beside import cpu_shares
from bench.crowd import BUSY, STARVED, Node, feeders
from fake_nvml.build import build
from prescriptions.measure import Job, staged
from prescriptions.settings import Batch, Chain, Loop, Setting
from support.board_exporter import over_nvml

SWITCH = "GPU_EXPORTER_COLLECTOR_PRESCRIPTION"
MEASURED_SECONDS = 120.0
WARM_UP_SECONDS = 40.0
"""By then the first prescriptions have been made."""
NODES = (
    Node(8),
    Node(8, 64),
    Node(1, 8, doing=STARVED),
    Node(8, 64, doing=STARVED),
)


def main(seconds: float) -> None:
    """Print the table."""
    print("| GPUs | workers | GPUs are | with | without | difference, of one core |")
    print("|---:|---:|---|---:|---:|---:|", flush=True)
    for node in NODES:
        given, without = measure(node, seconds)
        cells = [f"{given:.2%}", f"{without:.2%}", f"{100 * (given - without):+.2f} %"]
        print(f"| {node.gpus} | {node.workers} | {node.doing} | {' | '.join(cells)} |", flush=True)


def measure(node: Node, seconds: float) -> list[float]:
    """Shares of a core, with prescriptions and without them."""
    loop = Loop(Batch(sleep=0.2, spread=0.5), node.workers // node.gpus, 0.005)
    chain = Chain("cost", node.doing, Setting(loop))
    with staged([chain] * node.gpus) as (board, stage), contextlib.ExitStack() as stack:
        library = build(stage.folder / "lib")
        if node.doing == BUSY:
            stack.enter_context(feeders(board, node))
        else:
            for gpu in board.gpus:
                job = Job(chain, gpu, stage)
                stack.callback(job.end)
                job.start(chain.first)
        pids = []
        for switch in ("true", "false"):
            os.environ[SWITCH] = switch
            pids.append(stack.enter_context(over_nvml(library, board.path)).process.pid)
        del os.environ[SWITCH]
        time.sleep(WARM_UP_SECONDS)
        return cpu_shares(pids, lambda: time.sleep(seconds))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else MEASURED_SECONDS)
