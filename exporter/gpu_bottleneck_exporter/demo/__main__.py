"""One training loop on one virtual GPU: what `demo` starts, once for each of its GPUs."""

import sys
from pathlib import Path

from gpu_bottleneck_exporter.demo.jobs import JOBS, run
from gpu_bottleneck_exporter.demo.orphans import die_with_parent
from gpu_bottleneck_exporter.driver.board import Board

if __name__ == "__main__":
    path, index, name, parent = sys.argv[1:]
    die_with_parent(int(parent))
    job = next(job for job in JOBS if job.name == name)
    run(job, Board(Path(path)).gpus[int(index)])
