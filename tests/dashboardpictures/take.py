"""Pictures of the dashboards: their own JSON, on a real Prometheus with the rules and the demo.

    PYTHONPATH=tests python -m dashboardpictures.take exporter/pictures

Takes four minutes, on a machine that does nothing else. There is no Grafana in it: the panels are
drawn here, and what Grafana would draw in another way than this can is refused.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dashboardpictures.asking import Source, Window, variables
from dashboardpictures.page import WIDTH, page
from gpu_bottleneck_exporter.demo.alerts import SCALE
from gpu_bottleneck_exporter.rulepack import files, for_dialect, scaled
from grafana.boards import NAMES, board
from support.browser import chromium, opened
from support.command import ANY_PORT, serving
from support.prometheus import Prometheus, prometheus

Json = dict[str, Any]

_RUN_SECONDS, _SHOWN_SECONDS = 240, 225
_SCRAPED_EVERY = 1.0
_JOB, _INSTANCE = "gpu", "demo"
_GPU = "1"
"""The one that waits for its worker."""
_COST = "2.50"
_CAUSES = {"1": "cpu_preprocessing_bound", "2": "host_loop_bound", "3": "allocated_idle"}
"""What the rules make of the demo's GPUs where they have the machine for themselves."""


def main(folder: Path) -> None:
    """Take them all."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        with watched_demo(Path(scratch)) as server:
            time.sleep(_RUN_SECONDS)
            refuse_busy_machine(server)
            drawn = pages(server, time.time())
        shoot(drawn, Path(scratch), folder)


@contextmanager
def watched_demo(folder: Path) -> Iterator[Prometheus]:
    """The demo, and a Prometheus with the rules, all of whose durations are divided by SCALE."""
    rules = []
    for name, text in for_dialect(files(), "exporter").items():
        rules.append(folder / name)
        rules[-1].write_text(scaled(text, SCALE))
    with serving(folder, "demo", *ANY_PORT) as demo:
        target = demo.url.split("/")[2]
        labelled = {"targets": [target], "labels": {"instance": _INSTANCE}}
        access = {_JOB: {"static_configs": [labelled]}}
        jobs = [(_JOB, target, _SCRAPED_EVERY)]
        with prometheus(folder, jobs, rules, access=access) as server:
            yield server


def refuse_busy_machine(source: Source) -> None:
    """End where other work has changed what the demo's GPUs wait for."""
    causes = {one["gpu"]: one["cause"] for one, _ in source.query("gpu:bottleneck:lost_ratio")}
    if causes != _CAUSES:
        sys.exit(f"no pictures of the dashboards: something else keeps the machine busy: {causes}")


def pages(source: Source, now: float) -> dict[str, str]:
    """Each dashboard as HTML, as it is `now`."""
    ((labels, _),) = source.query(f'gpu:up:bool{{gpu="{_GPU}"}}', now)
    chosen = {"gpu": labels["uuid"], "cost": _COST}
    texts = {"gpu": f"{_INSTANCE} GPU {_GPU}"}
    drawn = {}
    for name in NAMES:
        model = board(name)
        values = variables(model, chosen)
        window = Window(source, values, now - _SHOWN_SECONDS, now, SCALE)
        drawn[name] = page(model, window, _bar(model, values, texts), _caption(name))
    return drawn


def _bar(model: Json, values: Mapping[str, str], texts: Mapping[str, str]) -> dict[str, str]:
    """What a dashboard's variables show, by label; without hidden ones."""
    return {
        one["label"]: "All" if one.get("allValue") else texts.get(one["name"], values[one["name"]])
        for one in model["templating"]["list"]
        if not one["hide"]
    }


def _caption(name: str) -> str:
    return (
        f"Drawn from grafana/{name}.json by this project's own tool, not by Grafana. Data: "
        f"{_SHOWN_SECONDS} s of gpu-bottleneck-exporter demo (simulated GPUs, real processes); the "
        f"rules, and with them GPU-hours, run {SCALE} times as fast as they would."
    )


def shoot(drawn: Mapping[str, str], scratch: Path, folder: Path) -> None:
    """Write a PNG of each page."""
    with chromium() as browser:
        for name, html in drawn.items():
            file = scratch / f"{name}.html"
            file.write_text(html, encoding="utf-8")
            with opened(browser, file.as_uri(), viewport={"width": WIDTH, "height": 900}) as (p, _):
                p.screenshot(path=folder / f"dashboard-{name}.png", full_page=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
