"""Readings as people read them. Unknown values are a dash, never a zero."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_bottleneck_exporter.nodeview.model import (
    DASH,
    KEPT_BUSY,
    WORTH_NAMING,
    GpuReading,
    GpuView,
    NodeView,
)

_GIB = 2**30
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_TEN = 10
_MEGA = 1e6


def percent(share: float | None) -> str:
    """12 %, under 1 %, or a dash."""
    if share is None:
        return DASH
    return "under 1 %" if 0 < share < WORTH_NAMING else f"{share:.0%}".replace("%", " %")


def number(value: float | None) -> str:
    """A whole number."""
    return DASH if value is None else f"{value:.0f}"


def of(value: float | None, most: float | None, unit: str) -> str:
    """`412 of 700 W`, or as much as is known."""
    if value is None:
        return DASH
    return f"{value:.0f}{unit}" if most is None else f"{value:.0f} of {most:.0f}{unit}"


def gibibytes(value: float | None) -> str:
    """Bytes in GiB, with one decimal below ten."""
    if value is None:
        return DASH
    amount = value / _GIB
    return f"{amount:.1f}" if amount < _TEN else f"{amount:.0f}"


def memory(used: float | None, total: float | None) -> str:
    """`52 of 80 GiB`, or as much as is known."""
    if used is None:
        return DASH
    return f"{gibibytes(used)}{'' if total is None else f' of {gibibytes(total)}'} GiB"


def megahertz(hertz: float | None) -> float | None:
    """Hertz in MHz."""
    return None if hertz is None else hertz / _MEGA


def levels(gpu: GpuReading) -> tuple[str, str, str, str]:
    """Power, temperature, memory and SM clock, each with its limit if known."""
    return (
        of(gpu.power_watts, gpu.power_limit_watts, " W"),
        of(gpu.temperature, gpu.slowdown_temperature, " °C"),
        memory(gpu.memory_used_bytes, gpu.memory_total_bytes),
        of(megahertz(gpu.sm_clock), megahertz(gpu.sm_clock_max), " MHz"),
    )


def duration(seconds: float) -> str:
    """A rough duration, in one unit."""
    for length, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"


def label(gpu: GpuView) -> str:
    """`0`, or `0 · MIG 3g.40gb` for an instance."""
    index, profile = gpu.now.key.gpu, gpu.now.mig_profile
    return f"{index} · MIG {profile}" if profile else index


def owner(labels: Mapping[str, str]) -> str:
    """The owner of a GPU: pod or container, Slurm job, user, as far as known."""
    parts = (labels.get(f"workload_{part}") for part in ("namespace", "pod", "container"))
    pod = "/".join(filter(None, parts))
    if not pod and "pod_uid" in labels:
        pod = f"pod {labels['pod_uid'][:8]}"
    if not pod and "container_id" in labels:
        pod = f"container {labels['container_id'][:12]}"
    job = f"Slurm job {labels['slurm_job_id']}" if "slurm_job_id" in labels else ""
    user = f"user {labels['user']}" if "user" in labels else ""
    return ", ".join(filter(None, (pod, job, user)))


def owners(gpu: GpuView) -> str:
    """The owners of all holders; a dash if unknown."""
    found = [text for labels in gpu.now.owners if (text := owner(labels))]
    if found:
        return "; ".join(found)
    return "nobody" if gpu.now.processes == 0 else DASH


def summary(view: NodeView) -> str:
    """`4 GPUs: 1 kept busy, 3 waiting`."""
    gpus = view.gpus
    if not gpus:
        return "no GPU"
    down = sum(not gpu.now.up for gpu in gpus)
    waiting = sum(gpu.cause is not None for gpu in gpus)
    busy = sum(gpu.shares is not None and gpu.shares.verdict == KEPT_BUSY for gpu in gpus)
    counts = {"kept busy": busy, "waiting": waiting, "down": down}
    rest = len(gpus) - busy - waiting - down
    parts = [f"{count} {what}" for what, count in counts.items() if count]
    parts += [f"{rest} unknown yet"] if rest else []
    return f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'}: {', '.join(parts)}"


def to_have_one(view: NodeView) -> str:
    """What to do if there is no GPU, as far as known from here."""
    known = view.now.remedy
    return f"to fix it: {known}" if known else "run gpu-bottleneck-exporter check there to see why"
