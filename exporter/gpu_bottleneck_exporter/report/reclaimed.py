"""Jobs that could have been ended, and false reclaims among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_bottleneck_exporter.errors import ExporterError
from gpu_bottleneck_exporter.fetch import Server
from gpu_bottleneck_exporter.jobs.model import DOCUMENT_VERSION
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.nodeview.text import counted, percent, short
from gpu_bottleneck_exporter.nodeview.wire import document
from gpu_bottleneck_exporter.report.about import rounded
from gpu_bottleneck_exporter.report.bill import HOUR_SECONDS, ReportQuery
from gpu_bottleneck_exporter.report.prometheus import Engine
from gpu_bottleneck_exporter.report.text import aligned

_GPUS, _BUSY_GPUS = "workload:reclaimed:gpus", "workload:reclaimed:busy_gpus"
_LOADED = "gpu:threshold:reclaim_used"
_EVALUATIONS_PER_HOUR = 60


@dataclass(slots=True)
class Reclaimed:
    """A job that could have been ended."""

    job: str
    owner: str
    reason: str
    gpu_hours: float = 0.0
    """GPU-hours from then to its end."""
    worked_gpu_hours: float = 0.0
    """Busy ones; a false reclaim has some."""


@dataclass(frozen=True, slots=True)
class Reclaims:
    """Jobs, most GPU-hours first."""

    query: ReportQuery
    recorded_hours: float
    """Hours with evaluations."""
    jobs: Sequence[Reclaimed]

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of all jobs."""
        return sum(job.gpu_hours for job in self.jobs)

    @property
    def false(self) -> Sequence[Reclaimed]:
        """Jobs that worked later."""
        return [job for job in self.jobs if job.worked_gpu_hours]


def reclaims(url: str, query: ReportQuery) -> Reclaims:
    """The jobs in a Prometheus. Raises ExporterError if a query fails."""
    server = Server(url, query.ca_file, ("/graph", "/query"), query.deadline)
    window = f"[{query.seconds:.0f}s]"
    by = "cluster, workload_group, workload, workload_owner, reason"
    recorded, gpus, busy = Engine(server, query).evaluate(
        f"count_over_time({_LOADED}{window})",
        *(f"sum by ({by}) (sum_over_time({name}{window}))" for name in (_GPUS, _BUSY_GPUS)),
    )
    if not recorded:
        question = "do its rules come from this version (gpu-bottleneck-exporter rules)?"
        raise ExporterError(f"{server.name} has recorded no {_LOADED}: {question}")
    jobs: dict[tuple[str, ...], Reclaimed] = {}
    for is_busy, labels, count in [*((0, *row) for row in gpus), *((1, *row) for row in busy)]:
        key = labels["cluster"], labels["workload_group"], labels["reason"]
        job = jobs.setdefault(key, Reclaimed(labels["workload"], labels["workload_owner"], key[2]))
        job.job = job.job if job.job == labels["workload"] else key[1]
        if is_busy:
            job.worked_gpu_hours += count / _EVALUATIONS_PER_HOUR
        else:
            job.gpu_hours += count / _EVALUATIONS_PER_HOUR
    ordered = sorted(jobs.values(), key=lambda job: (-job.gpu_hours, job.job))
    return Reclaims(query, recorded[0][1] / _EVALUATIONS_PER_HOUR, ordered)


def text(found: Reclaims) -> str:
    """Plain text."""
    count, wrong = len(found.jobs), found.false
    hours, whole = rounded(found.recorded_hours), rounded(found.query.seconds / HOUR_SECONDS)
    share = f" ({percent(len(wrong) / count)})" if count else ""
    worked = rounded(sum(job.worked_gpu_hours for job in wrong))
    jobs = f"{counted(f'{count}', 'job')} would have been ended"
    lines = [
        f"{jobs}, {rounded(found.gpu_hours)} GPU-hours; known of {hours} of {whole} hours",
        f"False reclaims: {len(wrong)}{share} went on to work, {worked} GPU-hours",
    ]
    rows = [("Job", "Owner", "Reason", "GPU-hours", "Worked later")] * bool(count)
    for job in found.jobs[: found.query.limit]:
        spent = rounded(job.gpu_hours), rounded(job.worked_gpu_hours)
        rows.append((short(job.job), short(job.owner), job.reason, *spent))
    return "\n".join([*lines, *aligned(rows)])


def json(found: Reclaims) -> str:
    """JSON."""
    return dumps(
        {
            "version": DOCUMENT_VERSION,
            "recorded_hours": found.recorded_hours,
            "job_count": len(found.jobs),
            "false_count": len(found.false),
            "gpu_hours": found.gpu_hours,
            "jobs": [document(job) for job in found.jobs[: found.query.limit]],
        }
    )
