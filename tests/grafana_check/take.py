"""The pictures of the dashboards in the READMEs, drawn by Grafana's own packages."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from grafana_check.stage import FASTER, GPUS, GRAFANA, WIDTHS, Json, Source, draw, filled, job

_DAY = "Data: a day of a made-up fleet of 1 000 GPUs."
_NOW = (
    "Data: minutes of gpu-bottleneck-exporter demo and of made-up GPUs; the rules, and with them "
    f"GPU-hours, run {FASTER} times as fast as they would."
)


def main(folder: Path) -> None:
    """Take them all."""
    with tempfile.TemporaryDirectory() as scratch:
        drawn = Path(scratch) / "drawn"
        with filled(Path(scratch)) as (day, now):
            draw(_jobs(day, now), drawn)
        for picture in drawn.glob("*.png"):
            shutil.copy(picture, folder / f"dashboard-{picture.name}")


def _jobs(day: Source, now: Source) -> Iterator[Json]:
    for width in WIDTHS:
        drawn_by = f"Drawn by the packages of Grafana {GRAFANA} at {width} pixels."
        result: Json = {"expanded": False, "caption": f"{drawn_by} {_NOW}"}
        of_day = {**result, "chosen": {"cost": "2.5"}, "caption": f"{drawn_by} {_DAY}"}
        yield job("fleet", day, width, **of_day)
        yield job("gpu", now, width, chosen={"gpu": GPUS["limited"]}, **result)
        yield job("exporter", now, width, **result)
