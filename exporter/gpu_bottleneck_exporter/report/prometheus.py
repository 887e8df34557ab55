"""Jobs from a Prometheus that evaluates our rules.

Totals come from `workload:busy_gpu_seconds:sum5m` and `workload:stall_gpu_seconds:sum5m`; the use
of a job's GPU, from the GPU's series at that time.
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
from gpu_bottleneck_exporter.report.bill import MAX_LABEL_CHARACTERS, JobReport, ReportQuery

BUSY_SERIES, STALL_SERIES = "workload:busy_gpu_seconds:sum5m", "workload:stall_gpu_seconds:sum5m"
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
        return JobReport(query, _detailed(engine, query), source=source)
    window = f"[{query.seconds:.0f}s]"
    by = f"cluster, workload_owner, {_WORKLOAD}"
    busy, stall = engine.evaluate(
        f"sum by ({by}) (sum_over_time({BUSY_SERIES}{window}))",
        f"sum by ({by}, waiting_on) (sum_over_time({STALL_SERIES}{window}))",
    )
    if not busy:
        question = "do its rules come from this version (gpu-bottleneck-exporter rules)?"
        raise ExporterError(f"{server.name} has recorded no {BUSY_SERIES}: {question}")
    jobs = [_job(dict(key), use) for key, use in _uses(busy + stall).items()]
    return JobReport(query, jobs, source=source)


def _detailed(engine: Engine, query: ReportQuery) -> list[Job]:
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
        return []
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
    jobs: dict[tuple[str, str], Job] = {}
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
            name = labels["cluster"], labels["workload"]
            jobs.setdefault(name, _job(labels, Use())).gpus.append(gpu)
    if len(jobs) == 1:  # of several, the advised one is unknown
        _advise(next(iter(jobs.values())).gpus, advice)
    return [job.having(job.gpus) for job in jobs.values()]


def _matchers(query: ReportQuery) -> str:
    """Matchers of `gpu:owner:info`."""
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
        stall = Use(seconds, 0.0, {wait: seconds})
        uses[_key(labels)].add(stall if wait else Use(seconds, seconds))
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
    return Job(use.observed_seconds, use.busy_seconds, use.stall_seconds, id=name, owner=owner)


def _key(labels: Labels, without: str = "waiting_on") -> Key:
    return tuple(sorted((k, v) for k, v in labels.items() if v and k != without))
