"""Jobs from nodes' ledgers: `/api/v1/jobs` of each, joined where a job ran on several."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from gpu_bottleneck_exporter.accounting.stall import UNKNOWN
from gpu_bottleneck_exporter.errors import ExporterError, printable
from gpu_bottleneck_exporter.fetch import Server
from gpu_bottleneck_exporter.jobs.records import VERSION
from gpu_bottleneck_exporter.nodeview.wire import JOBS_PATH, NODE_PATH, parsed, read
from gpu_bottleneck_exporter.report.gather import gather
from gpu_bottleneck_exporter.report.model import (
    ID,
    MOST_SECONDS,
    Gpu,
    Job,
    Timeline,
    Use,
    total,
)

MOST_BYTES = 16 * 2**20
"""Of one node's answer; a job on eight GPUs is 35 kB at most."""
_SKEW_SECONDS = 5.0
"""Clocks that differ by less are as good as equal."""
_ACROSS_NODES = ("slurm-",)
"""Ids that mean the same job on all nodes."""
_LONGEST_NAME = 100
_LONGEST_INDEX = 8
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
    urls: Iterable[str], ca_file: Path | None, since_seconds: float | None, deadline_seconds: float
) -> Found:
    """All jobs of these nodes; those that ended before Unix time `since_seconds` are left out.

    Raises SettingsError for `ca_file`.
    """
    servers = [Server(url, ca_file, (JOBS_PATH, NODE_PATH, "/metrics")) for url in urls]
    by_name = {server.address(""): server for server in servers}
    calls = {name: partial(_asked, one, since_seconds) for name, one in by_name.items()}
    came = gather(calls, deadline_seconds)
    found = Found()
    for name, why in came.missing.items():
        found.missing.append(why if name in why else f"{name}: {why}")
    for one in came.answers.values():
        found.missing += one.missing
        found.notes += one.notes
    jobs = joined(job for one in came.answers.values() for job in one.jobs)
    found.jobs = [job for job in jobs if job.ran_since(since_seconds)]
    return found


def _asked(server: Server, since_seconds: float | None) -> Found:
    began = time.time()
    # An hour more: its clock may be behind.
    query = "" if since_seconds is None else f"?since={since_seconds - 3600:.0f}"
    body = server.get(JOBS_PATH + query, MOST_BYTES)
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
    node = printable(f"{given.get('node') or name}", _LONGEST_NAME)
    early, late = asked_seconds - at - _SKEW_SECONDS, came_seconds - at + _SKEW_SECONDS
    behind = 0.0 if early <= 0 <= late else (asked_seconds + came_seconds) / 2 - at
    found = Found()
    if behind:
        side = "behind" if behind > 0 else "ahead of"
        found.notes.append(f"{node}: its clock is {abs(behind):.0f} s {side} ours; corrected")
    if given.get("simulated") is True:
        found.notes.append(f"{node}: its GPUs are simulated")
    jobs = (_of_node(one, node, behind) for one in given["jobs"])
    found.jobs = [job for job in jobs if job]
    if (left_off := given.get("left_off")) and type(left_off) is int:
        found.missing.append(f"{node}: {left_off} older jobs do not fit into its answer")
    if bad := len(given["jobs"]) - len(found.jobs):
        found.missing.append(f"{node}: {bad} of {len(given['jobs'])} jobs cannot be read")
    return found


def _of_node(given: object, node: str, behind: float) -> Job | None:
    """The job that JSON describes; None if it is none."""
    try:
        job = read(Job, given)
    except ValueError:
        return None
    if not ID.fullmatch(job.id) or job.start_seconds is None:
        return None

    def moved(at: float | None) -> float | None:
        return None if at is None else at + behind

    def line(of: Timeline | None) -> Timeline | None:
        if of is None:
            return None
        stall = tuple(_named(one) for one in of.stall)
        return replace(of, start_seconds=of.start_seconds + behind, stall=stall)

    gpus = [
        replace(
            gpu,
            node=node,
            gpu=gpu.gpu[:_LONGEST_INDEX],
            mig=gpu.mig and gpu.mig[:_LONGEST_NAME],
            start_seconds=gpu.start_seconds + behind,
            end_seconds=moved(gpu.end_seconds),
            stall_seconds=_named(gpu.stall_seconds),
            timeline=line(gpu.timeline),
        )
        for gpu in job.gpus
    ]
    start, end = moved(job.start_seconds), moved(job.end_seconds)
    return replace(job, gpus=tuple(gpus), start_seconds=start, end_seconds=end, summed=None)


def _named(stalls: Mapping[str, float]) -> Mapping[str, float]:
    """The same, where what is no name of a cause counts as unknown."""
    if all(map(_CAUSE.fullmatch, stalls)):
        return stalls
    return total(
        Use(0.0, 0.0, {cause if _CAUSE.fullmatch(cause) else UNKNOWN: seconds})
        for cause, seconds in stalls.items()
    ).stall_seconds


def joined(jobs: Iterable[Job]) -> Iterator[Job]:
    """One job where several nodes have a part of it, or where one was asked twice."""
    parts: dict[tuple[str, ...], list[Job]] = {}
    for job in jobs:
        here = () if job.id.startswith(_ACROSS_NODES) else tuple(sorted(job.nodes))
        parts.setdefault((job.id, *here), []).append(job)
    for same in parts.values():
        yield same[0] if len(same) == 1 else _whole(same)


def _whole(parts: Sequence[Job]) -> Job:
    gpus: dict[tuple[str, str, float], Gpu] = {
        (gpu.node, gpu.uuid or gpu.gpu, gpu.start_seconds): gpu
        for part in parts
        for gpu in part.gpus
    }
    ends = [part.end_seconds for part in parts]
    owner: Mapping[str, str] = {k: v for part in parts for k, v in part.owner.items()}
    return replace(
        parts[0],
        owner=owner,
        claims={k: v for part in parts for k, v in part.claims.items()},
        start_seconds=min(part.start_seconds or 0.0 for part in parts),
        end_seconds=None if None in ends else max(end for end in ends if end is not None),
        gpus=tuple(sorted(gpus.values(), key=_place)),
    )


def _place(gpu: Gpu) -> tuple[str, int, str, float]:
    return gpu.node, len(gpu.gpu), gpu.gpu, gpu.start_seconds
