"""A node as people read it: readings first, then what to do about a GPU.

Unknown readings are a dash, never a zero; of advice, unknown parts are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpu_bottleneck_exporter.nodeview.model import DASH, KEPT_BUSY, WORTH_NAMING, Gpu, Host, Node
from gpu_bottleneck_exporter.prescription.model import REFUSALS, REMOVED, Prescription, Score

_MINUTE = 60
_UNITS = {"d": 86_400, "h": 3600, "min": _MINUTE}
"""Of rough durations, in seconds."""
_ONE_DIGIT = 10
"""Smaller amounts have a decimal."""
_LEAST_BYTES = 0.05 * 2**30
"""Less than this would be 0.0 GiB."""
_LEAST_CORES = 0.05
_LEAST_SPEED = 1e6


def percent(share: float | None) -> str:
    """12 %, under 1 %, or a dash."""
    if share is None:
        return DASH
    return "under 1 %" if 0 < share < WORTH_NAMING else f"{share:.0%}".replace("%", " %")


def number(value: float | None) -> str:
    """A whole number."""
    return DASH if value is None else f"{value:.0f}"


def of(value: str, most: str, unit: str, between: str = " of ") -> str:
    """`412 of 700 W`, or as much as is known."""
    if value == DASH:
        return DASH
    return f"{value}{unit}" if most == DASH else f"{value}{between}{most}{unit}"


def gibibytes(value: float | None) -> str:
    """Bytes in GiB, with one decimal below ten."""
    if value is None:
        return DASH
    amount = value / 2**30
    return f"{amount:.1f}" if amount < _ONE_DIGIT else f"{amount:.0f}"


def memory(used: float | None, total: float | None) -> str:
    """`52 of 80 GiB`, or as much as is known."""
    return of(gibibytes(used), gibibytes(total), " GiB")


def megahertz(hertz: float | None) -> str:
    """Hertz in MHz, a whole number."""
    return number(None if hertz is None else hertz / 1e6)


def levels(gpu: Gpu) -> tuple[str, str, str, str]:
    """Power, temperature, memory and SM clock, each with its limit if known."""
    return (
        of(number(gpu.power_watts), number(gpu.power_limit_watts), " W"),
        of(number(gpu.temperature_celsius), number(gpu.slowdown_temperature_celsius), " °C"),
        memory(gpu.memory_used_bytes, gpu.memory_total_bytes),
        of(megahertz(gpu.sm_clock_hertz), megahertz(gpu.sm_clock_max_hertz), " MHz"),
    )


def duration(seconds: float) -> str:
    """A rough duration, in one unit."""
    for unit, length in _UNITS.items():
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"


def host_memory(host: Host) -> str:
    """Memory in use on the machine."""
    available, total = host.memory_available_bytes, host.memory_total_bytes
    return memory(None if available is None or total is None else total - available, total)


def feeders(gpu: Gpu) -> str:
    """`processes: 1, workers: 8`, as far as known."""
    workers = "" if gpu.workers is None else f", workers: {gpu.workers}"
    return DASH if gpu.processes is None else f"processes: {gpu.processes}{workers}"


def lasted(gpu: Gpu) -> str:
    """` for 4 min`; empty for a verdict that is younger than a minute."""
    seconds = gpu.verdict_seconds or 0.0
    return f" for {duration(seconds)}" if seconds >= _MINUTE else ""


def verdict(gpu: Gpu) -> str:
    """What it waits on and since when, or why nobody knows."""
    if not gpu.up:
        return f"down: {gpu.down_reason or 'see the log'}"
    if not gpu.parts:
        return "nothing observed yet"
    if gpu.cause:
        return f"{gpu.cause}{lasted(gpu)}: {gpu.meaning}"
    return f"kept busy{lasted(gpu)}" if gpu.verdict == KEPT_BUSY else "what it waits for is unknown"


def likely_cause(gpu: Gpu) -> str:
    """One word for a cell: the cause, `busy`, `down`, or a dash."""
    return (gpu.verdict or DASH) if gpu.up else "down"


def notices(gpu: Gpu) -> list[str]:
    """What else somebody should know, in words."""
    found = [f"clocks held down: {reason}" for reason in gpu.throttle_reasons or ()]
    found += [f"XID {code} ({count})" for code, count in (gpu.xid_errors or {}).items()]
    return found + list(gpu.trouble or ())


def label(gpu: Gpu) -> str:
    """`0`, or `0 · MIG 3g.40gb` for an instance."""
    return f"{gpu.gpu} · MIG {gpu.mig_profile}" if gpu.mig_profile else gpu.gpu


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


def owners(gpu: Gpu) -> str:
    """The owners of all holders; a dash if unknown."""
    found = [text for labels in gpu.owners or () if (text := owner(labels))]
    if found:
        return "; ".join(found)
    return "nobody" if gpu.processes == 0 else DASH


def summary(node: Node) -> str:
    """`4 GPUs: 1 kept busy, 3 waiting`."""
    gpus = node.gpus
    if not gpus:
        return "no GPU"
    counts = {
        "kept busy": sum(gpu.verdict == KEPT_BUSY for gpu in gpus),
        "waiting": sum(gpu.cause is not None for gpu in gpus),
        "down": sum(not gpu.up for gpu in gpus),
    }
    counts["unknown yet"] = len(gpus) - sum(counts.values())
    parts = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'}: {parts}"


def to_have_one(node: Node) -> str:
    """What to do if there is no GPU, as far as known from here."""
    known = node.driver_remedy
    return f"to fix it: {known}" if known else "run gpu-bottleneck-exporter check there to see why"


def in_full(change: Prescription) -> str:
    """`num_workers 2 → 6: busy 44 % → 93 % (88-95); uses 4 of 7 free cores; then …`.

    With what the job gains if only this rank is changed.
    """
    interval = "" if change.at_most else _interval(change.busy_low_ratio, change.busy_high_ratio)
    then = f"{_up_to(change.busy_ratio, at_most=change.at_most)}{interval}"
    uses = ", ".join(filter(None, (_cores(change), _memory(change), _data(change))))
    knob = _turned(change.knob, change.current_value, change.value)
    shared = f" (of {change.processes} processes together)" if change.processes > 1 else ""
    job_now, job_then = percent(change.job_current_busy_ratio), percent(change.job_busy_ratio)
    parts = (
        f"{knob}{shared}: busy {percent(change.current_busy_ratio)} → {then}",
        f"alone: its job's {change.job_gpus} GPUs {job_now} → {job_then}"
        if change.job_busy_ratio is not None
        else "",
        f"uses {uses}" if uses else "",
        f"then {change.then} limits" if change.then else "",
    )
    return "; ".join(filter(None, parts))


def in_brief(change: Prescription) -> str:
    """`num_workers 2 → 6: 93 %`."""
    knob = _turned(change.knob, change.current_value, change.value)
    return f"{knob}: {_up_to(change.busy_ratio, at_most=change.at_most)}"


def outcome(change: Score) -> str:
    """`num_workers 2 → 6: predicted 93 % (88-95), now 91 %`."""
    knob = _turned(change.knob, change.value_before, change.value_after)
    interval = _interval(change.predicted_low_ratio, change.predicted_high_ratio)
    predicted = f"{percent(change.predicted_busy_ratio)}{interval}"
    return f"{knob}: predicted {predicted}, now {percent(change.busy_ratio)}"


def why(reason: str) -> str:
    """The reason of a refusal in words; that of a newer exporter as it is."""
    return REFUSALS.get(reason, reason)


def prescription(gpu: Gpu) -> str | None:
    """What to change, or `none:` and why not; None if there is nothing to say."""
    if gpu.prescription:
        return in_full(gpu.prescription)
    return f"none: {why(gpu.prescription_refused.reason)}" if gpu.prescription_refused else None


def explained(gpu: Gpu) -> Iterator[tuple[str, str]]:
    """Names and texts: the verdict on a GPU, what to try and what was seen."""
    known = {
        "likely cause" if gpu.cause else "verdict": verdict(gpu),
        "try first": gpu.remedy,
        "prescription": prescription(gpu),
        "last change": gpu.last_change and outcome(gpu.last_change),
        "runbook": gpu.runbook and f"{gpu.runbook}.md",
    }
    yield from ((name, text) for name, text in known.items() if text)
    for number, seen in enumerate(gpu.evidence or ()):
        yield "" if number else "seen", seen


def _turned(knob: str, now: float, then: float) -> str:
    return f"{knob} {_value(knob, now)} → {_value(knob, then)}"


def _up_to(share: float, *, at_most: bool) -> str:
    return f"{'up to ' if at_most else ''}{percent(share)}"


def _interval(low: float, high: float) -> str:
    return f" ({100 * low:.0f}{DASH}{100 * high:.0f})"


def _value(knob: str, value: float) -> str:
    """The value of a knob: the share of what can only be removed, else processes or cores."""
    return percent(value) if knob in REMOVED and value else _amount(value)


def _amount(value: float) -> str:
    """A number with one decimal at most."""
    return f"{round(value, 1):.6g}"


def _cores(change: Prescription) -> str | None:
    if change.needs_cores < _LEAST_CORES:
        return None
    cores, free = _amount(change.needs_cores), change.free_cores
    if free is None:
        return f"{cores} core{'' if cores == '1' else 's'}"
    return f"{cores} of {_amount(free)} free cores"


def _data(change: Prescription) -> str | None:
    """A million bytes a second, as links and disks are sold."""
    speed = change.needs_bytes_per_second
    return f"{speed / 1e6:.0f} MB/s" if speed is not None and speed >= _LEAST_SPEED else None


def _memory(change: Prescription) -> str | None:
    needed = change.needs_memory_bytes
    known = needed is not None and needed >= _LEAST_BYTES
    return memory(needed, change.free_memory_bytes) if known else None
