"""The ledger of all jobs on this machine: who holds which GPU, when it left, what is kept."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import select
import socket
import threading
import time
import zlib
from collections import deque
from contextlib import suppress
from dataclasses import asdict, replace
from fnmatch import fnmatchcase

from gpu_bottleneck_exporter.driver.readings import Identity, Memory, Power, Processes, Reading
from gpu_bottleneck_exporter.host.descriptors import open_pidfd
from gpu_bottleneck_exporter.host.files import NoRoomError, read
from gpu_bottleneck_exporter.host.process import TICK_NS, parse_stat
from gpu_bottleneck_exporter.host.sockets import same_pids
from gpu_bottleneck_exporter.jobs.book import CLAIMED_NS, GpuBook, Stay
from gpu_bottleneck_exporter.jobs.model import VERSION, Gpu, Job, end_of, moved
from gpu_bottleneck_exporter.jobs.store import Row, Store
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.logthrottle import LogThrottle
from gpu_bottleneck_exporter.nodeview import wire
from gpu_bottleneck_exporter.prescription.model import Prescription
from gpu_bottleneck_exporter.sampling.opened import Spent
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from gpu_bottleneck_exporter.schedule import LATELY_NS, SELDOM_NS, SHORTLY_NS, Every
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.stacktraces.model import IdleLines
from gpu_bottleneck_exporter.workload.identity import NOBODY, Owner
from gpu_bottleneck_exporter.workload.owners import Groups, OwnerReader, claims_of

log = logging.getLogger(__name__)

MOST_BYTES = 8 * 2**20
"""Of one answer; older jobs are left off."""
_PAUSE_SECONDS = 4.0
"""Between two looks at what GPUs noted, if no process came or went."""
_MOST_NOTES = 32_768
"""Of eight GPUs a quarter of an hour, if the disk hangs for so long."""
_MOST_WAITING = 256
"""Jobs that wait for a full disk."""
_LATE_SECONDS = 1.0
"""Before a job's end is noted, the next one may have started."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_ID_CHARACTERS = 80
Note = Reading | Spent | IdleLines
"""What was read or found of a GPU, or how its time was split."""


class Ledger:
    """Charges what GPUs note to jobs, in a thread of its own: it may wait for a disk."""

    _sampler: Sampler
    """From `start` on."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._proc = settings.procfs
        self._owners = OwnerReader(self._proc, Groups(self._proc, settings.sysfs))
        self._follows_ends = same_pids(self._proc)
        """Whether the pids in its procfs are those that we may name to the kernel."""
        self._store = Store(
            settings.jobs_state_file, settings.jobs_keep, settings.jobs_keep_seconds
        )
        self._notes: deque[tuple[Identity, int, Note]] = deque(maxlen=_MOST_NOTES)
        self._books: dict[str, GpuBook] = {}
        self._jobs: dict[str, Job] = {}
        """Those that run, or ended less than `CLAIMED_NS` ago, by id."""
        self._stored: set[Row] = set()
        """What was stored of them last."""
        self._pidfds: dict[int, tuple[GpuBook, Stay]] = {}
        self._epoll = select.epoll()
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._woken, select.EPOLLIN | select.EPOLLET)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._throttle = LogThrottle(log)
        self._saving_ended, self._saving_all = Every(SHORTLY_NS), Every(SELDOM_NS)
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)

    def start(self, sampler: Sampler) -> None:
        """Start the thread."""
        self._sampler = sampler
        self._thread.start()

    def stop(self, timeout_seconds: float = 2.0) -> None:
        """Store everything; a disk that hangs may outlast `timeout_seconds`."""
        self._stop.set()
        os.eventfd_write(self._woken, 1)
        self._thread.join(timeout_seconds)

    def note(self, gpu: Identity, at_ns: int, what: Note) -> None:
        """Take it down, for any thread."""
        self._notes.append((gpu, at_ns, what))
        if isinstance(what, Processes):
            os.eventfd_write(self._woken, 1)

    def documents(self, since: float = 0.0) -> str:
        """All jobs that ended after Unix time `since` or still run, the last first, as JSON."""
        rows = sorted(self._rows(since).values(), key=lambda row: row.until, reverse=True)
        texts, left = [], MOST_BYTES
        for row in rows:
            left -= len(text := row.text)
            if left < 0:
                break
            texts.append(text)
        head = self._head(left_off=len(rows) - len(texts))
        return f'{head}, "jobs": [{", ".join(texts)}]}}\n'

    def document(self, name: str) -> str | None:
        """The job with id `name`, as JSON; None if there is none."""
        row = self._rows().get(name)
        return f'{self._head()}, "job": {row.text}}}\n' if row else None

    def _rows(self, since: float = 0.0) -> dict[str, Row]:
        rows = {row.id: row for row in self._store.read(since)}
        with self._lock:
            self._drain()
            rows |= {name: self._row(job) for name, job in self._jobs.items()}
        return {name: row for name, row in rows.items() if row.until > since}

    def _head(self, **more: int) -> str:
        """The beginning of a document."""
        head = {"version": VERSION, "node": socket.gethostname(), "time_seconds": time.time()}
        return dumps(head | more)[:-1]

    def _run(self) -> None:
        stopping = False
        while not stopping:
            ready = [fd for fd, _ in self._epoll.poll(_PAUSE_SECONDS)]
            now_ns, stopping = time.monotonic_ns(), self._stop.is_set()
            with self._throttle.guarded("keeping the ledger of jobs"):
                with self._lock:
                    self._note_ends(ready, now_ns)
                    self._drain()
                if self._saving_ended.is_due(now_ns) or stopping:
                    self._learn(now_ns)
                    self._save(running=self._saving_all.is_due(now_ns) or stopping)
        self._store.close()

    def _note_ends(self, fds: list[int], now_ns: int) -> None:
        """Note which processes have ended; their GPUs are read at once, up to this moment."""
        for fd in self._pidfds.keys() & fds:
            book, stay = self._pidfds.pop(fd)
            os.close(fd)
            book.end(stay, now_ns)
            self._sampler.look((stay.gpu.uuid,), now=True)

    def _drain(self) -> None:
        while self._notes:
            gpu, at_ns, what = self._notes.popleft()
            book = self._books.setdefault(gpu.uuid, GpuBook(at_ns))
            with self._throttle.guarded(f"charging the time of {gpu.uuid}"):
                if isinstance(what, Spent):
                    book.spend(what.windows, what.stalls)
                elif isinstance(what, Processes) and what.count is not None:
                    self._list(book, gpu, at_ns, what)
                elif isinstance(what, Power):
                    book.power(at_ns, what.energy_joules)
                elif isinstance(what, IdleLines):
                    for stay in book.open() if what.lines else ():
                        stay.gpu.idle_lines = what
                elif isinstance(what, Memory):
                    used = None if what.of_machine else what.used_bytes
                    book.memory(at_ns, used, what.total_bytes)

    def _list(self, book: GpuBook, gpu: Identity, at_ns: int, found: Processes) -> None:
        """Note who holds `gpu`."""
        used = {one.pid: one.used_bytes for one in found.processes}
        for stay in book.open():
            if stay.pid not in used:
                book.end(stay, at_ns)
        here, known = ({stay.pid for stay in stays} for stays in (book.open(), book.stays))
        for pid in used.keys() - here:
            came = self._begin(book, gpu, at_ns, pid, found)
            if not came and pid in known:  # the driver still lists it
                self._sampler.look((gpu.uuid,), now=False)
        for had in {stay.gpu for stay in book.open()}:
            sizes = [used.get(stay.pid) for stay in book.open() if stay.gpu is had]
            had.need(None if None in sizes else sum(filter(None, sizes)))

    def _begin(self, book: GpuBook, gpu: Identity, at_ns: int, pid: int, found: Processes) -> bool:
        """Let a process hold `gpu`; whether it is there."""
        stat = parse_stat(read(f"{self._proc}/{pid}/stat"))
        if stat is None or stat.ended:
            return False
        up_ns, now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.monotonic_ns()
        started_ns = now_ns - max(up_ns - stat.started_ticks * TICK_NS, 0)
        owner, *_ = *self._owners.of([(pid, stat.started_ticks)], now_ns), NOBODY
        if found.pod:
            owner = replace(owner, **found.pod._asdict())
        job = self._job(owner, stat.session, started_ns)
        job.claims |= claims_of(self._proc, pid, self._settings.jobs_claims)
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
        stay = book.begin(had, pid, started_ns, at_ns)
        if self._follows_ends:
            with suppress(OSError, NoRoomError):
                if (fd := open_pidfd(pid)) is None:
                    book.end(stay, now_ns)
                else:
                    self._pidfds[fd] = book, stay
                    self._epoll.register(fd, select.EPOLLIN)
        return True

    def _job(self, owner: Owner, session: int, started_ns: int) -> Job:
        """The job of a process.

        A Slurm job or a pod may have pauses without a process on a GPU, and is known by its name:
        it goes on as long as it is kept. A user's own processes have no name in common: one job are
        those of a launcher (`rendezvous`) or a session, until none of them holds a GPU any more.
        What is typed into one terminal after that is the next job.
        """
        name, user = name_of(owner), owner.user or "unknown"
        job = self._known(name) if name else None
        if name is None or (owner.slurm_job_id and job and job.owner.get("user", user) != user):
            # Without control groups of Slurm, anybody can claim another's job.
            alike = _safe(f"user-{user[: _ID_CHARACTERS // 2]}-{owner.rendezvous or session}-")
            job, started = self._known(f"{alike}*"), started_ns / 1e9
            name, end = f"{alike}{int(started + _epoch())}", end_of(job.gpus) if job else started
            job = job if end is None or started < end - _LATE_SECONDS else None
        if job is None:
            job = self._jobs[name] = Job(id=name)
        job.owner |= {field: text for field, text in asdict(owner).items() if text}
        return job

    def _known(self, ids: str) -> Job | None:
        """The last job that has such an id; one that was stored may go on."""
        jobs = [job for job in self._jobs.values() if fnmatchcase(job.id, ids)]
        if not jobs and (rows := self._store.read(ids=ids)):
            jobs = [wire.read(Job, moved(json.loads(rows[0].text), -_epoch()))]
            self._jobs[jobs[0].id] = jobs[0]
        return jobs[-1] if jobs else None

    def _learn(self, now_ns: int) -> None:
        """Look up what comes later than a process: names of its pod, and what would help."""
        with self._lock:
            for gpu in self._sampler.state().gpus if self._jobs else ():
                for job in self._jobs.values():
                    if holder := gpu.assigned.names.get(job.owner.get("container_id", "")):
                        job.owner |= holder._asdict()
                outlook = gpu.feeding.outlook if gpu.feeding else None
                book = self._books.get(gpu.identity.uuid)
                stays = book.open() if book else []
                alone = len({stay.gpu for stay in stays}) == 1
                # Not before it can be for this job, rather than for the last one.
                if outlook and alone and now_ns - stays[0].start_ns > LATELY_NS:
                    had = stays[0].gpu
                    if isinstance(outlook.advice, Prescription):
                        had.recommendation = outlook.advice
                    had.score = outlook.score or had.score

    def _save(self, *, running: bool) -> None:
        """Store what has changed of jobs that ended, and of `running` ones.

        Those that have ended a while ago are forgotten here, once they are stored.
        """
        with self._lock:
            jobs = [one for one in self._jobs.values() if running or end_of(one.gpus) is not None]
            rows = {self._row(job, stored=True) for job in jobs}
        changed = rows - self._stored
        written = not (changed or running) or self._store.write(changed, time.time())
        if written:
            self._stored = rows
        since_ns = time.monotonic_ns() - CLAIMED_NS
        with self._lock:
            for job in jobs if written or len(jobs) > _MOST_WAITING else ():
                if (end_of(job.gpus) or math.inf) < since_ns / 1e9:
                    del self._jobs[job.id]
            self._books = {
                uuid: book
                for uuid, book in self._books.items()
                if book.open() or book.until_ns > since_ns - CLAIMED_NS
            }

    def _row(self, job: Job, *, stored: bool = False) -> Row:
        """It as it is shown or, as nobody may be here to see its end, `stored`: as if it ended."""
        now = time.monotonic()
        ended = (replace(g, end_seconds=now) if g.end_seconds is None else g for g in job.gpus)
        shown = moved(wire.document(job.having(ended if stored else job.gpus)), _epoch())
        body = zlib.compress(dumps(shown).encode(), 1)
        return Row(job.id, job.owner_name, shown["end_seconds"] or time.time(), body)


def _epoch() -> float:
    """Unix time less monotonic time, in seconds."""
    return time.time() - time.monotonic()


def name_of(owner: Owner) -> str | None:
    """The id of the job of `owner`; None for a user's own processes."""
    pod = owner.pod_uid or (owner.pod and f"{owner.namespace}.{owner.pod}")
    container = (owner.container_id or "")[:12]
    names = {"slurm": owner.slurm_job_id, "pod": pod, "container": container}
    return next((_safe(f"{kind}-{name}") for kind, name in names.items() if name), None)


def _safe(text: str) -> str:
    return _UNSAFE.sub("-", text)[:_ID_CHARACTERS]
