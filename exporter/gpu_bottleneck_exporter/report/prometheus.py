"""Jobs from a Prometheus that evaluates our rules, by queries over recorded series.

Totals come from `workload:busy_gpu_seconds:sum10m` and `workload:stall_gpu_seconds:sum10m`; what
each GPU of a job did, from the series of its GPUs while it had them.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import urlencode

import click

from gpu_bottleneck_exporter.accounting import stall
from gpu_bottleneck_exporter.errors import ExporterError, printable
from gpu_bottleneck_exporter.fetch import Server
from gpu_bottleneck_exporter.jobs.model import Gpu, Job, Use, placed, total
from gpu_bottleneck_exporter.nodeview.wire import parsed, read
from gpu_bottleneck_exporter.prescription import model as knobs
from gpu_bottleneck_exporter.report.bill import Bill, Track, bill_of, by_owner
from gpu_bottleneck_exporter.report.gather import gather

BUSY, STALL = "workload:busy_gpu_seconds:sum10m", "workload:stall_gpu_seconds:sum10m"
MOST_BYTES = 64 * 2**20
_LONGEST_NAME = 253
_AT_ONCE = 2
"""Queries: as many as a small Prometheus has cores."""
_OWNER = "workload_namespace, workload_pod, slurm_job_id, user, workload"
_JOB = f"cluster, {_OWNER}"
_GPU = "job, instance, gpu, uuid"
_STEP_SECONDS = 60
"""Of what is looked at GPU by GPU: as often as rules record it."""
_ENDED_SECONDS = 600.0
"""What rules have not seen for so long has ended."""
_AGAINST: Mapping[str, Sequence[str]] = {
    knobs.NUM_WORKERS: (stall.WORKER_CPU, stall.STORAGE, stall.NETWORK),
    knobs.CPU_LIMIT: (stall.CPU_QUOTA,),
    knobs.CPU_CORES: (stall.CPU_QUEUE,),
    knobs.HOST_CODE: (stall.HOST_CODE,),
    knobs.CHECKPOINTS: (stall.STORAGE,),
}
"""What a change of each setting is against: the largest of these."""
Labels = Mapping[str, str]
Key = tuple[tuple[str, str], ...]
"""Labels with their values."""
Row = tuple[Labels, float]
"""A series: its labels and its value."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A Prometheus, or what has its API."""

    server: Server
    deadline_seconds: float
    verbose: bool = False

    def ask(self, queries: Mapping[str, str], **at: float) -> dict[str, list[Row]]:
        """The result of each PromQL query, by name, now or at a `time`.

        Raises ExporterError if one fails.
        """
        calls = {name: partial(self._asked, query, **at) for name, query in queries.items()}
        answers, missing = gather(calls, self.deadline_seconds, _AT_ONCE, self.server.name)
        for why in missing:
            raise ExporterError(why)
        return answers

    def _asked(self, query: str, **at: float) -> list[Row]:
        if self.verbose:
            click.echo(f"query {query}", err=True)
        asked = urlencode({"query": query, **at})
        body = self.server.get(f"/api/v1/query?{asked}", MOST_BYTES, (400, 422, 503))
        try:
            found = parsed(body)
            if found["status"] == "success":
                rows = (_row(one) for one in found["data"]["result"])
                return [row for row in rows if math.isfinite(row[1])]
            why = printable(f"{found['error']}", _LONGEST_NAME)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            url = self.server.address("/api/v1/query")
            raise ExporterError(f"{url} is not the API of a Prometheus") from error
        raise ExporterError(f"{self.server.name} refuses a query: {why}")


def _row(given: Any) -> Row:  # noqa: ANN401 - JSON
    labels = {name: printable(text, _LONGEST_NAME) for name, text in given["metric"].items()}
    return labels, float(given["value"][1])


def totals(engine: Engine, owner: str | None, seconds: float, most: int) -> Bill:
    """All jobs of the last `seconds`, or those of a user or namespace; the worst are listed."""
    whose = [f"{label}={json.dumps(owner)}" for label in ("user", "workload_namespace")]

    def sums(name: str, by: str, also: str = "") -> str:
        wanted = [also] if owner is None else [f"{one}, {also}" if also else one for one in whose]
        return " or ".join(
            f"sum by ({by}) (sum_over_time({name}{{{one}}}[{seconds:.0f}s]))" for one in wanted
        )

    found = engine.ask(
        {
            "busy": sums(BUSY, "workload_namespace, user"),
            "stall": sums(STALL, "workload_namespace, user, waiting_on"),
            "worst": f"topk({most}, {sums(STALL, _JOB)})",
            "count": f"count({sums(BUSY, _JOB)})",
            "followed": "sum(cluster:predictions:count)",
            "inside": "sum(cluster:predictions:count * cluster:predictions_inside:ratio)"
            " / sum(cluster:predictions:count)",
            "error": "max(cluster:predictions_error:median)",
        }
    )
    owners = by_owner((_job(key).owner_name, use) for key, use in _uses(found).items())
    jobs: list[Job] = []
    if names := sorted({labels.get("workload", "") for labels, _ in found["worst"]}):
        worst = f"workload=~{json.dumps('|'.join(map(re.escape, names)))}"
        of_jobs = engine.ask(
            {"busy": sums(BUSY, _JOB, worst), "stall": sums(STALL, f"{_JOB}, waiting_on", worst)}
        )
        jobs = [replace(_job(key), summed=use) for key, use in _uses(of_jobs).items()]
    track = [rows[0][1] for name in ("followed", "inside", "error") if (rows := found[name])]
    return replace(
        bill_of(jobs, most),
        count=int(sum(value for _, value in found["count"])),
        use=total(owners.values()),
        owners=owners,
        track=Track(int(track[0]), *track[1:]) if len(track) == len(Track._fields) else None,
    )


def detailed(engine: Engine, wanted: str, seconds: float) -> list[Job]:
    """Jobs of the last `seconds` with what each GPU did; `wanted`: matchers of their series."""
    info, by = f"gpu:owner:info{{{wanted}}}", f"{_GPU}, {_JOB}"
    seen = f"timestamp({info})[{seconds:.0f}s:{_STEP_SECONDS}s]"
    found = engine.ask(
        {
            "first": f"min by ({by}) (min_over_time({seen}))",
            "last": f"max by ({by}) (max_over_time({seen}))",
        }
    )
    starts = {_key(labels): at - _STEP_SECONDS for labels, at in found["first"]}
    ends = {_key(labels): at for labels, at in found["last"] if _key(labels) in starts}
    if not ends:
        return []
    end = max(ends.values())
    lasting = f"{end - min(starts.values()):.0f}s"
    uuids = "|".join(sorted({re.escape(labels.get("uuid", "")) for labels, _ in found["first"]}))
    gpus = f"uuid=~{json.dumps(uuids)}"

    def of_gpus(name: str, also: str = "") -> str:
        joined = f"{name}{{{gpus}}} * on ({_GPU}) group_left ({_OWNER}) {info}"
        summed = f"sum_over_time(({joined})[{lasting}:{_STEP_SECONDS}s])"
        return f"{_STEP_SECONDS} * sum by ({by}{also}) ({summed})"

    advice = f'{{__name__=~"gpu:prescription:.*", knob!="", {gpus}}}'
    came = engine.ask(
        {
            "busy": of_gpus("gpu:busy:ratio_rate5m"),
            "stall": of_gpus("gpu:stall:ratio_rate5m", ", waiting_on"),
            "advice": f"last_over_time({advice}[{lasting}])",
        },
        time=end + _STEP_SECONDS / 2,
    )
    parts: dict[Key, list[Gpu]] = {}
    for key, use in _uses(came).items():
        labels, last = dict(key), ends.get(key, end)
        gpu = Gpu(
            gpu=labels.get("gpu", ""),
            uuid=labels.get("uuid", ""),
            node=labels.get("instance", ""),
            start_seconds=starts.get(key, end),
            end_seconds=None if time.time() - last < _ENDED_SECONDS else last,
        )
        gpu.add(use)
        of_job = tuple(pair for pair in key if pair[0] in _JOB.split(", "))
        parts.setdefault(of_job, []).append(gpu)
    if len(parts) == 1:  # which of several was advised is unknown
        _advise(next(iter(parts.values())), came["advice"])
    return [_job(key).having(placed(gpus)) for key, gpus in parts.items()]


def matchers(job: str | None, pod: str | None, gpu: str | None) -> str:
    """Matchers of `gpu:owner:info` for what the flags of `report` name."""
    found: dict[str, str] = {}
    if job:
        found["slurm_job_id"] = re.escape(job.removeprefix("slurm-"))
    if pod:
        namespace, _, name = pod.partition("/")
        found |= {"workload_namespace": re.escape(namespace), "workload_pod": re.escape(name)}
    if gpu:
        node, slash, index = gpu.rpartition("/")
        found["gpu" if index.isdecimal() else "uuid"] = re.escape(index)
        if slash:
            found["instance"] = f"{re.escape(node)}(:[0-9]+)?"
    return ", ".join(f"{label}=~{json.dumps(text)}" for label, text in found.items())


def _advise(gpus: Iterable[Gpu], rows: Iterable[Row]) -> None:
    """Note the last recommendation of each; none where figures are missing."""
    figures: dict[str, dict[str, Any]] = {}
    for labels, value in sorted(rows, key=lambda row: row[0].get("knob", "")):
        name, of_gpu = labels.get("__name__", ""), figures.setdefault(labels.get("uuid", ""), {})
        of_gpu |= {"knob": labels.get("knob", ""), name.rpartition(":")[2]: value}
    for gpu in gpus:
        known, own = figures.get(gpu.uuid, {}), gpu.stall_ratios
        against = _AGAINST.get(known.get("knob", ""), ("",))
        known["cause"] = max(against, key=lambda cause: own.get(cause, 0.0))
        known |= {"at_most": known.get("upper_bound") == 1, "current_busy_ratio": gpu.busy_ratio}
        with suppress(ValueError):
            gpu.recommendation = read(knobs.Prescription, known)


def _uses(rows: Mapping[str, Iterable[Row]]) -> dict[Key, Use]:
    """What GPUs did, by labels, from the rows of `busy` and `stall`."""
    found: dict[Key, Use] = {}
    for labels, value in rows["busy"]:
        found.setdefault(_key(labels), Use()).add(Use(value, value))
    for labels, value in rows["stall"]:
        part = {labels.get("waiting_on", stall.UNKNOWN): value}
        found.setdefault(_key(labels), Use()).add(Use(value, 0.0, part))
    return found


def _job(key: Key) -> Job:
    labels = dict(key)
    owner = {k.removeprefix("workload_"): v for k, v in key if k in _OWNER.split(", ")}
    name, number = owner.pop("workload", ""), labels.get("slurm_job_id")
    return Job(id=f"slurm-{number}" if number else name, owner=owner)


def _key(labels: Labels) -> Key:
    return tuple(sorted((k, v) for k, v in labels.items() if v and k != "waiting_on"))
