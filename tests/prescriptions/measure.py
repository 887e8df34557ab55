"""Stages chains of settings side by side, and takes what the exporter tells users of each change.

One sampler runs through, as the exporter does: the loop is killed and started with the new value on
the same GPU. What the GPU really did is read from the virtual board, not from the exporter.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType

import gpu_bottleneck_exporter
from gpu_bottleneck_exporter.demo.board.board import Board, VirtualGpu
from gpu_bottleneck_exporter.demo.board.create import H100, create
from gpu_bottleneck_exporter.demo.board.layout import LANE
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.prescription import model
from gpu_bottleneck_exporter.prescription.advise import HEALTHY
from gpu_bottleneck_exporter.prescription.model import Outlook, Prescription, Refusal, Score
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from gpu_bottleneck_exporter.settings import Settings
from prescriptions.settings import Chain, Setting
from scenarios.cgroups import Limits, disk_of, limited
from scenarios.loops import DATA, MEBIBYTE
from scenarios.measure import end_group, make_data
from stacks.measure import free_port, unmount
from stacks.venvs import python
from support.judging import Strangers
from support.rights import _after
from support.samplers import sampling
from support.tools import WITH_US
from support.waiting import until

HOST = "127.0.0.1"
_FIRST_WORK_NS = 100_000_000
_DATA_BYTES = 64 * MEBIBYTE
_SLICE_SECONDS = 4.0
_POLL_SECONDS = 1.0
_TOO_EARLY = frozenset({"changing", "starting"})
_PRESCRIBED_ONLY = model.REMOVED | {model.CPU_CORES}
"""Knobs whose change the exporter does not notice: nothing is scored."""
_MOST_WORKERS = 16
"""More are not staged, whatever is prescribed."""
_TESTS = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds to wait after a change, and to watch then."""

    settle: float = 5.0
    watch: float = 26.0
    patience: float = 25.0
    """To watch on while the exporter has not seen enough."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One setting, watched for a while. Shares of the time, 0-1."""

    setting: Setting
    busy: float
    """As the board has it: the truth."""
    strangers: float
    """Cores in use by processes that are not staged: what may have spoilt it."""
    outlook: Outlook


@dataclass(frozen=True, slots=True)
class Pair:
    """A change of a knob: what was predicted for it, and what came of it."""

    chain: Chain
    before: Seen
    value: float | None
    """Of the knob, after; None: it was not changed."""
    followed: bool = False
    """Whether the exporter chose the value."""
    after: Seen | None = None

    @property
    def said(self) -> Prescription | Score | Refusal | None:
        """What users were told of it: the prescription if it was followed, else the score."""
        advice = self.before.outlook.advice
        if isinstance(advice, Refusal):
            return self.score or advice
        if self.followed or self.chain.knob in _PRESCRIBED_ONLY:
            return advice if advice and advice.knob == self.chain.knob else None
        return self.score

    @property
    def score(self) -> Score | None:
        """What the exporter itself made of it; None if it noticed no change, or knew nothing."""
        score = self.after.outlook.score if self.after else None
        return score if score and self._is_of_this(score) else None

    @property
    def stray_score(self) -> Score | None:
        """A score that the exporter gave after this change to another one."""
        score = self.after.outlook.score if self.after else None
        if score is None or score == self.before.outlook.score or self._is_of_this(score):
            return None
        return score

    def _is_of_this(self, score: Score) -> bool:
        return (score.knob, score.value_after) == (self.chain.knob, self.value)


@dataclass(frozen=True, slots=True)
class Glance:
    """A first setting, and what was prescribed for it."""

    chain: Chain
    seen: Seen


class Job:
    """The processes of one chain, on GPU `index`."""

    def __init__(self, chain: Chain, gpu: VirtualGpu, stage: Stage) -> None:
        self.chain = chain
        self.setting = chain.first
        self.gpu = gpu
        self._stage = stage
        self._running = ExitStack()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._done_ns = 0

    @property
    def uuid(self) -> str:
        """Of its GPU."""
        return bytes(self.gpu.record.uuid).decode()

    def start(self, setting: Setting) -> None:
        """End what runs, and start again as in `setting`."""
        self.end()
        self.setting = setting
        self._done_ns = self.busy_ns()
        for _ in range(setting.neighbours):
            self._running.enter_context(self._stage.running((), "-c", "while True: pass"))
        cages: tuple[Path, ...] = ()
        if setting.cpu_limit is not None:
            limits = Limits(cpu_cores=setting.cpu_limit)
            cages = self._running.enter_context(limited(limits, self._stage.folder))
        loops = [setting.loop] * setting.processes
        loops += [setting.loop.with_workers(workers) for workers in setting.ranks]
        group = {
            "MASTER_ADDR": HOST,
            "MASTER_PORT": f"{free_port()}",
            "WORLD_SIZE": f"{len(loops)}",
        }
        for rank, loop in enumerate(loops):
            of_job = {**group, "RANK": f"{rank}"} if setting.ranks else {}
            gpu = self.gpu.index + (rank if setting.ranks else 0)
            command = ("-m", "prescriptions.loops", f"{gpu}", f"{loop}")
            running = self._stage.running(cages, *command, venv=loop.venv, more=of_job)
            self._processes.append(self._running.enter_context(running))

    def await_work(self) -> None:
        """Until the GPU has done something."""
        until(
            lambda: self.busy_ns() - self._done_ns > _FIRST_WORK_NS,
            f"{self.chain.title} works",
            unless=lambda: self._has_ended,
        )

    def turn(self, value: float | None) -> bool:
        """Start with the knob at `value`, or end without one. Whether it goes on."""
        if value is None:
            self.end()
        else:
            self.start(self.setting.turned(self.chain.knob, value))
        return value is not None

    def check(self) -> None:
        """Fail if it has ended."""
        assert not self._has_ended, f"{self.chain.title} ended early"

    @property
    def _has_ended(self) -> bool:
        return any(process.poll() is not None for process in self._processes)

    def end(self) -> None:
        """Kill all of its processes, and wait until they are gone."""
        self._running.close()
        self._processes.clear()

    def busy_ns(self) -> int:
        """What the GPU has done until now."""
        return self.gpu.done(time.monotonic_ns())[LANE["busy_ns"]]


class Stage:
    """Where processes run: a folder, the servers, the environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environment = {
            **os.environ,
            "PYTHONPATH": f"{_TESTS}:{Path(gpu_bottleneck_exporter.__file__).parents[1]}",
            "STACKS_BOARD": f"{folder / 'board'}",
            "STACKS_FOLDER": f"{folder}",
            "STACKS_PORT": f"{free_port()}",
        }

    @contextmanager
    def running(
        self,
        cgroups: tuple[Path, ...],
        *arguments: str,
        venv: str | None = None,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A Python process with `arguments`, and all that it starts, until the end of the block.

        `venv`: the environment of `stacks.venvs` whose libraries it has; `more`: variables.
        """
        enter = _after(*(f"echo $$ >'{group}/cgroup.procs'" for group in cgroups))
        interpreter = f"{python(venv)}" if venv else sys.executable
        command = [*WITH_US, *enter, interpreter, "-W", "ignore", *arguments]
        environment = {**self._environment, **more}
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        try:
            yield process
        finally:
            end_group(process)

    @contextmanager
    def serving(self, name: str, *arguments: str) -> Iterator[None]:
        """Server `name` of the suite with the loading libraries."""
        announced = self.folder / f"{name}.port"
        server = ("-m", "stacks.servers", name, name, *arguments)
        with self.running((), *server, venv="light") as process:
            until(announced.exists, f"{name} listens", unless=lambda: process.poll() is not None)
            yield


def measure(chains: Sequence[Chain], pace: Pace) -> Iterator[Pair | Glance]:
    """Stage `chains` side by side, a GPU each; what came of each change, as soon as it is known.

    Raises Unavailable if the machine cannot stage it.
    """
    with staged(chains) as (board, stage), _sampling(board) as sampler, ExitStack() as cleanup:
        starts = accumulate((chain.gpus for chain in chains), initial=0)
        jobs = [
            Job(chain, board.gpus[at], stage) for chain, at in zip(chains, starts, strict=False)
        ]
        for job in jobs:
            cleanup.callback(job.end)
            job.start(job.chain.first)
        seen = _watch(sampler, jobs, pace)
        yield from (Glance(job.chain, seen[job.uuid]) for job in jobs if job.chain.never)
        for turn in range(max(chain.pairs for chain in chains)):
            for job in jobs:
                if turn == job.chain.pairs:
                    job.end()
            jobs = [job for job in jobs if turn < job.chain.pairs]
            pairs = {job: _planned(job, turn, seen[job.uuid]) for job in jobs}
            jobs = [job for job in jobs if job.turn(pairs[job].value)]
            yield from (pair for pair in pairs.values() if pair.value is None)
            seen = _watch(sampler, jobs, pace) if jobs else {}
            yield from (replace(pairs[job], after=seen[job.uuid]) for job in jobs)


def _planned(job: Job, turn: int, before: Seen) -> Pair:
    """The next change of `job`."""
    chain = job.chain
    if turn < len(chain.changes):
        return Pair(chain, before, chain.changes[turn])
    return Pair(chain, before, _followed(chain, before.outlook.advice), followed=True)


def _followed(chain: Chain, advice: Prescription | Refusal | None) -> float | None:
    """The prescribed value, if it is one of the chain's knob that can be staged."""
    if not isinstance(advice, Prescription) or advice.knob != chain.knob:
        return None
    crowded = chain.knob == model.NUM_WORKERS and advice.value > _MOST_WORKERS
    return None if crowded else advice.value


def _watch(sampler: Sampler, jobs: Sequence[Job], pace: Pace) -> dict[str, Seen]:
    """What `jobs` do and what the exporter sees of it, once they have settled; by GPU."""
    for job in jobs:
        job.await_work()
    time.sleep(pace.settle)
    watches, strangers = [Watch(sampler, job) for job in jobs], Strangers()
    end = time.monotonic() + pace.watch
    while (left := end - time.monotonic()) > 0 or (
        left > -pace.patience and not all(watch.is_judged for watch in watches)
    ):
        time.sleep(min(_SLICE_SECONDS, left) if left > 0 else _POLL_SECONDS)
        for job in jobs:
            job.check()
    cores = strangers.cores
    return {watch.job.uuid: watch.seen(cores) for watch in watches}


class Watch:
    """What one GPU did since this was made."""

    def __init__(self, sampler: Sampler, job: Job) -> None:
        self.job = job
        self._sampler = sampler
        self._began = time.monotonic_ns()
        self._done_ns = job.busy_ns()

    @property
    def is_judged(self) -> bool:
        """Whether the exporter has seen enough to say anything, or need not."""
        advice, knob = self._outlook().advice, self.job.chain.knob
        if isinstance(advice, Prescription):
            judged = advice.knob == knob or knob not in _PRESCRIBED_ONLY
        else:
            judged = advice is not None and advice.reason not in _TOO_EARLY
        return judged or self._busy() >= HEALTHY

    def seen(self, strangers: float) -> Seen:
        """All of it."""
        return Seen(self.job.setting, self._busy(), strangers, self._outlook())

    def _busy(self) -> float:
        """Share of the time, by the board."""
        elapsed = time.monotonic_ns() - self._began
        return min((self.job.busy_ns() - self._done_ns) / max(elapsed, 1), 1.0)

    def _outlook(self) -> Outlook:
        """What the exporter tells of its GPU."""
        feeding = self._sampler.state().gpus[self.job.gpu.index].feeding
        return feeding.outlook if feeding else model.NOTHING_KNOWN


@contextmanager
def staged(chains: Sequence[Chain]) -> Iterator[tuple[Board, Stage]]:
    """A board, a folder, and the servers that the batches of `chains` need."""
    batches = [chain.first.loop.batch for chain in chains]
    with ExitStack() as cleanup:
        home = tempfile.TemporaryDirectory(prefix="prescriptions-", dir="/var/tmp")
        folder = Path(cleanup.enter_context(home))
        board = cleanup.enter_context(
            create(folder / "board", gpus=[H100] * sum(c.gpus for c in chains))
        )
        stage = Stage(folder)
        if any(batch.disk for batch in batches):
            disk_of(folder)
            make_data(folder / DATA, _DATA_BYTES)
        if any(batch.server for batch in batches):
            cleanup.enter_context(stage.serving("http"))
        if any(batch.mount for batch in batches):
            cleanup.callback(unmount, folder / "mount")
            cleanup.enter_context(stage.serving("fuse", "direct"))
        yield board, stage


@contextmanager
def _sampling(board: Board) -> Iterator[Sampler]:
    with sampling(lambda: VirtualDriver(board), Settings()) as sampler:
        until(lambda: len(sampler.state().gpus) == len(board.gpus), "the sampler sees all GPUs")
        yield sampler
