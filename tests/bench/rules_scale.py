"""Cost of the rules for Prometheus, by the size of the fleet.

    PYTHONPATH=tests:grafana python tests/bench/rules_scale.py [GPUS ...]

Each row is a separate real Prometheus that scrapes made-up nodes of eight GPUs once a minute, with
the pack as shipped. The past that the longest windows need is written beforehand, except for those
of a day. Takes 10 minutes a row; 10 000 GPUs take GBs of memory and of $TMPDIR.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median

import promql_parser as promql
import psutil
from prometheus_client.parser import text_string_to_metric_families

from bench.fleet_day import series
from deploy.machine import recorded_names
from gpu_bottleneck_exporter import rulepack
from grafana.live import exposition
from rules import day
from rules.fleet import Fleet, Gpu, add_gpu
from rules.parsed import rules
from rules.series import Series
from support.beside import Reply, Request, answering
from support.daemon import HOST, get
from support.prometheus import Prometheus, on_data, write_past

SIZES = (1000, 5000, 10_000)
GPUS_PER_NODE = 8
SCRAPED_EVERY_SECONDS = 60
EVALUATED_EVERY_SECONDS = 60
"""The interval in the rule groups."""
SETTLED_AFTER_SECONDS = 330
"""The five-minute windows are full, the ten-minute one is half full."""
WATCHED_SECONDS = 180
HISTORY_SECONDS = 7200
LONG_SECONDS = 900
"""Longer windows are filled beforehand, from recorded series."""
STATES: Sequence[day.State] = (
    *[day.WELL] * 9,
    *(day.IDLE, day.STORAGE, day.REMOTE, day.FEW_WORKERS),
    *(day.PREPROCESSING, day.THROTTLED, day.LOOP, day.COPYING),
)
"""Half of the GPUs are healthy; states are per node, as a job has whole nodes."""
OWNER = {"workload_namespace": "team", "workload_pod": "train", "workload_container": "main"}
MINUTES = 60
"""Exposition of the nodes; the time in which they are served is shorter."""


@dataclass(frozen=True, slots=True)
class Found:
    """One reading of Prometheus' own metrics."""

    seconds: Mapping[str, float]
    """Duration of the last evaluation, by group."""
    missed: float
    series: float
    sent: float
    """Series that a fleet's central engine receives, as documented."""
    cpu_seconds: float
    resident_bytes: float


def main(sizes: Sequence[int]) -> None:
    """Print the table."""
    head = "GPUs,series,sent on,all groups in s,share of 60 s,slowest group in s,missed,CPU,RSS"
    print(f"| {head.replace(',', ' | ')} |")
    print("|---:" * len(head.split(",")) + "|")
    for gpus in sizes:
        print(row(gpus, measured(gpus)), flush=True)


def row(gpus: int, found: Sequence[Found]) -> str:
    """Medians of the readings."""
    total = median(sum(item.seconds.values()) for item in found)
    name = max(found[-1].seconds, key=lambda group: found[-1].seconds[group])
    slowest = median(item.seconds[name] for item in found)
    cores = (found[-1].cpu_seconds - found[0].cpu_seconds) / WATCHED_SECONDS
    resident = max(item.resident_bytes for item in found)
    cells = [
        f"{gpus:,}".replace(",", " "),
        f"{found[-1].series / 1e6:.2f} M",
        f"{found[-1].sent / 1e3:.0f} k",
        f"{total:.1f}",
        f"{total / EVALUATED_EVERY_SECONDS:.0%}",
        f"{name} {slowest:.1f}",
        f"{found[-1].missed - found[0].missed:.0f}",
        f"{cores:.2f} cores",
        f"{resident / 2**30:.1f} GiB",
    ]
    return f"| {' | '.join(cells)} |"


def measured(gpus: int) -> list[Found]:
    """Readings over the watched time, one for each evaluation."""
    nodes = gpus // GPUS_PER_NODE
    with tempfile.TemporaryDirectory(prefix="rules-scale-") as name, serving() as port:
        folder = Path(name)
        fill(folder, nodes, int(time.time()) // EVALUATED_EVERY_SECONDS * EVALUATED_EVERY_SECONDS)
        with on_data(folder, config(folder, nodes, port)) as server:
            time.sleep(SETTLED_AFTER_SECONDS)
            values = []
            for _ in range(WATCHED_SECONDS // EVALUATED_EVERY_SECONDS + 1):
                values.append(reading(server))
                time.sleep(EVALUATED_EVERY_SECONDS)
            return values


def config(folder: Path, nodes: int, port: int) -> Mapping[str, object]:
    """All nodes are paths on one server."""
    paths = []
    for name, text in rulepack.adapted(rulepack.files(), rulepack.Changes()).items():
        paths.append(folder / name)
        paths[-1].write_text(text)
    address = {"source_labels": ["__address__"]}
    job = {
        "job_name": "gpu",
        "scrape_interval": f"{SCRAPED_EVERY_SECONDS}s",
        "scrape_timeout": f"{SCRAPED_EVERY_SECONDS}s",
        "static_configs": [{"targets": [node_name(number) for number in range(nodes)]}],
        "relabel_configs": [
            {**address, "target_label": "instance"},
            {**address, "target_label": "__metrics_path__", "replacement": "/$1"},
            {"target_label": "__address__", "replacement": f"{HOST}:{port}"},
        ],
    }
    return {"rule_files": [f"{path}" for path in paths], "scrape_configs": [job]}


def reading(server: Prometheus) -> Found:
    """Its own metrics now."""
    _, body = get(server.port, "/metrics")
    families = text_string_to_metric_families(body.decode())
    samples = [sample for family in families for sample in family.samples]
    by_group = {
        sample.labels["rule_group"].rpartition(";")[2]: sample.value
        for sample in samples
        if sample.name == "prometheus_rule_group_last_duration_seconds"
    }
    late = "prometheus_rule_group_iterations_missed_total"
    process = psutil.Process(server.pid)
    return Found(
        seconds=by_group,
        missed=sum(sample.value for sample in samples if sample.name == late),
        series=next(s.value for s in samples if s.name == "prometheus_tsdb_head_series"),
        sent=server.value(f'count({{__name__=~"{recorded_names().pattern}"}})'),
        cpu_seconds=sum(process.cpu_times()[:2]),
        resident_bytes=process.memory_info().rss,
    )


def node_name(number: int) -> str:
    return f"node-{number:05}"


@cache
def node(kind: int) -> Sequence[Series]:
    """The series of a node whose GPUs are in state `kind`."""
    fleet = Fleet(MINUTES)
    gpu = replace(Gpu(**STATES[kind]), owner=OWNER)  # type: ignore[arg-type]
    for index in range(GPUS_PER_NODE):
        add_gpu(fleet, "node", gpu, index)
    return [item for item in fleet._series if item.name != "up"]


def exposed(number: int, seconds: float) -> bytes:
    """The exposition of node `number` this long after the start."""
    text = exposition(node(number % len(STATES)), seconds)
    text = re.sub('(job="gpu"|instance="node"),?', "", text)
    text = text.replace("GPU-node-", f"GPU-{number}-").replace('"train"', f'"train-{number // 4}"')
    return text.encode()


@contextmanager
def serving() -> Iterator[int]:
    """A server of all nodes; yields its port."""
    began = time.monotonic()

    def answer(request: Request) -> Reply:
        number = int(request.path.rpartition("-")[2])
        body = exposed(number, time.monotonic() - began)
        return Reply(body, headers={"Content-Type": "text/plain; version=0.0.4"})

    with answering(answer) as port:
        yield port


def long_windows() -> set[str]:
    """Recorded series with long look-back in rules."""
    pack = rules()
    recorded = {rule.name for rule in pack if not rule.is_alert}
    return {
        name
        for rule in pack
        for matrix in rule.nodes(promql.MatrixSelector)
        if matrix.range.total_seconds() > LONG_SECONDS
        and (name := matrix.vector_selector.name) in recorded
        and "dcgm" not in name
    }


def fill(folder: Path, nodes: int, end: int) -> None:
    """Write the past of these series as a block."""
    times = range(end - HISTORY_SECONDS, end, EVALUATED_EVERY_SECONDS)
    owners = [
        f'instance="{node_name(number)}",gpu="{index}",uuid="GPU-{number}-{index}"'
        for number in range(nodes)
        for index in range(GPUS_PER_NODE)
    ]
    names = sorted(long_windows())
    past = (series(name, f'job="gpu",{owner}', 0.5, times) for name in names for owner in owners)
    write_past(folder, past)


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or SIZES)
