"""Jobs from nodes' ledgers: `/api/v1/jobs` of each, joined where a job ran on several."""

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
from gpu_bottleneck_exporter.jobs.model import MOST_SECONDS, VERSION, Job
from gpu_bottleneck_exporter.jsontext import checked, parsed
from gpu_bottleneck_exporter.nodeview.wire import JOBS_PATH, NODE_PATH, read
from gpu_bottleneck_exporter.report.bill import Bill, Wanted

MOST_BYTES = 16 * 2**20
"""Of one node's answer; a job on eight GPUs is 20 kB."""
_SKEW_SECONDS = 5.0
"""Clocks that differ by less are as good as equal."""
_LONGEST_NAME = 253
"""Characters of a node's name: as many as Kubernetes and DNS allow."""
_MAX_JOBS = 32_768
"""Jobs of one answer that are read: 8 MiB, the most that an exporter sends, have fewer."""
_START = re.compile(r"^(slurm-[0-9A-Za-z]+)\.[0-9]+")
"""The id of an earlier run up to its start: see `jobs.recorder`."""
_MOST_APART_SECONDS = 3600.0
"""Between two parts of a job: numbers of Slurm's begin again, and clusters have the same ones."""


@dataclass(frozen=True)
class _Head:
    """What a node says of its document. Raises ValueError for that of another version."""

    version: int
    node: str
    time_seconds: Annotated[float, (1.0, MOST_SECONDS)]
    left_off: int = 0
    """How many older jobs do not fit into it."""

    def __post_init__(self) -> None:
        if self.version != VERSION:
            told = f"its version is {self.version}, not {VERSION}"
            raise ValueError(f"{told}: update the older of the two")


def ledgers(urls: Iterable[str], wanted: Wanted) -> Bill:
    """All jobs of these nodes in the time that is asked for."""
    bill = Bill(wanted)
    since = bill.time_seconds - wanted.seconds
    servers = [Server(url, wanted.ca_file, (JOBS_PATH, NODE_PATH, "/metrics")) for url in urls]
    calls = {one.address(JOBS_PATH): partial(_asked, one, since) for one in servers}
    where = servers[0].name if len(calls) == 1 else f"{len(calls)} nodes"
    bill.source = f"the ledger of {where}"
    answers, bill.missing = gather(calls, wanted.deadline)
    for url, answer in answers.items():
        add(bill, url, *answer)
    whole = joined(bill.jobs)
    bill.jobs = [job for job in whole if job.end_seconds is None or job.end_seconds >= since]
    return bill


def _asked(server: Server, since: float) -> tuple[bytes, float, float]:
    """What it answers, and when it was asked and came."""
    began = time.time()
    # An hour more: its clock may be behind.
    body = server.get(f"{JOBS_PATH}?since={max(since - 3600, 0):.0f}", MOST_BYTES)
    return body, began, time.time()


def add(bill: Bill, url: str, body: bytes, asked_seconds: float, came_seconds: float) -> None:
    """Add the jobs that a node told between these Unix times."""
    try:
        given = parsed(body)
        head, rows = read(_Head, given), checked(list, given["jobs"])
    except (ValueError, LookupError, TypeError) as error:
        why = printable(f"{error}", _LONGEST_NAME)
        bill.missing.append(f"{url} serves no ledger of this exporter: {why}")
        return
    node = head.node[:_LONGEST_NAME]
    behind = (asked_seconds + came_seconds) / 2 - head.time_seconds
    if abs(behind) <= _SKEW_SECONDS + (came_seconds - asked_seconds) / 2:
        behind = 0.0
    else:
        side = "behind" if behind > 0 else "ahead of"
        bill.notes.append(f"{node}: its clock is {abs(behind):.0f} s {side} ours; corrected")
    if head.left_off:
        bill.missing.append(f"{node}: {head.left_off} older jobs do not fit into its answer")
    # By this machine's clock.
    jobs = [job for row in rows[:_MAX_JOBS] if (job := _job(row, node, behind))]
    if len(jobs) < (count := len(rows)):
        bill.missing.append(f"{node}: {count - len(jobs)} of {count} jobs cannot be read")
    bill.jobs += jobs


def _job(given: object, node: str, behind: float) -> Job | None:
    """The job that JSON describes; None if it is none."""
    try:
        job = read(Job, given)
    except ValueError:
        return None
    for gpu in job.gpus:
        gpu.node = node
        gpu.shift(behind)
    return job.having(job.gpus) if job.gpus else None


def joined(jobs: Iterable[Job]) -> Iterator[Job]:
    """One job where several nodes have a part of it, or where one was asked twice.

    Parts have one name (see `_name`) and follow each other within an hour. A node keeps each run
    under an id of its own.
    """
    in_order = sorted(jobs, key=lambda job: (_name(job), job.start_seconds or 0.0))
    for _, same in groupby(in_order, _name):
        run: list[Job] = []
        ids: dict[str, str] = {}
        latest = -math.inf
        for job in same:
            node, start = job.gpus[0].node, job.start_seconds or 0.0
            if run and (start > latest or ids.get(node, job.id) != job.id):
                yield _whole(run)
                run, ids, latest = [], {}, -math.inf
            end = math.inf if job.end_seconds is None else job.end_seconds
            latest = max(latest, end + _MOST_APART_SECONDS)
            run.append(job)
            ids[node] = job.id
        yield _whole(run)


def _name(job: Job) -> Sequence[str]:
    """What parts of one run have in common: Slurm's jobs have one id on all nodes of a cluster.

    A node's earlier runs have their start behind the number; an unknown count of restarts is 0.
    """
    where = "" if job.id.startswith("slurm-") else job.gpus[0].node
    owner = (job.owner.get(field, "") for field in ("user", "source"))
    return _START.sub(r"\1", job.id), where, *owner, job.run.get("restarts", "0")


def _whole(parts: Sequence[Job]) -> Job:
    gpus = {(gpu.node, gpu.uuid or gpu.gpu): gpu for job in parts for gpu in job.gpus}
    whole = parts[0].having(gpus.values())
    whole.command = next((job.command for job in parts if job.command), None)
    whole.claims = {name: value for job in reversed(parts) for name, value in job.claims.items()}
    return whole
