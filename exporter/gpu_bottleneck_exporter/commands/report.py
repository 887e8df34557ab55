"""The `report` command: reads, selects and prints jobs."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click

from gpu_bottleneck_exporter.errors import ExporterError, SettingsError, printable
from gpu_bottleneck_exporter.flags import nearest
from gpu_bottleneck_exporter.report import reclaimed
from gpu_bottleneck_exporter.report.bill import JobReport, ReportQuery
from gpu_bottleneck_exporter.report.focus import focus
from gpu_bottleneck_exporter.report.html import html
from gpu_bottleneck_exporter.report.ledgers import ledgers
from gpu_bottleneck_exporter.report.prometheus import recorded
from gpu_bottleneck_exporter.report.text import json, markdown, text

RENDERERS = {"text": text, "json": json, "markdown": markdown, "html": html, "csv": focus}


def report(
    query: ReportQuery, urls: Sequence[str], prometheus: str | None, wrong: Sequence[str] = ()
) -> int:
    """Print the report. Returns the exit status.

    `wrong`: sentences about invalid addresses. Raises as `select`, and ExporterError
    if Prometheus fails.
    """
    if prometheus:
        if query.co2_per_kwh is not None:
            raise SettingsError("--co2-per-kwh needs the energy of ledgers: omit --prometheus")
        result = recorded(prometheus, query)
    else:
        result = ledgers(urls or ["http://127.0.0.1:10170"], query)
    result.missing[:0] = wrong
    for line in (*result.notes, *result.missing):
        click.echo(printable(line), err=True)
    select(result)
    click.echo(RENDERERS[query.layout](result))
    return 1 if result.missing else 0


def reclaimable(query: ReportQuery, prometheus: str | None) -> int:
    """Print false reclaims. Raises SettingsError for other options."""
    layouts = {"text": reclaimed.text, "json": reclaimed.json}
    selected = query.job or query.pod or query.gpu or query.owner
    priced = query.hourly_cost is not None or query.co2_per_kwh is not None
    if not prometheus or selected or priced or query.layout not in layouts:
        raise SettingsError(
            "--reclaimable needs --prometheus, and takes --since, --limit and --format text or json"
        )
    click.echo(layouts[query.layout](reclaimed.reclaims(prometheus, query)))
    return 0


def select(result: JobReport) -> None:
    """Select the jobs of the query, largest loss first.

    Raises SettingsError if no job matches, and ExporterError if one may be on a missing node.
    """
    query, jobs = result.query, result.jobs
    gpu = query.gpu and re.sub(":[0-9]+/", "/", query.gpu)  # without the port, as in alerts
    for kind, name, names_of in (
        ("job", query.job, lambda job: (job.name, job.id)),
        ("pod", query.pod, lambda job: (job.pod,)),
        ("owner", query.owner, lambda job: map(job.owner.get, ("owner", "namespace", "user"))),
        ("gpu", gpu, lambda job: [of for gpu in job.gpus for of in gpu.names]),
    ):
        if name is None:
            continue
        candidates = {candidate for job in jobs for candidate in names_of(job) if candidate}
        jobs = [job for job in jobs if name in names_of(job)]
        if not jobs:
            problem = f"here is no {kind} {name!r} in {result.source} since {result.since}"
            if result.missing:
                raise ExporterError(f"t{problem}, as far as that could be read")
            raise SettingsError(f"T{problem} (see --since).{nearest(name, candidates)}")
    if gpu:
        jobs = [job.having(of for of in job.gpus if gpu in of.names) for job in jobs]
    used = (job for job in jobs if job.observed_seconds)
    result.all_jobs = result.jobs
    result.jobs = sorted(used, key=lambda job: (-job.lost_seconds, job.id))
