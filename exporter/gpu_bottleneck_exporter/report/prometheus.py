"""Jobs from a Prometheus that evaluates our rules, by queries over recorded series.

Totals come from `workload:busy_gpu_seconds:sum5m` and `workload:stall_gpu_seconds:sum5m`; what
each GPU of a job did, from the series of its GPUs while it had them.
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
from gpu_bottleneck_exporter.jobs.model import MOST_SECONDS, Gpu, Job, Use
from gpu_bottleneck_exporter.jsontext import checked, parsed
from gpu_bottleneck_exporter.nodeview.wire import read
from gpu_bottleneck_exporter.prescription.model import Prescription, leading
from gpu_bottleneck_exporter.report.bill import Bill, Wanted

BUSY, STALL = "workload:busy_gpu_seconds:sum5m", "workload:stall_gpu_seconds:sum5m"
MOST_BYTES = 256 * 2**20
"""Of an answer: a job that waits for four things is 1 kB."""
_LONGEST_NAME = 253
_AT_ONCE = 2
"""Queries: as many as a small Prometheus has cores."""
_WHO = "workload_namespace, workload_pod, slurm_job_id, workload_job, user, workload"
_BILLED = f"cluster, workload_owner, {_WHO}"
_GPU = "job, instance, gpu, uuid"
_OWNER = (
    "workload_owner",
    "workload_namespace",
    "workload_pod",
    "slurm_job_id",
    "workload_job",
    "user",
)
"""Labels that become fields of `Job.owner`."""
_ITS_OWNER = (
    "* on (cluster, workload_namespace, workload_pod, user) group_left (workload_owner) "
    "helper:job_owner:info"
)
_STEP_SECONDS = 60
"""Of what is looked at GPU by GPU: as often as rules record it."""
_ENDED_SECONDS = 600.0
"""What rules have not seen for so long has ended."""
Labels = Mapping[str, str]
Row = tuple[Labels, float]
"""A series: its labels and its value."""
Key = tuple[tuple[str, str], ...]
"""Labels with their values."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A Prometheus, or what has its API."""

    server: Server
    wanted: Wanted

    def ask(self, *queries: str, **at: float) -> list[list[Row]]:
        """The result of each PromQL query, now or at a `time`.

        Raises ExporterError if one fails.
        """
        calls = {query: partial(self._asked, query, **at) for query in queries}
        answers, missing = gather(calls, self.wanted.deadline, _AT_ONCE, self.server.name)
        if missing:
            raise ExporterError(missing[0])
        return [answers[query] for query in queries]

    def _asked(self, query: str, **at: float) -> list[Row]:
        if self.wanted.verbose:
            click.echo(f"query {query}", err=True)
        asked = urlencode({"query": query, **at})
        body = self.server.get(f"/api/v1/query?{asked}", MOST_BYTES, (400, 422, 503))
        try:
            found = parsed(body)
            if found["status"] == "success":
                series = checked(dict, found["data"])["result"]
                rows = (_row(one["metric"], one["value"][1]) for one in series)
                return [row for row in rows if 0 <= row[1] <= MOST_SECONDS]  # nor is it NaN
            why = printable(f"{found['error']}", _LONGEST_NAME)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            url = self.server.address("/api/v1/query")
            raise ExporterError(f"{url} is not the API of a Prometheus") from error
        raise ExporterError(f"{self.server.name} refuses a query: {why}")


def _row(metric: Mapping[str, str], value: str) -> Row:
    labels = {name: printable(text, _LONGEST_NAME) for name, text in metric.items()}
    return defaultdict(str, labels), float(value)


def recorded(url: str, wanted: Wanted) -> Bill:
    """The jobs that are asked for by name, GPU by GPU; or all of them, each as a whole.

    Raises ExporterError if there are none at all, or if a query fails.
    """
    server = Server(url, wanted.ca_file, ("/graph", "/query"), wanted.deadline)
    engine, source = Engine(server, wanted), f"what rules recorded in {server.name}"
    if wanted.job or wanted.pod or wanted.gpu:
        return Bill(wanted, _detailed(engine, wanted), source=source)
    window = f"[{wanted.seconds:.0f}s]"
    busy, stall = engine.ask(
        f"sum by ({_BILLED}) (sum_over_time({BUSY}{window}))",
        f"sum by ({_BILLED}, waiting_on) (sum_over_time({STALL}{window}))",
    )
    if not busy:
        told = "do its rules come from this version (gpu-bottleneck-exporter rules)?"
        raise ExporterError(f"{server.name} has recorded no {BUSY}: {told}")
    jobs = [_job(dict(key), did) for key, did in _uses(busy + stall).items()]
    return Bill(wanted, jobs, source=source)


def _detailed(engine: Engine, wanted: Wanted) -> list[Job]:
    info, by = f"gpu:owner:info{{{_matchers(wanted)}}}", f"{_GPU}, cluster, {_WHO}"
    seen, window = f"timestamp({info})", f"[{wanted.seconds:.0f}s:{_STEP_SECONDS}s]"
    came, left = engine.ask(
        f"min by ({by}) (min_over_time({seen}{window}))",
        f"max by ({by}, workload_owner) (max_over_time(({seen} {_ITS_OWNER}){window}))",
    )
    if not left or not came:
        return []
    starts = {_key(labels): at - _STEP_SECONDS for labels, at in came}
    left.sort(key=itemgetter(1), reverse=True)  # where the owner has changed, the last one counts
    lasting = f"{left[0][1] - min(starts.values()):.0f}s"
    uuids = json.dumps("|".join(sorted({re.escape(labels["uuid"]) for labels, _ in left})))
    ratios = f'{{__name__=~"gpu:(busy|stall):ratio_rate5m", uuid=~{uuids}}}'
    spent = f"({ratios} * on ({_GPU}) group_left ({_WHO}) {info})[{lasting}:{_STEP_SECONDS}s]"
    advised = f"timestamp(gpu:prescription:value{{uuid=~{uuids}}})[{lasting}:{_STEP_SECONDS}s]"
    seconds, advice = engine.ask(
        f"{_STEP_SECONDS} * sum by ({by}, waiting_on) (sum_over_time({spent}))",
        f'last_over_time({{__name__=~"gpu:prescription:.*", uuid=~{uuids}}}[{lasting}])'
        f" and on (uuid, knob) topk by (uuid) (1, max_over_time({advised}))",
        time=left[0][1] + _STEP_SECONDS / 2,
    )
    uses = _uses(seconds)
    jobs: dict[tuple[str, str], Job] = {}
    for labels, at in left:
        key = _key(labels, "workload_owner")
        if use := uses.pop(key, None):
            gpu = Gpu(
                gpu=labels["gpu"],
                uuid=labels["uuid"],
                node=re.sub(":[0-9]+$", "", labels["instance"]),
                start_seconds=starts.get(key, at),
                end_seconds=None if time.time() - at < _ENDED_SECONDS else at,
            )
            gpu.add(use)
            name = labels["cluster"], labels["workload"]
            jobs.setdefault(name, _job(labels, Use())).gpus.append(gpu)
    if len(jobs) == 1:  # which of several was advised is unknown
        _advise(next(iter(jobs.values())).gpus, advice)
    return [job.having(job.gpus) for job in jobs.values()]


def _matchers(wanted: Wanted) -> str:
    """Matchers of `gpu:owner:info` for what the flags name."""
    node, _, gpu = (wanted.gpu or "").rpartition("/")
    found = {
        "slurm_job_id": wanted.job and re.escape(wanted.job.removeprefix("slurm-")),
        "workload": wanted.pod and re.escape(f"pod {wanted.pod}"),
        "gpu" if gpu.isdecimal() else "uuid": re.escape(gpu),
        "instance": node and f"{re.escape(node)}(:[0-9]+)?",
    }
    return ", ".join(f"{label}=~{json.dumps(text)}" for label, text in found.items() if text)


def _advise(gpus: Iterable[Gpu], rows: Iterable[Row]) -> None:
    """Note the recommendation of each; none where figures are missing."""
    figures: dict[str, dict[str, object]] = defaultdict(dict)
    for labels, value in rows:
        name = labels["__name__"].rpartition(":")[2]
        figures[labels["uuid"]] |= {"knob": labels["knob"], name: value}
    for gpu in gpus:
        told = figures[gpu.uuid] | {"cause": leading(gpu.stall_ratios)}
        told |= {"at_most": told.get("upper_bound") == 1, "current_busy_ratio": gpu.busy_ratio}
        with suppress(ValueError):
            gpu.recommendation = read(Prescription, told)


def _uses(rows: Iterable[Row]) -> dict[Key, Use]:
    """What GPUs did, by labels; they were busy in rows without `waiting_on`."""
    found: dict[Key, Use] = defaultdict(Use)
    for labels, seconds in rows:
        wait = labels["waiting_on"]
        waited = Use(seconds, 0.0, {wait: seconds})
        found[_key(labels)].add(waited if wait else Use(seconds, seconds))
    return found


def _job(labels: Labels, did: Use) -> Job:
    owner = {name.removeprefix("workload_"): labels[name] for name in _OWNER if labels.get(name)}
    number = labels.get("slurm_job_id")
    name = f"slurm-{number}" if number else labels.get("workload", "")
    return Job(did.observed_seconds, did.busy_seconds, did.stall_seconds, id=name, owner=owner)


def _key(labels: Labels, without: str = "waiting_on") -> Key:
    return tuple(sorted((k, v) for k, v in labels.items() if v and k != without))
