"""Stages one case and watches it through the sampler that the exporter serves from.

A Prometheus, if given, watches the same processes at the same time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TypeVar

import psutil

from gpu_bottleneck_exporter.accounting.bucket import Bucket
from gpu_bottleneck_exporter.accounting.stall import WAITING_ON
from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.create import H100, create
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from gpu_bottleneck_exporter.settings import Settings
from scenarios import loops
from scenarios.alerts import Heard, Listener
from scenarios.cases import Case, Expected, Process, apart, side_by_side
from scenarios.cgroups import disk_of, limited
from support.command import end_session
from support.judging import LONGEST_SECONDS, Look, Strangers, verdict
from support.samplers import sampling
from support.waiting import until

_LOOK_NS = 1_500_000_000
"""Of a GPU's books: two ticks."""
ENOUGH = 0.8
"""Least share of idle time on accepted causes."""
TOO_MUCH = 0.1
"""Largest share of idle time on a wrong cause, and of idle time where none is expected."""
_LEAST_IDLE = 0.05
"""Share of the time, where idle time is expected."""
_WARM_NS = 3_000_000_000
_QUIET_WITHIN_SECONDS = 20.0
_QUIET_SECONDS = 0.5
_QUIET_PERCENT = 85
"""Idle share of all CPUs above which nothing disturbs the scenario."""


@dataclass(frozen=True, slots=True)
class Span:
    """What was accounted while one looked, and whether strangers disturbed it."""

    observed_ns: int
    busy_ns: int
    stall_ns: Mapping[str, int]
    crowded: bool


Looks = Sequence[Sequence[tuple[Span, ...]]]
"""Of each look, of each sampler, what was accounted of its GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What was accounted of one GPU in some looks."""

    spans: Sequence[Span]
    feeders: Bucket | None = field(default=None, compare=False)
    """What they did, as the accounting saw it."""

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
    def right(self) -> bool | None:
        """Whether it meets the expectation; None: not yet known."""
        return verdict([Look(self.margins(span), span.crowded) for span in self.spans])

    def margins(self, span: Span) -> tuple[float, ...]:
        """By how many seconds each condition holds in a look."""
        raise NotImplementedError

    def __str__(self) -> str:
        told = ", ".join(f"{cause} {share:.0%}" for cause, share in self.shares.items())
        return f"busy {self.busy:.0%}; idle: {told or 'never'}\n    {self.feeders}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured(Watched):
    """What was measured for one expectation of a case."""

    expected: Expected
    heard: Heard | None = None
    """What Prometheus reported, if there was one."""

    def margins(self, span: Span) -> tuple[float, ...]:
        idle = sum(span.stall_ns.values())
        if not self.expected.waiting_on:
            return ((TOO_MUCH * span.observed_ns - idle) / 1e9,)
        accepted = (self.expected.in_a_crowd() if span.crowded else self.expected).waiting_on
        right = sum(span.stall_ns[cause] for cause in accepted)
        others = (0 if c in accepted else TOO_MUCH * idle - span.stall_ns[c] for c in WAITING_ON)
        margins = (right - ENOUGH * idle, idle - _LEAST_IDLE * span.observed_ns, *others)
        return tuple(margin / 1e9 for margin in margins)

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
    return apart(cases, _measure(side_by_side(cases), folder, listener))


def _measure(case: Case, folder: Path, listener: Listener | None) -> list[Measured]:
    """One result for each expectation."""
    found: dict[Expected, Measured] = {}
    with (
        _staged(case, folder) as (board, files),
        _sampling(board) as sampler,
        listener.showing(sampler) if listener else nullcontext(),
    ):
        for second in sorted({expected.second_half for expected in case.expected}):
            began = time.monotonic()
            if second:
                (files / loops.SECOND_HALF).touch()
            watched([sampler], _WARM_NS)
            expected = [one for one in case.expected if one.second_half == second]
            for result in _heard(_watch(sampler, expected), listener, board, began):
                found[result.expected] = result
    return [found[expected] for expected in case.expected]


def _heard(
    results: list[Measured], listener: Listener | None, board: Board, began: float
) -> list[Measured]:
    """`results` with the alerts, expected alerts first, as the others have to wait for them."""
    if listener is None:
        return results
    heard: dict[int, Heard] = {}
    for found in sorted(results, key=lambda found: not found.expected.alerts):
        gpu = found.expected.gpu
        uuid = board.gpus[gpu].record.uuid.decode()
        expected = found.expected.in_a_crowd() if found.crowded else found.expected
        heard[gpu] = listener.await_answer(uuid, expected, began)
    return [replace(found, heard=heard[found.expected.gpu]) for found in results]


def await_quiet(seconds: float = _QUIET_WITHIN_SECONDS) -> None:
    """Wait until other programs are quiet, for so long at most."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        spent = psutil.cpu_times_percent(_QUIET_SECONDS)
        if spent.idle + spent.iowait >= _QUIET_PERCENT:
            return


def _watch(sampler: Sampler, expectations: Sequence[Expected]) -> list[Measured]:
    first = _exact(sampler)

    def found(looks: Looks) -> list[Measured]:
        return [
            Measured(expected=one, spans=[spans[one.gpu] for (spans,) in looks])
            for one in expectations
        ]

    return [
        replace(one, feeders=explained(sampler, one.expected.gpu, first[one.expected.gpu].at_ns))
        for one in look([sampler], _LOOK_NS, found)
    ]


def look(samplers: Sequence[Sampler], span_ns: int, found: Callable[[Looks], list[W]]) -> list[W]:
    """What is `found` in looks, once all is judged, or after as long as one may look."""
    looks: list[list[tuple[Span, ...]]] = []
    end = time.monotonic() + LONGEST_SECONDS
    while True:
        looks.append(watched(samplers, span_ns))
        results = found(looks)
        if all(one.right is not None for one in results) or time.monotonic() > end:
            return results


def explained(sampler: Sampler, gpu: int, since_ns: int) -> Bucket | None:
    """What the feeders did since then, as the accounting saw it."""
    assert sampler._watch is not None
    now = sampler.state().gpus[gpu]
    return sampler._watch.explaining(now.identity.uuid, since_ns, now.at_ns)


def watched(samplers: Sequence[Sampler], span_ns: int) -> list[tuple[Span, ...]]:
    """Of each sampler's GPUs, once so much more of all of them is known."""
    others, before = Strangers(), [_exact(sampler) for sampler in samplers]

    def ended() -> list[tuple[GpuSnapshot, ...]] | None:
        now = [_exact(sampler) for sampler in samplers]
        gpus = zip(chain(*before), chain(*now), strict=True)
        return now if all(gpu.at_ns - then.at_ns >= span_ns for then, gpu in gpus) else None

    after = until(ended, "the books of all GPUs")
    crowded = others.crowd
    return [
        tuple(_difference(*gpu, crowded=crowded) for gpu in zip(then, now, strict=True))
        for then, now in zip(before, after, strict=True)
    ]


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
def _sampling(board: Board) -> Iterator[Sampler]:
    with sampling(lambda: VirtualDriver(board), Settings()) as sampler:
        until(lambda: accounted(sampler), "the sampler accounts for all GPUs")
        yield sampler


def accounted(sampler: Sampler) -> bool:
    """Whether the books of its GPUs are open."""
    shown = sampler.state().gpus
    return bool(shown) and all(gpu.totals.stall_ns is not None for gpu in shown)


@contextmanager
def _staged(case: Case, folder: Path) -> Iterator[tuple[Board, Path]]:
    """The case's processes, running; they, their cgroups and files are removed afterwards."""
    if case.needs_disk:
        disk_of(folder)
    with ExitStack() as cleanup:
        files = Path(cleanup.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        if case.data_bytes:
            make_data(files / loops.DATA, case.data_bytes)
        board = create(files / "board", gpus=[H100] * case.gpus)
        cleanup.callback(board.close)
        for process in case.processes:
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
    gpus = process.gpus or ()
    indices = ",".join(map(str, gpus)) or "-"
    command = [*way, sys.executable, loops.__file__, f"{board.path}", indices, process.loop]
    command += [f"{files}", f"{os.getpid()}", *map(str, cages)]
    started = subprocess.Popen(command, cwd=files, start_new_session=True)
    try:
        until(
            lambda: all(_holds(board, gpu, started) for gpu in gpus),
            f"{process.loop} holds its GPUs",
            unless=lambda: started.poll() is not None,
        )
        yield
        assert started.poll() is None, f"{process.loop} ended early"
    finally:
        end_group(started)


def _holds(board: Board, gpu: int, process: subprocess.Popen[bytes]) -> bool:
    return any(entry.pid == process.pid for entry in board.gpus[gpu].record.processes)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its workers, which share its session, and wait until they are gone."""
    end_session(process)
