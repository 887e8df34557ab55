"""A day of a made-up fleet in a real Prometheus: what the rules would have recorded of it.

At the pack's intervals, as blocks; 1 000 GPUs take minutes and a GB in $TMPDIR.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from builders import pack
from builders.colours import CAUSES
from gpu_bottleneck_exporter.prescription.model import KNOBS
from support.prometheus import Prometheus, on_data, write_past

STEP_SECONDS = pack.interval_seconds()
BLOCK_SECONDS = 7200
DAY_SECONDS = 86_400
RECENT_SECONDS = 600
"""Series that only tables and single values show cover this much time."""
BILLED_SECONDS = 300
"""The interval of the group gpu-bill."""
GPUS_PER_NODE = 8
TEAMS = 12
_OFTEN = (
    *("cpu_preprocessing_bound", "local_storage_bound", "allocated_idle", "too_few_workers"),
    *("host_loop_bound", "network_storage_bound", "small_batch", "cpu_throttled"),
)
_CAUSES = [*dict.fromkeys((*_OFTEN, *CAUSES))]
_ALERTS = pack.alerts()


@contextmanager
def filled(folder: Path, gpus: int) -> Iterator[tuple[Prometheus, int]]:
    """A Prometheus with a day of the fleet, and the end of that day (Unix time)."""
    end = int(time.time()) // STEP_SECONDS * STEP_SECONDS
    fill(folder, gpus, end)
    with on_data(folder, {}) as server:
        yield server, end


def fill(folder: Path, gpus: int, end: int) -> None:
    """Write blocks of two hours each."""
    start = (end - DAY_SECONDS) // BLOCK_SECONDS * BLOCK_SECONDS
    for begin in range(start, end + 1, BLOCK_SECONDS):
        write_past(folder, lines(gpus, begin, min(begin + BLOCK_SECONDS, end + 1), end))


def lines(gpus: int, begin: int, until: int, end: int) -> Iterator[str]:
    """The samples of a block, series by series."""
    times = range(begin, until, STEP_SECONDS)
    recent = [at for at in times if at > end - RECENT_SECONDS]
    for number in range(gpus):
        labels, owner = gpu_labels(number), owner_labels(number)
        held = number % 10 != 0
        yield series("gpu:held:bool", labels, float(held), times)
        if not held:
            continue
        yield series("gpu:tenants:count", labels, 1, times)
        yield series("gpu:held:info", labels + owner, 1, times)
        if number % 8 == 0:
            yield series("gpu:blind:bool", f'{labels},blind="device_causes"', 1, times)
        yield from of_now(number, labels, recent)
        if number % 10 < 8:
            # Prometheus still returns an ended series for five minutes.
            ended = times[:-5] if until == begin + BLOCK_SECONDS else times
            yield from of_cause(number, ended, recent)
    bills = [at for at in times if at % BILLED_SECONDS == 0]
    for number in range(TEAMS):
        yield from of_owner(number, bills, end)


def of_owner(number: int, times: list[int], end: int) -> Iterator[str]:
    """Capacity lost by a team; every third one has a budget."""
    owner, now = f'workload_owner="team-{number}"', time.gmtime(end)
    hours = 20 + 10 * (number * 5 % TEAMS)
    month = hours * (now.tm_mday - 1 + now.tm_hour / 24)
    budget = 0 if number % 3 else 1500
    if budget:
        yield series("owner:budget:gpu_hours", owner, budget, times)
    for part, cause in ((0.7, "worker_cpu"), (0.3, "storage")):
        text = f'{owner},waiting_on="{cause}"'
        lost = f'cluster="one",{text}'
        day = 86_400 / BILLED_SECONDS
        yield series("owner:lost_gpu_seconds:sum5m", lost, 3600 * part * hours / day, times)
        of_month = f'{lost},month="{now.tm_mon}"'
        yield series("owner:lost_gpu_hours:month", of_month, part * month, times)
        if budget:
            yield series("owner:budget_spent:ratio", text, part * month / budget, times)


def of_cause(number: int, times: range, recent: list[int]) -> Iterator[str]:
    """Seven of ten have a cause; some have another one in each block. So have two on each node."""
    labels, owner = gpu_labels(number), owner_labels(number)
    changing = times[0] // BLOCK_SECONDS if number // 4 % 3 == 0 else 0
    cause = _CAUSES[int(len(_CAUSES) * _share(number // 4 + changing) ** 3)]
    lost = round(0.4 + 0.55 * _share(number), 2)
    text = f'{labels},cause="{cause}"'
    yield series("gpu:bottleneck:lost_ratio", text + owner, lost, times)
    yield series("gpu:bottleneck:lost_gpus", text + owner, lost, times)
    if number % 4 == 1:
        yield series("instance:lost_gpu_seconds:rate", node_labels(number, cause), 3 * lost, times)
    yield series("gpu:bottleneck:primary", text, 1, recent)
    yield series("gpu:bottleneck:since_timestamp", text, times[0], recent)
    yield series("gpu:cause:evidence", text, 0.9, recent)
    if number % 2:
        yield from prescribed(f'{labels},knob="{KNOBS[number % len(KNOBS)]}"', owner, lost, recent)
    alert = f'{text},alertname="{_ALERTS[cause]}",severity="warning",responder="job"{owner}'
    yield series("ALERTS", f'{alert},alertstate="firing"', 1, recent)


def prescribed(told: str, owner: str, lost: float, times: list[int]) -> Iterator[str]:
    """Most of what is lost would be won."""
    yield series("gpu:prescription:gain_hours", told + owner, round(150 * lost, 1), times)
    yield series("gpu:prescription:error", told, round(lost / 5 - 0.14, 3), times)
    yield series("gpu:prescription:scored_ratio", told, 0.9, times)


def of_now(number: int, labels: str, times: list[int]) -> Iterator[str]:
    """Series for tables and single values."""
    busy = 0.6 - 0.55 * _share(number) if number % 10 < 8 else 0.97
    names = ("gpu:busy:ratio_rate5m", "gpu:busy:ratio_rate10m", "gpu:sm_active:ratio_rate5m")
    gates = ("gpu:gate:warm", "gpu:gate:underused", "gpu:gate:idle", "gpu:gate:inefficient")
    for name in (*names, "gpu:power:ratio_avg5m", *gates[: 1 + number % 4]):
        yield series(name, labels, round(busy, 2), times)
    for cause in _CAUSES[:12]:
        yield series("gpu:cause:evidence", f'{labels},cause="other_{cause}"', 0.2, times)


def _share(number: int) -> float:
    """A number from 0 to 1 that looks random and is the same in each run."""
    return number * 7919 % 1000 / 1000


def gpu_labels(number: int) -> str:
    """Labels of the GPU and its target."""
    node, index = divmod(number, GPUS_PER_NODE)
    return (
        f'cluster="one",job="gpu",instance="node-{node:04}:10170",gpu="{index}",'
        f'uuid="GPU-{number:08x}-0000-0000-0000-000000000000"'
    )


def node_labels(number: int, cause: str) -> str:
    """Labels of the sums by node and namespace."""
    node = number // GPUS_PER_NODE
    target = f'cluster="one",job="gpu",instance="node-{node:04}:10170"'
    return f'{target},cause="{cause}",workload_namespace="team-{number // 4 % TEAMS}"'


def owner_labels(number: int) -> str:
    """Labels of the owner: a pod has all GPUs of a node."""
    node = number // GPUS_PER_NODE
    team = f"team-{node % TEAMS}"
    return (
        f',workload="{team}/train-{node}-worker-0",workload_namespace="{team}"'
        f',workload_pod="train-{node}-worker-0",'
        f'workload_container="train",pod_uid="00000000-0000-0000-0000-{node:012}"'
    )


def series(name: str, labels: str, value: float, times: range | list[int]) -> str:
    """A constant series in OpenMetrics format."""
    head = f"{name}{{{labels}}} {value:.12g} "
    return "".join([f"{head}{at}\n" for at in times])
