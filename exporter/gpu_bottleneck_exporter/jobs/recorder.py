"""Records jobs: their processes, owners and GPU time."""

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
from gpu_bottleneck_exporter.jobs.model import Job, JobGpu, end_of
from gpu_bottleneck_exporter.jobs.runs import is_later, run_of
from gpu_bottleneck_exporter.jobs.store import Store
from gpu_bottleneck_exporter.logthrottle import LogThrottle
from gpu_bottleneck_exporter.nodeview import wire
from gpu_bottleneck_exporter.prescription.model import Prescription
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.workload.identity import NO_OWNER, Owner
from gpu_bottleneck_exporter.workload.names import name_from, name_of
from gpu_bottleneck_exporter.workload.owners import Groups, OwnerReader, claims_of
from gpu_bottleneck_exporter.workload.users import UserNames

if TYPE_CHECKING:
    from gpu_bottleneck_exporter.stacktraces.watch import LineWatch

SLURM_ID = re.compile(r"^slurm-[0-9A-Za-z]+")
"""Id of a Slurm job, up to its number."""


class JobRecorder:
    """Records this machine's jobs, from ticks and process exits.

    When the wall clock is set, the times of running and recent jobs shift with it; only the pause
    of a job from the store is wrong by the step.

    Not thread-safe.
    """

    _sampler: Sampler
    """Set by `start`."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        exits: ExitWatch,
        throttle: LogThrottle,
        store_run: Callable[[Job], None],
    ) -> None:
        """`store_run` is called with an earlier run of a job under its new id."""
        self._settings, self._proc = settings, settings.procfs
        # Names are part of ids.
        users = UserNames(self._proc, timeout_seconds=1.0)
        self._owners = OwnerReader(self._proc, Groups(self._proc, settings.sysfs), users)
        self._store, self._exits, self._throttle = store, exits, throttle
        self._store_run = store_run
        self._lines: LineWatch | None = None
        self._books: dict[str, GpuBook] = {}
        self.jobs: dict[str, Job] = {}
        """Jobs that run or ended less than `BACKFILL_NS` ago, by id."""
        self._offset_ns = _wall_offset_ns()
        self._began_ns = time.monotonic_ns()

    def start(self, sampler: Sampler) -> None:
        """Use `sampler`."""
        self._sampler, self._lines = sampler, sampler.lines

    def now_ns(self) -> int:
        """Unix time."""
        return time.monotonic_ns() + self._offset_ns

    def _follow_clock(self) -> None:
        step_ns = _wall_offset_ns() - self._offset_ns
        min_step_ns = 100_000_000  # more than the read error, less than leap seconds
        if abs(step_ns) >= min_step_ns:
            self._offset_ns += step_ns
            for book in self._books.values():
                book.shift(step_ns)
            for gpu in (gpu for job in self.jobs.values() for gpu in job.gpus):
                gpu.shift(step_ns / 1e9)

    def drain(self, ticks: deque[Tick]) -> None:
        """Record and remove `ticks`; record stack samples."""
        self._follow_clock()
        while ticks:
            tick = ticks.popleft().shifted(self._offset_ns)
            uuid = tick.gpu.uuid
            book = self._books.setdefault(uuid, GpuBook(tick.at_ns))
            with self._throttle.guarded("listing the processes", uuid=uuid):
                if (holders := tick.reading(Processes)) and holders.count is not None:
                    self._update_tenancies(book, tick.gpu, tick.read_ns(Processes), holders)
            with self._throttle.guarded("attributing the time", uuid=uuid):
                if tick.windows:
                    book.add_windows(tick.windows, tick.stalls, tick.tenants)
                if power := tick.reading(Power):
                    book.add_energy(tick.read_ns(Power), power.energy_joules)
                if memory := tick.reading(Memory):
                    shared = memory.of_machine or tick.gpu.coherent
                    used = None if shared else memory.used_bytes
                    book.record_memory(tick.read_ns(Memory), used, memory.total_bytes)
        for uuid, (lines, mains) in self._lines.pop_ended() if self._lines else ():
            with self._throttle.guarded("recording the lines", uuid=uuid):
                gpu = _gpu_of(self._books[uuid], mains) if uuid in self._books else None
                if gpu and lines.lines:
                    gpu.idle_lines = lines

    def _end(self, book: GpuBook, tenancy: Tenancy, at_ns: int) -> None:
        book.end(tenancy, at_ns)
        self._exits.unwatch(tenancy.pidfd)

    def _exited(self, book: GpuBook, tenancy: Tenancy) -> None:
        """End a tenancy, and have its GPU read at once."""
        self._end(book, tenancy, self.now_ns())
        self._sampler.request_holders((tenancy.gpu.uuid,), now=True)

    def _update_tenancies(
        self, book: GpuBook, gpu: Identity, at_ns: int, holders: Processes
    ) -> None:
        used = {holder.pid: holder.used_bytes for holder in holders.processes}
        for tenancy in book.open():
            if tenancy.pid not in used:
                self._end(book, tenancy, at_ns)
        open_pids = {tenancy.pid for tenancy in book.open()}
        past_pids = {tenancy.pid for tenancy in book.tenancies}
        for pid in used.keys() - open_pids:
            begun = False
            with self._throttle.guarded("recording the processes", uuid=gpu.uuid):
                begun = self._begin(book, gpu, at_ns, pid, holders)
            if not begun and pid in past_pids:  # exited, but the driver still lists it
                self._sampler.request_holders((gpu.uuid,), now=False)
        for job_gpu in {tenancy.gpu for tenancy in book.open()}:
            sizes = [used.get(tenancy.pid) for tenancy in book.open() if tenancy.gpu is job_gpu]
            job_gpu.record_memory(None if None in sizes else sum(filter(None, sizes)))

    def _begin(
        self, book: GpuBook, gpu: Identity, at_ns: int, pid: int, holders: Processes
    ) -> bool:
        stat = stat_of(self._proc, pid)
        if stat is None or stat.ended:
            return False
        started_ns = monotonic_start_ns(stat.started_ticks) + self._offset_ns
        owner, *_ = *self._owners.of([(pid, stat.started_ticks)], time.monotonic_ns()), NO_OWNER
        if holders.pod:
            owner = replace(owner, **holders.pod._asdict())
        elif owner.pod_uid and owner.container_id:
            self._sampler.seek_name(owner.container_id)
        # Reads that may fail come before the job is created.
        command = program_name(self._proc, pid)
        claims = claims_of(self._proc, pid, self._settings.jobs_claims)
        run = (
            run_of(self._proc, self._settings.sysfs, pid) if owner.slurm_job_id or owner.job else {}
        )
        job = self._job(owner, stat.session, started_ns, run)
        job.command = job.command or command or None
        job.claims |= claims
        job_gpu = next((other for other in job.gpus if other.uuid == gpu.uuid), None)
        if job_gpu is None:
            job_gpu = JobGpu(
                gpu=f"{gpu.index}",
                uuid=gpu.uuid,
                model=gpu.name,
                mig=gpu.mig_profile,
                start_seconds=at_ns / 1e9,
                estimated_seconds=0.0,
            )
            job.gpus.append(job_gpu)
        tenancy = book.begin(job_gpu, pid, started_ns, at_ns)
        tenancy.started_ticks = stat.started_ticks
        tenancy.pidfd = self._exits.watch(pid, partial(self._exited, book, tenancy))
        return True

    def _job(self, owner: Owner, session: int, started_ns: int, run: Mapping[str, str]) -> Job:
        """The job of a process.

        A Slurm job or a pod continues after a pause. Other processes form a job per launcher
        (`rendezvous`) or session until none of them holds a GPU. Each run of a requeued Slurm job
        is a record; the last has the plain id.
        """
        name, user = name_of(owner), owner.user or "unknown"
        job = self._latest(name, started_ns) if name else None
        if name is None:
            prefix = name_from("user", user, owner.rendezvous or f"{session}")
            job, started = self._latest(prefix, started_ns, timed=True), started_ns / 1e9
            name = f"{prefix}-{max(int(started), 0)}"
            end = end_of(job.gpus) if job else started
            # Ends may be recorded a second late.
            continues = end is None or started < end - 1.0 <= self.now_ns() / 1e9
            job = job if continues else None
        elif job and is_later(run, job.run):
            self._retire(job)
            job = None
        if job is None:
            job = self.jobs[name] = Job(id=name)
        job.run |= run
        fields = {field: text for field, text in asdict(owner).items() if text}
        # With fakeroot or containers, the first user is the owner.
        job.owner |= fields | {field: job.owner[field] for field in {"user"} & job.owner.keys()}
        return job

    def _retire(self, job: Job) -> None:
        """Retain an earlier run under an id with its start in milliseconds."""
        self.jobs.pop(job.id)
        start = min((gpu.start_seconds for gpu in job.gpus), default=0.0)
        job.id = SLURM_ID.sub(rf"\g<0>.{1000 * start:.0f}", job.id, count=1)
        self.jobs[job.id] = job
        self._store_run(job)

    def _latest(self, name: str, started_ns: int, *, timed: bool = False) -> Job | None:
        """The last job, recorded or stored, with id `name`; if `timed`, with `name` and a time.

        Raises OSError if the store cannot be read, as a new job would replace the stored one.
        """
        key = (lambda name: name.rpartition("-")[0]) if timed else str
        jobs = [job for job in self.jobs.values() if key(job.id) == name]
        if not jobs:
            names = self._store.names(name, f"{name}-:" if timed else name)
            last = next((stored for stored in names or () if key(stored) == name), "")
            rows = None if names is None else self._store.read(0.0, last, last)
            waits_ns = min(time.monotonic_ns() - self._began_ns, self.now_ns() - started_ns)
            if rows is None and waits_ns < BACKFILL_NS:
                raise OSError("the stored jobs cannot be read")
            for row in rows or ():
                with self._throttle.guarded("continuing a job", job=row.id):
                    jobs = [wire.read(Job, json.loads(row.text) | {"id": row.id})]
                    self.jobs[row.id] = jobs[0]
        return jobs[-1] if jobs else None

    def update(self) -> None:
        """Add later information: pod names and recommendations."""
        for gpu in self._sampler.state().gpus if self.jobs else ():
            for job in self.jobs.values():
                if holder := gpu.assigned.names.get(job.owner.get("container_id", "")):
                    job.owner |= holder._asdict()
            outlook = gpu.feeding.outlook if gpu.feeding else None
            book = self._books.get(gpu.identity.uuid)
            if outlook and book and (job_gpu := _gpu_of(book, outlook.mains)):
                if isinstance(outlook.advice, Prescription):
                    job_gpu.recommendation = outlook.advice
                job_gpu.score = outlook.score or job_gpu.score

    def evict(self, jobs: Iterable[Job]) -> None:
        """Evict `jobs`, and books of GPUs without processes or recent ticks."""
        for job in jobs:
            del self.jobs[job.id]
            self._throttle.evict(job.id)
        since_ns = self.now_ns() - 2 * BACKFILL_NS
        self._books = {
            uuid: book
            for uuid, book in self._books.items()
            if book.open() or book.until_ns > since_ns
        }


def _gpu_of(book: GpuBook, mains: frozenset[Started]) -> JobGpu | None:
    """The use by the job of `mains`; None unless they belong to one."""
    gpus = {(tenancy.pid, tenancy.started_ticks): tenancy.gpu for tenancy in book.tenancies}
    owners = {gpus.get(main) for main in mains}
    return owners.pop() if len(owners) == 1 else None


def _wall_offset_ns() -> int:
    """Unix minus monotonic time: the largest of three, as preemption lowers it."""
    return round(max(time.time() - time.monotonic() for _ in range(3)) * 1e9)
