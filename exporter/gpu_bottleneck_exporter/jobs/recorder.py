"""Records jobs: which processes hold which GPU, whose they are, and what ticks charge to them."""

from __future__ import annotations

import json
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

from gpu_bottleneck_exporter.accounting.tick import Tick
from gpu_bottleneck_exporter.driver.readings import Identity, Memory, Power, Processes
from gpu_bottleneck_exporter.host.process import Started, monotonic_start_ns, stat_of
from gpu_bottleneck_exporter.host.programs import program_name
from gpu_bottleneck_exporter.jobs.book import BACKFILL_NS, GpuBook, Tenancy
from gpu_bottleneck_exporter.jobs.exits import ExitWatch
from gpu_bottleneck_exporter.jobs.model import Gpu, Job, end_of
from gpu_bottleneck_exporter.jobs.runs import is_later, run_of
from gpu_bottleneck_exporter.jobs.store import Store
from gpu_bottleneck_exporter.logthrottle import LogThrottle
from gpu_bottleneck_exporter.nodeview import wire
from gpu_bottleneck_exporter.prescription.model import Prescription
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.workload.identity import NOBODY, Owner
from gpu_bottleneck_exporter.workload.owners import Groups, OwnerReader, claims_of, named
from gpu_bottleneck_exporter.workload.users import UserNames

if TYPE_CHECKING:
    from gpu_bottleneck_exporter.stacktraces.watch import LineWatch

_LATE_SECONDS = 1.0
"""Before a job's end is noted, the next one may have started."""
_STEP_NS = 100_000_000
"""Smallest step of the wall clock that is followed: more than the error of reading two clocks, and
less than the steps of NTP daemons and leap seconds."""
_NAME_SECONDS = 1.0
"""Wait for a user's name, which is part of ids: on another node it may come at once."""
_PROOFS = frozenset({"cgroup", "prolog"})
"""Sources of an owner that only root can write."""
NUMBERED = re.compile(r"^slurm-[0-9A-Za-z]+")
"""An id of a Slurm job, up to its number."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_ID_CHARACTERS = 80


class JobRecorder:
    """The recorder of this machine's jobs, from ticks and exits of processes. Not thread-safe.

    A tick's times become Unix times when it is recorded: monotonic ones plus an offset that is kept
    until the wall clock is set. Then the times of jobs that run or ended less than a minute ago
    move along: they are right by the new time, and no duration changes. Jobs that are only in the
    store keep their times: the pause of one that goes on from there is wrong by the step.
    """

    _sampler: Sampler
    """From `start` on."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        exits: ExitWatch,
        throttle: LogThrottle,
        store_run: Callable[[Job], None],
    ) -> None:
        """`store_run` is called with an earlier run of a job once it has an id of its own."""
        self._settings, self._proc = settings, settings.procfs
        users = UserNames(self._proc, _NAME_SECONDS)
        self._owners = OwnerReader(self._proc, Groups(self._proc, settings.sysfs), users)
        self._store, self._exits, self._throttle = store, exits, throttle
        self._store_run = store_run
        self._lines: LineWatch | None = None
        self._books: dict[str, GpuBook] = {}
        self.jobs: dict[str, Job] = {}
        """Those that run, or ended less than `BACKFILL_NS` ago, by id."""
        self._offset_ns = _wall_offset_ns()
        """Unix time less monotonic time."""
        self._began_ns = time.monotonic_ns()

    def start(self, sampler: Sampler) -> None:
        """Use the sampler for readings, names and lines of code."""
        self._sampler, self._lines = sampler, sampler.lines

    def now_ns(self) -> int:
        """Unix time, by the offset in use."""
        return time.monotonic_ns() + self._offset_ns

    def _follow_clock(self) -> None:
        """Move all times along if the wall clock was set."""
        step_ns = _wall_offset_ns() - self._offset_ns
        if abs(step_ns) >= _STEP_NS:
            self._offset_ns += step_ns
            for book in self._books.values():
                book.shift(step_ns)
            for gpu in (gpu for job in self.jobs.values() for gpu in job.gpus):
                gpu.shift(step_ns / 1e9)

    def drain(self, ticks: deque[Tick]) -> None:
        """Record and remove all `ticks`, and record the lines of code that were found."""
        self._follow_clock()
        while ticks:
            tick = ticks.popleft().shifted(self._offset_ns)
            uuid = tick.gpu.uuid
            book = self._books.setdefault(uuid, GpuBook(tick.at_ns))
            with self._throttle.guarded("listing the processes", uuid=uuid):
                if (found := tick.reading(Processes)) and found.count is not None:
                    self._list(book, tick.gpu, tick.read_ns(Processes), found)
            with self._throttle.guarded("charging the time", uuid=uuid):
                if tick.windows:
                    book.spend(tick.windows, tick.stalls)
                if power := tick.reading(Power):
                    book.power(tick.read_ns(Power), power.energy_joules)
                if memory := tick.reading(Memory):
                    shared = memory.of_machine or tick.gpu.coherent
                    used = None if shared else memory.used_bytes
                    book.memory(tick.read_ns(Memory), used, memory.total_bytes)
        for uuid, (lines, mains) in self._lines.ended() if self._lines else ():
            with self._throttle.guarded("keeping the lines", uuid=uuid):
                had = _whose(self._books[uuid], mains) if uuid in self._books else None
                if had and lines.lines:
                    had.idle_lines = lines

    def _end(self, book: GpuBook, tenancy: Tenancy, at_ns: int) -> None:
        """Record that a process has left, and watch it no longer."""
        book.end(tenancy, at_ns)
        self._exits.unwatch(tenancy.pidfd)

    def _exited(self, book: GpuBook, tenancy: Tenancy) -> None:
        """Record that a process has exited, and let its GPU be read at once, up to this moment."""
        self._end(book, tenancy, self.now_ns())
        self._sampler.look((tenancy.gpu.uuid,), now=True)

    def _list(self, book: GpuBook, gpu: Identity, at_ns: int, found: Processes) -> None:
        """Note who holds `gpu`."""
        used = {one.pid: one.used_bytes for one in found.processes}
        for tenancy in book.open():
            if tenancy.pid not in used:
                self._end(book, tenancy, at_ns)
        here, known = ({one.pid for one in them} for them in (book.open(), book.tenancies))
        for pid in used.keys() - here:
            came = False
            with self._throttle.guarded("recording the processes", uuid=gpu.uuid):
                came = self._begin(book, gpu, at_ns, pid, found)
            if not came and pid in known:  # the driver still lists it
                self._sampler.look((gpu.uuid,), now=False)
        for had in {tenancy.gpu for tenancy in book.open()}:
            sizes = [used.get(tenancy.pid) for tenancy in book.open() if tenancy.gpu is had]
            had.need(None if None in sizes else sum(filter(None, sizes)))

    def _begin(self, book: GpuBook, gpu: Identity, at_ns: int, pid: int, found: Processes) -> bool:
        """Let a process hold `gpu`; whether it is there."""
        stat = stat_of(self._proc, pid)
        if stat is None or stat.ended:
            return False
        started_ns = monotonic_start_ns(stat.started_ticks) + self._offset_ns
        owner, *_ = *self._owners.of([(pid, stat.started_ticks)], time.monotonic_ns()), NOBODY
        if found.pod:
            owner = replace(owner, **found.pod._asdict())
        elif owner.pod_uid and owner.container_id:
            self._sampler.seek_name(owner.container_id)
        # All that may fail is read before there is a job.
        command = program_name(self._proc, pid)
        claims = claims_of(self._proc, pid, self._settings.jobs_claims)
        run = (
            run_of(self._proc, self._settings.sysfs, pid) if owner.slurm_job_id or owner.job else {}
        )
        job = self._job(owner, stat.session, started_ns, run)
        job.command = job.command or command or None
        job.claims |= claims
        had = next((one for one in job.gpus if one.uuid == gpu.uuid), None)
        if had is None:
            had = Gpu(
                gpu=f"{gpu.index}",
                uuid=gpu.uuid,
                model=gpu.name,
                mig=gpu.mig_profile,
                start_seconds=at_ns / 1e9,
            )
            job.gpus.append(had)
        tenancy = book.begin(had, pid, started_ns, at_ns)
        tenancy.started_ticks = stat.started_ticks
        tenancy.pidfd = self._exits.watch(pid, partial(self._exited, book, tenancy))
        return True

    def _job(self, owner: Owner, session: int, started_ns: int, run: Mapping[str, str]) -> Job:
        """The job of a process.

        A Slurm job or a pod may have pauses without a process on a GPU, and is known by its name:
        it goes on as long as it is kept. A user's own processes have no name in common: one job are
        those of a launcher (`rendezvous`) or a session, until none of them holds a GPU any more.
        What is typed into one terminal after that is the next job. A Slurm job that is requeued is
        another record: its last run has the plain id.
        """
        name, user = name_of(owner), owner.user or "unknown"
        job = self._known(name, started_ns) if name else None
        if name is None:
            alike = _id("user", user, owner.rendezvous or f"{session}")
            job, started = self._known(alike, started_ns, timed=True), started_ns / 1e9
            name = f"{alike}-{max(int(started), 0)}"
            end = end_of(job.gpus) if job else started
            # One that ends later than now was stored before the clock was set back.
            goes_on = end is None or started < end - _LATE_SECONDS <= self.now_ns() / 1e9
            job = job if goes_on else None
        elif job and is_later(run, job.run):
            self._retire(job)
            job = None
        if job is None:
            job = self.jobs[name] = Job(id=name)
        job.run |= run
        fields = {field: text for field, text in asdict(owner).items() if text}
        # With fakeroot or containers, a job's processes have several users; the first is its own.
        job.owner |= fields | {field: job.owner[field] for field in {"user"} & job.owner.keys()}
        return job

    def _retire(self, job: Job) -> None:
        """Keep an earlier run under an id of its own: its start in ms follows the number."""
        self.jobs.pop(job.id)
        start = min((gpu.start_seconds for gpu in job.gpus), default=0.0)
        job.id = NUMBERED.sub(rf"\g<0>.{1000 * start:.0f}", job.id, count=1)
        self.jobs[job.id] = job
        self._store_run(job)

    def _known(self, name: str, started_ns: int, *, timed: bool = False) -> Job | None:
        """The last job with id `name`, or with `name` and a time; one that was stored may go on.

        Raises OSError while what is stored cannot be read: a job that began anew would replace it.
        A process waits for that as long as it loses none of its time.
        """
        key = (lambda one: one.rpartition("-")[0]) if timed else str
        jobs = [job for job in self.jobs.values() if key(job.id) == name]
        if not jobs:
            names = self._store.names(name, f"{name}-:" if timed else name)
            last = next((one for one in names or () if key(one) == name), "")
            rows = None if names is None else self._store.read(0.0, last, last)
            waits_ns = min(time.monotonic_ns() - self._began_ns, self.now_ns() - started_ns)
            if rows is None and waits_ns < BACKFILL_NS:
                raise OSError("the jobs that are stored cannot be read")
            for row in rows or ():
                with self._throttle.guarded("continuing a job", job=row.id):
                    jobs = [wire.read(Job, json.loads(row.text) | {"id": row.id})]
                    self.jobs[row.id] = jobs[0]
        return jobs[-1] if jobs else None

    def learn(self) -> None:
        """Look up what comes later than a process: names of its pod, and what would help."""
        for gpu in self._sampler.state().gpus if self.jobs else ():
            for job in self.jobs.values():
                if holder := gpu.assigned.names.get(job.owner.get("container_id", "")):
                    job.owner |= holder._asdict()
            outlook = gpu.feeding.outlook if gpu.feeding else None
            book = self._books.get(gpu.identity.uuid)
            if outlook and book and (had := _whose(book, outlook.mains)):
                if isinstance(outlook.advice, Prescription):
                    had.recommendation = outlook.advice
                had.score = outlook.score or had.score

    def forget(self, jobs: Iterable[Job]) -> None:
        """Drop `jobs`, and GPUs that have been without ticks and processes for long."""
        for job in jobs:
            del self.jobs[job.id]
            self._throttle.forget(job.id)
        since_ns = self.now_ns() - 2 * BACKFILL_NS
        books = self._books.items()
        self._books = {uuid: one for uuid, one in books if one.open() or one.until_ns > since_ns}


def _whose(book: GpuBook, mains: frozenset[Started]) -> Gpu | None:
    """What the job has of the GPU whose processes all `mains` are; None unless it is one job."""
    gpus = {(tenancy.pid, tenancy.started_ticks): tenancy.gpu for tenancy in book.tenancies}
    found = {gpus.get(main) for main in mains}
    return found.pop() if len(found) == 1 else None


def _wall_offset_ns() -> int:
    """Unix time less monotonic time: the largest of three, as an interruption makes it less."""
    return round(max(time.time() - time.monotonic() for _ in range(3)) * 1e9)


def name_of(owner: Owner) -> str | None:
    """The id of the job of `owner`; None for a user's own processes.

    A number of Slurm's that only the process itself claims is one of its user's, not another's.
    """
    pod = owner.pod_uid or (owner.pod and f"{owner.namespace}.{owner.pod}")
    container = (owner.container_id or "")[:12]
    if owner.slurm_job_id and owner.source not in _PROOFS:
        tenant = filter(None, (owner.user or "unknown", pod or container))
        return _id("slurm", owner.slurm_job_id, *tenant)
    kind, _, name = (owner.job or "").partition("-")
    names = {"slurm": owner.slurm_job_id, kind: name, "pod": pod, "container": container}
    return next((_id(kind, name) for kind, name in names.items() if name), None)


def _id(kind: str, *names: str) -> str:
    """An id that no other `names` have: with a hash of them where the text does not tell."""
    text = "-".join((kind, *names))
    safe = _UNSAFE.sub("-", text)[:_ID_CHARACTERS]
    if safe == text and (len(names) == 1 or not any("-" in name for name in names)):
        return safe
    return f"{safe[: _ID_CHARACTERS - 13]}-{named(names)}"
