"""Readings as people read them. What is not known is a dash, never a zero."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_bottleneck_exporter.nodeview.model import DASH, GpuView, NodeView

_GIB = 2**30
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_TEN = 10


def percent(share: float | None) -> str:
    """12 %, under 1 %, or a dash."""
    if share is None:
        return DASH
    return "under 1 %" if 0 < share < 0.005 else f"{share:.0%}".replace("%", " %")  # noqa: PLR2004 - half a percent


def number(value: float | None, unit: str = "") -> str:
    """A whole number with its unit."""
    return DASH if value is None else f"{value:.0f}{unit}"


def of(value: float | None, most: float | None, unit: str) -> str:
    """`412 of 700 W`, or what is known of it."""
    if value is None:
        return DASH
    return f"{value:.0f}{unit}" if most is None else f"{value:.0f} of {most:.0f}{unit}"


def gibibytes(value: float | None) -> str:
    """Bytes in GiB, with a decimal below ten."""
    if value is None:
        return DASH
    amount = value / _GIB
    return f"{amount:.1f}" if amount < _TEN else f"{amount:.0f}"


def memory(used: float | None, total: float | None) -> str:
    """`52 of 80 GiB`, or what is known of it."""
    if used is None:
        return DASH
    return (
        f"{gibibytes(used)} GiB"
        if total is None
        else f"{gibibytes(used)} of {gibibytes(total)} GiB"
    )


def duration(seconds: float) -> str:
    """About how long, in one unit."""
    for length, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"


def label(gpu: GpuView) -> str:
    """`0`, or `0 · MIG 3g.40gb` for an instance."""
    index, profile = gpu.now.key.gpu, gpu.now.mig_profile
    return f"{index} · MIG {profile}" if profile else index


def owner(labels: Mapping[str, str]) -> str:
    """Whose a GPU is, the name that says most first."""
    pod = "/".join(
        text
        for part in ("namespace", "pod", "container")
        if (text := labels.get(f"workload_{part}"))
    )
    if not pod and "pod_uid" in labels:
        pod = f"pod {labels['pod_uid'][:8]}"
    if not pod and "container_id" in labels:
        pod = f"container {labels['container_id'][:12]}"
    job = f"Slurm job {labels['slurm_job_id']}" if "slurm_job_id" in labels else ""
    user = f"user {labels['user']}" if "user" in labels else ""
    return ", ".join(filter(None, (pod, job, user)))


def owners(gpu: GpuView) -> str:
    """Of all that hold it; a dash where that is not known."""
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
    busy = sum(gpu.shares is not None and gpu.shares.verdict == "busy" for gpu in gpus)
    counts = {"kept busy": busy, "waiting": waiting, "down": down}
    rest = len(gpus) - busy - waiting - down
    parts = [f"{count} {what}" for what, count in counts.items() if count]
    parts += [f"{rest} not known yet"] if rest else []
    return f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'}: {', '.join(parts)}"


def to_have_one(view: NodeView) -> str:
    """What to do where there is no GPU, as far as is known from here."""
    known = view.now.remedy
    return (
        f"to have one: {known}" if known else "run gpu-bottleneck-exporter check there: it says why"
    )
