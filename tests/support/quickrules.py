"""The rule pack as shipped with all durations divided, for a Prometheus that has no hours."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_bottleneck_exporter.rulepack import files, for_dialect, scaled
from support.prometheus import Prometheus

FACTOR = 120
"""Ten minutes become five seconds; the window of most rates still holds two ticks of 1 s."""
MODEST = {"GOMAXPROCS": "1", "GOGC": "400"}
"""For Prometheus: little CPU time; memory does not matter."""
_CONSTANTS = "thresholds.yml"
_EVALUATED_EVERY = "1s"
_CONSTANTS_EVALUATED_EVERY = "5s"
_INTERVAL = re.compile(r"^( *interval: ).*$", re.MULTILINE)
_A_DAY = re.compile(r"(?<=\[)1d(?=\])|(?<=offset )1d\b")
_WANTED = ("gpu:threshold:evidence", "gpu:cause:order", "cluster:gpus_held:count")
_PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 0.5


@contextmanager
def quick_rules(folder: Path, day: str = "1d") -> Iterator[list[Path]]:
    """Rule files in `folder`; `day`, of the time before it is divided, stands for a day.

    Groups are evaluated every second whatever the factor: Prometheus takes its CPU time from
    what it watches.
    """
    paths: list[Path] = []
    try:
        for name, text in for_dialect(files(), "exporter").items():
            every = _CONSTANTS_EVALUATED_EVERY if name == _CONSTANTS else _EVALUATED_EVERY
            quick = scaled(_A_DAY.sub(day, text), FACTOR)
            paths.append(folder / name)
            paths[-1].write_text(_INTERVAL.sub(rf"\g<1>{every}", quick))
        yield paths
    finally:
        for path in paths:
            path.unlink()


def await_rules(server: Prometheus, targets: int = 1) -> None:
    """Prometheus needs some seconds to find its targets and to begin with its groups."""
    wanted = (f"count(up == 1) == {targets}", *_WANTED)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not all(server.query(query) for query in wanted):
        assert time.monotonic() < deadline, "Prometheus does not evaluate the rules"
        time.sleep(_POLL_SECONDS)
