"""Is the slow line of a loop named first, and is the loop slowed by that?

    PYTHONPATH=tests python -m stacktraces.bench [--rounds 9] [--seconds 8] [--pairs 20] [KIND ...]

watches loops in which one line is slow (`planted`), each on a virtual GPU of its own, one after
the other.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import mean, median, stdev

from gpu_bottleneck_exporter.demo.board.create import H100, create
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.nodeview.text import code, percent
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.stacktraces.model import IdleLines
from gpu_bottleneck_exporter.stacktraces.watch import LineWatch
from stacktraces import planted
from support.samplers import sampling
from support.waiting import until

WARM_UP_SECONDS = 3.0
SETTINGS = Settings()


@contextmanager
def running(kind: str, board: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A planted loop, until the end of the block."""
    words = [sys.executable, planted.__file__, kind, f"{board}", "0", f"{os.getpid()}", f"{folder}"]
    with subprocess.Popen(words) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def watching(kind: str, settings: Settings = SETTINGS) -> Iterator[tuple[LineWatch, str, Path]]:
    """Sampler of the loop `kind`, once it is known, its GPU's uuid and its folder."""
    with tempfile.TemporaryDirectory() as name, create(Path(name) / "board", gpus=[H100]) as board:
        (Path(name) / "count").write_bytes(bytes(8))
        with (
            running(kind, board.path, Path(name)),
            sampling(partial(VirtualDriver, board), settings) as sampler,
        ):
            assert sampler.lines
            until(lambda: sampler.state().gpus and sampler.state().gpus[0].feeding, "its feeders")
            time.sleep(WARM_UP_SECONDS)
            yield sampler.lines, sampler.state().gpus[0].identity.uuid, Path(name)


def looked(kind: str, seconds: float) -> IdleLines:
    """Lines found of the loop `kind` in that time."""
    with watching(kind) as (lines, uuid, _):
        lines.request(uuid, seconds)
        time.sleep(seconds + 1)
        return lines.result(uuid)


def slowed(pairs: int, seconds: float) -> list[float]:
    """Slow-down by samples of a loop that never rests, in each pair; on a quiet machine only."""
    with watching("counting") as (lines, uuid, folder):

        def done() -> int:
            began = counted(folder)
            time.sleep(seconds)
            return counted(folder) - began

        values = []
        for _ in range(pairs):
            before = done()
            lines.request(uuid, seconds)
            values.append(1 - done() / before)
            time.sleep(1)
    return values


def counted(folder: Path) -> int:
    """Steps done by the loop."""
    return int.from_bytes((folder / "count").read_bytes(), sys.byteorder)


def is_right(kind: str, found: IdleLines) -> bool:
    """Whether the slow line comes first."""
    first = found.lines[0] if found.lines else None
    return first is not None and (Path(first.file).name, first.line) == (
        "planted.py",
        planted.hot_line(kind),
    )


def main() -> None:
    """Watch each kind so often; print what came first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=[*planted.KINDS], metavar="KIND")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--pairs", type=int, default=0, help="only measure how looks slow a loop")
    options = parser.parse_args()
    if options.pairs:
        ratios = slowed(options.pairs, options.seconds)
        error = stdev(ratios) / len(ratios) ** 0.5
        print(f"slowed by {mean(ratios):.2%} ± {error:.2%}, median {median(ratios):.2%}")
        return
    right = 0
    for number in range(options.rounds * len(options.kinds)):
        kind = options.kinds[number % len(options.kinds)]
        result = looked(kind, options.seconds)
        right += is_right(kind, result)
        mark = "right" if is_right(kind, result) else f"WRONG, not {planted.hot_line(kind)}"
        values = [
            f"{percent(line.ratio)} {code(line)} {line.waiting_on}" for line in result.lines[:2]
        ]
        print(f"{kind:10} {mark} of {result.looks} looks: {', '.join(values)}", flush=True)
    print(f"{right} of {options.rounds * len(options.kinds)} right")


if __name__ == "__main__":
    main()
