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
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from gpu_bottleneck_exporter.driver.readings import Identity, Memory, Power, Processes, Reading
from gpu_bottleneck_exporter.host.descriptors import open_pidfd
from gpu_bottleneck_exporter.host.files import NoRoomError, read
from gpu_bottleneck_exporter.host.process import TICK_NS, Stat, parse_stat
from gpu_bottleneck_exporter.host.sockets import same_pids
from gpu_bottleneck_exporter.jobs import store
from gpu_bottleneck_exporter.jobs.book import CLAIMED_NS, GpuBook, Started, Stay
from gpu_bottleneck_exporter.jobs.records import VERSION, Job, Use, resumed
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.logthrottle import LogThrottle
from gpu_bottleneck_exporter.prescription.model import Prescription
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot
from gpu_bottleneck_exporter.sampling.opened import Spent
from gpu_bottleneck_exporter.sampling.sampler import SamplerState
from gpu_bottleneck_exporter.schedule import LATELY_NS, OFTEN_NS, SELDOM_NS, SHORTLY_NS, Every
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.workload.identity import Owner
from gpu_bottleneck_exporter.workload.join import joined
from gpu_bottleneck_exporter.workload.owners import Groups, claims_of, read_owner
from gpu_bottleneck_exporter.workload.users import UserNames

log = logging.getLogger(__name__)

MOST_BYTES = 8 * 2**20
"""Of one answer; older jobs are left off."""
_PAUSE_SECONDS = 4.0
"""Between two looks at what GPUs noted, if no process came or went."""
_MOST_QUEUED = 4096
"""Notes of one GPU: a quarter of an hour, if the disk hangs for so long."""
_MOST_WAITING = 256
"""Jobs that wait for a full disk."""
_GPU = ("gpu", "uuid", "model", "mig")
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

    def __init__(self, settings: Settings, describe: Callable[[object], Any]) -> None:
        """`describe`: makes JSON of a prescription and its score."""
        self._settings = settings
        self._proc = settings.procfs
        self._describe = describe
        self._users, self._groups = UserNames(self._proc), Groups(self._proc, settings.sysfs)
        self._boot = (read(f"{self._proc}/sys/kernel/random/boot_id") or "").strip()
        self._follows_ends = same_pids(self._proc)
        """Whether the pids in its procfs are those that we may name to the kernel."""
        most, seconds = settings.jobs_keep, settings.jobs_keep_seconds
        file = settings.jobs_state_file
        self._store: store.Store = (
            store.File(Path(file), most, seconds) if file else store.Memory(most, seconds)
        )
        self._queues: dict[str, deque[tuple[Identity, int, Reading | Spent]]] = {}
        self._books: dict[str, GpuBook] = {}
        self._jobs: dict[str, Job] = {}
        """Those that run, or ended less than `CLAIMED_NS` ago, by id."""
        self._lone: dict[tuple[str, ...], str] = {}
        """Ids by what the processes of users' own jobs have in common."""
        self._resumable: dict[Started, str] = {}
        """Ids of users' own jobs that the last exporter left running."""
        self._finished: set[str] = set()
        """Ids of those whose end is stored."""
        self._pidfds: dict[int, Started] = {}
        self._epoll = select.epoll()
        self._wakes, self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._epoll.register(self._wakes, select.EPOLLIN)
        self._sampler: Watched | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._throttle = LogThrottle(log)
        self._saving, self._naming = Every(SELDOM_NS), Every(OFTEN_NS)
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)

    def start(self, sampler: Watched) -> None:
        """Start the thread; jobs that ran when they were last stored go on."""
        self._sampler = sampler
        for row in self._store.read():
            if row.holders:
                with self._throttle.guarded("resuming jobs"):
                    self._resume(row)
        self._thread.start()

    def stop(self, timeout_seconds: float = 2.0) -> None:
        """Store everything; a disk that hangs may outlast `timeout_seconds`."""
        self._stop.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def note(self, gpu: Identity, at_ns: int, what: Reading | Spent) -> None:
        """Take down what was read of a GPU, or how its time was split. For any thread."""
        queue = self._queues.get(gpu.uuid)
        if queue is None:
            queue = self._queues[gpu.uuid] = deque(maxlen=_MOST_QUEUED)
        queue.append((gpu, at_ns, what))
        if isinstance(what, Processes):
            self._wake()

    def documents(self, since: float = 0.0) -> str:
        """All jobs that ended after Unix time `since` or still run, the newest first, as JSON."""
        with self._lock:
            self._drain()
            here = [(job.start_ns + job.epoch_ns, job) for job in self._jobs.values()]
            found = [
                (start / 1e9, dumps(job.document()))
                for start, job in here
                if job.runs or job.unix(job.until_ns) > since
            ]
            known = set(self._jobs)
        kept = (row for row in self._store.read(since) if row.id not in known)
        found += [(row.start, row.text) for row in kept]
        texts, left = [], MOST_BYTES
        for _, text in sorted(found, reverse=True):
            left -= len(text)
            if left < 0:
                break
            texts.append(text)
        head = dumps({**self._head(), "left_off": len(found) - len(texts)})
        return f'{head[:-1]}, "jobs": [{", ".join(texts)}]}}\n'

    def document(self, name: str) -> str | None:
        """The job with id `name`, as JSON; None if there is none."""
        with self._lock:
            self._drain()
            job = self._jobs.get(name)
            text = dumps(job.document()) if job else None
        row = None if text else self._store.find(name)
        text = row.text if row else text
        return f'{dumps(self._head())[:-1]}, "job": {text}}}\n' if text else None

    def _head(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "node": socket.gethostname(),
            "time_seconds": time.time(),
            "interval_seconds": self._settings.interval_seconds,
            "simulated": bool(self._sampler and self._sampler.state().about.simulated),
        }

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._woken, b"\0")

    def _run(self) -> None:
        while not self._stop.is_set():
            ended = [fd for fd, _ in self._epoll.poll(_PAUSE_SECONDS)]
            now_ns = time.monotonic_ns()
            with self._throttle.guarded("keeping the ledger of jobs"):
                with self._lock:
                    self._note_ends(ended, now_ns)
                    self._drain()
                    self._learn_names(now_ns)
                self._save(now_ns, everything=self._saving.is_due(now_ns))
        with self._throttle.guarded("keeping the ledger of jobs"):
            self._save(time.monotonic_ns(), everything=True)

    def _note_ends(self, fds: Sequence[int], now_ns: int) -> None:
        """Note which processes have ended; their GPUs are read at once, up to this moment."""
        gone = set()
        for fd in fds:
            if fd == self._wakes:
                os.read(fd, 4096)
            elif process := self._pidfds.pop(fd, None):
                self._epoll.unregister(fd)
                os.close(fd)
                gone.add(process)
        left = set()
        for uuid, book in self._books.items():
            for stay in book.stays:
                if stay.end_ns is None and stay.process in gone:
                    stay.end(now_ns)
                    left.add(uuid)
        if left and self._sampler:
            self._sampler.look(left, now=True)

    def _drain(self) -> None:
        for uuid, queue in list(self._queues.items()):
            while queue:
                gpu, at_ns, what = queue.popleft()
                with self._throttle.guarded(f"charging the time of {uuid}"):
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
        for stay in book.stays:
            if stay.end_ns is None and stay.process[0] not in used:
                stay.end(at_ns)
        left = {stay.process for stay in book.stays if stay.end_ns is not None}
        for pid in used.keys() - {stay.process[0] for stay in self._open(gpu.uuid)}:
            stat = parse_stat(read(f"{self._proc}/{pid}/stat"))
            if stat and not stat.ended:
                self._begin(book, gpu, at_ns, pid, stat, found)
            elif self._sampler and any(pid == process[0] for process in left):
                self._sampler.look((gpu.uuid,), now=False)  # the driver still lists it
        sizes: dict[Use, list[int | None]] = {}
        for stay in self._open(gpu.uuid):
            sizes.setdefault(stay.use, []).append(used.get(stay.process[0]))
        for use, known in sizes.items():
            use.need(None if None in known else sum(filter(None, known)))

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
        job = self._job(process, owner, stat.session, started_ns)
        job.claims |= claims_of(self._proc, pid, self._settings.jobs_claims)
        texts = f"{gpu.index}", gpu.uuid, gpu.name, gpu.mig_profile
        known = {key: text for key, text in zip(_GPU, texts, strict=True) if text}
        use = job.uses.setdefault(gpu.uuid, Use(known, at_ns, at_ns))
        stay = book.begin(use, process, min(started_ns, at_ns), at_ns)
        self._finished.discard(job.id)
        if self._follows_ends and process not in self._pidfds.values():
            with suppress(OSError, NoRoomError):
                if (fd := open_pidfd(pid)) is None:
                    stay.end(now_ns)
                else:
                    self._pidfds[fd] = process
                    self._epoll.register(fd, select.EPOLLIN)

    def _job(self, process: Started, owner: Owner, session: int, started_ns: int) -> Job:
        """The job of a process.

        A Slurm job or a pod may have pauses without a process on a GPU, and is known by its name:
        it goes on as long as it is kept. A user's own processes have no name in common: one job are
        those of a launcher (`rendezvous`) or a session, until none of them holds a GPU any more.
        What is typed into one terminal after that is the next job.
        """
        name = self._resumable.get(process) or _name_of(owner)
        other = self._jobs.get(name or "")
        if owner.slurm_job_id and other and other.owner.get("user", owner.user) != owner.user:
            name = None  # without control groups of Slurm, anybody can claim another's job
        key = owner.user or "unknown", owner.rendezvous or f"{session}"
        if name is None and key in self._lone:
            lone = self._jobs.get(self._lone[key])
            name = lone.id if lone and lone.runs else None
        epoch_ns = _epoch_ns()
        if name is None:
            name = self._free_name(
                f"user-{key[0][: _ID_CHARACTERS - 24]}-{(started_ns + epoch_ns) // 10**9}"
            )
            self._lone[key] = name
        if name not in self._jobs and (row := self._store.find(name)):
            self._resume(row)
        if name not in self._jobs:
            self._jobs[name] = Job(name, {}, {}, epoch_ns)
        job = self._jobs[name]
        job.owner |= _known(owner)
        return job

    def _free_name(self, text: str) -> str:
        names = (_safe(f"{text}-{number}" if number else text) for number in count())
        return next(n for n in names if n not in self._jobs and not self._store.find(n))

    def _resume(self, row: store.Row) -> None:
        epoch_ns = _epoch_ns()
        saved_ns = int(row.until * 1e9) - epoch_ns
        self._jobs[row.id] = resumed(json.loads(row.text), saved_ns, epoch_ns)
        held = store.holders_in(row)
        if held.get("boot") == self._boot:
            self._resumable |= dict.fromkeys(map(tuple, held["processes"]), row.id)

    def _learn_names(self, now_ns: int) -> None:
        """Look up what comes later than a process: names of its pod, and what would help."""
        if not self._jobs or self._sampler is None or not self._naming.is_due(now_ns):
            return
        for gpu in self._sampler.state().gpus:
            uuid = gpu.identity.uuid
            for job in self._jobs.values():
                if uuid in job.uses:
                    owner = joined((Owner(**job.owner),), gpu.assigned)[0]
                    job.owner |= _known(owner)
            uses = {s.use: s for s in self._open(uuid)}
            if len(uses) == 1:
                self._tell(*uses.popitem(), gpu, now_ns)

    def _tell(self, use: Use, stay: Stay, gpu: GpuSnapshot, now_ns: int) -> None:
        """Note what was prescribed, once that can be for this job and not for the last one."""
        outlook = gpu.feeding.outlook if gpu.feeding else None
        if outlook and now_ns - stay.start_ns > LATELY_NS:
            if isinstance(outlook.advice, Prescription):
                use.told["recommendation"] = self._describe(outlook.advice)
            if outlook.score:
                use.told["score"] = self._describe(outlook.score)

    def _open(self, uuid: str) -> list[Stay]:
        book = self._books.get(uuid)
        return [stay for stay in book.stays if stay.end_ns is None] if book else []

    def _save(self, now_ns: int, *, everything: bool) -> None:
        """Store jobs that have ended, and now and then all; forget those that will not go on."""
        with self._lock:
            over = [job for job in self._jobs.values() if not job.runs]
            gone = [job for job in over if job.until_ns < now_ns - CLAIMED_NS]
            ended = [job for job in over if self._is_charged(job, now_ns)]
            wanted = {*gone, *(job for job in ended if job.id not in self._finished)}
            wanted |= set(self._jobs.values()) if everything else set()
            rows = [self._row(job) for job in wanted]
        written = not rows or self._store.write(rows, time.time())
        with self._lock:
            if written:
                self._finished |= {job.id for job in ended}
            for job in gone if written or len(self._jobs) > _MOST_WAITING else ():
                if not job.runs:
                    self._jobs.pop(job.id, None)
                    self._finished.discard(job.id)
            self._lone = {key: name for key, name in self._lone.items() if name in self._jobs}
            for uuid, book in list(self._books.items()):
                if book.until_ns < now_ns - 2 * CLAIMED_NS and not self._open(uuid):
                    del self._books[uuid], self._queues[uuid]

    def _is_charged(self, job: Job, now_ns: int) -> bool:
        """Whether its GPUs have been read up to its end."""
        books = [(self._books.get(uuid), use) for uuid, use in job.uses.items()]
        read = all(book is None or book.until_ns >= use.until_ns for book, use in books)
        return read or job.until_ns < now_ns - SHORTLY_NS

    def _row(self, job: Job) -> store.Row:
        document, holders, until = job.document(), None, job.unix(job.until_ns)
        if job.runs:
            mine = set(job.uses.values())
            found = {s.process for uuid in job.uses for s in self._open(uuid) if s.use in mine}
            holders = json.dumps({"boot": self._boot, "processes": sorted(found)})
        return store.row_of(document, dumps(document), until, holders)


def _epoch_ns() -> int:
    """Unix time less monotonic time."""
    return time.time_ns() - time.monotonic_ns()


def _known(owner: Owner) -> dict[str, str]:
    return {field: text for field, text in asdict(owner).items() if text}


def _name_of(owner: Owner) -> str | None:
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
