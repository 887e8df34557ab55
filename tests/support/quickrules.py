"""The shipped rule pack with all durations divided, so that tests need no hours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_bottleneck_exporter.rulepack import Changes, adapted, files
from support.prometheus import Prometheus
from support.waiting import until

FACTOR = 120
"""Ten minutes become five seconds; most rate windows still contain two ticks of 1 s."""
MODEST = {"GOMAXPROCS": "1", "GOGC": "400"}
"""Environment of Prometheus: saves CPU time; memory does not matter."""
_CONSTANTS = "thresholds.yml"
_EVALUATED_EVERY = "1s"
_CONSTANTS_EVALUATED_EVERY = "5s"
_INTERVAL = re.compile(r"^( *interval: ).*$", re.MULTILINE)
_A_DAY = re.compile(r"(?<=\[)1d(?=\])|(?<=offset )1d\b")
_WANTED = ("gpu:threshold:evidence", "gpu:cause:order", "cluster:gpus_held:count")


@contextmanager
def quick_rules(folder: Path, day: str = "1d") -> Iterator[list[Path]]:
    """Write the rule files to `folder`; `day`, before division, stands for a day.

    Groups are evaluated every second whatever the factor: Prometheus takes CPU time away from
    what it watches.
    """
    paths: list[Path] = []
    try:
        texts = {name: _A_DAY.sub(day, text) for name, text in files().items()}
        for name, quick in adapted(texts, Changes(scale=FACTOR)).items():
            every = _CONSTANTS_EVALUATED_EVERY if name == _CONSTANTS else _EVALUATED_EVERY
            paths.append(folder / name)
            paths[-1].write_text(_INTERVAL.sub(rf"\g<1>{every}", quick))
        yield paths
    finally:
        for path in paths:
            path.unlink()


def await_rules(server: Prometheus, targets: int = 1) -> None:
    """Wait: Prometheus takes some seconds to find its targets and to start its groups."""
    values = (f"count(up == 1) == {targets}", *_WANTED)
    until(lambda: all(server.query(query) for query in values), "the rules' first values")
