"""The `report` command: what is asked for, where it is read, how it is shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from gpu_bottleneck_exporter.errors import ExporterError, SettingsError, printable
from gpu_bottleneck_exporter.fetch import Server
from gpu_bottleneck_exporter.flags import nearest, url_of
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.report import bill as sums
from gpu_bottleneck_exporter.report import prometheus as recorded
from gpu_bottleneck_exporter.report.bill import Bill
from gpu_bottleneck_exporter.report.document import document
from gpu_bottleneck_exporter.report.engine import Engine
from gpu_bottleneck_exporter.report.html import html
from gpu_bottleneck_exporter.report.ledgers import Found, ledgers
from gpu_bottleneck_exporter.report.model import Job, total
from gpu_bottleneck_exporter.report.text import markdown, text

LOCAL = "http://127.0.0.1:10170"
USUAL_SINCE_SECONDS = 7 * 86_400.0
ONE_SINCE_SECONDS = 30 * 86_400.0
"""How far back a Prometheus is asked for one job."""
_MOST_NODES = 20_000
_LONGEST_CURRENCY = 8


def _as_json(bill: Bill) -> str:
    return dumps(document(bill))


FORMATS: Mapping[str, Callable[[Bill], str]] = {
    "text": text,
    "json": _as_json,
    "markdown": markdown,
    "html": html,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the flags ask for. Raises SettingsError, with the flag's name, for an invalid value."""

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

    def __post_init__(self) -> None:
        if self.job and self.pod:
            raise SettingsError("--job and --pod: only one of them")
        if self.pod and self.pod.count("/") != 1:
            raise SettingsError(f"--pod must be like vision/train-0, not {self.pod!r}")
        if not 0 < len(self.currency) <= _LONGEST_CURRENCY or not self.currency.isprintable():
            raise SettingsError(f"--currency must be like EUR, not {self.currency!r}")

    @property
    def one(self) -> bool:
        """Whether a job is asked for, however long ago it was."""
        return bool(self.job or self.pod)

    def owns(self, job: Job) -> bool:
        """Whether `job` is of the owner that is asked for, if any is."""
        return self.owner in (None, job.label("user"), job.label("namespace"))

    @property
    def since_seconds(self) -> float | None:
        """Unix time; None for all that is known."""
        if self.since is None and self.one:
            return None
        return time.time() - (USUAL_SINCE_SECONDS if self.since is None else self.since)


def report(wanted: Wanted, urls: Sequence[str], nodes: Path | None, ca_file: Path | None) -> int:
    """Print the report from nodes' ledgers; the exit status.

    Raises SettingsError if what is asked for is not there, and ExporterError if it may be on a
    node that is missing.
    """
    addresses = [*urls, *(addresses_in(nodes) if nodes else ())] or [LOCAL]
    since = wanted.since_seconds
    found = ledgers(addresses, ca_file, None if wanted.one else since, wanted.deadline)
    for line in (*found.notes, *found.missing):
        click.echo(printable(line), err=True)
    return show(bill_of(found, wanted, since), wanted)


def from_prometheus(wanted: Wanted, url: str, ca_file: Path | None, *, verbose: bool) -> int:
    """Print the report from recorded series; the exit status is 0.

    Raises SettingsError if what is asked for is not there, and ExporterError if Prometheus fails.
    """
    server = Server(url, ca_file, ("/graph", "/query"), wanted.deadline)
    engine = Engine(server, wanted.deadline, verbose)
    span = ONE_SINCE_SECONDS if wanted.one else USUAL_SINCE_SECONDS
    span = span if wanted.since is None else wanted.since
    since = time.time() - span
    if wanted.one or wanted.gpu:
        asked = recorded.matchers(wanted.job, wanted.pod, wanted.gpu)
        found = Found([job for job in recorded.detailed(engine, *asked, span) if wanted.owns(job)])
        if not found.jobs:
            raise _unknown(engine, wanted, since)
        return show(_bill(found.jobs, found.jobs, wanted, since), wanted)
    totals = recorded.totals(engine, wanted.owner, span, wanted.limit)
    if not totals.owners:
        raise _unknown(engine, wanted, since)
    bill = _bill(totals.jobs, [], wanted, since)
    whole = replace(bill, count=totals.count, use=totals.use, track=totals.track)
    return show(replace(whole, owners=sums.largest(totals.owners)), wanted)


def show(bill: Bill, wanted: Wanted) -> int:
    """Print it; the exit status."""
    click.echo(FORMATS[wanted.layout](bill))
    return 1 if bill.missing else 0


def bill_of(found: Found, wanted: Wanted, since_seconds: float | None) -> Bill:
    """The bill for what is asked for.

    Raises SettingsError if no job is like that, and ExporterError if one may be on a missing node.
    """
    chosen = (job.only(wanted.gpu) if wanted.gpu else job for job in _chosen(found, wanted))
    jobs = [job for job in chosen if job.use.observed_seconds and job.ran_since(since_seconds)]
    return replace(_bill(jobs, found.jobs, wanted, since_seconds), missing=found.missing)


def _bill(jobs: Sequence[Job], known: Iterable[Job], wanted: Wanted, since: float | None) -> Bill:
    listed = sums.worst(jobs, wanted.limit)
    before = {job.id: one for job in listed if wanted.one and (one := sums.earlier(job, known))}
    return Bill(
        jobs=listed,
        count=len(jobs),
        use=total(job.use for job in jobs),
        owners=sums.by_owner(jobs),
        track=sums.track([gpu.score for job in jobs for gpu in job.gpus if gpu.score]),
        earlier=before,
        since_seconds=since,
        time_seconds=time.time(),
        hourly_cost=wanted.hourly_cost,
        currency=wanted.currency,
    )


def _unknown(engine: Engine, wanted: Wanted, since: float) -> ExporterError:
    """Why nothing was found: a wrong name, or no rules."""
    given = {"job": wanted.job, "pod": wanted.pod, "gpu": wanted.gpu, "owner": wanted.owner}
    kind, name = next(((k, v) for k, v in given.items() if v), ("", ""))
    labels = {"job": ("slurm_job_id",), "owner": ("user", "workload_namespace")}.get(kind, ())
    known = [one for label in labels for one in engine.names(label, recorded.BUSY, since)]
    if not name or not (known or engine.names("__name__", recorded.BUSY, since)):
        told = "do its rules come from this version (gpu-bottleneck-exporter rules)?"
        return ExporterError(f"{engine.server.name} has recorded no {recorded.BUSY}: {told}")
    return SettingsError(f"There is no {kind} {name!r}.{nearest(name, known)}")


def addresses_in(file: Path) -> list[str]:
    """The addresses in a file, one per line; # begins a comment. Raises SettingsError."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise SettingsError(f"--nodes: cannot read {file}: {reason}") from error
    words = {
        at: word for at, line in enumerate(lines, 1) if (word := line.partition("#")[0].strip())
    }
    if not 0 < len(words) <= _MOST_NODES:
        raise SettingsError(f"--nodes: {file} must have 1 to {_MOST_NODES} addresses")
    return [_address(word, f"{file}, line {at}") for at, word in words.items()]


def _address(word: str, where: str) -> str:
    try:
        return url_of(word)
    except click.BadParameter as error:
        raise SettingsError(f"--nodes: {where}: {error.message}") from error


def _chosen(found: Found, wanted: Wanted) -> list[Job]:
    jobs: Iterable[Job] = found.jobs
    for kind, name, known in (
        ("job", wanted.job, lambda job: (job.name, job.id)),
        ("pod", wanted.pod, lambda job: (f"{job.label('namespace')}/{job.label('pod')}",)),
        ("owner", wanted.owner, lambda job: (job.label("user"), job.label("namespace"))),
        ("gpu", wanted.gpu, _gpus),
    ):
        if name is None:
            continue
        names = {one for job in jobs for one in known(job) if one}
        jobs = [job for job in jobs if name in known(job)]
        if not jobs:
            if found.missing:
                raise ExporterError(f"there is no {kind} {name!r} in what could be read")
            raise SettingsError(f"There is no {kind} {name!r}.{nearest(name, names)}")
    return list(jobs)


def _gpus(job: Job) -> tuple[str, ...]:
    return tuple(name for gpu in job.gpus for name in gpu.names)
