"""What a report says: sentences and tables, the same in every format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from gpu_bottleneck_exporter.jobs.model import Gpu, Job, Use
from gpu_bottleneck_exporter.nodeview.model import DASH, named
from gpu_bottleneck_exporter.nodeview.text import duration, memory, parts, percent, short
from gpu_bottleneck_exporter.report.about import about, change, rounded
from gpu_bottleneck_exporter.report.bill import HOUR_SECONDS, Bill

_SYMBOLS = {"EUR": "€", "USD": "$", "GBP": "£", "JPY": "¥"}
_FIGURES = ("Busy", "GPU-hours lost", "Cost", "Mostly")
Row = tuple[str, ...]


class Section(NamedTuple):
    """What stands under a heading of its own."""

    heading: str
    lines: Sequence[str] = ()
    rows: Sequence[Row] = ()
    """A table, under the names of its columns."""
    job: Job | None = None
    """The one that it is about."""


def sections(bill: Bill) -> Iterator[Section]:
    """What stands under the summary: of all jobs, if they are several, then of each."""
    if not bill.single:
        yield from _totals(bill)
    for job in bill.listed:
        whole = f"{who(bill, job)}: {figures(bill, job)}"
        gpus = (
            (gpu.name, short(gpu.model or ""), *_cells(bill, gpu), _memory(gpu), _energy(gpu))
            for gpu in job.gpus
        )
        rows = _table(("GPU", "Model", *_FIGURES, "Peak memory", "Energy"), gpus)
        yield Section(heading(job), [whole, *filter(None, about(bill, job).values())], rows, job)


def _totals(bill: Bill) -> Iterator[Section]:
    jobs: list[Row] = []
    for job in bill.listed:
        cells, boards = _cells(bill, job), f"{len(job.gpus) or ''}"
        to_do = change(job) or ""
        jobs.append((short(job.name), boards, *cells, short(job.owner_name), to_do))
    if more := len(bill.jobs) - len(bill.listed):
        jobs.append((f"and {more} more (see --limit)", *[""] * 7))
    yield Section("Jobs", rows=_table(("Job", "GPUs", *_FIGURES, "Owner", "Do first"), jobs))
    owners = ((short(name), *_cells(bill, use)) for name, use in bill.owners.items())
    yield Section("Owners", rows=_table(("Owner", *_FIGURES), owners))


def _cells(bill: Bill, use: Use) -> Row:
    mostly = waits(use).partition(", ")[0]
    return percent(use.busy_ratio), *_lost(bill, use.lost_seconds), mostly


def _table(head: Row, rows: Iterable[Row]) -> Sequence[Row]:
    """Without columns in which nothing stands."""
    columns = zip(head, *rows, strict=True)
    return [*zip(*(one for one in columns if {*one[1:]} - {"", DASH}), strict=True)]


def title(bill: Bill) -> str:
    """`Job 4711`, or of several."""
    return heading(bill.single) if bill.single else "GPU report"


def heading(job: Job) -> str:
    """`Job 4711`, `Pod vision/train-0`."""
    return f"{'Pod' if job.name == job.pod else 'Job'} {short(job.name)}"


def summary(bill: Bill) -> str:
    """All of it in a line: `3 jobs, busy 5 %, lost 106 GPU-hours: asleep 89 %, storage 6 %`."""
    return f"{_counted(len(bill.jobs), 'job')}, {figures(bill, bill.use)}: {waits(bill.use)}"


def figures(bill: Bill, use: Use) -> str:
    """`busy 5 %, lost 106 GPU-hours`."""
    return f"busy {percent(use.busy_ratio)}, {loss(bill, use)}"


def loss(bill: Bill, use: Use) -> str:
    """`lost 15.1 GPU-hours = 37.8 €`."""
    hours, cost = _lost(bill, use.lost_seconds)
    return f"lost {hours} GPU-hours{f' = {cost}' if cost else ''}"


def _lost(bill: Bill, seconds: float) -> Row:
    """GPU-hours, and what they cost; empty without a price."""
    cost, currency = bill.cost(seconds), bill.wanted.currency
    price = "" if cost is None else f"{rounded(cost)} {_SYMBOLS.get(currency, currency)}"
    return rounded(seconds / HOUR_SECONDS), price


def who(bill: Bill, job: Job) -> str:
    """`ada, 8 GPUs on 2 nodes, 3 h 12 min`, as far as known."""
    told = [short(job.owner_name)]
    if job.gpus:
        count = len({gpu.node for gpu in job.gpus})
        nodes = f" on {count} nodes" if count > 1 else ""
        told.append(f"{_counted(len(job.gpus), 'GPU')}{nodes}")
    if job.start_seconds is not None:
        so_far = "" if job.end_seconds else " so far"
        told.append(_span((job.end_seconds or bill.time_seconds) - job.start_seconds) + so_far)
    return ", ".join(told)


def _span(seconds: float) -> str:
    whole, minutes = divmod(int(seconds / 60), 60)
    return f"{whole} h {minutes} min" if whole else duration(seconds)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def waits(use: Use) -> str:
    """`worker_cpu 38 %, asleep 14 %`: the largest first; a dash if nothing was lost."""
    return parts(named(use.stall_ratios)) or DASH


def _energy(gpu: Gpu) -> str:
    return DASH if gpu.energy_joules is None else f"{gpu.energy_joules / 3.6e6:.3g} kWh"


def _memory(gpu: Gpu) -> str:
    return memory(gpu.memory_peak_bytes, gpu.memory_total_bytes)
