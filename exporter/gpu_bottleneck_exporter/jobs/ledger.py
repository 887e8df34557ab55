"""The ledger of all jobs on this machine: who holds which GPU, when it left, what is kept."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import select
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace

from gpu_bottleneck_exporter.accounting.tick import Tick
from gpu_bottleneck_exporter.driver.readings import Identity, Memory, Power, Processes
from gpu_bottleneck_exporter.errors import printable
from gpu_bottleneck_exporter.host.descriptors import open_pidfd
from gpu_bottleneck_exporter.host.files import NoRoomError
from gpu_bottleneck_exporter.host.process import Started, monotonic_start_ns, stat_of
from gpu_bottleneck_exporter.host.programs import program_name
from gpu_bottleneck_exporter.host.sockets import same_pids
from gpu_bottleneck_exporter.jobs.book import CLAIMED_NS, GpuBook, Stay
from gpu_bottleneck_exporter.jobs.model import DIGITS, VERSION, Gpu, Job, end_of
from gpu_bottleneck_exporter.jobs.runs import is_later, run_of
from gpu_bottleneck_exporter.jobs.store import MOST_ROW_BYTES, NEWEST, Row, Store
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.logthrottle import LogThrottle
from gpu_bottleneck_exporter.loop import Loop
from gpu_bottleneck_exporter.nodeview import wire
from gpu_bottleneck_exporter.prescription.model import Prescription
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from gpu_bottleneck_exporter.schedule import SELDOM_NS, SHORTLY_NS, Every
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.stacktraces.watch import LineWatch
from gpu_bottleneck_exporter.workload.identity import NOBODY, Owner
from gpu_bottleneck_exporter.workload.owners import Groups, OwnerReader, claims_of, named
from gpu_bottleneck_exporter.workload.users import UserNames

log = logging.getLogger(__name__)

MOST_BYTES = 8 * 2**20
"""Of one answer; older jobs are left off."""
_PAUSE_SECONDS = 4.0
"""Between two looks at what GPUs noted, if no process came or went."""
_MOST_TICKS = 16_384
"""Of eight GPUs, with two a second each, a quarter of an hour, if the disk hangs for so long."""
_MOST_WAITING = 256
"""Jobs that wait for a full disk."""
_LATE_SECONDS = 1.0
"""Before a job's end is noted, the next one may have started."""
_STEP_NS = 100_000_000
"""Smallest step of the wall clock that is followed: more than the error of reading two clocks, and
less than the steps of NTP daemons and leap seconds."""
_NAME_SECONDS = 1.0
"""Wait for a user's name, which is part of ids: on another node it may come at once."""
_MOST_PIDFDS = 1024
"""Processes whose end is awaited; that of others is seen at the next tick."""
_FIRST_MAPPED, _FIRST_SUBORDINATE = 65_536, 100_000
"""User ids and number of ids that useradd gives to a user's containers (login.defs)."""
_PROOFS = frozenset({"cgroup", "prolog"})
"""Sources of an owner that only root can write."""
_NUMBERED = re.compile(r"^slurm-[0-9A-Za-z]+")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_ID_CHARACTERS = 80
_NO_ROW = Row("", "", 0.0, zlib.compress(b""))
_CHARGED = frozenset({Processes, Power, Memory})
"""Readings of which jobs have their part."""


class Ledger:
    """Charges what GPUs note to jobs, in a thread of its own: it may wait for a disk.

    A tick's times become Unix times when it is drained: monotonic ones plus an offset that stays
    the same until the wall clock is set. Then the times of jobs that run or ended less than a
    minute ago move along: they are right by the new time, and no duration changes. What is only in
    the store stays: the pause of a job that goes on from there is wrong by the step.
    """

    _sampler: Sampler
    """From `start` on."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._proc = settings.procfs
        users = UserNames(self._proc, _NAME_SECONDS)
        self._owners = OwnerReader(self._proc, Groups(self._proc, settings.sysfs), users)
        self._follows_ends = same_pids(self._proc)
        """Whether the pids in its procfs are those that we may name to the kernel."""
        self._store = Store(
            settings.jobs_state_file, settings.jobs_keep, settings.jobs_keep_seconds
        )
        self._ticks: deque[Tick] = deque(maxlen=_MOST_TICKS)
        self._lines: LineWatch | None = None
        self._books: dict[str, GpuBook] = {}
        self._jobs: dict[str, Job] = {}
        """Those that run, or ended less than `CLAIMED_NS` ago, by id."""
        self._stored: set[Row] = set()
        """What was stored of them last."""
        self._pidfds: dict[int | None, tuple[GpuBook, Stay]] = {}
        self._epoll = select.epoll()
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._woken, select.EPOLLIN)
        self._lock = threading.Lock()
        self._throttle = LogThrottle(log)
        self._offset_ns = _wall_offset_ns()
        """Unix time less monotonic time."""
        self._began_ns = time.monotonic_ns()
        self._saving_ended, self._saving_all = Every(SHORTLY_NS), Every(SELDOM_NS)
        self._loop = Loop("jobs", self._look, log=log, last=self._close)

    def start(self, sampler: Sampler) -> None:
        """Start the thread."""
        self._sampler, self._lines = sampler, sampler.lines
        self._loop.start()

    def stop(self, timeout_seconds: float = 2.0) -> None:
        """Store everything; a disk that hangs may outlast `timeout_seconds`."""
        self._loop.stop(0.0)
        os.eventfd_write(self._woken, 1)
        self._loop.stop(timeout_seconds)

    def note(self, tick: Tick) -> None:
        """Take it down, for any thread."""
        charged = tick.only(_CHARGED)
        if len(self._ticks) == _MOST_TICKS and self._throttle.is_new("ticks", "lost"):
            log.warning("more than %d ticks wait for the disk: the oldest are lost", _MOST_TICKS)
        if charged.windows or charged.readings:
            self._ticks.append(charged)
        if tick.reading(Processes):
            os.eventfd_write(self._woken, 1)

    def documents(self, since: float = 0.0) -> Iterator[bytes]:
        """All jobs that ended after Unix time `since` or still run, the last first, as JSON.

        In parts: a slow client holds one of them and one packed job.
        """
        with self._lock:
            self._drain()
            ends = {job.id: self._until(job) for job in self._jobs.values()}
        # Stored jobs that are not among these have ended before them.
        names = sorted((name for name in ends if ends[name] > since), key=lambda name: ends[name])
        yield f'{self._head()}, "jobs": ['.encode()
        left, end, comma = MOST_BYTES, NEWEST, b""
        while row := self._live(names[-1]) if names else self._store.before(end, since):
            end = end if names else (row.until, row.id)
            size = len(self._text(row)) if names or row.id not in ends else 0
            left -= size
            if left < 0:
                break
            if size:
                yield from row.pieces(comma)
                comma = b", "
            del names[-1:]
        older = self._store.names(since=since, end=end) if left < 0 else ()
        left_off = len(names) + sum(name not in ends for name in older or ())
        yield f'], "left_off": {left_off}}}\n'.encode()

    def document(self, name: str) -> str | None:
        """The job with id `name`, as JSON; None if there is none.

        `slurm-7` also names a job that only claims this number, unless several users claim it.
        """
        last = f"{name}-\x7f" if _NUMBERED.fullmatch(name) else name
        with self._lock:
            self._drain()
            ids = {one for one in self._jobs if name <= one <= last}
        ids.update(self._store.names(name, last) or ())
        claims = ids - {name}
        others = claims - {f"{name}-root"} or claims  # Slurm's prolog runs as root
        only = name if name in ids or len(others) != 1 else others.pop()
        text = self._text(self._live(only))
        return f'{self._head()}, "job": {text}}}\n' if text else None

    def _live(self, name: str) -> Row:
        with self._lock:
            if job := self._jobs.get(name):
                return self._row(job)
        return next(iter(self._store.read(0.0, name, name) or ()), _NO_ROW)

    def _text(self, row: Row) -> str:
        """The document of `row`; empty, with a line in the log, if it is damaged."""
        with self._throttle.guarded(f"reading the document of {row.id!r:.100}"):
            text = row.text
            json.loads(text or "0")
            return text
        return ""

    def _head(self) -> str:
        """The beginning of a document."""
        head = {"version": VERSION, "node": self._settings.node, "time_seconds": time.time()}
        return dumps(head)[:-1]

    def _look(self) -> float:
        """Wait until a process comes or goes, or for a while, and charge what was noted."""
        self._epoll.poll(_PAUSE_SECONDS)
        with suppress(BlockingIOError):
            os.eventfd_read(self._woken)
        if not self._loop.stopping:  # else `_close` keeps all
            self._keep(time.monotonic_ns(), stopping=False)
        return 0.0

    def _keep(self, now_ns: int, *, stopping: bool) -> None:
        with self._lock:
            self._note_ends()
            self._drain()
        if self._saving_ended.is_due(now_ns) or stopping:
            self._learn()
            self._save(running=self._saving_all.is_due(now_ns) or stopping)

    def _close(self) -> None:
        with self._throttle.guarded("storing the jobs at the end"):
            self._keep(time.monotonic_ns(), stopping=True)
        self._store.close()
        self._epoll.close()
        for fd in filter(None, self._pidfds):
            os.close(fd)

    def _now_ns(self) -> int:
        return time.monotonic_ns() + self._offset_ns

    def _follow_clock(self) -> None:
        """Move all times along if the wall clock was set."""
        step_ns = _wall_offset_ns() - self._offset_ns
        if abs(step_ns) >= _STEP_NS:
            self._offset_ns += step_ns
            for book in self._books.values():
                book.shift(step_ns)
            for job in self._jobs.values():
                for gpu in job.gpus:
                    gpu.shift(step_ns / 1e9)

    def _note_ends(self) -> None:
        """Note which processes have ended; their GPUs are read at once, up to this moment."""
        # Asked under the lock: meanwhile, a descriptor's number may have become another's.
        for fd in self._pidfds.keys() & {fd for fd, _ in self._epoll.poll(0)}:
            book, stay = self._pidfds[fd]
            self._end(book, stay, self._now_ns())
            self._sampler.look((stay.gpu.uuid,), now=True)

    def _end(self, book: GpuBook, stay: Stay, at_ns: int) -> None:
        """Note that a process has left, and close its descriptor."""
        book.end(stay, at_ns)
        if self._pidfds.pop(stay.pidfd, None) and stay.pidfd:
            os.close(stay.pidfd)

    def _drain(self) -> None:
        self._follow_clock()
        while self._ticks:
            tick = self._ticks.popleft().shifted(self._offset_ns)
            uuid = tick.gpu.uuid
            book = self._books.setdefault(uuid, GpuBook(tick.at_ns))
            with self._throttle.guarded(f"listing the processes of {uuid}"):
                if (found := tick.reading(Processes)) and found.count is not None:
                    self._list(book, tick.gpu, tick.read_ns(Processes), found)
            with self._throttle.guarded(f"charging the time of {uuid}"):
                if tick.windows:
                    book.spend(tick.windows, tick.stalls)
                if power := tick.reading(Power):
                    book.power(tick.read_ns(Power), power.energy_joules)
                if memory := tick.reading(Memory):
                    shared = memory.of_machine or tick.gpu.coherent
                    used = None if shared else memory.used_bytes
                    book.memory(tick.read_ns(Memory), used, memory.total_bytes)
        for uuid, (lines, mains) in self._lines.ended() if self._lines else ():
            with self._throttle.guarded(f"keeping the lines of {uuid}"):
                had = _whose(self._books[uuid], mains) if uuid in self._books else None
                if had and lines.lines:
                    had.idle_lines = lines

    def _list(self, book: GpuBook, gpu: Identity, at_ns: int, found: Processes) -> None:
        """Note who holds `gpu`."""
        used = {one.pid: one.used_bytes for one in found.processes}
        for stay in book.open():
            if stay.pid not in used:
                self._end(book, stay, at_ns)
        here, known = ({stay.pid for stay in stays} for stays in (book.open(), book.stays))
        for pid in used.keys() - here:
            came = False
            with self._throttle.guarded(f"recording the processes of {gpu.uuid}"):
                came = self._begin(book, gpu, at_ns, pid, found)
            if not came and pid in known:  # the driver still lists it
                self._sampler.look((gpu.uuid,), now=False)
        for had in {stay.gpu for stay in book.open()}:
            sizes = [used.get(stay.pid) for stay in book.open() if stay.gpu is had]
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
        stay = book.begin(had, pid, started_ns, at_ns)
        stay.started_ticks = stat.started_ticks
        if self._follows_ends and len(self._pidfds) < _MOST_PIDFDS:
            with suppress(OSError, NoRoomError):
                stay.pidfd = open_pidfd(pid)
                if stay.pidfd is None:
                    book.end(stay, self._now_ns())
                else:
                    self._pidfds[stay.pidfd] = book, stay
                    self._epoll.register(stay.pidfd, select.EPOLLIN)
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
            job = job if end is None or started < end - _LATE_SECONDS else None
        elif job and is_later(run, job.run):
            self._retire(job)
            job = None
        if job is None:
            job = self._jobs[name] = Job(id=name)
        job.run |= run
        fields = {field: text for field, text in asdict(owner).items() if text}
        # With fakeroot or containers, a job's processes have several users; the first is its own.
        job.owner |= fields | {field: job.owner[field] for field in {"user"} & job.owner.keys()}
        return job

    def _retire(self, job: Job) -> None:
        """Keep an earlier run under an id of its own: its start in ms follows the number."""
        self._jobs.pop(job.id)
        start = min((gpu.start_seconds for gpu in job.gpus), default=0.0)
        job.id = _NUMBERED.sub(rf"\g<0>.{1000 * start:.0f}", job.id, count=1)
        self._jobs[job.id] = job
        self._store.write((self._row(job, stored=True),), time.time())
        self._saving_all = Every(SELDOM_NS)  # until then, the store has this run under both ids

    def _known(self, name: str, started_ns: int, *, timed: bool = False) -> Job | None:
        """The last job with id `name`, or with `name` and a time; one that was stored may go on.

        Raises OSError while what is stored cannot be read: a job that began anew would replace it.
        A process waits for that as long as it loses none of its time.
        """
        key = (lambda one: one.rpartition("-")[0]) if timed else str
        jobs = [job for job in self._jobs.values() if key(job.id) == name]
        if not jobs:
            names = self._store.names(name, f"{name}-:" if timed else name)
            last = next((one for one in names or () if key(one) == name), "")
            rows = None if names is None else self._store.read(0.0, last, last)
            waits_ns = min(time.monotonic_ns() - self._began_ns, self._now_ns() - started_ns)
            if rows is None and waits_ns < CLAIMED_NS:
                raise OSError("the jobs that are stored cannot be read")
            for row in rows or ():
                with self._throttle.guarded(f"continuing {row.id}"):
                    document = json.loads(row.text) | {"id": row.id}
                    jobs = [wire.read(Job, document)]
                    self._jobs[row.id] = jobs[0]
        return jobs[-1] if jobs else None

    def _learn(self) -> None:
        """Look up what comes later than a process: names of its pod, and what would help."""
        with self._lock:
            for gpu in self._sampler.state().gpus if self._jobs else ():
                for job in self._jobs.values():
                    if holder := gpu.assigned.names.get(job.owner.get("container_id", "")):
                        job.owner |= holder._asdict()
                outlook = gpu.feeding.outlook if gpu.feeding else None
                book = self._books.get(gpu.identity.uuid)
                if outlook and book and (had := _whose(book, outlook.mains)):
                    if isinstance(outlook.advice, Prescription):
                        had.recommendation = outlook.advice
                    had.score = outlook.score or had.score

    def _save(self, *, running: bool) -> None:
        """Store what has changed of jobs that ended, and of `running` ones.

        Those that have ended a while ago are forgotten here, once they are stored.
        """
        with self._lock:
            jobs = [one for one in self._jobs.values() if running or end_of(one.gpus) is not None]
            rows = {self._row(job, stored=True) for job in jobs} - {_NO_ROW}
        # All of them, as the file may be a new one.
        written = not (running or rows - self._stored) or self._store.write(rows, time.time())
        if written:
            self._stored = rows
        with self._lock:
            since_ns = self._now_ns() - CLAIMED_NS
            over = [job for job in jobs if (end_of(job.gpus) or math.inf) < since_ns / 1e9]
            over.sort(key=self._until)
            for job in over if written else over[:-_MOST_WAITING]:
                del self._jobs[job.id]
                self._throttle.forget(job.id)
            self._books = {
                uuid: book
                for uuid, book in self._books.items()
                if book.open() or book.until_ns > since_ns - CLAIMED_NS
            }

    def _row(self, job: Job, *, stored: bool = False) -> Row:
        """It as it is shown or, as nobody may be here to see its end, `stored`: as if it ended.

        Without what its own code has shaped, if that cannot be shown; empty if nothing can.
        """
        now = self._now_ns() / 1e9
        ended = (replace(g, end_seconds=now) if g.end_seconds is None else g for g in job.gpus)
        shown = job.having(ended if stored else job.gpus)
        with self._throttle.guarded(f"describing {job.id}"):
            return _packed(shown, self._until(shown))
        with self._throttle.guarded(f"describing {job.id} in short"):
            shaped = {"idle_lines": None, "recommendation": None, "score": None}
            gpus = [replace(gpu, **shaped) for gpu in shown.gpus]
            return _packed(replace(shown, gpus=gpus, claims={}, command=None), self._until(shown))
        return _NO_ROW

    def _until(self, job: Job) -> float:
        """Unix time when it ended, or now, rounded as in its document."""
        return round(end_of(job.gpus) or self._now_ns() / 1e9, 3)


def _packed(job: Job, until: float) -> Row:
    """The row of `job`. Raises ValueError if it is too large."""
    text = dumps(wire.document(job, DIGITS)).encode()
    if len(text) > MOST_ROW_BYTES:
        raise ValueError(f"{len(text)} bytes are too many")
    return Row(job.id, _account(job), until, zlib.compress(text, 1))


def _account(job: Job) -> str:
    """The owner whose jobs compete for room: users without names by ranges of subordinate ids.

    The root of a container, who may take any uid, and claim a job with each, is one.
    """
    name, of = printable(job.owner_name, wire.MOST_CHARACTERS), job.owner
    if "namespace" not in of and of.get("source") == "claim":
        name = of.get("container_id", name)
    if "namespace" in of or not name.isdecimal() or int(name) < _FIRST_MAPPED:
        return name
    return f"uids {(int(name) - _FIRST_SUBORDINATE) // _FIRST_MAPPED}"


def _whose(book: GpuBook, mains: frozenset[Started]) -> Gpu | None:
    """What the job has of the GPU whose processes all `mains` are; None unless it is one job."""
    gpus = {(stay.pid, stay.started_ticks): stay.gpu for stay in book.stays}
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
