"""Jobs from the nodes' `/api/v1/jobs`, joined across nodes."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Annotated

from gpu_bottleneck_exporter.errors import printable
from gpu_bottleneck_exporter.fetch import Server, gather
from gpu_bottleneck_exporter.jobs.model import DOCUMENT_VERSION, MAX_DURATION_SECONDS, Job
from gpu_bottleneck_exporter.jsontext import checked, parsed
from gpu_bottleneck_exporter.nodeview.wire import JOBS_PATH, NODE_PATH, read
from gpu_bottleneck_exporter.report.bill import MAX_LABEL_CHARACTERS, JobReport, ReportQuery

_MAX_JOBS = 32_768
"""Limit of jobs from one node; 8 MiB have fewer."""


@dataclass(frozen=True)
class _Head:
    """The head of a node's document. Raises ValueError for another version."""

    version: int
    node: str
    time_seconds: Annotated[float, (1.0, MAX_DURATION_SECONDS)]
    left_off: int = 0
    """Number of older jobs that it omits."""

    def __post_init__(self) -> None:
        if self.version != DOCUMENT_VERSION:
            versions = f"its version is {self.version}, not {DOCUMENT_VERSION}"
            raise ValueError(f"{versions}: update the older of the two")


def ledgers(urls: Iterable[str], query: ReportQuery) -> JobReport:
    """All jobs of these nodes in the time of `query`."""
    report = JobReport(query)
    since = report.time_seconds - query.seconds
    servers = [Server(url, query.ca_file, (JOBS_PATH, NODE_PATH, "/metrics")) for url in urls]
    calls = {server.address(JOBS_PATH): partial(_fetch, server, since) for server in servers}
    where = servers[0].name if len(calls) == 1 else f"{len(calls)} nodes"
    report.source = f"the ledger of {where}"
    answers, report.missing = gather(calls, query.deadline)
    for url, answer in answers.items():
        add(report, url, *answer)
    whole = joined(report.jobs)
    report.jobs = [job for job in whole if job.end_seconds is None or job.end_seconds >= since]
    return report


def _fetch(server: Server, since: float) -> tuple[bytes, float, float]:
    """Response of a node, and the times of request and response."""
    began = time.time()
    # An hour more, as its clock may be behind.
    body = server.get(f"{JOBS_PATH}?since={max(since - 3600, 0):.0f}", 16 * 2**20)
    return body, began, time.time()


def add(
    report: JobReport, url: str, body: bytes, request_seconds: float, response_seconds: float
) -> None:
    """Add the jobs in a response, with the node's clock corrected by ours."""
    try:
        document = parsed(body)
        head, rows = read(_Head, document), checked(list, document["jobs"])
    except (ValueError, LookupError, TypeError) as error:
        why = printable(f"{error}", MAX_LABEL_CHARACTERS)
        report.missing.append(f"{url} serves no ledger of this exporter: {why}")
        return
    node = head.node[:MAX_LABEL_CHARACTERS]
    behind = (request_seconds + response_seconds) / 2 - head.time_seconds
    if abs(behind) <= 5 + (response_seconds - request_seconds) / 2:
        behind = 0.0
    else:
        side = "behind" if behind > 0 else "ahead of"
        report.notes.append(f"{node}: its clock is {abs(behind):.0f} s {side} ours; corrected")
    if head.left_off:
        report.missing.append(f"{node}: {head.left_off} older jobs do not fit into its answer")
    jobs = [job for row in rows[:_MAX_JOBS] if (job := _job(row, node, behind))]
    if len(jobs) < (count := len(rows)):
        report.missing.append(f"{node}: {count - len(jobs)} of {count} jobs cannot be read")
    report.jobs += jobs


def _job(row: object, node: str, behind: float) -> Job | None:
    try:
        job = read(Job, row)
    except ValueError:
        return None
    for gpu in job.gpus:
        gpu.node = node
        gpu.shift(behind)
    return job.having(job.gpus) if job.gpus else None


def joined(jobs: Iterable[Job]) -> Iterator[Job]:
    """Merge the parts of jobs on several nodes, or of one queried twice.

    Parts have the same key and are at most an hour apart: Slurm reuses numbers.
    """
    in_order = sorted(jobs, key=lambda job: (_key(job), job.start_seconds or 0.0))
    for _, same in groupby(in_order, _key):
        run: list[Job] = []
        ids: dict[str, str] = {}
        latest = -math.inf
        for job in same:
            node, start = job.gpus[0].node, job.start_seconds or 0.0
            if run and (start > latest or ids.get(node, job.id) != job.id):
                yield _whole(run)
                run, ids, latest = [], {}, -math.inf
            end = math.inf if job.end_seconds is None else job.end_seconds
            latest = max(latest, end + 3600)
            run.append(job)
            ids[node] = job.id
        yield _whole(run)


def _key(job: Job) -> Sequence[str]:
    """The key of all parts of a run: Slurm's id without the start."""
    where = "" if job.id.startswith("slurm-") else job.gpus[0].node
    owner = (job.owner.get(field, "") for field in ("user", "source"))
    return (
        re.sub(r"^(slurm-[0-9A-Za-z]+)\.[0-9]+", r"\1", job.id),
        where,
        *owner,
        job.run.get("restarts", "0"),
    )


def _whole(parts: Sequence[Job]) -> Job:
    gpus = {(gpu.node, gpu.uuid or gpu.gpu): gpu for job in parts for gpu in job.gpus}
    whole = parts[0].having(gpus.values())
    whole.command = next((job.command for job in parts if job.command), None)
    whole.claims = {name: value for job in reversed(parts) for name, value in job.claims.items()}
    return whole
