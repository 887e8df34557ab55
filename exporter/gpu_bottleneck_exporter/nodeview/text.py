"""A node as people read it: readings first, then what to do about a GPU.

Unknown readings are a dash, never a zero; of advice, unknown parts are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath

from gpu_bottleneck_exporter.accounting.stall import UNALLOCATED, VIDEO_ENGINE
from gpu_bottleneck_exporter.nodeview.history import ENOUGH
from gpu_bottleneck_exporter.nodeview.model import DASH, MEASURING, WORTH_NAMING, Gpu, Node, named
from gpu_bottleneck_exporter.prescription.model import (
    CPU_CORES,
    CPU_LIMIT,
    REFUSALS,
    REMOVED,
    Prescription,
    Score,
)
from gpu_bottleneck_exporter.remedies import LIMITS, SETTINGS, WAITS_FOR
from gpu_bottleneck_exporter.stacktraces.model import CodeLine, IdleLines

_MINUTE = 60
_UNITS = {"d": 86_400, "h": 3600, "min": _MINUTE}
"""Of rough durations, in seconds."""
_STARVED = 0.15
"""Idle share above which a GPU counts as starved: one that is busier is well tuned."""
_ONE_DIGIT = 10
"""Smaller amounts have a decimal."""
_LEAST_BYTES = 0.05 * 2**30
"""Less than this would be 0.0 GiB."""
_LEAST_CORES = 0.05
_LEAST_SPEED = 1e6
_WORTH = 0.1
"""Smaller shares of a line's time are not named."""
_CORES = {
    CPU_LIMIT: ("CPU limit of {} cores", "set by resources.limits.cpu, --cpus or CPUQuota="),
    CPU_CORES: ("{} CPU cores", "from CPU sets, fewer neighbours, or fewer threads and workers"),
}
"""By knob whose unit is cores: what to change, and where."""
_GOES_WITHOUT_SAYING = frozenset({"", "no_work", "no_knob"})
"""Reasons of refusals where the cause says it all."""


def percent(share: float | None) -> str:
    """12 %, under 1 %, or a dash."""
    if share is None:
        return DASH
    return "under 1 %" if 0 < share < WORTH_NAMING else f"{share:.0%}".replace("%", " %")


def number(value: float | None) -> str:
    """A whole number."""
    return DASH if value is None else f"{value:.0f}"


def of(value: str, most: str, unit: str) -> str:
    """`412 of 700 W`, or as much as is known."""
    if value == DASH:
        return DASH
    return f"{value}{unit}" if most == DASH else f"{value} of {most}{unit}"


def gibibytes(value: float | None) -> str:
    """Bytes in GiB, with one decimal below ten."""
    if value is None:
        return DASH
    amount = value / 2**30
    return f"{amount:.1f}" if amount < _ONE_DIGIT else f"{amount:.0f}"


def memory(used: float | None, total: float | None) -> str:
    """`52 of 80 GiB`, or as much as is known."""
    return of(gibibytes(used), gibibytes(total), " GiB")


def levels(gpu: Gpu) -> tuple[str, str, str, str]:
    """Power, temperature, memory and SM clock, each with its limit if known."""
    now, most = gpu.sm_clock_hertz, gpu.sm_clock_max_hertz
    return (
        of(number(gpu.power_watts), number(gpu.power_limit_watts), " W"),
        _temperature(gpu),
        memory(gpu.memory_used_bytes, gpu.memory_total_bytes),
        of(number(now and now / 1e6), number(most and most / 1e6), " MHz"),
    )


def _temperature(gpu: Gpu) -> str:
    """`61 of 87 °C`, or `61 °C, margin 26` where the driver states no limit."""
    now, limit = number(gpu.temperature_celsius), gpu.slowdown_temperature_celsius
    margin = gpu.temperature_margin_celsius if limit is None and now != DASH else None
    return of(now, number(limit), " °C") + ("" if margin is None else f", margin {margin:.0f}")


def duration(seconds: float) -> str:
    """A rough duration, in one unit."""
    for unit, length in _UNITS.items():
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"


def host(node: Node) -> str:
    """Name, CPU, memory and pressure of the machine, as far as known, on one line."""
    found = node.host
    total, available = found.memory_total_bytes, found.memory_available_bytes
    used = None if total is None or available is None else total - available
    figures = {
        "CPU": of(percent(found.cpu_busy_ratio), number(found.cpus), ""),
        "memory": memory(used, total),
        "pressure:": parts(found.pressure_ratios or {}) or DASH,
        "shared memory": memory(found.shm_used_bytes, found.shm_size_bytes),
    }
    texts = (f"{name} {text}" for name, text in figures.items() if text != DASH)
    return "   ".join(filter(None, (node.node, *texts)))


def parts(shares: Mapping[str, float]) -> str:
    """`busy 46 %, worker_cpu 50 %`."""
    return ", ".join(f"{name} {percent(share)}" for name, share in shares.items())


def holders(gpu: Gpu) -> str:
    """`train.py (pid 4711)` for each process that holds it; empty if none is known."""
    mains = [one for one in gpu.process_list if one.role == "main"]
    return ", ".join(f"{one.name or DASH} (pid {one.pid})" for one in mains)


def headline(gpu: Gpu) -> str:
    """What it waits for and for how many minutes, or why nobody knows."""
    if not gpu.up:
        return f"down: {gpu.down_reason or 'see the log'}"
    if gpu.counted_with:
        return f"counted with {gpu.counted_with}, as both share a GPU instance"
    if not gpu.parts or gpu.verdict == MEASURING:
        return "Measuring"
    if not gpu.verdict:
        return "What it waits for is unknown"
    seconds = gpu.verdict_seconds or 0.0
    lasted = f" for {duration(seconds)}" if seconds >= _MINUTE else ""
    cause = gpu.cause
    said = f"Waiting for {WAITS_FOR.get(cause, '?')} ({cause})" if cause else "Kept busy"
    return f"{said}{lasted}"


def verdict(gpu: Gpu) -> str:
    """The headline and what it means."""
    return f"{headline(gpu)}: {gpu.meaning}" if gpu.meaning else headline(gpu)


def likely_cause(gpu: Gpu) -> str:
    """One word for a cell: the cause, `busy`, `measuring`, `down`, or a dash."""
    if not gpu.up:
        return "down"
    return gpu.verdict or (DASH if gpu.parts or gpu.counted_with else MEASURING)


def idle(gpu: Gpu) -> float:
    """The share that its holders lose: all of a GPU that is down, nothing of a free one.

    A video engine that works is no loss.
    """
    worked = (gpu.busy_ratio or 0.0) + (gpu.stall_ratios or {}).get(VIDEO_ENGINE, 0.0)
    well = gpu.up and (gpu.cause in {None, UNALLOCATED} or worked >= ENOUGH)
    return 0.0 if well else 1 - worked


def badness(gpu: Gpu) -> float:
    """Down is worst, then the most idle; in steps of ten percent, so that rows stay in place."""
    return round(idle(gpu), 1) if gpu.up else 2.0


def notices(gpu: Gpu) -> list[str]:
    """What else somebody should know, in words."""
    engines = (gpu.engine_ratios or {}).items()
    found = [f"{name} {percent(share)} busy" for name, share in engines if share >= WORTH_NAMING]
    found += [f"clocks held down: {reason}" for reason in gpu.throttle_reasons or ()]
    found += [f"XID {code} ({count})" for code, count in (gpu.xid_errors or {}).items()]
    return found + list(gpu.trouble or ())


def label(gpu: Gpu) -> str:
    """`0`, or `0 · MIG 3g.40gb` for an instance."""
    return f"{gpu.gpu} · MIG {gpu.mig_profile}" if gpu.mig_profile else gpu.gpu


def owner(labels: Mapping[str, str]) -> str:
    """The owner of a GPU: pod or container, job, user, as far as known."""
    names = (labels.get(f"workload_{part}") for part in ("namespace", "pod", "container"))
    pod = "/".join(filter(None, names))
    if not pod and "pod_uid" in labels:
        pod = f"pod {labels['pod_uid'][:8]}"
    if not pod and "container_id" in labels:
        pod = f"container {labels['container_id'][:12]}"
    job = f"job {labels['workload_job']}" if "workload_job" in labels else ""
    job = f"Slurm job {labels['slurm_job_id']}" if "slurm_job_id" in labels else job
    user = f"user {labels['user']}" if "user" in labels else ""
    return ", ".join(filter(None, (pod, job, user)))


def owners(gpu: Gpu) -> str:
    """The owners of all holders; a dash if unknown."""
    found = [text for labels in gpu.owners or () if (text := owner(labels))]
    return "; ".join(found) or ("nobody" if gpu.processes == 0 else DASH)


def summary(node: Node) -> str:
    """`3 of 4 GPUs starved, 2.3 GPUs of capacity lost (1 unallocated)`.

    A MIG instance is no GPU of its own.
    """
    gpus = [gpu for gpu in node.gpus if gpu.mig_profile is None]
    if not gpus:
        return "No GPU"
    lost = [idle(gpu) for gpu in gpus if gpu.up]
    starved = sum(share > _STARVED for share in lost)
    counts = {
        UNALLOCATED: sum(gpu.cause == UNALLOCATED for gpu in gpus),
        "down": sum(not gpu.up for gpu in gpus),
        MEASURING: sum(likely_cause(gpu) == MEASURING for gpu in gpus),
    }
    others = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    which = f"{starved} of {len(gpus)} GPU{'s' if len(gpus) > 1 else ''}" if starved else "No GPU"
    loss = f", {sum(lost):.1f} GPUs of capacity lost" if any(lost) else ""
    return f"{which} starved{loss}{f' ({others})' if others else ''}"


def to_have_one(node: Node) -> str:
    """What to do if there is no GPU, as far as known from here."""
    known = node.driver_remedy
    return f"to fix it: {known}" if known else "run gpu-bottleneck-exporter check there to see why"


def in_full(change: Prescription) -> str:
    """`DataLoader(num_workers=6): 93 % busy (88-95); now 2; uses 4 of 7 free cores; after …`."""
    name, value = SETTINGS.get(change.knob, change.knob), amount(change.value)
    together = f" for {change.processes} processes" if change.processes > 1 else ""
    pytorch = change.pytorch and not together  # who sets it sets it for one process
    now = amount(change.current_value)
    turned = f"DataLoader(num_workers={value})" if pytorch else f"{name}: {value}{together}"
    if change.of_own_requests:
        turned = f"{value} threads or loader workers for its own requests{together}"
    where = ""
    if change.knob in _CORES:
        turned, where = _CORES[change.knob]
        turned, now = f"{turned.format(value)}{together}", f"{now} cores"
    if change.knob in REMOVED:
        turned, now = f"less {name}", f"{percent(change.current_value)} of the time"
    brought = f"{'up to ' if change.at_most else ''}{percent(change.busy_ratio)} busy"
    interval = "" if change.at_most else _interval(change.busy_low_ratio, change.busy_high_ratio)
    uses, limit = ", ".join(_uses(change)), LIMITS.get(change.then or "", change.then)
    told = [f"{turned}: {brought}{interval}", f"now {now}"]
    if change.job_busy_ratio is not None:
        job_now, job_then = percent(change.job_current_busy_ratio), percent(change.job_busy_ratio)
        told.append(
            f"if only this rank is changed, the job's {change.job_gpus} GPUs "
            f"go from {job_now} to {job_then}"
        )
    if where:
        told.append(where)
    if uses:
        told.append(f"uses {uses}")
    if limit:
        told.append(f"after that, {limit} {'are' if limit.endswith('s') else 'is'} the limit")
    return "; ".join(told)


def outcome(change: Score) -> str:
    """`loader workers from 2 to 6: predicted 93 % (88-95), measured 91 %`."""
    before, after = amount(change.value_before), amount(change.value_after)
    interval = _interval(change.predicted_low_ratio, change.predicted_high_ratio)
    predicted = f"predicted {percent(change.predicted_busy_ratio)}{interval}"
    name = SETTINGS.get(change.knob, change.knob)
    return f"{name} from {before} to {after}: {predicted}, measured {percent(change.busy_ratio)}"


def recommendation(gpu: Gpu) -> str | None:
    """What to try: a change and what it would bring; where that is not known, the usual remedy."""
    if gpu.prescription:
        return in_full(gpu.prescription)
    reason = gpu.prescription_refused.reason if gpu.prescription_refused else ""
    told = reason not in _GOES_WITHOUT_SAYING
    unknown = f" (no prediction: {REFUSALS.get(reason, reason)})" if told else ""
    return f"{gpu.remedy}{unknown}" if gpu.remedy else None


def in_text(node: Node) -> Iterator[str]:
    """All of it as lines, for a ticket or an e-mail."""
    yield summary(node)
    yield host(node)
    for gpu in sorted(node.gpus, key=badness, reverse=True):
        yield f"GPU {label(gpu)}  {gpu.name or DASH}  held by {owners(gpu)}"
        yield from (f"  {name:13} {text}" for name, text in explained(gpu))
        if shares := parts(named(gpu.parts)):
            yield f"  {'time':13} {shares}"


def explained(gpu: Gpu) -> Iterator[tuple[str, str]]:
    """Names and texts: the verdict on a GPU, what to try and what was seen."""
    known = {
        "likely cause" if gpu.cause else "verdict": verdict(gpu),
        "try": recommendation(gpu),
        **dict(lines_of_code(gpu.idle_lines)),
        "seen": "; ".join(gpu.evidence or ()),
        "last change": gpu.last_change and outcome(gpu.last_change),
        "runbook": gpu.runbook and f"gpu-bottleneck-exporter runbook {gpu.runbook}",
    }
    yield from ((name, text) for name, text in known.items() if text)


def lines_of_code(found: IdleLines | None) -> Iterator[tuple[str, str]]:
    """`71 % of 21 s idle: train.py:142 collate (torch.stack)`, and where its main was meanwhile."""
    if found is None:
        return
    if found.looking and not found.lines:
        yield "line", found.trouble or "sampling the stacks of its processes"
        return
    for name, line in zip(("line", "next line"), found.lines, strict=False):
        of = f" of {found.seconds:.0f} s idle" if name == "line" else ""
        yield name, f"{percent(line.ratio)}{of}: {code(line)}{_within(line)}"
    if found.lines and found.waits and found.lines[0].role != "main":
        yield "main waits in", code(found.waits[0])
    if found.looks and not found.lines:
        yield "no line", found.trouble or "no sampled thread was doing what the GPU waited for"
    elif found.trouble:
        yield "not all lines", found.trouble


def code(line: CodeLine) -> str:
    """`train.py:142 collate (torch.stack)`."""
    file, function, called = map(short, (PurePath(line.file).name, line.function, line.called))
    return f"{file}:{line.line} {function}{f' ({called})' if called else ''}"


def short(name: str, most: int = 60) -> str:
    """`name`, cut where it has more than `most` characters."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _within(line: CodeLine) -> str:
    """How much of it was spent in what, if that is worth a word."""
    shares = {"waiting for a lock": line.lock_ratio, "in native code": line.native_ratio}
    told = [f"{percent(share)} of that {what}" for what, share in shares.items() if share >= _WORTH]
    return f", {', '.join(told)}" if told else ""


def _interval(low: float, high: float) -> str:
    return f" ({100 * low:.0f}{DASH}{100 * high:.0f})"


def amount(value: float) -> str:
    """A number with two digits, or all before the point: 0.16, 2.5, 128."""
    return f"{value:.2g}" if value < _ONE_DIGIT else f"{value:.0f}"


def _uses(change: Prescription) -> Iterator[str]:
    """Cores, memory, and data: a million bytes a second, as links and disks are sold."""
    cores, free = amount(change.needs_cores), change.free_cores
    if change.needs_cores >= _LEAST_CORES:
        known = f"{cores} core{'' if cores == '1' else 's'}"
        yield known if free is None else f"{cores} of {amount(free)} free cores"
    if (change.needs_memory_bytes or 0.0) >= _LEAST_BYTES:
        yield memory(change.needs_memory_bytes, change.free_memory_bytes)
    if (speed := change.needs_bytes_per_second or 0.0) >= _LEAST_SPEED:
        yield f"{speed / 1e6:.0f} MB/s"
