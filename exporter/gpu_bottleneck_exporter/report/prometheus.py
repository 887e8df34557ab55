"""Jobs from a Prometheus that evaluates our rules.

Totals come from `workload:busy_gpu_seconds:sum5m` and `workload:stall_gpu_seconds:sum5m`; a job's
use, from its GPUs' series; tokens and demand, from sums of ten minutes.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from urllib.parse import urlencode

import click

from gpu_bottleneck_exporter.errors import ExporterError, printable
from gpu_bottleneck_exporter.fetch import Server, gather
from gpu_bottleneck_exporter.jobs.model import MAX_DURATION_SECONDS, Job, JobGpu, Use
from gpu_bottleneck_exporter.jsontext import checked, parsed
from gpu_bottleneck_exporter.nodeview.wire import read
from gpu_bottleneck_exporter.prescription.model import Prescription, dominant
from gpu_bottleneck_exporter.report.bill import (
    MAX_LABEL_CHARACTERS,
    Deployment,
    JobReport,
    ReportQuery,
    Served,
)

BUSY_SERIES, STALL_SERIES = "workload:busy_gpu_seconds:sum5m", "workload:stall_gpu_seconds:sum5m"
TOKENS_SERIES = "workload:serving_tokens:sum10m"
SERVED_SERIES = "workload:serving_gpu_seconds:sum10m"
_WORKLOAD = "workload_namespace, workload_pod, slurm_job_id, workload_job, user, workload"
"""Labels of a workload."""
_RULE_INTERVAL_SECONDS = 60
"""Resolution of series by GPU: the interval of the rules."""
Labels = Mapping[str, str]
Row = tuple[Labels, float]
"""A series: its labels and its value."""
Key = tuple[tuple[str, str], ...]
"""Labels with their values."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A client of a server with Prometheus's API."""

    server: Server
    query: ReportQuery

    def evaluate(self, *queries: str, **at: float) -> list[list[Row]]:
        """The result of each PromQL query, now or at a `time`.

        Raises ExporterError if one fails.
        """
        calls = {promql: partial(self._evaluate, promql, **at) for promql in queries}
        concurrency = 2  # cores of a small Prometheus
        answers, missing = gather(calls, self.query.deadline, concurrency, self.server.name)
        if missing:
            raise ExporterError(missing[0])
        return [answers[promql] for promql in queries]

    def _evaluate(self, promql: str, **at: float) -> list[Row]:
        if self.query.verbose:
            click.echo(f"query {promql}", err=True)
        path = f"/api/v1/query?{urlencode({'query': promql, **at})}"
        max_bytes = 256 * 2**20  # a job with four causes has 1 kB
        body = self.server.get(path, max_bytes, (400, 422, 503))
        try:
            response = parsed(body)
            if response["status"] == "success":
                result = checked(dict, response["data"])["result"]
                rows = (_row(series["metric"], series["value"][1]) for series in result)
                return [row for row in rows if 0 <= row[1] <= MAX_DURATION_SECONDS]  # without NaN
            why = printable(f"{response['error']}", MAX_LABEL_CHARACTERS)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            url = self.server.address("/api/v1/query")
            raise ExporterError(f"{url} is not the API of a Prometheus") from error
        raise ExporterError(f"{self.server.name} refuses a query: {why}")


def _row(metric: Mapping[str, str], value: str) -> Row:
    labels = {name: printable(text, MAX_LABEL_CHARACTERS) for name, text in metric.items()}
    return defaultdict(str, labels), float(value)


def recorded(url: str, query: ReportQuery) -> JobReport:
    """The jobs named in `query`, by GPU; else the totals of all jobs.

    Raises ExporterError without any job, or if a query fails.
    """
    server = Server(url, query.ca_file, ("/graph", "/query"), query.deadline)
    engine, source = Engine(server, query), f"what rules recorded in {server.name}"
    if query.job or query.pod or query.gpu:
        found = _detailed(engine, query)
        by = "cluster, workload"
        # One GPU of a job has no tokens of its own.
        served = {} if query.gpu or not found else _served(engine, by, _matchers(query))
        return _reported(query, found, served, source)
    window = f"[{query.seconds:.0f}s]"
    by = f"cluster, workload_owner, {_WORKLOAD}"
    busy, stall = engine.evaluate(
        f"sum by ({by}) (sum_over_time({BUSY_SERIES}{window}))",
        f"sum by ({by}, waiting_on) (sum_over_time({STALL_SERIES}{window}))",
    )
    if not busy:
        question = "do its rules come from this version (gpu-bottleneck-exporter rules)?"
        raise ExporterError(f"{server.name} has recorded no {BUSY_SERIES}: {question}")
    jobs = {key: _job(dict(key), use) for key, use in _uses(busy + stall).items()}
    return _reported(query, jobs, _served(engine, by), source)


def _reported(
    query: ReportQuery, jobs: Mapping[Key, Job], served: Mapping[Key, Served], source: str
) -> JobReport:
    serving = {job: served[key] for key, job in jobs.items() if key in served}
    return JobReport(query, [*jobs.values()], served=serving, source=source)


def _served(engine: Engine, by: str, matchers: str = "") -> Mapping[Key, Served]:
    """Tokens and demand by the labels `by`."""
    window = f"{{{matchers}}}[{engine.query.seconds:.0f}s]"
    names = by.split(", ")
    with_pod = ", ".join(dict.fromkeys([*names, "workload_namespace", "workload_pod", "demand"]))
    # Millions, as values are bounded as seconds are.
    tokens, spent = engine.evaluate(
        f"sum by ({by}, phase) (sum_over_time({TOKENS_SERIES}{window})) / 1e6",
        f"sum by ({with_pod}) (sum_over_time({SERVED_SERIES}{window}))",
    )
    served: dict[Key, Served] = defaultdict(Served)
    pods: dict[Key, Labels] = {}
    for labels, seconds in spent:
        if labels["demand"] in {"some", "none"}:
            key = _key({name: labels[name] for name in names})
            served[key].gpu_seconds += seconds
            served[key].unasked_seconds += seconds * (labels["demand"] == "none")
            pods[key] = labels
    for labels, millions in tokens:
        if labels["phase"] in {"prefill", "decode"} and (part := served.get(_key(labels, "phase"))):
            part.tokens[labels["phase"]] = millions * 1e6
            part.counted_seconds = part.gpu_seconds
    deployments = _deployments(engine) if served else {}
    for key, labels in pods.items():
        served[key].deployment = deployments.get(_pod(labels, "workload_"))
    return served


def _deployments(engine: Engine) -> Mapping[tuple[str, ...], Deployment]:
    """The deployments that have replicas now, by cluster, namespace and pod."""
    replicas = "helper:serving_replica:requests"
    joined = "* 0 + on (cluster, namespace, deployment) group_left ()"
    counts, needs = engine.evaluate(
        f"{replicas} {joined} serving:replicas:count",
        f"{replicas} {joined} last_over_time(serving:replicas:needed[20m])",
    )
    needed = {_pod(labels): value for labels, value in needs}
    return {
        pod: Deployment(
            f"{labels['namespace']}/{labels['deployment']}",
            labels["cluster"],
            round(count),
            round(needed[pod]),
        )
        for labels, count in counts
        if (pod := _pod(labels)) in needed and round(count)
    }


def _pod(labels: Labels, prefix: str = "") -> tuple[str, ...]:
    return labels["cluster"], labels[f"{prefix}namespace"], labels[f"{prefix}pod"]


def _detailed(engine: Engine, query: ReportQuery) -> Mapping[Key, Job]:
    gpu_labels = "job, instance, gpu, uuid"
    info, by = f"gpu:owner:info{{{_matchers(query)}}}", f"{gpu_labels}, cluster, {_WORKLOAD}"
    at_owner = (
        "* on (cluster, workload_namespace, workload_pod, user) group_left (workload_owner) "
        "helper:job_owner:info"
    )
    times, window = f"timestamp({info})", f"[{query.seconds:.0f}s:{_RULE_INTERVAL_SECONDS}s]"
    first, last = engine.evaluate(
        f"min by ({by}) (min_over_time({times}{window}))",
        f"max by ({by}, workload_owner) (max_over_time(({times} {at_owner}){window}))",
    )
    if not last or not first:
        return {}
    starts = {_key(labels): at - _RULE_INTERVAL_SECONDS for labels, at in first}
    last.sort(key=itemgetter(1), reverse=True)  # if the owner changed, the last one counts
    lasting = f"{last[0][1] - min(starts.values()):.0f}s"
    uuids = json.dumps("|".join(sorted({re.escape(labels["uuid"]) for labels, _ in last})))
    ratios = f'{{__name__=~"gpu:(busy|stall):ratio_rate5m", uuid=~{uuids}}}'
    joined = f"{ratios} * on ({gpu_labels}) group_left ({_WORKLOAD}) {info}"
    spent = f"({joined})[{lasting}:{_RULE_INTERVAL_SECONDS}s]"
    advised = (
        f"timestamp(gpu:prescription:value{{uuid=~{uuids}}})[{lasting}:{_RULE_INTERVAL_SECONDS}s]"
    )
    seconds, advice = engine.evaluate(
        f"{_RULE_INTERVAL_SECONDS} * sum by ({by}, waiting_on) (sum_over_time({spent}))",
        f'last_over_time({{__name__=~"gpu:prescription:.*", uuid=~{uuids}}}[{lasting}])'
        f" and on (uuid, knob) topk by (uuid) (1, max_over_time({advised}))",
        time=last[0][1] + _RULE_INTERVAL_SECONDS / 2,
    )
    uses = _uses(seconds)
    jobs: dict[Key, Job] = {}
    for labels, at in last:
        key = _key(labels, "workload_owner")
        if use := uses.pop(key, None):
            gpu = JobGpu(
                gpu=labels["gpu"],
                uuid=labels["uuid"],
                node=re.sub(":[0-9]+$", "", labels["instance"]),
                start_seconds=starts.get(key, at),
                end_seconds=None if time.time() - at < 10 * _RULE_INTERVAL_SECONDS else at,
            )
            gpu.add(use)
            job = _key({name: labels[name] for name in ("cluster", "workload")})
            jobs.setdefault(job, _job(labels, Use())).gpus.append(gpu)
    if len(jobs) == 1:  # of several, the advised one is unknown
        _advise(next(iter(jobs.values())).gpus, advice)
    return {key: job.having(job.gpus) for key, job in jobs.items()}


def _matchers(query: ReportQuery) -> str:
    node, _, gpu = (query.gpu or "").rpartition("/")
    values = {
        "slurm_job_id": query.job and re.escape(query.job.removeprefix("slurm-")),
        "workload": query.pod and re.escape(f"pod {query.pod}"),
        "gpu" if gpu.isdecimal() else "uuid": re.escape(gpu),
        "instance": node and f"{re.escape(node)}(:[0-9]+)?",
    }
    return ", ".join(f"{label}=~{json.dumps(text)}" for label, text in values.items() if text)


def _advise(gpus: Iterable[JobGpu], rows: Iterable[Row]) -> None:
    figures: dict[str, dict[str, object]] = defaultdict(dict)
    for labels, value in rows:
        name = labels["__name__"].rpartition(":")[2]
        figures[labels["uuid"]] |= {"knob": labels["knob"], name: value}
    for gpu in gpus:
        fields = figures[gpu.uuid] | {"cause": dominant(gpu.stall_ratios)}
        fields |= {"at_most": fields.get("upper_bound") == 1, "current_busy_ratio": gpu.busy_ratio}
        with suppress(ValueError):
            gpu.recommendation = read(Prescription, fields)


def _uses(rows: Iterable[Row]) -> dict[Key, Use]:
    """Use by labels; rows without `waiting_on` are busy time."""
    uses: dict[Key, Use] = defaultdict(Use)
    for labels, seconds in rows:
        wait = labels["waiting_on"]
        busy, stalls = (0.0, {wait: seconds}) if wait else (seconds, {})
        uses[_key(labels)].add(Use(seconds, busy, stalls, estimated_seconds=None))
    return uses


def _job(labels: Labels, use: Use) -> Job:
    names = [
        "workload_owner",
        "workload_namespace",
        "workload_pod",
        "slurm_job_id",
        "workload_job",
        "user",
    ]
    owner = {name.removeprefix("workload_"): labels[name] for name in names if labels.get(name)}
    number = labels.get("slurm_job_id")
    name = f"slurm-{number}" if number else labels.get("workload", "")
    figures = use.observed_seconds, use.busy_seconds, use.stall_seconds, use.estimated_seconds
    return Job(*figures, id=name, owner=owner)


def _key(labels: Labels, without: str = "waiting_on") -> Key:
    return tuple(sorted((k, v) for k, v in labels.items() if v and k != without))
