"""Text for the displays: readings, verdicts and recommendations of a node.

An unknown reading is a dash, never zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath

from gpu_bottleneck_exporter.accounting.stall import ASLEEP, UNALLOCATED, VIDEO_ENGINE
from gpu_bottleneck_exporter.accounting.tick import UNATTRIBUTED
from gpu_bottleneck_exporter.nodeview.model import (
    DASH,
    MEASURING,
    GpuStatus,
    Node,
    named,
)
from gpu_bottleneck_exporter.nodeview.thresholds import (
    KEPT_BUSY_RATIO,
    MIN_LINE_RATIO,
    MIN_SHOWN_RATIO,
    MIN_STARVED_RATIO,
)
from gpu_bottleneck_exporter.prescription.model import (
    CHECKPOINTS,
    CPU_CORES,
    CPU_LIMIT,
    HOST_CODE,
    NUM_WORKERS,
    REFUSALS,
    REMOVED,
    Prescription,
    Score,
)
from gpu_bottleneck_exporter.remedies import LIMITS, SETTINGS, WAITS_FOR
from gpu_bottleneck_exporter.stacktraces.model import CodeLine, IdleLines

_UNITS_SECONDS = {"d": 86_400, "h": 3600, "min": 60}
_MIN_INTEGER_AMOUNT = 10
"""Smallest amount that is rounded to an integer."""
_MIN_MEMORY_BYTES = 0.05 * 2**30
"""Less would read 0.0 GiB."""
_MIN_CORES = 0.05
_MIN_BYTES_PER_SECOND = 1e6
_QUANTITIES = {
    NUM_WORKERS: ("Use {}", "loader worker"),
    CPU_LIMIT: ("Raise the CPU limit to {}", "core"),
    CPU_CORES: ("Give the job {}", "CPU core"),
}
"""Change and unit by knob."""
_REDUCTIONS = {
    HOST_CODE: "Cut the wait for Python code",
    CHECKPOINTS: "Cut the wait for checkpoints",
}
"""Change by knob in `REMOVED`."""
_PLACES = {
    CPU_LIMIT: "resources.limits.cpu, --cpus or CPUQuota=",
    CPU_CORES: "--cpus-per-task, requests.cpu, or fewer neighbours, threads or workers",
}
"""Place of the setting, by knob in cores."""


def percent(share: float | None) -> str:
    """`12 %`, `under 1 %`, or a dash."""
    if share is None:
        return DASH
    return "under 1 %" if 0 < share < MIN_SHOWN_RATIO else f"{share:.0%}".replace("%", " %")


def number(value: float | None) -> str:
    """A rounded number, or a dash."""
    return DASH if value is None else f"{value:.0f}"


def of(value: str, most: str, unit: str) -> str:
    """`412 of 700 W`, or the known part."""
    if value == DASH:
        return DASH
    return f"{value}{unit}" if most == DASH else f"{value} of {most}{unit}"


def gibibytes(value: float | None) -> str:
    """Bytes in GiB, with one decimal below ten."""
    if value is None:
        return DASH
    amount = value / 2**30
    return f"{amount:.1f}" if amount < _MIN_INTEGER_AMOUNT else f"{amount:.0f}"


def memory(used: float | None, total: float | None) -> str:
    """`52 of 80 GiB`, or the known part."""
    return of(gibibytes(used), gibibytes(total), " GiB")


def levels(gpu: GpuStatus) -> tuple[str, str, str, str]:
    """Power, temperature, memory and SM clock, with known limits."""
    now, most = gpu.sm_clock_hertz, gpu.sm_clock_max_hertz
    return (
        of(number(gpu.power_watts), number(gpu.power_limit_watts), " W"),
        _temperature(gpu),
        memory(gpu.memory_used_bytes, gpu.memory_total_bytes),
        of(number(now and now / 1e6), number(most and most / 1e6), " MHz"),
    )


def _temperature(gpu: GpuStatus) -> str:
    """`61 of 87 °C`, or `61 °C, margin 26` without a limit."""
    now, limit = number(gpu.temperature_celsius), gpu.slowdown_temperature_celsius
    margin = gpu.temperature_margin_celsius if limit is None and now != DASH else None
    return of(now, number(limit), " °C") + ("" if margin is None else f", margin {margin:.0f}")


def duration(seconds: float) -> str:
    """A rough duration, in one unit."""
    for unit, length in _UNITS_SECONDS.items():
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"


def host(node: Node) -> str:
    """Known name, CPU, memory and pressure of the machine, on one line."""
    machine = node.host
    total, available = machine.memory_total_bytes, machine.memory_available_bytes
    used = None if total is None or available is None else total - available
    figures = {
        "CPU": of(percent(machine.cpu_busy_ratio), number(machine.cpus), ""),
        "memory": memory(used, total),
        "pressure:": parts(machine.pressure_ratios or {}) or DASH,
        "shared memory": memory(machine.shm_used_bytes, machine.shm_size_bytes),
    }
    texts = (f"{name} {text}" for name, text in figures.items() if text != DASH)
    return "   ".join(filter(None, (node.node, *texts)))


def parts(shares: Mapping[str, float]) -> str:
    """`busy 46 %, worker_cpu 50 %`."""
    return ", ".join(f"{name} {percent(share)}" for name, share in shares.items())


def holders(gpu: GpuStatus) -> str:
    """`train.py (pid 4711)` for each known holder."""
    mains = [process for process in gpu.process_list if process.role == "main"]
    return ", ".join(f"{process.name or DASH} (pid {process.pid})" for process in mains)


def serving(gpu: GpuStatus) -> str | None:
    """`port 8000: 12 clients, 3 requests in flight, the longest for 4.2 s`, or None."""
    server = gpu.serving
    if server is None or not server.ports:
        return None
    least, age = "" if server.complete else "at least ", server.longest_request_seconds
    clauses = [f"{least}{_count(server.clients, 'client')}"]
    if server.waiting_clients:
        clauses.append(f"{server.waiting_clients} of them not accepted yet")
    # A sample of the sockets may have missed these.
    if server.requests_in_flight or (server.clients and server.complete):
        clauses.append(f"{least}{_count(server.requests_in_flight, 'request')} in flight")
    if age is not None:
        clauses.append(f"the longest for {least}{_brief(age)}")
    ports = f"port{'s' if len(server.ports) > 1 else ''} {', '.join(map(str, server.ports))}"
    return f"{ports}: {', '.join(clauses)}"


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'s' if number > 1 else ''}"


def _brief(seconds: float) -> str:
    return f"{amount(seconds)} s" if seconds < _UNITS_SECONDS["min"] else duration(seconds)


def headline(gpu: GpuStatus) -> str:
    """The cause and its duration in minutes, or the reason why it is unknown."""
    if not gpu.up:
        return f"down: {gpu.down_reason or 'see the log'}"
    if gpu.counted_with:
        return f"counted with {gpu.counted_with}, as both share a GPU instance"
    if not gpu.parts or gpu.verdict == MEASURING:
        return "Measuring"
    if not gpu.verdict:
        return "Cause of the wait unknown"
    seconds = gpu.verdict_seconds or 0.0
    lasted = f" for {duration(seconds)}" if seconds >= _UNITS_SECONDS["min"] else ""
    cause = gpu.cause
    state = f"Waiting for {WAITS_FOR.get(cause, '?')} ({cause})" if cause else "Kept busy"
    return f"{state}{lasted}"


def verdict(gpu: GpuStatus) -> str:
    """The headline and its meaning."""
    return f"{headline(gpu)}: {gpu.meaning}" if gpu.meaning else headline(gpu)


def likely_cause(gpu: GpuStatus) -> str:
    """The cause, `busy`, `measuring`, `down`, or a dash."""
    if not gpu.up:
        return "down"
    return gpu.verdict or (DASH if gpu.parts or gpu.counted_with else MEASURING)


def idle(gpu: GpuStatus) -> float:
    """Share of capacity lost: 1 if down, 0 if unallocated. A busy video engine is no loss."""
    busy = (gpu.busy_ratio or 0.0) + (gpu.stall_ratios or {}).get(VIDEO_ENGINE, 0.0)
    lossless = gpu.up and (gpu.cause in {None, UNALLOCATED} or busy >= KEPT_BUSY_RATIO)
    return 0.0 if lossless else 1 - busy


def badness(gpu: GpuStatus) -> float:
    """Sort key: down, then idle share in steps of 10 %."""
    return round(idle(gpu), 1) if gpu.up else 2.0


def notices(gpu: GpuStatus) -> list[str]:
    """Busy video engines, throttling, XID errors and other trouble."""
    engines = (gpu.engine_ratios or {}).items()
    texts = [f"{name} {percent(share)} busy" for name, share in engines if share >= MIN_SHOWN_RATIO]
    texts += [f"clocks held down: {reason}" for reason in gpu.throttle_reasons or ()]
    texts += [f"XID {code} ({count})" for code, count in (gpu.xid_errors or {}).items()]
    return texts + list(gpu.trouble or ())


def label(gpu: GpuStatus) -> str:
    """`0`, or `0 · MIG 3g.40gb` for an instance."""
    return f"{gpu.gpu} · MIG {gpu.mig_profile}" if gpu.mig_profile else gpu.gpu


def owner(labels: Mapping[str, str]) -> str:
    """Known pod or container, job and user of a GPU."""
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


def owners(gpu: GpuStatus) -> str:
    """The owners of all holders, or a dash."""
    names = [text for labels in gpu.owners or () if (text := owner(labels))]
    return "; ".join(names) or ("no process" if gpu.processes == 0 else DASH)


def tenants(gpu: GpuStatus) -> list[str]:
    """`30 % of 60 s busy: Slurm job 12, waited for storage (storage)` for each tenant."""
    parts = gpu.tenants or ()
    busy = sum(part.busy_seconds for part in parts)
    idle = sum(sum(part.stall_seconds.values()) for part in parts)
    texts: list[str] = []
    for part in parts:
        name = owner(part.owner or {}) or part.tenant
        if part.tenant == UNATTRIBUTED:
            name = "not attributed"
            if part.busy_seconds == busy:
                name += ", as the driver does not report use by process"
        of = "" if texts else f" of {busy:.0f} s busy"
        wait = next(iter(part.stall_seconds), "")
        clauses = [f"{percent(part.busy_share_ratio)}{of}: {name}"]
        if wait and busy < KEPT_BUSY_RATIO * (busy + idle):
            awaited = WAITS_FOR.get(wait, "?")
            clauses.append(f"{'slept' if wait == ASLEEP else f'waited for {awaited}'} ({wait})")
        texts.append(", ".join(clauses))
    return texts


def summary(node: Node) -> str:
    """`3 of 4 GPUs starved, 2.3 GPUs of capacity lost (1 unallocated)`, without MIG."""
    gpus = [gpu for gpu in node.gpus if gpu.mig_profile is None]
    if not gpus:
        return "No GPU"
    lost = [idle(gpu) for gpu in gpus if gpu.up]
    starved = sum(share > MIN_STARVED_RATIO for share in lost)
    counts = {
        UNALLOCATED: sum(gpu.cause == UNALLOCATED for gpu in gpus),
        "down": sum(not gpu.up for gpu in gpus),
        MEASURING: sum(likely_cause(gpu) == MEASURING for gpu in gpus),
    }
    others = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    which = f"{starved} of {len(gpus)} GPU{'s' if len(gpus) > 1 else ''}" if starved else "No GPU"
    loss = f", {sum(lost):.1f} GPUs of capacity lost" if any(lost) else ""
    return f"{which} starved{loss}{f' ({others})' if others else ''}"


def sentence(clause: str) -> str:
    """`clause` with a capital and a full stop."""
    return f"{clause[:1].upper()}{clause[1:]}."


def missing_gpu_remedy(node: Node) -> str:
    """The remedy if there is no GPU, or the command that names it."""
    remedy = node.driver_remedy
    return (
        f"to fix it: {remedy}" if remedy else "run gpu-bottleneck-exporter check there to see why"
    )


def setting(change: Prescription) -> str:
    """`Set DataLoader(num_workers=6)`, `Raise the CPU limit to 2 cores`."""
    value = amount(change.value)
    together = f" across {change.processes} processes" if change.processes > 1 else ""
    if change.of_own_requests:
        return f"Let {value} threads or loader workers{together} make the main process's requests"
    if change.knob in REMOVED:
        return _REDUCTIONS[change.knob]
    if change.knob not in _QUANTITIES:
        return f"Set {short(change.knob)} to {value}"
    if change.knob == NUM_WORKERS and change.pytorch and not together:
        return f"Set DataLoader(num_workers={value})"  # num_workers is per process
    action, unit = _QUANTITIES[change.knob]
    return f"{action.format(counted(value, unit))}{together}"


def predicted(change: Prescription) -> str:
    """`93 %`, or `up to 93 %`."""
    return f"{'up to ' if change.at_most else ''}{percent(change.busy_ratio)}"


def describe_prescription(change: Prescription) -> str:
    """`Set DataLoader(num_workers=6) (now 2): the GPU would be 93 % busy (88-95 %). This …`."""
    is_share = change.knob in REMOVED
    now = (
        f"{percent(change.current_value)} of the time" if is_share else amount(change.current_value)
    )
    now = "; ".join(filter(None, (f"now {now}", _PLACES.get(change.knob))))
    interval = "" if change.at_most else _interval(change.busy_low_ratio, change.busy_high_ratio)
    sentences = [f"{setting(change)} ({now}): the GPU would be {predicted(change)} busy{interval}."]
    if change.job_busy_ratio is not None:
        job_now, job_then = percent(change.job_current_busy_ratio), percent(change.job_busy_ratio)
        sentences.append(
            f"If only this rank changes, the job's {change.job_gpus} GPUs "
            f"go from {job_now} busy to {job_then}."
        )
    first, _, last = ", ".join(_uses(change)).rpartition(", ")
    if last:
        sentences.append(f"This takes {first}{' and ' if first else ''}{last}.")
    if change.then:
        sentences.append(f"Then the limit is {LIMITS.get(change.then, change.then)}.")
    return " ".join(sentences)


def outcome(change: Score) -> str:
    """`Loader workers changed from 2 to 6. The GPU is 91 % busy; the prediction was 93 % (…).`."""
    before, after = amount(change.value_before), amount(change.value_after)
    interval = _interval(change.predicted_low_ratio, change.predicted_high_ratio)
    return (
        f"{SETTINGS.get(change.knob, change.knob)} changed from {before} to {after}. The GPU is "
        f"{percent(change.busy_ratio)} busy; the prediction was "
        f"{percent(change.predicted_busy_ratio)}{interval}."
    )


def recommendation(gpu: GpuStatus) -> str | None:
    """The change with its prediction, or else the general remedy, in sentences."""
    if gpu.prescription:
        return describe_prescription(gpu.prescription)
    reason = gpu.prescription_refused.reason if gpu.prescription_refused else ""
    # The cause implies the last two reasons.
    explains = reason not in {"", "no_work", "no_knob"}
    unknown = (
        f" There is no prediction, because {REFUSALS.get(reason, reason)}." if explains else ""
    )
    return f"{sentence(gpu.remedy)}{unknown}" if gpu.remedy else None


def in_text(node: Node) -> Iterator[str]:
    """The lines of a node, for a ticket or an e-mail."""
    yield summary(node)
    yield host(node)
    for gpu in sorted(node.gpus, key=badness, reverse=True):
        yield f"GPU {label(gpu)}  {gpu.name or DASH}  held by {owners(gpu)}"
        yield from (f"  {name:13} {text}" for name, text in explained(gpu))
        if shares := parts(named(gpu.parts)):
            yield f"  {'time':13} {shares}"


def explained(gpu: GpuStatus) -> Iterator[tuple[str, str]]:
    """Named texts: verdict, recommendation, evidence and so on."""
    texts = {
        "likely cause" if gpu.cause else "verdict": verdict(gpu),
        "try": recommendation(gpu),
        **dict(lines_of_code(gpu.idle_lines)),
        "seen": "; ".join(gpu.evidence or ()),
        "shared by": "; ".join(tenants(gpu)),
        "serves": serving(gpu),
        "last change": gpu.last_change and outcome(gpu.last_change),
        "runbook": gpu.runbook and f"gpu-bottleneck-exporter runbook {gpu.runbook}",
    }
    yield from ((name, text) for name, text in texts.items() if text)


def lines_of_code(idle: IdleLines | None) -> Iterator[tuple[str, str]]:
    """`71 % of 21 s idle: train.py:142 collate (torch.stack)`, and where its main waited."""
    if idle is None:
        return
    if idle.looking and not idle.lines:
        yield "line", idle.trouble or "sampling the stacks of its processes"
        return
    for name, line in zip(("line", "next line"), idle.lines, strict=False):
        of = f" of {idle.seconds:.0f} s idle" if name == "line" else ""
        yield name, f"{percent(line.ratio)}{of}: {code(line)}{_within(line)}"
    if idle.lines and idle.waits and idle.lines[0].role != "main":
        yield "main waits in", code(idle.waits[0])
    if idle.looks and not idle.lines:
        yield "no line", idle.trouble or "no sampled thread was doing what the GPU waited for"
    elif idle.trouble:
        yield "not all lines", idle.trouble


def code(line: CodeLine) -> str:
    """`train.py:142 collate (torch.stack)`."""
    file, function, called = map(short, (PurePath(line.file).name, line.function, line.called))
    return f"{file}:{line.line} {function}{f' ({called})' if called else ''}"


def short(name: str, limit: int = 60) -> str:
    """`name`, truncated to `limit` characters."""
    return name if len(name) <= limit else f"{name[: limit - 1]}…"


def _within(line: CodeLine) -> str:
    shares = {"waiting for a lock": line.lock_ratio, "in native code": line.native_ratio}
    clauses = (f"{percent(v)} of that {k}" for k, v in shares.items() if v >= MIN_LINE_RATIO)
    return "".join(f", {clause}" for clause in clauses)


def _interval(low: float, high: float) -> str:
    return f" ({100 * low:.0f}{DASH}{100 * high:.0f} %)"


def amount(value: float) -> str:
    """Two significant digits, or all integer digits: 0.16, 2.5, 128."""
    return f"{value:.2g}" if value < _MIN_INTEGER_AMOUNT else f"{value:.0f}"


def counted(value: str, noun: str) -> str:
    """`1 core`, `2 cores`."""
    return f"{value} {noun}{'' if value == '1' else 's'}"


def _uses(change: Prescription) -> Iterator[str]:
    """Cores, memory, and throughput in MB/s, the unit of links and disks."""
    cores, free = amount(change.needs_cores), change.free_cores
    if change.needs_cores >= _MIN_CORES:
        yield counted(cores, "core") if free is None else f"{cores} of {amount(free)} free cores"
    if (change.needs_memory_bytes or 0.0) >= _MIN_MEMORY_BYTES:
        yield f"{memory(change.needs_memory_bytes, change.free_memory_bytes)} of memory"
    if (speed := change.needs_bytes_per_second or 0.0) >= _MIN_BYTES_PER_SECOND:
        yield f"{speed / 1e6:.0f} MB/s of input"
