"""The `report` command: what is asked for, where it is read, how it is shown."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click

from gpu_bottleneck_exporter.errors import ExporterError, SettingsError, printable
from gpu_bottleneck_exporter.flags import nearest
from gpu_bottleneck_exporter.report.bill import Bill, Wanted
from gpu_bottleneck_exporter.report.html import html
from gpu_bottleneck_exporter.report.ledgers import ledgers
from gpu_bottleneck_exporter.report.prometheus import recorded
from gpu_bottleneck_exporter.report.text import json, markdown, text

LOCAL = "http://127.0.0.1:10170"
FORMATS = {"text": text, "json": json, "markdown": markdown, "html": html}


def report(
    wanted: Wanted, urls: Sequence[str], prometheus: str | None, wrong: Sequence[str] = ()
) -> int:
    """Print the report from nodes' ledgers, or from what rules recorded; the exit status.

    `wrong`: sentences about nodes whose addresses are none. Raises SettingsError if what is asked
    for is not there, and ExporterError if it may be on a node that is missing, or if Prometheus
    fails.
    """
    bill = recorded(prometheus, wanted) if prometheus else ledgers(urls or [LOCAL], wanted)
    bill.missing[:0] = wrong
    for line in (*bill.notes, *bill.missing):
        click.echo(printable(line), err=True)
    select(bill)
    click.echo(FORMATS[wanted.layout](bill))
    return 1 if bill.missing else 0


def select(bill: Bill) -> None:
    """Leave what is asked for, the largest loss first.

    Raises SettingsError if no job is like that, and ExporterError if one may be on a missing node.
    """
    wanted, jobs = bill.wanted, bill.jobs
    gpu = wanted.gpu and re.sub(":[0-9]+/", "/", wanted.gpu)  # as people copy it from alerts
    for kind, name, known in (
        ("job", wanted.job, lambda job: (job.name, job.id)),
        ("pod", wanted.pod, lambda job: (job.pod,)),
        ("owner", wanted.owner, lambda job: map(job.owner.get, ("owner", "namespace", "user"))),
        ("gpu", gpu, lambda job: [one for of in job.gpus for one in of.names]),
    ):
        if name is None:
            continue
        names = {one for job in jobs for one in known(job) if one}
        jobs = [job for job in jobs if name in known(job)]
        if not jobs:
            told = f"here is no {kind} {name!r} in {bill.source} since {bill.since}"
            if bill.missing:
                raise ExporterError(f"t{told}, as far as that could be read")
            raise SettingsError(f"T{told} (see --since).{nearest(name, names)}")
    if gpu:
        jobs = [job.having(one for one in job.gpus if gpu in one.names) for job in jobs]
    used = (job for job in jobs if job.observed_seconds)
    bill.read, bill.jobs = bill.jobs, sorted(used, key=lambda job: (-job.lost_seconds, job.id))
