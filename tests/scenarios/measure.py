"""Stages cases and watches them through the sampler that the exporter serves from.

A Prometheus, if given, watches the same processes at the same time. The suite with the loading
libraries judges in the same way.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from pathlib import Path
from typing import TypeVar

import psutil

from gpu_bottleneck_exporter.accounting.stall import UNKNOWN, WAITING_ON
from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.create import H100, create
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.feeders.snapshot import Feeding
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from gpu_bottleneck_exporter.settings import Settings
from scenarios import asynchronous, loops
from scenarios.alerts import Listener
from scenarios.cases import CPU_QUEUE, NEED_CPU, Case, Expected, Process
from scenarios.cgroups import disk_of, limited
from scenarios.diagnoses import Heard
from support.asynchronous import library
from support.command import end_session
from support.judging import LONGEST_SECONDS, Look, Strangers, conclude, verdict
from support.samplers import sampling
from support.waiting import until

_LOOK_NS = 1_500_000_000
"""Length of a sample of a GPU's ledger: two ticks."""
ENOUGH = 0.8
"""Least share of idle time on accepted causes."""
TOO_MUCH = 0.1
"""Largest share of idle time on a wrong cause, and of idle time where none is expected; where some
is, its least share."""
_TELLING = 0.005
_WARM_NS = 3_000_000_000
_QUIET_WITHIN_SECONDS = 20.0
_QUIET_SECONDS = 0.5
_QUIET_PERCENT = 85
"""Idle share of all CPUs above which nothing disturbs the scenario."""


@dataclass(frozen=True, slots=True)
class Span:
    """The time accounted during a sample, and whether strangers disturbed it."""

    observed_ns: int
    busy_ns: int
    stall_ns: Mapping[str, int]
    crowded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The time of one GPU accounted in some samples."""

    waiting_on: frozenset[str]
    """The accepted causes; none: it is rarely idle."""
    gpu: int = 0
    spans: Sequence[Span] = ()
    feeding: Feeding | None = field(default=None, compare=False)
    """Its feeders, as the exporter saw them."""

    @property
    def crowded(self) -> bool:
        """Whether strangers disturbed any of it."""
        return any(span.crowded for span in self.spans)

    @property
    def busy(self) -> float:
        """Busy share of the observed time, 0-1."""
        observed_ns = sum(span.observed_ns for span in self.spans)
        return sum(span.busy_ns for span in self.spans) / observed_ns

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the idle time by cause, 0-1, the largest first."""
        stall_ns = {c: sum(span.stall_ns[c] for span in self.spans) for c in WAITING_ON}
        idle = sum(stall_ns.values())
        by_size = sorted(stall_ns.items(), key=lambda item: -item[1])
        return {cause: ns / idle for cause, ns in by_size if ns}

    @property
    def told(self) -> str:
        """The shares in words, without those that round to nothing."""
        if not self.waiting_on and self.right:
            return "busy"
        shares = self.shares.items()
        text = ", ".join(f"{cause} {share:.0%}" for cause, share in shares if share > _TELLING)
        return text or "never idle"

    @property
    def right(self) -> bool | None:
        """Whether it meets the expectation; None: not yet known."""
        return verdict([Look(self.margins(span), span.crowded) for span in self.spans])

    def accepted(self, span: Span) -> frozenset[str]:
        """Causes accepted in a sample: also waits for the CPU, if a stranger takes a core."""
        crowded = span.crowded and self.waiting_on & NEED_CPU
        return self.waiting_on | ({CPU_QUEUE} if crowded else set())

    def margins(self, span: Span) -> tuple[float, ...]:
        """Seconds by which each condition holds in a sample."""
        idle = sum(span.stall_ns.values())
        some = (idle - TOO_MUCH * span.observed_ns) / 1e9
        if not self.waiting_on:
            return (-some,)
        right = sum(span.stall_ns[cause] for cause in self.accepted(span))
        return (right - ENOUGH * idle) / 1e9, some

    def __str__(self) -> str:
        result = self.feeding and (self.feeding.processes, self.feeding.evidence)
        return f"busy {self.busy:.0%}; {self.told}\n    {result}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured(Watched):
    """The result for one expectation of a case."""

    expected: Expected
    heard: Heard | None = None
    """Reports of Prometheus, if there was one."""

    def margins(self, span: Span) -> tuple[float, ...]:
        margins = Watched.margins(self, span)
        if not self.waiting_on:
            return margins
        most = TOO_MUCH * sum(span.stall_ns.values())
        # Where a stranger held the exporter up, it may say that it does not know.
        right = self.accepted(span) | ({UNKNOWN} if span.crowded else set())
        others = (0 if cause in right else most - span.stall_ns[cause] for cause in WAITING_ON)
        return (*margins, *(margin / 1e9 for margin in others))

    @property
    def alerts_right(self) -> bool | None:
        """The same of alerts."""
        wrong = self.heard.wrong if self.heard else None
        return (None if self.crowded else False) if wrong else True

    def __str__(self) -> str:
        return f"{Watched.__str__(self)}\n    {self.heard}"


W = TypeVar("W", bound=Watched)


def measure(cases: Sequence[Case], folder: Path, listener: Listener | None) -> list[list[Measured]]:
    """Stage `cases` side by side, with their files below `folder`; the results of each.

    Raises Unavailable if the machine cannot stage them.
    """
    values = [
        [
            Measured(expected=item, waiting_on=item.waiting_on, gpu=first + item.gpu)
            for item in case.expected
        ]
        for case, first in _placed(cases)
    ]
    fields: dict[tuple[int, bool], Measured] = {}
    with (
        _staged(cases, folder) as (board, files),
        watching(board) as sampler,
        listener.showing(sampler) if listener else nullcontext(),
    ):
        for second in sorted({item.expected.second_half for item in chain(*values)}):
            began = time.monotonic()
            if second:
                (files / loops.SECOND_HALF).touch()
            watched(sampler, _WARM_NS)
            of_half = [item for item in chain(*values) if item.expected.second_half == second]
            for entry in _heard(look(sampler, _LOOK_NS, of_half), listener, board, began):
                fields[entry.gpu, second] = entry
    return [[fields[item.gpu, item.expected.second_half] for item in of_case] for of_case in values]


def _placed(cases: Sequence[Case]) -> Iterator[tuple[Case, int]]:
    """Each with the first of its GPUs."""
    return zip(cases, accumulate((case.gpus for case in cases), initial=0), strict=False)


def _heard(
    results: list[Measured], listener: Listener | None, board: Board, began: float
) -> list[Measured]:
    """`results` with the alerts, expected alerts first, as the others have to wait for them."""
    if listener is None:
        return results
    heard: dict[int, Heard] = {}
    for outcome in sorted(results, key=lambda outcome: not outcome.expected.alerts):
        uuid = board.gpus[outcome.gpu].record.uuid.decode()
        expected = outcome.expected.in_a_crowd() if outcome.crowded else outcome.expected
        heard[outcome.gpu] = listener.await_answer(uuid, expected, began)
    return [replace(result, heard=heard[result.gpu]) for result in results]


def await_quiet(seconds: float = _QUIET_WITHIN_SECONDS) -> None:
    """Wait until other programs are quiet, at most until a limit."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        spent = psutil.cpu_times_percent(_QUIET_SECONDS)
        if spent.idle + spent.iowait >= _QUIET_PERCENT:
            return


def look(
    sampler: Sampler, span_ns: int, wanted: Sequence[W], longest_seconds: float = LONGEST_SECONDS
) -> list[W]:
    """Results of `wanted`, sampled until all is judged, or until the time is up."""
    looks: list[tuple[Span, ...]] = []
    end = time.monotonic() + longest_seconds
    while True:
        looks.append(watched(sampler, span_ns))
        values = [replace(item, spans=[gpus[item.gpu] for gpus in looks]) for item in wanted]
        if all(item.right is not None for item in values) or time.monotonic() > end:
            gpus = sampler.state().gpus
            return [replace(item, feeding=gpus[item.gpu].feeding) for item in values]


def watched(sampler: Sampler, span_ns: int) -> tuple[Span, ...]:
    """Time accounted of each GPU, once this much more of all of them is known."""
    others, before = Strangers(), _exact(sampler)

    def ended() -> tuple[GpuSnapshot, ...] | None:
        now = _exact(sampler)
        pairs = zip(before, now, strict=True)
        return now if all(gpu.at_ns - then.at_ns >= span_ns for then, gpu in pairs) else None

    after = until(ended, "the books of all GPUs")
    crowded = others.crowd
    return tuple(_difference(*gpu, crowded=crowded) for gpu in zip(before, after, strict=True))


def judge(results: Sequence[tuple[object, bool | None]]) -> None:
    """Wrong if one is, else unknown if one is."""
    text = "\n".join(f"{item}" for item, _ in results)
    print(text)  # noqa: T201 - for `pytest -s`
    right = [right for _, right in results]
    conclude(text, right=False if False in right else None if None in right else True)


def _exact(sampler: Sampler) -> tuple[GpuSnapshot, ...]:
    """The GPUs now, with every nanosecond accounted for."""
    gpus = sampler.state().gpus
    for gpu in gpus:
        totals = gpu.totals
        assert gpu.up
        assert totals.observed_ns is not None
        assert totals.stall_ns is not None
        assert totals.observed_ns == totals.busy_ns + sum(totals.stall_ns.values())
    return gpus


def _difference(before: GpuSnapshot, after: GpuSnapshot, *, crowded: bool) -> Span:
    then, now = before.totals, after.totals
    stalls, earlier = now.stall_ns or {}, then.stall_ns or {}
    return Span(
        (now.observed_ns or 0) - (then.observed_ns or 0),
        now.busy_ns - then.busy_ns,
        {cause: stalls[cause] - earlier[cause] for cause in stalls},
        crowded,
    )


@contextmanager
def watching(board: Board) -> Iterator[Sampler]:
    """A sampler, once the books of all GPUs are open."""
    with sampling(lambda: VirtualDriver(board), Settings()) as sampler:

        def accounted() -> bool:
            shown = sampler.state().gpus
            return bool(shown) and all(gpu.totals.stall_ns is not None for gpu in shown)

        until(accounted, "the sampler accounts for all GPUs")
        yield sampler


@contextmanager
def _staged(cases: Sequence[Case], folder: Path) -> Iterator[tuple[Board, Path]]:
    """Their processes, running; they, their cgroups and files are removed afterwards."""
    if any(case.needs_disk for case in cases):
        disk_of(folder)
    with ExitStack() as cleanup:
        files = Path(cleanup.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        if size := max(case.data_bytes for case in cases):
            make_data(files / loops.DATA, size)
        if any(p.loop in asynchronous.LOADS for case in cases for p in case.processes):
            library(files)
        board = create(files / "board", gpus=[H100] * sum(case.gpus for case in cases))
        cleanup.callback(board.close)
        processes = [
            replace(process, gpu=first + process.gpu) if process.gpus else process
            for case, first in _placed(cases)
            for process in case.processes
        ]
        for process in dict.fromkeys(processes):  # what two jobs have next to them runs once
            cages: tuple[Path, ...] = ()
            if process.limits:
                cages = cleanup.enter_context(limited(process.limits, folder))
            cleanup.enter_context(running(process, board, files, cages))
        yield board, files


def make_data(path: Path, size: int) -> None:
    """A file that is on disk and not in the page cache."""
    block = os.urandom(loops.MEBIBYTE)
    with open(path, "wb") as file:
        file.writelines(block for _ in range(size // len(block)))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def running(
    process: Process,
    board: Board,
    files: Path,
    cages: tuple[Path, ...] = (),
    way: tuple[str, ...] = (),
) -> Iterator[None]:
    """A process, with `way` before its command, from when it holds its GPUs."""
    command = [*way, sys.executable, "-m", "scenarios.loops", process.loop, f"{process.gpus}"]
    command += [f"{os.getpid()}", *map(str, cages)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "STACKS_BOARD": f"{board.path}",
        "STACKS_GPU": f"{process.gpu}",
        "STACKS_FOLDER": f"{files}",
    }
    gpus = board.gpus[process.gpu : process.gpu + process.gpus]
    started = subprocess.Popen(command, cwd=files, env=environment, start_new_session=True)
    try:
        until(
            lambda: all(started.pid in {item.pid for item in gpu.record.processes} for gpu in gpus),
            f"{process.loop} holds its GPUs",
            unless=lambda: started.poll() is not None,
        )
        yield
        assert started.poll() is None, f"{process.loop} ended early"
    finally:
        end_group(started)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its workers, which share its session, and wait until they are gone."""
    end_session(process)
