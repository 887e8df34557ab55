"""Documents of /api/v1/jobs as nodes serve them, and servers that serve these."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gpu_bottleneck_exporter.commands.report import select
from gpu_bottleneck_exporter.report.bill import JobReport, ReportQuery
from gpu_bottleneck_exporter.report.ledgers import add, joined
from support.beside import Reply, Request, answering

Fields = dict[str, Any]
NOW = 1_764_100_000.0
HOUR = 3600.0
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202egpj|`*_[x](javascript:x)\n" + "y" * 5000


def gpu(index: int, *, hours: float = 3.2, began: float | None = None, **stalls: float) -> Fields:
    """A GPU that lost these shares of its time; further fields may be added."""
    seconds = hours * HOUR
    began = NOW - seconds if began is None else began
    fields = {cause: share * seconds for cause, share in stalls.items()}
    return {
        "gpu": f"{index}",
        "uuid": f"GPU-{index}",
        "model": "NVIDIA H100 80GB HBM3",
        "start_seconds": began,
        "end_seconds": began + seconds,
        "observed_seconds": seconds,
        "busy_seconds": seconds - sum(fields.values()),
        "stall_seconds": fields,
        "timeline": {
            "start_seconds": began,
            "step_seconds": seconds / 4,
            "spent_seconds": {
                what: [value / 4] * 4
                for what, value in {"busy": seconds - sum(fields.values()), **fields}.items()
            },
        },
    }


def advised(now: float, then: float, busy: float, **fields: object) -> Fields:
    """A recommendation of num_workers."""
    return {
        "cause": "worker_cpu",
        "knob": "num_workers",
        "current_value": now,
        "value": then,
        "current_busy_ratio": 0.4,
        "busy_ratio": busy,
        "busy_low_ratio": busy - 0.05,
        "busy_high_ratio": busy + 0.05,
        **fields,
    }


def scored(predicted: float, came: float) -> Fields:
    """Outcome of a change."""
    return {
        "knob": "num_workers",
        "value_before": 2,
        "value_after": 6,
        "predicted_busy_ratio": predicted,
        "predicted_low_ratio": predicted - 0.05,
        "predicted_high_ratio": predicted + 0.05,
        "busy_ratio": came,
    }


def job(name: str, *gpus: Fields, **owner: str) -> Fields:
    """A job on these GPUs."""
    return {
        "id": name,
        "owner": owner or {"user": "ada", "slurm_job_id": name.removeprefix("slurm-")},
        "start_seconds": min(item["start_seconds"] for item in gpus),
        "end_seconds": max(item["end_seconds"] for item in gpus),
        "gpus": list(gpus),
    }


def document(node: str, *jobs: Fields, **fields: object) -> Fields:
    """The document of a node."""
    whole = {"version": 1, "node": node, "time_seconds": NOW}
    return {**whole, "jobs": list(jobs), **fields}


def example() -> tuple[Fields, Fields]:
    """Two nodes of a Slurm job with eight GPUs, of which GPU 3 of node7 is the slowest."""
    even = {"asleep": 0.14, "host_code": 0.05, "unknown": 0.02}
    ranks = [gpu(i, worker_cpu=0.36, **even) for i in range(8)]
    ranks[3] = gpu(3, worker_cpu=0.52, **even)
    for rank in ranks:
        rank["recommendation"] = advised(2, 6, 0.72)
        rank["energy_joules"] = 3.6e6
        rank["memory_peak_bytes"], rank["memory_total_bytes"] = 52 * 2**30, 80 * 2**30
    ranks[0]["score"], ranks[1]["score"] = scored(0.7, 0.71), scored(0.7, 0.5)
    return (
        document("node7", job("slurm-4711", *ranks[:4])),
        document("node8", job("slurm-4711", *ranks[4:])),
    )


def read(*documents: Fields, **wanted: Any) -> JobReport:  # noqa: ANN401 - of any type
    """Text of documents that were made just now."""
    report = JobReport(ReportQuery(**wanted))
    for item in documents:
        add(report, "http://node", json.dumps(item).encode(), NOW, NOW)
    report.jobs = [*joined(report.jobs)]
    return report


def bill(*documents: Fields, **wanted: Any) -> JobReport:  # noqa: ANN401 - of any type
    """The bill for these documents and flags."""
    result = read(*documents, **wanted)
    select(result)
    return result


def moved(found: Any, seconds: float) -> Any:  # noqa: ANN401 - JSON
    """The same with all times moved."""
    if isinstance(found, dict):
        times = {"start_seconds", "end_seconds", "time_seconds"}
        return {k: v + seconds if k in times else moved(v, seconds) for k, v in found.items()}
    return [moved(item, seconds) for item in found] if isinstance(found, list) else found


@contextmanager
def nodes(documents: Mapping[str, Fields | Reply]) -> Iterator[dict[str, str]]:
    """A server of nodes as of now; the URL of each."""

    def answer(request: Request) -> Reply:
        name, _, rest = request.path.removeprefix("/").partition("/")
        result = documents.get(name)
        if result is None or not rest.startswith("api/v1/jobs"):
            return Reply(status=404)
        if isinstance(result, Reply):
            return result
        return Reply(json.dumps(moved(result, time.time() - NOW)).encode())

    with answering(answer) as port:
        yield {name: f"http://127.0.0.1:{port}/{name}" for name in documents}
