"""What must hold on a cluster, checked on data only: each check returns what is wrong.

Data are series as Prometheus has them: labels, and samples as (Unix time, value).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Series = tuple[Mapping[str, str], Sequence[tuple[float, float]]]
Gpu = tuple[str, str]

OF_THE_POD = frozenset({"pod", "container", "endpoint", "service"})
"""Labels that change with the exporter's pod, and so would every series."""
OWNERS = ("workload_namespace", "workload_pod", "workload_container")
REQUESTED = "200m"
"""50m gave half a second of CPU in 40 on a node with a load of 10."""


def pods_labels(series: Iterable[Series]) -> Iterator[str]:
    """Series that show which exporter pod they come from."""
    for labels, _ in series:
        if found := sorted(OF_THE_POD & labels.keys()):
            yield f"{labels['__name__']} has the exporter's own {', '.join(found)}"


def broken_off(series: Iterable[Series], began: float, ended: float) -> Iterator[str]:
    """Series that do not last through a rollout, from before `began` until after `ended`."""
    for labels, samples in series:
        times = [at for at, _ in samples]
        if not times or min(times) >= began:
            yield f"{_told(labels)} began with the rollout"
        elif max(times) <= ended:
            yield f"{_told(labels)} ended with the rollout"


def starved(container: Mapping[str, Any], up: Sequence[Series]) -> Iterator[str]:
    """A wrong CPU request, and GPUs that went down while the node was busy (gpu_up)."""
    asked = container.get("resources", {}).get("requests", {}).get("cpu")
    if asked != REQUESTED:
        yield f"it requests {asked} of a CPU, not {REQUESTED}"
    if not any(samples for _, samples in up):
        yield "there is no gpu_up"
    for labels, samples in up:
        down = [at for at, value in samples if value != 1]
        if down:
            yield f"{_told(labels)} was 0 in {len(down)} of {len(samples)} scrapes"


def lost_names(
    before: Iterable[Series], after: Sequence[Series], scrapes: Mapping[Gpu, Sequence[float]]
) -> Iterator[str]:
    """Owners of GPUs that were known `before`, but not at each scrape `after` it."""
    for labels, _ in before:
        gpu, owner = gpu_of(labels), _owner(labels)
        same = [s for found, s in after if (gpu_of(found), _owner(found)) == (gpu, owner)]
        seen = {at for samples in same for at, _ in samples}
        times = scrapes.get(gpu, ())
        missing = [at for at in times if at not in seen]
        if missing or not times:
            told = f"{'/'.join(owner)} on GPU {'/'.join(gpu)}"
            yield f"{told} is unnamed in {len(missing)} of {len(times)} scrapes"


def gpu_of(labels: Mapping[str, str]) -> Gpu:
    """Node and index."""
    return labels.get("instance", ""), labels.get("gpu", "")


def _owner(labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(labels.get(name, "") for name in OWNERS)


def _told(labels: Mapping[str, str]) -> str:
    shown = [f"{name}={labels[name]}" for name in ("instance", "gpu", "pod") if name in labels]
    return f"{labels.get('__name__', 'a series')} ({', '.join(shown)})"
