"""A report as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gpu_bottleneck_exporter.jobs.records import VERSION
from gpu_bottleneck_exporter.jsontext import Document
from gpu_bottleneck_exporter.nodeview.wire import document as plain
from gpu_bottleneck_exporter.report import bill as sums
from gpu_bottleneck_exporter.report.bill import HOUR_SECONDS, Bill
from gpu_bottleneck_exporter.report.model import Job, Use


def document(bill: Bill) -> Document:
    """The report; null is unknown."""
    return {
        "version": VERSION,
        "time_seconds": bill.time_seconds,
        "since_seconds": bill.since_seconds,
        "currency": bill.currency if bill.hourly_cost is not None else None,
        "job_count": bill.count,
        "total": _use(bill, bill.use),
        "owners": [{"owner": name, **_use(bill, use)} for name, use in bill.owners.items()],
        "jobs": [_job(bill, job) for job in bill.jobs],
        "predictions": bill.track and asdict(bill.track),
        "missing": list(bill.missing),
    }


def _job(bill: Bill, job: Job) -> dict[str, Any]:
    change, slow, before = sums.first(job), sums.slowest(job), bill.earlier.get(job.id)
    return {
        "id": job.id,
        "owner": dict(job.owner),
        "claims": dict(job.claims),
        "start_seconds": job.start_seconds,
        "end_seconds": job.end_seconds,
        **_use(bill, job.use),
        "slowest": slow and asdict(slow),
        "do_first": change and asdict(change),
        "earlier": before and asdict(before),
        "gpus": [plain(gpu) for gpu in job.gpus],
    }


def _use(bill: Bill, use: Use) -> dict[str, Any]:
    return {
        "observed_seconds": use.observed_seconds,
        "busy_ratio": use.busy_ratio,
        "lost_gpu_hours": use.lost_seconds / HOUR_SECONDS,
        "lost_cost": bill.cost(use.lost_seconds),
        "stall_ratios": use.stall_ratios,
    }
