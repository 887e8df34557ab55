"""The ledger of all jobs on this machine: who holds which GPU, when it left, what is kept."""

from __future__ import annotations

import json
import logging
import os
import re
import select
import socket
import threading
import time
import zlib
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Protocol

from gpu_bottleneck_exporter.driver.readings import Identity, Memory, Power, Processes, Reading
from gpu_bottleneck_exporter.host.descriptors import open_pidfd
from gpu_bottleneck_exporter.host.files import NoRoomError, read
from gpu_bottleneck_exporter.host.process import TICK_NS, Stat, parse_stat
from gpu_bottleneck_exporter.host.sockets import same_pids
from gpu_bottleneck_exporter.jobs.book import CLAIMED_NS, GpuBook, Started, Stay
from gpu_bottleneck_exporter.jobs.memory import InMemory, Row
from gpu_bottleneck_exporter.jobs.model import VERSION, Gpu, Job, end_of, moved
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.logthrottle import LogThrottle
from gpu_bottleneck_exporter.nodeview import wire
from gpu_bottleneck_exporter.prescription.model import Prescription
from gpu_bottleneck_exporter.sampling.opened import Spent
from gpu_bottleneck_exporter.sampling.sampler import SamplerState
from gpu_bottleneck_exporter.schedule import LATELY_NS, OFTEN_NS, SELDOM_NS, SHORTLY_NS, Every
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.workload.identity import Owner
from gpu_bottleneck_exporter.workload.join import joined
from gpu_bottleneck_exporter.workload.owners import Groups, claims_of, read_owner
from gpu_bottleneck_exporter.workload.users import UserNames

if TYPE_CHECKING:
    from gpu_bottleneck_exporter.jobs.store import Store

log = logging.getLogger(__name__)

MOST_BYTES = 8 * 2**20
"""Of one answer; older jobs are left off."""
_PAUSE_SECONDS = 4.0
"""Between two looks at what GPUs noted, if no process came or went."""
_MOST_NOTES = 32_768
"""Of eight GPUs a quarter of an hour, if the disk hangs for so long."""
_MOST_WAITING = 256
"""Jobs that wait for a full disk."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_ID_CHARACTERS = 80


class Watched(Protocol):
    """The part of the sampler that the ledger needs."""

    def state(self) -> SamplerState:
        """The present state."""

    def look(self, uuids: Collection[str], *, now: bool) -> None:
        """Have the holders of these GPUs read at the next tick, which may be `now`."""


class Ledger:
    """Charges what GPUs note to jobs, in a thread of its own: it may wait for a disk."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._proc = settings.procfs
        self._users, self._groups = UserNames(self._proc), Groups(self._proc, settings.sysfs)
        self._follows_ends = same_pids(self._proc)
        """Whether the pids in its procfs are those that we may name to the kernel."""
        self._store = _store(settings)
        self._notes: deque[tuple[Identity, int, Reading | Spent]] = deque(maxlen=_MOST_NOTES)
        self._books: dict[str, GpuBook] = {}
        self._jobs: dict[str, Job] = {}
        """Those that run, or ended less than `CLAIMED_NS` ago, by id."""
        self._left_running: set[str] = set()
        """Ids of those that the last exporter left running."""
        self._pidfds: dict[int, Started] = {}
        self._epoll = select.epoll()
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._woken, select.EPOLLIN)
        self._sampler: Watched | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._throttle = LogThrottle(log)
        self._saving = Every(SELDOM_NS, time.monotonic_ns() + SELDOM_NS)
        self._ended = False
        """Whether a process has left a GPU since jobs were stored."""
        self._naming, self._saving_ends = Every(OFTEN_NS), Every(SHORTLY_NS)
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)

    def start(self, sampler: Watched) -> None:
        """Start the thread; jobs that ran when they were last stored go on."""
        self._sampler = sampler
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        for row in self._store.read(since=booted):
            if row.runs:
                self._left_running.add(row.id)
                with self._throttle.guarded("resuming jobs"):
                    self._resume(row)
        self._thread.start()

    def stop(self, timeout_seconds: float = 2.0) -> None:
        """Store everything; a disk that hangs may outlast `timeout_seconds`."""
        self._stop.set()
        os.eventfd_write(self._woken, 1)
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def note(self, gpu: Identity, at_ns: int, what: Reading | Spent) -> None:
        """Take down what was read of a GPU, or how its time was split. For any thread."""
        self._notes.append((gpu, at_ns, what))
        if isinstance(what, Processes):
            os.eventfd_write(self._woken, 1)

    def documents(self, since: float = 0.0) -> str:
        """All jobs that ended after Unix time `since` or still run, the newest first, as JSON."""
        with self._lock:
            self._drain()
            here = {name: self._row(job) for name, job in self._jobs.items()}
        kept = (row for row in self._store.read(since) if row.id not in here)
        rows = [*kept, *(row for row in here.values() if row.runs or row.until > since)]
        texts, left = [], MOST_BYTES
        for row in sorted(rows, key=lambda row: row.start, reverse=True):
            left -= len(text := row.text)
            if left < 0:
                break
            texts.append(text)
        head = dumps({**self._head(), "left_off": len(rows) - len(texts)})
        return f'{head[:-1]}, "jobs": [{", ".join(texts)}]}}\n'

    def document(self, name: str) -> str | None:
        """The job with id `name`, as JSON; None if there is none."""
        with self._lock:
            self._drain()
            job = self._jobs.get(name)
            row = self._row(job) if job else None
        row = row or self._store.find(name)
        return f'{dumps(self._head())[:-1]}, "job": {row.text}}}\n' if row else None

    def _head(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "node": socket.gethostname(),
            "time_seconds": time.time(),
            "interval_seconds": self._settings.interval_seconds,
            "simulated": bool(self._sampler and self._sampler.state().about.simulated),
        }

    def _run(self) -> None:
        while not self._stop.is_set():
            ended = [fd for fd, _ in self._epoll.poll(_PAUSE_SECONDS)]
            now_ns = time.monotonic_ns()
            with self._throttle.guarded("keeping the ledger of jobs"):
                with self._lock:
                    self._note_ends(ended, now_ns)
                    self._drain()
                    self._learn_names(now_ns)
                # Who has come to the end is not lost with the exporter.
                ended_lately = self._ended and self._saving_ends.is_due(now_ns)
                if ended_lately or self._saving.is_due(now_ns):
                    self._save(now_ns)
        with self._throttle.guarded("keeping the ledger of jobs"):
            self._save(time.monotonic_ns())
        self._store.close()

    def _note_ends(self, fds: Sequence[int], now_ns: int) -> None:
        """Note which processes have ended; their GPUs are read at once, up to this moment."""
        gone = set()
        for fd in fds:
            if fd == self._woken:
                os.eventfd_read(fd)
            else:
                gone.add(self._pidfds.pop(fd))
                os.close(fd)
        for uuid, book in self._books.items():
            ended = [stay for stay in book.open() if stay.process in gone]
            for stay in ended:
                self._end(book, stay, now_ns)
            if ended and self._sampler:
                self._sampler.look((uuid,), now=True)

    def _end(self, book: GpuBook, stay: Stay, at_ns: int) -> None:
        book.end(stay, at_ns)
        self._ended = True

    def _drain(self) -> None:
        while self._notes:
            gpu, at_ns, what = self._notes.popleft()
            with self._throttle.guarded(f"charging the time of {gpu.uuid}"):
                self._take(gpu, at_ns, what)

    def _take(self, gpu: Identity, at_ns: int, what: Reading | Spent) -> None:
        book = self._books.get(gpu.uuid)
        if book is None:
            book = self._books[gpu.uuid] = GpuBook(at_ns)
        if isinstance(what, Spent):
            book.spend(what.windows, what.stalls)
        elif isinstance(what, Processes):
            self._list(book, gpu, at_ns, what)
        elif isinstance(what, Power):
            book.power(at_ns, what.energy_joules)
        elif isinstance(what, Memory):
            used = None if what.of_machine else what.used_bytes
            book.memory(at_ns, used, what.total_bytes)

    def _list(self, book: GpuBook, gpu: Identity, at_ns: int, found: Processes) -> None:
        """Note who holds `gpu`."""
        if found.count is None:
            return
        used = {one.pid: one.used_bytes for one in found.processes}
        for stay in book.open():
            if stay.process[0] not in used:
                self._end(book, stay, at_ns)
        here = {stay.process[0] for stay in book.open()}
        left = {stay.process[0] for stay in book.stays} - here
        for pid in used.keys() - here:
            stat = parse_stat(read(f"{self._proc}/{pid}/stat"))
            if stat and not stat.ended:
                self._begin(book, gpu, at_ns, pid, stat, found)
            elif self._sampler and pid in left:
                self._sampler.look((gpu.uuid,), now=False)  # the driver still lists it
        sizes: dict[Gpu, list[int | None]] = {}
        for stay in book.open():
            sizes.setdefault(stay.gpu, []).append(used.get(stay.process[0]))
        for had, known in sizes.items():
            had.need(None if None in known else sum(filter(None, known)))

    def _begin(  # noqa: PLR0913, PLR0917 - all that is known of a process on a GPU
        self, book: GpuBook, gpu: Identity, at_ns: int, pid: int, stat: Stat, found: Processes
    ) -> None:
        process = pid, stat.started_ticks
        up_ns, now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.monotonic_ns()
        started_ns = now_ns - max(up_ns - stat.started_ticks * TICK_NS, 0)
        self._groups.forget()
        owner = read_owner(self._proc, pid, self._users, self._groups)
        if found.pod:
            owner = replace(owner, **found.pod._asdict())
        claims = claims_of(self._proc, pid, self._settings.jobs_claims)
        job = self._job(owner, stat.session, started_ns)
        job.claims |= claims
        had = next((one for one in job.gpus if one.uuid == gpu.uuid), None)
        if had is None:
            had = Gpu(
                gpu=f"{gpu.index}",
                uuid=gpu.uuid,
                model=gpu.name,
                mig=gpu.mig_profile,
                start_seconds=at_ns / 1e9,
                shared_seconds=0.0,
            )
            job.gpus.append(had)
        stay = book.begin(had, process, started_ns, at_ns)
        self._left_running.discard(job.id)
        if self._follows_ends and process not in self._pidfds.values():
            with suppress(OSError, NoRoomError):
                if (fd := open_pidfd(pid)) is None:
                    self._end(book, stay, now_ns)
                else:
                    self._pidfds[fd] = process
                    self._epoll.register(fd, select.EPOLLIN)

    def _job(self, owner: Owner, session: int, started_ns: int) -> Job:
        """The job of a process.

        A Slurm job or a pod may have pauses without a process on a GPU, and is known by its name:
        it goes on as long as it is kept. A user's own processes have no name in common: one job are
        those of a launcher (`rendezvous`) or a session, until none of them holds a GPU any more.
        What is typed into one terminal after that is the next job.
        """
        name = name_of(owner)
        other = self._jobs.get(name or "")
        if owner.slurm_job_id and other and other.owner.get("user", owner.user) != owner.user:
            name = None  # without control groups of Slurm, anybody can claim another's job
        if name is None:
            user = (owner.user or "unknown")[: _ID_CHARACTERS // 2]
            alike = _safe(f"user-{user}-{owner.rendezvous or session}-")
            second = int(started_ns / 1e9 + _epoch())
            same = (
                one.id
                for one in self._jobs.values()
                if one.id.startswith(alike)
                and one.owner.get("user") == owner.user
                and (one.id in self._left_running or end_of(one.gpus) is None)
            )
            name = next(same, f"{alike}{second}")
        if name not in self._jobs and (row := self._store.find(name)):
            self._resume(row)
        job = self._jobs.setdefault(name, Job(id=name))
        job.owner |= _known(asdict(owner))
        return job

    def _resume(self, row: Row) -> None:
        job = wire.read(Job, moved(json.loads(row.text), -_epoch()))
        for gpu in job.gpus:
            if gpu.end_seconds is None:  # nothing of it holds a GPU yet
                gpu.end_seconds = row.until - _epoch()
        self._jobs[row.id] = job

    def _learn_names(self, now_ns: int) -> None:
        """Look up what comes later than a process: names of its pod, and what would help."""
        if not self._jobs or self._sampler is None or not self._naming.is_due(now_ns):
            return
        for gpu in self._sampler.state().gpus:
            uuid = gpu.identity.uuid
            for job in self._jobs.values():
                if any(one.uuid == uuid for one in job.gpus):
                    owner = joined((Owner(**job.owner),), gpu.assigned)[0]
                    job.owner |= _known(asdict(owner))
            stays = self._books[uuid].open() if uuid in self._books else []
            outlook = gpu.feeding.outlook if gpu.feeding else None
            alone = len({stay.gpu for stay in stays}) == 1
            # Not before it can be for this job, rather than for the last one.
            if outlook and alone and now_ns - stays[0].start_ns > LATELY_NS:
                had = stays[0].gpu
                if isinstance(outlook.advice, Prescription):
                    had.recommendation = outlook.advice
                had.score = outlook.score or had.score

    def _save(self, now_ns: int) -> None:
        """Store all jobs, and forget those that will not go on."""
        with self._lock:
            self._ended = False
            rows = [self._row(job) for job in self._jobs.values()]
        written = self._store.write(rows, time.time())
        with self._lock:
            for name, job in list(self._jobs.items()):
                end = end_of(job.gpus)
                gone = end is not None and end < (now_ns - CLAIMED_NS) / 1e9
                if gone and (written or len(self._jobs) > _MOST_WAITING):
                    del self._jobs[name]
            self._left_running.clear()
            for uuid, book in list(self._books.items()):
                if book.until_ns < now_ns - 2 * CLAIMED_NS and not book.open():
                    del self._books[uuid]

    def _row(self, job: Job) -> Row:
        """It as it is kept, and shown; what is unknown is left out."""
        whole = replace(job.having(job.gpus), gpus=[])
        shown = moved({**_shown(whole), "gpus": [_shown(gpu) for gpu in job.gpus]}, _epoch())
        until, runs = shown["end_seconds"], whole.end_seconds is None
        if runs:
            books = (self._books[gpu.uuid] for gpu in job.gpus if gpu.uuid in self._books)
            until = max(book.until_ns for book in books) / 1e9 + _epoch()
        body = zlib.compress(dumps(shown).encode(), 1)
        return Row(job.id, job.owner_name, shown["start_seconds"], until, runs, body)


def _store(settings: Settings) -> Store | InMemory:
    keep = settings.jobs_keep, settings.jobs_keep_seconds
    if not settings.jobs_state_file:
        return InMemory(*keep)
    # Imported late: most exporters have no file, and need not load SQLite.
    from gpu_bottleneck_exporter.jobs.store import Store  # noqa: PLC0415

    return Store(settings.jobs_state_file, *keep)


def _epoch() -> float:
    """Unix time less monotonic time, in seconds."""
    return time.time() - time.monotonic()


def _shown(found: Job | Gpu) -> dict[str, Any]:
    return _known(wire.document(found)) | {"end_seconds": found.end_seconds}


def _known(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, "")}


def name_of(owner: Owner) -> str | None:
    """The id of the job of `owner`; None for a user's own processes."""
    if owner.slurm_job_id:
        return _safe(f"slurm-{owner.slurm_job_id}")
    if owner.pod_uid:
        return _safe(f"pod-{owner.pod_uid}")
    if owner.namespace and owner.pod:
        return _safe(f"pod-{owner.namespace}.{owner.pod}")
    return _safe(f"container-{owner.container_id[:12]}") if owner.container_id else None


def _safe(text: str) -> str:
    return _UNSAFE.sub("-", text)[:_ID_CHARACTERS]
