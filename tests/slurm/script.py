"""The epilog, which is a file to be copied, as a module; and what nodes tell it."""

from __future__ import annotations

import base64
import gzip
import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

EPILOG = Path(__file__).parents[2] / "exporter/deploy/slurm/epilog.py"
START = 1_764_100_000.0
GIB = 2**30


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("epilog", EPILOG)
    assert spec
    assert spec.loader
    sys.modules["epilog"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


epilog = _loaded()


def gpu(number: str = "0", **changed: object) -> dict[str, Any]:
    """A row of a ledger: an hour, of which the GPU was busy for a quarter."""
    return {
        "gpu": number,
        "uuid": f"GPU-{number * 8}-0000-0000-0000-000000000000",
        "start_seconds": START,
        "end_seconds": START + 3600,
        "observed_seconds": 3600.0,
        "busy_seconds": 900.0,
        "stall_seconds": {"worker_cpu": 1800.0, "host_code": 600.0, "asleep": 240.0, "peer": 60.0},
        "memory_peak_bytes": 20 * GIB,
        "memory_total_bytes": 80 * GIB,
        **changed,
    }


def ledger(*gpus: Mapping[str, Any], number: str = "4711", running: bool = False) -> dict[str, Any]:
    """A node's document about a job."""
    end = None if running else START + 3600
    job = {"id": f"slurm-{number}", "start_seconds": START, "end_seconds": end, "gpus": [*gpus]}
    return {"version": 1, "node": "n1", "time_seconds": START + 3605, "job": job}


def job(**changed: object) -> Any:  # noqa: ANN401 - of a module that is loaded by hand
    """Accounting of the job: an hour, one GPU, one node."""
    fields = {"name": "4711", "cluster": "della", "seconds": 3600.0, "gpus": 1, "nodes": "n1"}
    times = {"start": START, "end": START + 3600}
    return epilog.Job(**{**fields, "comment": "", **times, **changed})


def summarized(of: Any, *ledgers: Mapping[str, Any]) -> str:  # noqa: ANN401 - see `job`
    """The comment about it, from ledgers of nodes `n1` and so on."""
    nodes = {}
    for number, item in enumerate(ledgers, 1):
        rows = (epilog.gpu_of(row, of.seconds, item["time_seconds"]) for row in item["job"]["gpus"])
        nodes[f"n{number}"] = dict(rows)
    comment: str = epilog.summarized(of, {node: gpus for node, gpus in nodes.items() if gpus})
    return comment


def decoded(comment: str) -> dict[str, Any]:
    """The summary that a comment holds."""
    assert comment.startswith("JS1:")
    fields: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(comment[4:])))
    return fields
