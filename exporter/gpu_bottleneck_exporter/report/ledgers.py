"""Jobs from nodes' ledgers: `/api/v1/jobs` of each, joined where a job ran on several."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from gpu_bottleneck_exporter.errors import ExporterError, printable
from gpu_bottleneck_exporter.fetch import Server
from gpu_bottleneck_exporter.jobs.model import MOST_SECONDS, VERSION, Job, moved, placed
from gpu_bottleneck_exporter.nodeview.wire import JOBS_PATH, NODE_PATH, parsed, read
from gpu_bottleneck_exporter.report.gather import gather

MOST_BYTES = 16 * 2**20
"""Of one node's answer; a job on eight GPUs is 35 kB at most."""
_SKEW_SECONDS = 5.0
"""Clocks that differ by less are as good as equal."""
_LONGEST_NAME = 100
_ID = re.compile(r"[A-Za-z0-9._-]{1,80}")
_CAUSE = re.compile("[a-z_]{1,30}")


@dataclass
class Found:
    """Jobs, and what to tell on stderr."""

    jobs: list[Job] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """What could not be read."""
    notes: list[str] = field(default_factory=list)
    """What could, but is worth knowing."""


def ledgers(
    urls: Iterable[str], ca_file: Path | None, since_seconds: float, deadline_seconds: float
) -> Found:
    """All jobs of these nodes that run or ended after Unix time `since_seconds`.

    Raises SettingsError for `ca_file`.
    """
    servers = [Server(url, ca_file, (JOBS_PATH, NODE_PATH, "/metrics")) for url in urls]
    calls = {one.address(""): partial(_asked, one, since_seconds) for one in servers}
    answers, missing = gather(calls, deadline_seconds)
    found = Found(missing=missing)
    for one in answers.values():
        found.jobs += one.jobs
        found.missing += one.missing
        found.notes += one.notes
    found.jobs = [
        job
        for job in joined(found.jobs)
        if job.end_seconds is None or job.end_seconds >= since_seconds
    ]
    return found


def _asked(server: Server, since_seconds: float) -> Found:
    began = time.time()
    # An hour more: its clock may be behind.
    since = max(since_seconds - 3600, 0)
    body = server.get(f"{JOBS_PATH}?since={since:.0f}", MOST_BYTES)
    try:
        return jobs_in(parsed(body), server.name, began, time.time())
    except ValueError as error:
        told = f"{server.address(JOBS_PATH)} serves no ledger of this exporter"
        raise ExporterError(f"{told}: {printable(f'{error}', _LONGEST_NAME)}") from error


def jobs_in(given: object, name: str, asked_seconds: float, came_seconds: float) -> Found:
    """The jobs in a document, with times by this machine's clock.

    `name` is that of the server; the document was made between these Unix times. Raises
    ValueError if it is no such document.
    """
    if not isinstance(given, dict) or not isinstance(given.get("jobs"), list):
        raise ValueError("it has no jobs")  # noqa: TRY004 - what readers of documents raise
    if given.get("version") != VERSION:
        version = printable(f"{given.get('version')}", 20)
        raise ValueError(f"its version is {version}, not {VERSION}: update the older of the two")
    at = given.get("time_seconds")
    if not (isinstance(at, int | float) and 0 < at < MOST_SECONDS):
        raise ValueError("it has no time_seconds")
    node, found = printable(f"{given.get('node') or name}", _LONGEST_NAME), Found()
    behind = (asked_seconds + came_seconds) / 2 - at
    if abs(behind) <= _SKEW_SECONDS + (came_seconds - asked_seconds) / 2:
        behind = 0.0
    else:
        side = "behind" if behind > 0 else "ahead of"
        found.notes.append(f"{node}: its clock is {abs(behind):.0f} s {side} ours; corrected")
    if given.get("simulated") is True:
        found.notes.append(f"{node}: its GPUs are simulated")
    if (left_off := given.get("left_off")) and type(left_off) is int:
        found.missing.append(f"{node}: {left_off} older jobs do not fit into its answer")
    found.jobs = [job for one in given["jobs"] if (job := _of_node(one, node, behind))]
    if bad := len(given["jobs"]) - len(found.jobs):
        found.missing.append(f"{node}: {bad} of {len(given['jobs'])} jobs cannot be read")
    return found


def _of_node(given: object, node: str, behind: float) -> Job | None:
    """The job that JSON describes; None if it is none."""
    try:
        job = read(Job, moved(given, behind))
    except (ValueError, OverflowError, RecursionError):
        return None
    for gpu in job.gpus:
        gpu.node = node
    lines = (gpu.timeline.stall if gpu.timeline else [] for gpu in job.gpus)
    stalls = [*(gpu.stall_seconds for gpu in job.gpus), *(one for line in lines for one in line)]
    causes = {cause for one in stalls for cause in one}
    sound = _ID.fullmatch(job.id) and job.gpus and all(map(_CAUSE.fullmatch, causes))
    return job if sound else None


def joined(jobs: Iterable[Job]) -> Iterator[Job]:
    """One job where several nodes have a part of it, or where one was asked twice."""
    parts: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        # Of Slurm's jobs, one id is the same job on all nodes.
        where = "" if job.id.startswith("slurm-") else job.gpus[0].node
        parts.setdefault((job.id, where), []).append(job)
    for same in parts.values():
        gpus = {(gpu.node, gpu.uuid or gpu.gpu): gpu for job in same for gpu in job.gpus}
        owner = {name: text for job in same for name, text in job.owner.items()}
        claims = {name: text for job in same for name, text in job.claims.items()}
        whole = replace(same[0], owner=owner, claims=claims, summed=None)
        yield whole.having(placed(gpus.values()))
