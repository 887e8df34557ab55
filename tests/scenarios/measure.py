"""Stages one case and watches it through the sampler that the exporter serves from.

A Prometheus, if given, watches the same processes at the same time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from gpu_bottleneck_exporter.accounting.bucket import Bucket
from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.create import H100, create
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from gpu_bottleneck_exporter.settings import Settings
from scenarios import loops
from scenarios.alerts import Heard, Listener
from scenarios.cases import Case, Expected, Process, apart, side_by_side
from scenarios.cgroups import disk_of, limited
from support.board import FaultyDriver
from support.samplers import sampling
from support.waiting import until

MEASURED_SECONDS = 14.0
"""The states of a main that waits for its GPU and for a disk in turns are samples: over half of
this time, chance charged more than `TOO_MUCH` to a wrong cause in 3 of 20 runs."""
ENOUGH = 0.8
"""Least share of idle time on accepted causes."""
TOO_MUCH = 0.1
"""Largest share of idle time on a wrong cause, and of idle time where none is expected."""
_WARM_SECONDS = 3.0
_POLL_SECONDS = 0.5
_QUIET_WITHIN_SECONDS = 20.0
_QUIET_SECONDS = 0.5
_QUIET_PERCENT = 85
"""Idle share of all CPUs above which nothing disturbs the scenario."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured for one expectation of a case."""

    expected: Expected
    observed_ns: int
    busy_ns: int
    stall_ns: Mapping[str, int]
    feeders: Bucket | None
    """What the feeders did, as the accounting saw it."""
    heard: Heard | None = None
    """What Prometheus reported, if there was one."""

    @property
    def busy(self) -> float:
        """Busy share of the observed time, 0-1."""
        return self.busy_ns / self.observed_ns

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the idle time by cause, 0-1."""
        idle = sum(self.stall_ns.values())
        return {cause: ns / idle for cause, ns in self.stall_ns.items() if ns}

    @property
    def wrong(self) -> str | None:
        """Which idle time or alerts do not meet the expectation; None if all do."""
        alerts = self.heard.wrong if self.heard else None
        return "; ".join(found for found in (self.wrong_causes, alerts) if found) or None

    @property
    def wrong_causes(self) -> str | None:
        """Which idle time does not meet the expectation; None if all does."""
        accepted = self.expected.waiting_on
        if not accepted:
            idle = 1 - self.busy
            return f"idle {idle:.0%} of the time" if idle >= TOO_MUCH else None
        right = sum(self.shares.get(cause, 0.0) for cause in accepted)
        if right < ENOUGH:
            return f"only {right:.0%} on {' or '.join(sorted(accepted))}"
        others = {cause: share for cause, share in self.shares.items() if cause not in accepted}
        excess = [f"{share:.0%} on {cause}" for cause, share in others.items() if share > TOO_MUCH]
        return ", ".join(excess) or None

    def __str__(self) -> str:
        shares = sorted(self.shares.items(), key=lambda item: -item[1])
        told = ", ".join(f"{cause} {share:.0%}" for cause, share in shares)
        return (
            f"busy {self.busy:.0%}; idle: {told or 'never'}\n    {self.feeders}\n    {self.heard}"
        )


def measure(case: Case, folder: Path, listener: Listener | None) -> list[Measured]:
    """Stage `case` with its files below `folder`; one result for each expectation.

    Raises Unavailable if the machine cannot stage it.
    """
    await_quiet()
    with (
        _staged(case, folder) as (board, files),
        _sampling(board) as sampler,
        listener.showing(sampler) if listener else nullcontext(),
    ):
        began = time.monotonic()
        time.sleep(_WARM_SECONDS)
        first = [expected for expected in case.expected if not expected.second_half]
        results = _heard(_watch(sampler, first), listener, board, began)
        second = [expected for expected in case.expected if expected.second_half]
        if second:
            began = time.monotonic()
            (files / loops.SECOND_HALF).touch()
            time.sleep(_WARM_SECONDS)
            results += _heard(_watch(sampler, second), listener, board, began)
        return results


def judged(
    cases: Sequence[Case], folder: Path, listener: Listener | None, tell: Callable[[str], None]
) -> list[list[Measured]]:
    """Results of each of `cases`, which run side by side.

    Those that are wrong are measured once more, as two cores are easily disturbed.
    """
    results = apart(cases, measure(side_by_side(cases), folder, listener))
    wrong = {case: found for case, found in zip(cases, results, strict=True) if _reason(found)}
    if not wrong:
        return results
    for case, found in wrong.items():
        tell("\n".join([f"{case.name}: {_reason(found)}", *map(str, found)]))
    again = measure(side_by_side([*wrong]), folder, listener)
    better = dict(zip(wrong, apart([*wrong], again), strict=True))
    return [better.get(case, found) for case, found in zip(cases, results, strict=True)]


def _reason(results: list[Measured]) -> str:
    return "; ".join(found.wrong for found in results if found.wrong)


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
        heard[gpu] = listener.await_answer(uuid, found.expected, began)
    return [replace(found, heard=heard[found.expected.gpu]) for found in results]


def await_quiet(seconds: float = _QUIET_WITHIN_SECONDS) -> None:
    """Wait until other programs are quiet, for so long at most."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        spent = psutil.cpu_times_percent(_QUIET_SECONDS)
        if spent.idle + spent.iowait >= _QUIET_PERCENT:
            return


def _watch(sampler: Sampler, expectations: list[Expected]) -> list[Measured]:
    began = time.monotonic_ns()
    before = _exact(sampler)
    while time.monotonic_ns() < began + MEASURED_SECONDS * 1e9:
        time.sleep(_POLL_SECONDS)
        after = _exact(sampler)
    return [
        _difference(sampler, before[expected.gpu], after[expected.gpu], expected)
        for expected in expectations
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


def _difference(
    sampler: Sampler, before: GpuSnapshot, after: GpuSnapshot, expected: Expected
) -> Measured:
    then, now = before.totals, after.totals
    assert sampler._watch is not None
    stalls, earlier = now.stall_ns or {}, then.stall_ns or {}
    return Measured(
        expected=expected,
        observed_ns=(now.observed_ns or 0) - (then.observed_ns or 0),
        busy_ns=now.busy_ns - then.busy_ns,
        stall_ns={cause: stalls[cause] - earlier[cause] for cause in stalls},
        feeders=sampler._watch.explaining(after.identity.uuid, before.at_ns, after.at_ns),
    )


@contextmanager
def _sampling(board: Board) -> Iterator[Sampler]:
    with sampling(lambda: FaultyDriver(board), Settings()) as sampler:
        until(lambda: _accounted(sampler, len(board.gpus)), "the sampler accounts for all GPUs")
        yield sampler


def _accounted(sampler: Sampler, gpus: int) -> bool:
    shown = sampler.state().gpus
    return len(shown) == gpus and all(gpu.totals.stall_ns is not None for gpu in shown)


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
        cages: tuple[Path, ...] = ()
        if case.limits:
            cages = cleanup.enter_context(limited(case.limits, folder))
        for process in case.processes:
            cage = cages if process.caged else ()
            cleanup.enter_context(running(process, board, files, cage))
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
    """Kill a process and its workers, which share its group, and wait until they are gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    until(lambda: not _lives(process.pid), "the end of killed processes")


def _lives(group: int) -> bool:
    """Whether a process of `group` lives; zombies do not count, as nobody may reap them."""
    for process in psutil.process_iter(["status"]):
        with contextlib.suppress(ProcessLookupError):
            dead = process.info["status"] == psutil.STATUS_ZOMBIE
            if not dead and os.getpgid(process.pid) == group:
                return True
    return False
