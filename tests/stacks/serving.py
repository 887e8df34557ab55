"""Engines and exporter in a real Prometheus: the share of the time in which rules name a cause."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from causes.nodes import Node, exporter
from fake_nvml.build import build
from gpu_bottleneck_exporter.demo.board.create import H100
from scenarios.cgroups import Unavailable
from stacks.cases import Case
from stacks.measure import Stage, staged
from stacks.servers.table import Server
from stacks.venvs import VenvError
from support.board import create
from support.prometheus import Prometheus, prometheus
from support.quickrules import MODEST, await_rules, quick_rules
from support.tools import missing
from support.waiting import until

SERVING = {"no_demand", "kv_cache_full", "batch_limited", "engine_cpu_bound", "load_imbalance"}
_SCRAPED_EVERY_SECONDS = 0.5
_SETTLING_SECONDS = 15.0
"""The longest windows of the rules, twice, and then the causes that held at the start."""
_JUDGED_SECONDS = 30.0
Shares = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine, and the clients that ask it."""

    loop: tuple[str, ...]
    """A module of loops/, and its arguments."""
    clients: tuple[str, ...] = ()
    """Arguments of servers/rate.py; empty: nobody asks."""
    venv: str = "light"


@dataclass(frozen=True, slots=True)
class Scraped:
    """Running engines, and the Prometheus that scrapes them."""

    stages: Mapping[str, Stage]
    """By the UUID of the GPU."""
    server: Prometheus

    def shares(self) -> list[Shares]:
        """By primary cause ("": none): its share of the evaluations of each engine's GPU."""
        time.sleep(_SETTLING_SECONDS)
        began = time.time()
        time.sleep(_JUDGED_SECONDS)
        for stage in self.stages.values():
            stage.check()
        return [_shares(self.server, began, uuid) for uuid in self.stages]


@contextmanager
def scraped(engines: Sequence[Engine]) -> Iterator[Scraped]:
    """`engines` side by side on GPUs that are warm, and an exporter; skips without libraries."""
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="serving-")))
        node = Node(0, folder / "node")
        node.folder.mkdir()
        build(node.library)
        node.board = create(node.folder / "board", gpus=[H100] * len(engines))
        ends.callback(node.board.close)
        stages: dict[str, Stage] = {}
        for engine, gpu in zip(engines, node.board.gpus, strict=True):
            case = Case("", "serving", engine.loop, (frozenset(),), venv=engine.venv)
            try:
                stage = ends.enter_context(staged(case, (gpu,), node.folder))
            except (Unavailable, VenvError) as reason:
                missing(f"{reason}")
            stage.await_port("/metrics")
            ends.enter_context(asked(stage, engine.clients))
            stages[gpu.record.uuid.decode()] = stage
        node.exporter = ends.enter_context(exporter(node))
        targets = {uuid: f"127.0.0.1:{stage.port}" for uuid, stage in stages.items()}
        pods = {
            uuid: {"static_configs": [{"targets": [target], "labels": {"pod": uuid}}]}
            for uuid, target in targets.items()
        }
        jobs = [
            (name, target, _SCRAPED_EVERY_SECONDS)
            for name, target in {"node": node.target, **targets}.items()
        ]
        rules = ends.enter_context(quick_rules(folder))
        server = ends.enter_context(prometheus(folder, jobs, rules, MODEST, pods))
        await_rules(server, len(jobs))
        until(lambda: len(server.query("gpu:gate:warm")) == len(engines), "GPUs that are warm")
        yield Scraped(stages, server)


@contextmanager
def asked(stage: Stage, clients: tuple[str, ...]) -> Iterator[None]:
    """Clients of an engine, if it has some."""
    if not clients:
        yield
        return
    stage.start_server("clients", Server("rate", clients, "bare", ()))
    try:
        yield
    finally:
        stage.stop_last()


def _shares(server: Prometheus, began: float, uuid: str) -> Shares:
    causes: Counter[str] = Counter()
    end = time.time()
    of_gpu = f'{{uuid="{uuid}"}}'
    for labels, samples in server.query_range(f"gpu:bottleneck:primary{of_gpu}", began, end, 1.0):
        causes[labels["cause"]] = len(samples)
    ((_, warm),) = server.query_range(f"gpu:gate:warm{of_gpu}", began, end, 1.0)
    causes[""] = len(warm) - causes.total()
    return {cause: count / len(warm) for cause, count in causes.most_common()}
