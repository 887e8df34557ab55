"""How long `report` takes for a month of a fleet, from a real Prometheus with a made-up past.

    PYTHONPATH=tests:grafana python tests/bench/report_scale.py [GPUS]

Jobs have eight GPUs and last for three hours; each waits for three causes. Writing the past takes
minutes and GBs of $TMPDIR.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from bench.fleet_day import series
from gpu_bottleneck_exporter.report.prometheus import BUSY_SERIES, STALL_SERIES
from support.command import run
from support.prometheus import on_data, write_past

DAYS, JOB_SECONDS, EVERY = 30, 3 * 3600, 300
WAITS = {"worker_cpu": 0.3, "storage": 0.1, "unknown": 0.0}


def past(gpus: int, end: int) -> Iterator[str]:
    """Series that the rules record, of each job all before the next."""
    for number in range(gpus // 8 * DAYS * 86_400 // JOB_SECONDS):
        place, turn = number % (gpus // 8), number // (gpus // 8)
        start = end - DAYS * 86_400 + turn * JOB_SECONDS + place * 60 // EVERY * EVERY
        times = range(start + EVERY, start + JOB_SECONDS + 1, EVERY)
        user = f'user="user{number % 50}"'
        labels = f'slurm_job_id="{number}",{user},workload="Slurm job {number}"'
        yield series(BUSY_SERIES, labels, 0.6 * 8 * EVERY, times)
        for cause, share in WAITS.items():
            of = f'{labels},waiting_on="{cause}"'
            yield series(STALL_SERIES, of, share * (1 + number % 7 / 7) * 8 * EVERY, times)


def main(gpus: int) -> None:
    """Print what each of three runs takes."""
    with tempfile.TemporaryDirectory(prefix="report-scale-") as name:
        folder, end = Path(name), int(time.time()) // EVERY * EVERY - 3 * 3600
        write_past(folder, past(gpus, end))
        with on_data(folder, {}) as server:
            values = ("--prometheus", f"127.0.0.1:{server.port}", "--since", f"{DAYS}d")
            process = psutil.Process(server.pid)
            for turn in range(3):
                began, theirs, ours = time.monotonic(), cpu_seconds(process), children_seconds()
                done = run(folder, "report", *values, *(["--verbose"] if turn == 0 else []))
                took, ours = time.monotonic() - began, children_seconds() - ours
                print(f"{took:.1f} s, status {done.returncode}; of CPU time {ours:.1f} s,", end=" ")
                print(f"of Prometheus' {cpu_seconds(process) - theirs:.1f} s")
                print(done.stderr, "\n".join(done.stdout.splitlines()[:5]), sep="")
            print(f"Prometheus: {process.memory_info().rss / 2**20:.0f} MiB")


def cpu_seconds(process: psutil.Process) -> float:
    """CPU seconds that `process` has used."""
    return sum(process.cpu_times()[:2])


def children_seconds() -> float:
    """Usage of this process's ended children."""
    return sum(os.times()[2:4])


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
