"""The `report` command: what is asked for, where it is read, how it is shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click

from gpu_bottleneck_exporter.errors import ExporterError, SettingsError, printable
from gpu_bottleneck_exporter.fetch import Server
from gpu_bottleneck_exporter.flags import nearest
from gpu_bottleneck_exporter.jobs.model import Gpu
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.report import prometheus as recorded
from gpu_bottleneck_exporter.report.bill import Bill, Wanted, bill_of, document, earlier
from gpu_bottleneck_exporter.report.html import html
from gpu_bottleneck_exporter.report.ledgers import Found, ledgers
from gpu_bottleneck_exporter.report.text import markdown, text

LOCAL = "http://127.0.0.1:10170"
FORMATS: Mapping[str, Callable[[Bill], str]] = {
    "text": text,
    "json": lambda bill: dumps(document(bill)),
    "markdown": markdown,
    "html": html,
}


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
    if prometheus:
        server = Server(prometheus, ca_file, ("/graph", "/query"), wanted.deadline)
        engine = recorded.Engine(server, wanted.deadline, verbose)
        by_name = wanted.job or wanted.pod or wanted.gpu
        found = Found(recorded.detailed(engine, wanted) if by_name else [])
        bill = billed(found, wanted) if by_name else recorded.totals(engine, wanted)
    else:
        found = ledgers(urls or [LOCAL], ca_file, time.time() - wanted.seconds, wanted.deadline)
        for line in (*found.notes, *found.missing):
            click.echo(printable(line), err=True)
        bill = billed(found, wanted)
    click.echo(FORMATS[wanted.layout](bill))
    return 1 if bill.missing else 0


def billed(found: Found, wanted: Wanted) -> Bill:
    """The bill for what is asked for.

    Raises SettingsError if no job is like that, and ExporterError if one may be on a missing node.
    """
    jobs = found.jobs
    for kind, name, known in (
        ("job", wanted.job, lambda job: (job.name, job.id)),
        ("pod", wanted.pod, lambda job: (job.pod,)),
        ("owner", wanted.owner, lambda job: map(job.owner.get, ("owner", "namespace", "user"))),
        ("gpu", wanted.gpu, lambda job: [one for gpu in job.gpus for one in _names(gpu)]),
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
        jobs = [job.having(gpu for gpu in job.gpus if wanted.gpu in _names(gpu)) for job in jobs]
    bill = bill_of([job for job in jobs if job.use.observed_seconds], wanted)
    bill.missing = found.missing
    if bill.single and (wanted.job or wanted.pod):
        bill.earlier = earlier(bill.single, found.jobs)
    return bill


def _names(gpu: Gpu) -> tuple[str, ...]:
    """What it may be called: also without the port, as Prometheus calls a node."""
    return *gpu.names, f"{gpu.node.rpartition(':')[0]}/{gpu.gpu}"
