"""Is the slow line of a loop named first, and is the loop slowed by that?

    PYTHONPATH=tests python -m stacktraces.bench [--rounds 9] [--seconds 8] [KIND ...]

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

from gpu_bottleneck_exporter.demo.board.create import H100, create
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.nodeview.text import code, percent
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.stacktraces.model import IdleLines
from stacktraces import planted
from support.samplers import sampling
from support.waiting import until

WARM_UP_SECONDS = 3.0


@contextmanager
def running(kind: str, board: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A planted loop, until the end of the block."""
    words = [sys.executable, planted.__file__, kind, f"{board}", "0", f"{os.getpid()}", f"{folder}"]
    with subprocess.Popen(words) as process:
        try:
            yield process
        finally:
            process.kill()


def looked(kind: str, seconds: float) -> IdleLines:
    """What is found of the loop `kind` in that time."""
    with (
        tempfile.TemporaryDirectory() as name,
        create(Path(name) / "board", gpus=[H100]) as board,
        running(kind, board.path, Path(name)),
        sampling(partial(VirtualDriver, board), Settings()) as sampler,
    ):
        assert sampler.lines
        until(lambda: sampler.state().gpus and sampler.state().gpus[0].feeding, "its feeders")
        uuid = sampler.state().gpus[0].identity.uuid
        time.sleep(WARM_UP_SECONDS)
        sampler.lines.ask(uuid, seconds)
        time.sleep(seconds + 1)
        return sampler.lines.told(uuid)


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
    options = parser.parse_args()
    right = 0
    for number in range(options.rounds * len(options.kinds)):
        kind = options.kinds[number % len(options.kinds)]
        found = looked(kind, options.seconds)
        right += is_right(kind, found)
        mark = "right" if is_right(kind, found) else f"WRONG, not {planted.hot_line(kind)}"
        told = [f"{percent(line.ratio)} {code(line)} {line.waiting_on}" for line in found.lines[:2]]
        print(f"{kind:10} {mark} of {found.looks} looks: {', '.join(told)}", flush=True)
    print(f"{right} of {options.rounds * len(options.kinds)} right")


if __name__ == "__main__":
    main()
