"""Stages chains of settings side by side, and takes what the exporter tells users of each change.

One sampler runs through, as the exporter does: the loop is killed and started with the new value on
the same GPU. What the GPU really did is read from the virtual board, not from the exporter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import gpu_bottleneck_exporter
from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.create import H100, create
from gpu_bottleneck_exporter.demo.board.layout import LANE
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.prescription import model
from gpu_bottleneck_exporter.prescription.model import Outlook, Prescription, Refusal
from gpu_bottleneck_exporter.prescription.thresholds import ADVICE
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from gpu_bottleneck_exporter.settings import Settings
from prescriptions.cases import Chain
from prescriptions.changes import NOTHING, Change, Told, told
from prescriptions.settings import FIELDS, Setting
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

_FIRST_WORK_NS = 100_000_000
_DATA_BYTES = 64 * MEBIBYTE
_POLL_SECONDS = 1.0
_TOO_EARLY = Refusal("changing"), Refusal("starting")
_UNSCORED = model.REMOVED | {model.CPU_CORES}
"""Knobs whose change the exporter does not notice."""


class Pace(NamedTuple):
    """Seconds to wait after a change, and to watch then."""

    settle: float = 5.0
    watch: float = 26.0
    patience: float = 25.0
    """Time to watch on while the exporter has not seen enough."""


class Seen(NamedTuple):
    """One setting, watched for a while."""

    setting: Setting
    busy: float
    """Share of the time, 0-1, as the board has it: the truth."""
    strangers: float
    """Cores in use by processes that are not staged: what may have spoilt it."""
    outlook: Outlook


@contextmanager
def running(
    folder: Path, *words: str, venv: str | None = None, cages: Sequence[Path] = (), **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Python with these `words`, and all that it starts, until the end of the block.

    `venv`: the environment of `stacks.venvs` whose libraries it has; `cages`: control groups.
    """
    tests, package = Path(__file__).parents[1], Path(gpu_bottleneck_exporter.__file__).parent
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tests}:{package.parent}",
        "STACKS_BOARD": f"{folder / 'board'}",
        "STACKS_FOLDER": f"{folder}",
        "STACKS_PORT": f"{free_port()}",
        **variables,
    }
    enter = _after(*(f"echo $$ >'{cage}/cgroup.procs'" for cage in cages))
    interpreter = f"{python(venv)}" if venv else sys.executable
    command = [*WITH_US, *enter, interpreter, "-W", "ignore", *words]
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        yield process
    finally:
        end_group(process)


class Job:
    """The processes of one chain, on GPU `index` and, if it has more ranks, on those after it."""

    def __init__(self, chain: Chain, index: int, board: Board, sampler: Sampler) -> None:
        self.chain, self.setting = chain, chain.first
        self._index, self._board, self._sampler = index, board, sampler
        self._running = ExitStack()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._began_ns = self._done_ns = 0

    def start(self, setting: Setting) -> None:
        """End what runs, start again as in `setting`, and wait for the first work."""
        self.end()
        self.setting = setting
        enter, folder = self._running.enter_context, self._board.path.parent
        for _ in range(setting.neighbours):
            enter(running(folder, "-c", "while True: pass"))
        cages: Sequence[Path] = ()
        if setting.cpu_limit is not None:
            cages = enter(limited(Limits(cpu_cores=setting.cpu_limit), folder))
        loops = [setting] * setting.processes
        loops += [replace(setting, workers=workers) for workers in setting.ranks]
        size, port = f"{len(loops)}", f"{free_port()}"
        for rank, loop in enumerate(loops):
            gpu, group = self._index, {}
            if setting.ranks:
                gpu += rank
                group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": size}
                group["RANK"] = f"{rank}"
            words = ("-m", "prescriptions.loops", f"{gpu}", json.dumps(asdict(loop)))
            process = enter(running(folder, *words, venv=loop.venv, cages=cages, **group))
            self._processes.append(process)
        self.begin()

    def end(self) -> None:
        """Kill all of its processes, and wait until they are gone."""
        self._running.close()
        self._processes.clear()

    def begin(self) -> None:
        """Watch from now on."""
        self._began_ns, self._done_ns = time.monotonic_ns(), self._busy_ns()

    def await_work(self) -> None:
        """Waits until its GPU has worked."""
        worked = f"{self.chain.title} works"
        until(lambda: self._worked_ns() > _FIRST_WORK_NS, worked, unless=lambda: self.has_ended)

    @property
    def has_ended(self) -> bool:
        """Whether one of its processes has."""
        return any(process.poll() is not None for process in self._processes)

    def seen(self, strangers: float) -> Seen:
        """Its work since it is watched, and the exporter's report of its GPU."""
        feeding = self._sampler.state().gpus[self._index].feeding
        busy = self._worked_ns() / max(time.monotonic_ns() - self._began_ns, 1)
        outlook = feeding.outlook if feeding else model.NOTHING_KNOWN
        return Seen(self.setting, min(busy, 1.0), strangers, outlook)

    @property
    def is_judged(self) -> bool:
        """Whether the exporter has seen enough to say anything, or need not."""
        result = self.seen(0.0)
        return result.busy >= ADVICE.healthy or result.outlook.advice not in {None, *_TOO_EARLY}

    def _worked_ns(self) -> int:
        return self._busy_ns() - self._done_ns

    def _busy_ns(self) -> int:
        return self._board.gpus[self._index].done(time.monotonic_ns())[LANE["busy_ns"]]


def measure(chains: Sequence[Chain], pace: Pace) -> Iterator[Change]:
    """Stage `chains` side by side, a GPU each; what came of each change, as soon as it is known.

    Raises Unavailable if the machine cannot stage it.
    """
    with _staged(chains) as jobs:
        for job in jobs:
            job.start(job.chain.first)
        before = _watch(jobs, pace)
        for turn in range(max(chain.pairs for chain in chains)):
            going = [job for job in before if turn < job.chain.pairs]
            values = {job: job.chain.value(turn, before[job].outlook.advice) for job in going}
            for job in before:
                value = values.get(job)
                if value is None:
                    job.end()
                else:
                    job.start(job.setting.turned(job.chain.knob, value))
            after = _watch([job for job in going if values[job] is not None], pace)
            for job in going:
                followed = turn == len(job.chain.changes)
                items = before[job], after.get(job)
                yield change(job.chain, values[job], *items, followed=followed)
            before = after


def _watch(jobs: Sequence[Job], pace: Pace) -> dict[Job, Seen]:
    """Work of `jobs` and the exporter's view of it, once they have settled."""
    if not jobs:
        return {}
    for job in jobs:
        job.await_work()
    time.sleep(pace.settle)
    strangers = Strangers()
    for job in jobs:
        job.begin()
    end = time.monotonic() + pace.watch
    while (left := end - time.monotonic()) > 0 or (
        left > -pace.patience and not all(job.is_judged for job in jobs)
    ):
        time.sleep(_POLL_SECONDS)
        for job in jobs:
            assert not job.has_ended, f"{job.chain.title} ended early"
    cores = strangers.cores
    return {job: job.seen(cores) for job in jobs}


def change(
    chain: Chain, value: float | None, before: Seen, after: Seen | None, *, followed: bool
) -> Change:
    """A change of the chain's knob to `value`, and what users were told of it.

    That is the prescription if they followed it, else the score.
    """
    family, name = chain.title.split(": ", 1)
    advice, knob = before.outlook.advice, chain.knob
    result = advice if isinstance(advice, Prescription) else None
    advised = result if result and result.knob == knob else None
    score = after.outlook.score if after else None
    own = score if score and (score.knob, score.value_after) == (knob, value) else None
    outcome, fault = None, ""
    if result and result.knob in chain.never:
        fault = f"{result.knob} was prescribed"
    elif score not in {None, own, before.outlook.score}:
        fault = "scored as another change"
    elif advised and (followed or knob in _UNSCORED):
        outcome = told(advised)
    elif own:
        ends = own.predicted_low_ratio, own.predicted_high_ratio
        outcome = Told(own.predicted_busy_ratio, *ends, at_most=bool(advised and advised.at_most))
    done, seen = "as prescribed", before.outlook.seen
    if after:
        values = " → ".join(f"{item.setting.value(knob):g}" for item in (before, after))
        done = f"{values} {FIELDS[knob]}" + (" (as prescribed)" if followed else "")
    if seen and chain.first.together:  # no process waits for the others
        seen = replace(seen, slack=None)
    return Change(
        family,
        name,
        knob,
        value,
        seen,
        outcome=after.busy if after else None,
        strangers=max(item.strangers for item in (before, after) if item),
        before=before.busy,
        done=done,
        said=outcome,
        refused=f"refused: {advice.reason}" if isinstance(advice, Refusal) else NOTHING,
        fault=fault,
        own_error=own.error_ratio if own else None,
    )


@contextmanager
def _staged(chains: Sequence[Chain]) -> Iterator[list[Job]]:
    """Their jobs, with a board, who samples it, and the servers and data that batches need."""
    firsts = [chain.first for chain in chains]
    owners = [at for at, item in enumerate(firsts) for _ in (0, *item.ranks)]
    with ExitStack() as cleanup:
        enter = cleanup.enter_context
        home = tempfile.TemporaryDirectory(prefix="prescriptions-", dir="/var/tmp")
        folder = Path(enter(home))
        board = enter(create(folder / "board", gpus=[H100] * len(owners)))
        sampler = enter(sampling(lambda: VirtualDriver(board), Settings()))
        until(lambda: len(sampler.state().gpus) == len(owners), "the sampler sees all GPUs")
        if any(item.disk for item in firsts):
            disk_of(folder)
            make_data(folder / DATA, _DATA_BYTES)
        server = partial(running, folder, "-m", "stacks.servers", venv="light")
        if any(item.server for item in firsts):
            enter(server("http", "http"))
        if any(item.mount for item in firsts):
            cleanup.callback(unmount, folder / "mount")
            enter(server("fuse", "fuse", "direct"))
        jobs = [Job(chain, owners.index(at), board, sampler) for at, chain in enumerate(chains)]
        for job in jobs:
            cleanup.callback(job.end)
        yield jobs
