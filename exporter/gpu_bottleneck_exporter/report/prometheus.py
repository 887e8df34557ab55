"""Jobs from a Prometheus that evaluates our rules, by queries over recorded series.

Totals come from `workload:busy_gpu_seconds:sum10m` and `workload:stall_gpu_seconds:sum10m`; what
each GPU of a job did, from the series of its GPUs while it had them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_bottleneck_exporter.accounting import stall
from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.nodeview.wire import read
from gpu_bottleneck_exporter.prescription import model as knobs
from gpu_bottleneck_exporter.report.bill import Track
from gpu_bottleneck_exporter.report.engine import Engine, Labels, Row, quoted, value
from gpu_bottleneck_exporter.report.model import Gpu, Job, Use, total

BUSY, STALL = "workload:busy_gpu_seconds:sum10m", "workload:stall_gpu_seconds:sum10m"
_OWNER = ("workload_namespace", "workload_pod", "slurm_job_id", "user", "workload")
_JOB = ("cluster", *_OWNER)
_BY_JOB = ", ".join(_JOB)
_GPU = "job, instance, gpu, uuid"
_ENDED_SECONDS = 600.0
"""What rules have not seen for so long has ended."""
Key = tuple[tuple[str, str], ...]
"""Labels with their values."""
_EVERY_SECONDS = 60.0
"""The interval in which rules record."""
_AGAINST: Mapping[str, Sequence[str]] = {
    knobs.NUM_WORKERS: (stall.WORKER_CPU, stall.STORAGE, stall.NETWORK),
    knobs.CPU_LIMIT: (stall.CPU_QUOTA,),
    knobs.CPU_CORES: (stall.CPU_QUEUE,),
    knobs.HOST_CODE: (stall.HOST_CODE,),
    knobs.CHECKPOINTS: (stall.STORAGE,),
}
"""What a change of each setting is against: the largest of these."""
_ADVICE = "value|current_value|busy_ratio|busy_low_ratio|busy_high_ratio|upper_bound"


@dataclass(frozen=True, slots=True)
class Totals:
    """What is known of many jobs."""

    jobs: list[Job]
    """Those that lost most."""
    count: int
    use: Use
    owners: dict[str, Use]
    track: Track | None


def totals(engine: Engine, owner: str | None, span_seconds: float, most: int) -> Totals:
    """All jobs of the last `span_seconds`, or those of a user or namespace, and the worst."""
    wide = f"[{span_seconds:.0f}s]"
    matchers = (
        [""] if owner is None else [f"{k}={quoted(owner)}" for k in ("user", "workload_namespace")]
    )

    def sums(name: str, by: str, also: str = "") -> str:
        each = [", ".join(filter(None, (one, also))) for one in matchers]
        of = (f"sum by ({by}) (sum_over_time({name}{{{one}}}{wide}))" for one in each)
        return " or ".join(of)

    by_owner = "workload_namespace, user"
    found = engine.ask(
        {
            "busy": sums(BUSY, by_owner),
            "stall": sums(STALL, f"{by_owner}, waiting_on"),
            "worst": f"topk({most}, {sums(STALL, _BY_JOB)})",
            "count": f"count({sums(BUSY, _BY_JOB)})",
            "track": '{__name__=~"cluster:predictions.*"}',
        }
    )
    owners: dict[str, list[Use]] = {}
    for key, use in _uses(found["busy"], found["stall"], ("workload_namespace", "user")).items():
        owners.setdefault(Job(id="", owner=dict(key)).owner_name, []).append(use)
    summed = {name: total(uses) for name, uses in owners.items()}
    names = sorted({labels.get("workload", "") for labels, _ in found["worst"]})
    jobs: list[Job] = []
    if names:
        worst = f"workload=~{quoted('|'.join(map(re.escape, names)))}"
        asked = {
            "busy": sums(BUSY, _BY_JOB, worst),
            "stall": sums(STALL, f"{_BY_JOB}, waiting_on", worst),
        }
        of_jobs = engine.ask(asked)
        uses = _uses(of_jobs["busy"], of_jobs["stall"], _JOB)
        jobs = [replace(_job(key), summed=use) for key, use in uses.items()]
    count = int(sum(map(value, found["count"])))
    return Totals(jobs, count, total(summed.values()), summed, _track(found["track"]))


def detailed(engine: Engine, owner: str, gpu: str, span_seconds: float) -> list[Job]:
    """Jobs with what each of their GPUs did.

    Args:
        engine: The Prometheus to ask.
        owner: Matchers of the owner's labels.
        gpu: Matchers of the GPU's.
        span_seconds: How far back to look.
    """
    info = f"gpu:owner:info{{{', '.join(filter(None, (owner, gpu)))}}}"
    seen = f"timestamp({info})[{span_seconds:.0f}s:1m]"
    found = engine.ask({"first": f"min_over_time({seen})", "last": f"max_over_time({seen})"})
    if not found["first"]:
        return []
    ends = {_key(row[0], row[0]): value(row) for row in found["last"]}
    starts = {_key(row[0], row[0]): value(row) - _EVERY_SECONDS for row in found["first"]}
    end = max(ends.values())
    lasting = f"[{end - min(starts.values()):.0f}s:1m]"
    uuids = "|".join(sorted({re.escape(row[0].get("uuid", "")) for row in found["first"]}))
    gpus = f"uuid=~{quoted(uuids)}"

    def of_gpus(name: str, also: str = "") -> str:
        joined = f"{name}{{{gpus}}} * on ({_GPU}) group_left ({', '.join(_OWNER)}) {info}"
        by = f"{_GPU}, {_BY_JOB}{also}"
        return f"{_EVERY_SECONDS:.0f} * sum by ({by}) (sum_over_time(({joined}){lasting}))"

    advice = f'__name__=~"gpu:prescription:({_ADVICE})", {gpus}'
    came = engine.ask(
        {
            "busy": of_gpus("gpu:busy:ratio_rate5m"),
            "stall": of_gpus("gpu:stall:ratio_rate5m", ", waiting_on"),
            "advice": f"last_over_time({{{advice}}}{lasting.replace(':1m', '')})",
        },
        time=end + _EVERY_SECONDS / 2,
    )
    uses = _uses(came["busy"], came["stall"], (*_GPU.split(", "), *_JOB))
    advised = _by_uuid(came["advice"])
    parts: dict[Key, list[Gpu]] = {}
    for key, use in uses.items():
        labels = dict(key)
        times = [(starts[k], ends[k]) for k in starts if {*key} <= {*k}]
        parts.setdefault(_key(labels, _JOB), []).append(
            _gpu(labels, use, min(times)[0], max(at for _, at in times))
        )
    only = len(parts) == 1  # which of several was advised is unknown
    return [_whole(key, gpus, advised if only else {}) for key, gpus in parts.items()]


def _whole(key: Key, gpus: Iterable[Gpu], advised: Mapping[str, Mapping[str, object]]) -> Job:
    placed = sorted(gpus, key=lambda gpu: (gpu.node, len(gpu.gpu), gpu.gpu))
    end = max(gpu.end_seconds or 0.0 for gpu in placed)
    return replace(
        _job(key),
        gpus=tuple(_advised(gpu, advised.get(gpu.uuid, {})) for gpu in placed),
        start_seconds=min(gpu.start_seconds for gpu in placed),
        end_seconds=None if time.time() - end < _ENDED_SECONDS else end,
    )


def _gpu(labels: Labels, use: Use, start: float, end: float) -> Gpu:
    return Gpu(
        gpu=labels.get("gpu", ""),
        uuid=labels.get("uuid", ""),
        node=labels.get("instance", ""),
        start_seconds=start,
        end_seconds=end,
        observed_seconds=use.observed_seconds,
        busy_seconds=use.busy_seconds,
        stall_seconds=use.stall_seconds,
    )


def matchers(job: str | None, pod: str | None, gpu: str | None) -> tuple[str, str]:
    """Matchers of the owner's labels and of the GPU's, for what the flags of `report` name.

    Raises SettingsError for what Prometheus does not know.
    """
    owner = ""
    if job:
        kind, _, name = job.partition("-")
        if kind in ("pod", "container") and name:
            label = "pod_uid" if kind == "pod" else "container_id"
            owner = f"{label}=~{quoted(f'{re.escape(name)}.*')}"
        else:
            owner = f"slurm_job_id={quoted(job.removeprefix('slurm-'))}"
    elif pod:
        namespace, _, name = pod.partition("/")
        owner = f"workload_namespace={quoted(namespace)}, workload_pod={quoted(name)}"
    if not gpu:
        return owner, ""
    node, slash, index = gpu.rpartition("/")
    if slash:
        host = re.escape(node)
        return owner, f"instance=~{quoted(f'{host}(:[0-9]+)?')}, gpu={quoted(index)}"
    if not job and not pod and not re.match("GPU-|MIG-", gpu):
        raise SettingsError(f"--gpu: with --prometheus like node7/3 or a uuid, not {gpu!r}")
    return owner, f"{'gpu' if gpu.isdecimal() else 'uuid'}={quoted(gpu)}"


def _advised(gpu: Gpu, figures: Mapping[str, object]) -> Gpu:
    """The same with the last recommendation; without it where figures are missing."""
    own = gpu.use.stall_ratios
    against = _AGAINST.get(f"{figures.get('knob')}", ())
    if not against or gpu.use.busy_ratio is None:
        return gpu
    cause = max(against, key=lambda one: own.get(one, 0.0))
    known = {"cause": cause, "current_busy_ratio": gpu.use.busy_ratio, **figures}
    known["at_most"] = known.pop("upper_bound", 0.0) == 1
    try:
        return replace(gpu, recommendation=read(knobs.Prescription, known))
    except ValueError:
        return gpu


def _by_uuid(rows: Iterable[Row]) -> dict[str, dict[str, object]]:
    """The figures of each GPU's last recommendation."""
    found: dict[str, dict[str, object]] = {}
    for row in sorted(rows, key=lambda row: row[0].get("knob", "")):
        labels, _ = row
        name = labels.get("__name__", "").rpartition(":")[2]
        found.setdefault(labels.get("uuid", ""), {}).update(
            {"knob": labels.get("knob", ""), name: value(row)}
        )
    return found


def _uses(busy: Iterable[Row], stalls: Iterable[Row], by: Iterable[str]) -> dict[Key, Use]:
    """What GPUs did, by these labels."""
    found: dict[Key, list[Use]] = {}
    for row in busy:
        found.setdefault(_key(row[0], by), []).append(Use(value(row), value(row)))
    for row in stalls:
        part = {row[0].get("waiting_on", stall.UNKNOWN): value(row)}
        found.setdefault(_key(row[0], by), []).append(Use(value(row), 0.0, part))
    return {key: total(uses) for key, uses in found.items()}


def _job(key: Key) -> Job:
    owner = {name: text for name, text in key if name not in ("workload", "cluster")}
    labels = dict(key)
    number = owner.get("slurm_job_id")
    return Job(id=f"slurm-{number}" if number else labels.get("workload", ""), owner=owner)


def _key(labels: Labels, names: Iterable[str]) -> Key:
    return tuple(sorted((name, labels[name]) for name in names if labels.get(name)))


def _track(rows: Iterable[Row]) -> Track | None:
    """Over all clusters; of the medians the largest."""
    figures: dict[str, list[float]] = {}
    for row in sorted(rows, key=lambda row: row[0].get("cluster", "")):
        figures.setdefault(row[0].get("__name__", ""), []).append(value(row))
    counts = figures.get("cluster:predictions:count", [])
    inside = figures.get("cluster:predictions_inside:ratio", [])
    errors = figures.get("cluster:predictions_error:median", [])
    if not sum(counts) or not len(counts) == len(inside) == len(errors):
        return None
    ratio = sum(n * share for n, share in zip(counts, inside, strict=True)) / sum(counts)
    return Track(int(sum(counts)), ratio, max(errors))
