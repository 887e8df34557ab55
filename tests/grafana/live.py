"""A real Prometheus with the real rules, filled by a made-up fleet and by the demo.

All durations of the rules are divided by `FACTOR`, so that there are causes and alerts within
half a minute.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gpu_bottleneck_exporter.prescription.model import CPU_LIMIT, Outlook, Refusal
from gpu_bottleneck_exporter.rulepack import Changes, adapted, files
from rules import day
from rules.fleet import JOB, Fleet, Gpu, add_gpu
from rules.series import STALE, Labels, Series, Signal
from rules.tenants import add_shared, pod
from support.beside import Reply, Request, answering
from support.command import ANY_PORT, serving
from support.daemon import HOST
from support.prometheus import Prometheus, prometheus
from support.quickrules import MODEST
from support.states import PRESCRIBED, SCORED

FACTOR = 120
DEMO = "demo"
_EVERY = re.compile(r"^( *interval: ).*$", re.MULTILINE)
_MINUTES = 30
"""What is made of the fleet; the time in which it is served is much shorter."""

JOB_OF_FOUR: Labels = {"slurm_job_id": "4711", "user": "ada"}
POD: Labels = {"workload_namespace": "nlp", "workload_pod": "train-0", "pod_uid": "7d1f"}
ENGINE: Mapping[str, Signal] = {
    "running": 4,
    "waiting": 1,
    "kv": 0.3,
    "finished": 1,
    "prefilled": 50,
    "decoded": 100,
    "queued_seconds": 1,
    "dequeued": 2,
}
CONTAINER: Labels = {"container_id": "c0ffee"}


def fleet() -> Fleet:
    """A GPU or more for every panel; none of them changes what it does."""
    made = Fleet(_MINUTES)
    for index, busy in enumerate((0.98, 0.97, 0.98)):
        add_gpu(made, "job", Gpu(busy=busy, owner=JOB_OF_FOUR, target={"cluster": "one"}), index)
    starved = Gpu(busy=0.2, stalls={"storage": 0.8}, disk_busy=0.9, owner=JOB_OF_FOUR)
    add_gpu(made, "storage", replace(starved, outlook=Outlook(Refusal("saturated"))))
    add_gpu(made, "pod", _gpu(day.PREPROCESSING, owner=POD, outlook=Outlook(PRESCRIBED)))
    told = Outlook(replace(PRESCRIBED, knob=CPU_LIMIT, current_value=4, value=7.25), SCORED)
    limited = _gpu(day.THROTTLED, owner=CONTAINER, cpu_limit_cores=4, outlook=told)
    add_gpu(made, "limited", limited)
    add_gpu(made, "idle", _gpu(day.IDLE, owner={"user": "eve"}))
    add_gpu(made, "batch", _gpu(day.SMALL_BATCH, owner={**POD, "workload_pod": "train-1"}))
    add_gpu(made, "hot", _gpu(day.HOT_BOARD))
    add_gpu(made, "serves-0", Gpu(engine=ENGINE, energy_watts=500))
    add_gpu(made, "unknown", Gpu(busy=0.3, stalls={"unknown": 0.7}, sm=None, dram=None, pipes=None))
    add_gpu(made, "free", _gpu(day.IDLE, processes=0, memory=0.0, feeders=False))
    add_gpu(made, "down", Gpu(up=0.0, busy=STALE, processes=STALE, memory=STALE, feeders=False))
    of_limited = {"job": JOB, "instance": "limited", "gpu": "0", "uuid": "GPU-limited-0"}
    made.gauge("gpu_feeder_memory_limit_bytes", 6.4e10, **of_limited)
    for resource in ("cpu", "io", "memory"):
        name = "gpu_feeder_pressure_seconds_total"
        made.counter(name, 0.3, **of_limited, resource=resource, kind="some")
    for way in ("receive", "transmit"):
        port = {"job": JOB, "instance": "limited", "device": "mlx5_0:1"}
        made.counter(f"gpu_host_rdma_{way}_bytes_total", 2e9, **port)
    lacks = {"job": JOB, "instance": "limited", "signal": "gpm"}
    made.gauge("gpu_exporter_signal_available", 0.0, **lacks)
    tenants = [pod(name, 0.4, waits={"network": 0.1}) for name in ("a", "b")]
    add_shared(made, "shared", Gpu(busy=0.8, stalls={"network": 0.2}), tenants)
    errors = {"94": [(minute, 1 + minute) for minute in range(1, 9)]}
    add_gpu(made, "errors", Gpu(xids=errors, replays=1.0))
    return made


def _gpu(state: day.State, **others: object) -> Gpu:
    return Gpu(**{**state, **others})  # type: ignore[arg-type]


def exposition(series: Sequence[Series], seconds: float) -> str:
    """What is scraped after so many seconds; between two minutes, counters grow evenly."""
    minute, part = divmod(seconds / 60, 1)
    lines = []
    for one in series:
        now, then = one.values[int(minute)], one.values[int(minute) + 1]
        if now is not None and then is not None and not math.isnan(now + then):
            lines.append(f"{one.selector} {now + part * (then - now):.6f}")
    return "\n".join(lines) + "\n"


@contextmanager
def served(made: Fleet) -> Iterator[str]:
    """The fleet over HTTP, at host:port."""
    began = time.monotonic()

    def answer(_: Request) -> Reply:
        body = exposition(made._series, time.monotonic() - began).encode()
        return Reply(body, headers={"Content-Type": "text/plain; version=0.0.4"})

    with answering(answer) as port:
        yield f"{HOST}:{port}"


@contextmanager
def filled_prometheus(
    folder: Path, factor: int = FACTOR, scraped_every: float = 0.5
) -> Iterator[Prometheus]:
    """Prometheus that scrapes the fleet (job `gpu`) and the demo (job `demo`).

    The durations of the rules are divided by `factor`; seconds between scrapes.
    """
    paths = []
    for name, quick in adapted(files(), Changes(budgets={"nlp": 40}, scale=factor)).items():
        paths.append(folder / name)
        paths[-1].write_text(_EVERY.sub(r"\g<1>1s", quick))
    # The fleet's series have a job and an instance of their own.
    access = {key: {"honor_labels": True} for key in (JOB, DEMO)}
    with served(fleet()) as made, serving(folder, "demo", *ANY_PORT) as demo:
        jobs = [(JOB, made, scraped_every), (DEMO, demo.url.split("/")[2], scraped_every)]
        with prometheus(folder, jobs, paths, MODEST, access) as server:
            yield server
