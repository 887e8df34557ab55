"""Dashboards drawn by Grafana's own packages in Chromium, on a real Prometheus.

`draw` takes jobs and leaves, in a folder, a picture of each and a `report.json` of what stands in
its panels.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import fleet_day
from grafana.boards import board
from grafana.live import DEMO, filled_prometheus
from support.daemon import HOST
from support.prometheus import Prometheus
from support.tools import require

Json = dict[str, Any]
HERE = Path(__file__).parent
WIDTHS = (1600, 1920)
GRAFANA = json.loads((HERE / "package.json").read_text())["dependencies"]["@grafana/ui"]
"""The version of Grafana whose packages draw."""
FASTER, SHOWN_SECONDS = 20, 150
"""How much faster the rules go for staged GPUs, and how much of their past is shown."""
GPUS = {
    name: {"text": f"{name} GPU 0", "value": f"GPU-{name}-0"}
    for name in ("limited", "job", "storage")
}
"""Staged: one that is throttled, a healthy one of a job, one that waits for a disk."""
_GPUS_OF_FLEET = 1000
_SCRAPED_SECONDS = 2.0
_PATIENCE_SECONDS = 300
_JUDGED = f"""
count(gpu:bottleneck:lost_ratio{{job="gpu"}}) > 5
and on () count(gpu:bottleneck:lost_ratio{{job="gpu"}} offset {SHOWN_SECONDS // 3}s) > 0
and on () count(ALERTS{{alertstate="firing", job="gpu"}} offset 1m) > 0
"""
"""Alerts are marked at whole minutes."""


@dataclass(frozen=True, slots=True)
class Source:
    """A Prometheus, how often it scrapes, and the Unix times between which it has something."""

    server: Prometheus
    scraped_every: str
    start: float
    end: float


@contextmanager
def filled(folder: Path) -> Iterator[tuple[Source, Source]]:
    """A day of a made-up fleet of 1 000 GPUs; the last minutes of the demo and of staged GPUs."""
    folders = [folder / name for name in ("now", "day")]
    for item in folders:
        item.mkdir()
    with (
        filled_prometheus(folders[0], FASTER, _SCRAPED_SECONDS) as staged,
        fleet_day.filled(folders[1], _GPUS_OF_FLEET) as (fleet, end),
    ):
        _await_causes(staged)
        now = time.time()
        yield (
            Source(fleet, "60s", end - fleet_day.DAY_SECONDS, end),
            Source(staged, f"{_SCRAPED_SECONDS:g}s", now - SHOWN_SECONDS, now),
        )


def _await_causes(server: Prometheus) -> None:
    """Await the causes of the staged GPUs, and long enough to show their beginning."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while server.query(_JUDGED) == [] and time.monotonic() < deadline:
        time.sleep(2)


def of_demo(source: Source) -> Json:
    """The demo's GPU whose job waits for its worker."""
    ((labels, _),) = source.server.query(f'gpu:up:bool{{job="{DEMO}", gpu="1"}}', source.end)
    return {"text": f"{labels['instance']} GPU 1", "value": labels["uuid"]}


def job(  # noqa: PLR0913 - a drawing has many sides
    board_name: str,
    source: Source,
    width: int,
    *,
    name: str = "",
    chosen: Mapping[str, object] | None = None,
    expanded: bool = True,
    caption: str = "",
) -> Json:
    """One drawing of a dashboard, `width` pixels wide; its name ends in that.

    `expanded`: with the panels of collapsed rows, and all annotations.
    """
    start, end = (_written(at) for at in (source.start, source.end))
    return {
        "name": f"{name or board_name}-{width}",
        "board": board(board_name),
        "prometheus": f"http://{HOST}:{source.server.port}",
        "width": width,
        "time": {"from": start, "to": end},
        "scrapeInterval": source.scraped_every,
        "chosen": chosen or {},
        "expanded": expanded,
        "caption": caption,
    }


def _written(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(at))


def draw(jobs: Iterable[Json], folder: Path) -> list[Json]:
    """Draw them all; what is reported of each. Raises CalledProcessError where that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "jobs.json").write_text(json.dumps([*jobs]))
    chromium = require("chromium", "chromium")
    command = [require("node", "nodejs"), f"{HERE / 'draw.mjs'}", "jobs.json", chromium]
    subprocess.run(command, check=True, cwd=folder, timeout=900)
    report: list[Json] = json.loads((folder / "report.json").read_text())
    return report
