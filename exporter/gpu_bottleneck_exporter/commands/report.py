"""The `report` command: what is asked for, where it is read, how it is shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from gpu_bottleneck_exporter.errors import ExporterError, SettingsError, printable
from gpu_bottleneck_exporter.fetch import Server
from gpu_bottleneck_exporter.flags import nearest
from gpu_bottleneck_exporter.jobs.model import Job
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.report import prometheus as recorded
from gpu_bottleneck_exporter.report.bill import Bill, bill_of, document, earlier
from gpu_bottleneck_exporter.report.html import html
from gpu_bottleneck_exporter.report.ledgers import Found, ledgers
from gpu_bottleneck_exporter.report.text import markdown, text

LOCAL = "http://127.0.0.1:10170"
DAY_SECONDS = 86_400.0
FORMATS: Mapping[str, Callable[[Bill], str]] = {
    "text": text,
    "json": lambda bill: dumps(document(bill)),
    "markdown": markdown,
    "html": html,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the flags ask for."""

    job: str | None = None
    pod: str | None = None
    gpu: str | None = None
    owner: str | None = None
    since: float | None = None
    """Seconds back from now."""
    limit: int = 20
    hourly_cost: float | None = None
    currency: str = "EUR"
    layout: str = "text"
    deadline: float = 20.0

    @property
    def seconds(self) -> float:
        """How far back to look."""
        return self.since or DAY_SECONDS * (30 if self.job or self.pod else 7)


def report(
    wanted: Wanted,
    urls: Sequence[str],
    prometheus: str | None,
    ca_file: Path | None,
    *,
    verbose: bool,
) -> int:
    """Print the report from nodes' ledgers, or from what rules recorded; the exit status.

    Raises SettingsError if what is asked for is not there, and ExporterError if it may be on a
    node that is missing, or if Prometheus fails.
    """
    since = time.time() - wanted.seconds
    if prometheus:
        server = Server(prometheus, ca_file, ("/graph", "/query"), wanted.deadline)
        bill = _recorded(wanted, recorded.Engine(server, wanted.deadline, verbose))
    else:
        found = ledgers(urls or [LOCAL], ca_file, since, wanted.deadline)
        for line in (*found.notes, *found.missing):
            click.echo(printable(line), err=True)
        bill = billed(found, wanted)
    priced = replace(bill, hourly_cost=wanted.hourly_cost, currency=wanted.currency)
    click.echo(FORMATS[wanted.layout](replace(priced, since_seconds=since)))
    return 1 if bill.missing else 0


def billed(found: Found, wanted: Wanted) -> Bill:
    """The bill for what is asked for.

    Raises SettingsError if no job is like that, and ExporterError if one may be on a missing node.
    """
    jobs = found.jobs
    for kind, name, known in (
        ("job", wanted.job, lambda job: (job.name, job.id)),
        ("pod", wanted.pod, lambda job: (job.pod,)),
        ("owner", wanted.owner, _owners),
        ("gpu", wanted.gpu, lambda job: [one for gpu in job.gpus for one in gpu.names]),
    ):
        if name is None:
            continue
        names = {one for job in jobs for one in known(job) if one}
        jobs = [job for job in jobs if name in known(job)]
        if not jobs and found.missing:
            raise ExporterError(f"there is no {kind} {name!r} in what could be read")
        if not jobs:
            raise SettingsError(f"There is no {kind} {name!r}.{nearest(name, names)}")
    if wanted.gpu:
        jobs = [job.having(g for g in job.gpus if wanted.gpu in g.names) for job in jobs]
    bill = bill_of([job for job in jobs if job.use.observed_seconds], wanted.limit)
    listed = bill.jobs if wanted.job or wanted.pod else ()
    before = {job.id: one for job in listed if (one := earlier(job, found.jobs))}
    return replace(bill, earlier=before, missing=found.missing)


def _recorded(wanted: Wanted, engine: recorded.Engine) -> Bill:
    name = wanted.job or wanted.pod or wanted.gpu
    if name:
        asked = recorded.matchers(wanted.job, wanted.pod, wanted.gpu)
        jobs = recorded.detailed(engine, asked, wanted.seconds)
        theirs = [job for job in jobs if wanted.owner is None or wanted.owner in _owners(job)]
        bill = bill_of(theirs, wanted.limit)
    else:
        bill = recorded.totals(engine, wanted.owner, wanted.seconds, wanted.limit)
    if not bill.count and (name or wanted.owner):
        told = f"has recorded nothing of {name or wanted.owner!r} in this time"
        raise SettingsError(f"{engine.server.name} {told}")
    if not bill.count:
        told = "do its rules come from this version (gpu-bottleneck-exporter rules)?"
        raise ExporterError(f"{engine.server.name} has recorded no {recorded.BUSY}: {told}")
    return bill


def _owners(job: Job) -> tuple[str, ...]:
    return job.owner.get("user", ""), job.owner.get("namespace", "")
