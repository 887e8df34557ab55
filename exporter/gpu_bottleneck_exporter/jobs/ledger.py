"""The ledger of all jobs on this machine: the thread that records, serves and stores them."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from gpu_bottleneck_exporter.accounting.tick import Tick
from gpu_bottleneck_exporter.driver.readings import Memory, Power, Processes
from gpu_bottleneck_exporter.errors import printable
from gpu_bottleneck_exporter.jobs.book import BACKFILL_NS
from gpu_bottleneck_exporter.jobs.exits import ExitWatch
from gpu_bottleneck_exporter.jobs.model import DIGITS, VERSION, Job, end_of
from gpu_bottleneck_exporter.jobs.recorder import NUMBERED, JobRecorder
from gpu_bottleneck_exporter.jobs.store import MOST_ROW_BYTES, NEWEST, Row, Store
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.logthrottle import LogThrottle
from gpu_bottleneck_exporter.loop import Loop
from gpu_bottleneck_exporter.nodeview import wire
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from gpu_bottleneck_exporter.schedule import SELDOM_NS, SHORTLY_NS, Every
from gpu_bottleneck_exporter.settings import Settings

log = logging.getLogger(__name__)

MOST_BYTES = 8 * 2**20
"""Of one answer; older jobs are left off."""
_PAUSE_SECONDS = 4.0
"""Between two looks at what GPUs noted, if no process came or went."""
_MOST_TICKS = 16_384
"""Of eight GPUs, with two a second each, a quarter of an hour, if the disk hangs for so long."""
_MOST_WAITING = 256
"""Jobs that wait for a full disk."""
_FIRST_MAPPED, _FIRST_SUBORDINATE = 65_536, 100_000
"""User ids and number of ids that useradd gives to a user's containers (login.defs)."""
_NO_ROW = Row("", "", 0.0, zlib.compress(b""))
_CHARGED = frozenset({Processes, Power, Memory})
"""Readings of which jobs have their part."""


class Ledger:
    """The ledger of this machine's jobs, with a thread of its own, which may wait for a disk."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._store = Store(
            settings.jobs_state_file, settings.jobs_keep, settings.jobs_keep_seconds
        )
        self._throttle = LogThrottle(log)
        self._exits = ExitWatch(settings.procfs)
        self._recorder = JobRecorder(
            settings, self._store, self._exits, self._throttle, self._store_run
        )
        self._lock = threading.Lock()
        """Held while the recorder is used."""
        self._ticks: deque[Tick] = deque(maxlen=_MOST_TICKS)
        self._stored: set[Row] = set()
        """What was stored last of the recorder's jobs."""
        self._saving_ended, self._saving_all = Every(SHORTLY_NS), Every(SELDOM_NS)
        self._loop = Loop("jobs", self._look, log=log, last=self._close)

    def start(self, sampler: Sampler) -> None:
        """Start the thread."""
        self._recorder.start(sampler)
        self._loop.start()

    def stop(self, timeout_seconds: float = 2.0) -> None:
        """Store everything; a disk that hangs may outlast `timeout_seconds`."""
        self._loop.stop(0.0)
        self._exits.wake()
        self._loop.stop(timeout_seconds)

    def note(self, tick: Tick) -> None:
        """Take it down, for any thread."""
        charged = tick.only(_CHARGED)
        if len(self._ticks) == _MOST_TICKS and self._throttle.is_new("ticks", "lost"):
            log.warning("ticks that wait for the disk are lost", {"kept": _MOST_TICKS})
        if charged.windows or charged.readings:
            self._ticks.append(charged)
        if tick.reading(Processes):
            self._exits.wake()

    def documents(self, since: float = 0.0) -> Iterator[bytes]:
        """All jobs that ended after Unix time `since` or still run, the last first, as JSON.

        In parts: a slow client holds one of them and one packed job.
        """
        with self._lock:
            self._recorder.drain(self._ticks)
            ends = {job.id: self._until(job) for job in self._recorder.jobs.values()}
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
        last = f"{name}-\x7f" if NUMBERED.fullmatch(name) else name
        with self._lock:
            self._recorder.drain(self._ticks)
            ids = {one for one in self._recorder.jobs if name <= one <= last}
        ids.update(self._store.names(name, last) or ())
        claims = ids - {name}
        others = claims - {f"{name}-root"} or claims  # Slurm's prolog runs as root
        only = name if name in ids or len(others) != 1 else others.pop()
        text = self._text(self._live(only))
        return f'{self._head()}, "job": {text}}}\n' if text else None

    def _live(self, name: str) -> Row:
        with self._lock:
            if job := self._recorder.jobs.get(name):
                return self._row(job)
        return next(iter(self._store.read(0.0, name, name) or ()), _NO_ROW)

    def _text(self, row: Row) -> str:
        """The document of `row`; empty, with a line in the log, if it is damaged."""
        with self._throttle.guarded("reading a document", job=f"{row.id!s:.100}"):
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
        self._exits.wait(_PAUSE_SECONDS)
        if not self._loop.stopping:  # else `_close` keeps all
            self._keep(time.monotonic_ns(), stopping=False)
        return 0.0

    def _keep(self, now_ns: int, *, stopping: bool) -> None:
        with self._lock:
            self._exits.notify()
            self._recorder.drain(self._ticks)
        if self._saving_ended.is_due(now_ns) or stopping:
            with self._lock:
                self._recorder.learn()
            self._save(running=self._saving_all.is_due(now_ns) or stopping)

    def _close(self) -> None:
        with self._throttle.guarded("storing the jobs at the end"):
            self._keep(time.monotonic_ns(), stopping=True)
        self._store.close()
        self._exits.close()

    def _store_run(self, job: Job) -> None:
        """Store an earlier run of a job under its own id."""
        self._store.write((self._row(job, stored=True),), time.time())
        self._saving_all = Every(SELDOM_NS)  # until then, the store has this run under both ids

    def _save(self, *, running: bool) -> None:
        """Store what has changed of jobs that ended, and of `running` ones.

        Those that have ended a while ago are forgotten here, once they are stored.
        """
        with self._lock:
            known = self._recorder.jobs.values()
            jobs = [one for one in known if running or end_of(one.gpus) is not None]
            rows = {self._row(job, stored=True) for job in jobs} - {_NO_ROW}
        # All of them, as the file may be a new one.
        written = not (running or rows - self._stored) or self._store.write(rows, time.time())
        if written:
            self._stored = rows
        with self._lock:
            since_ns = self._recorder.now_ns() - BACKFILL_NS
            over = [job for job in jobs if (end_of(job.gpus) or math.inf) < since_ns / 1e9]
            over.sort(key=self._until)
            self._recorder.forget(over if written else over[:-_MOST_WAITING])

    def _row(self, job: Job, *, stored: bool = False) -> Row:
        """The row of `job`; one that is `stored` ends now, as its end may come while we are away.

        Without what its own code has shaped, if that cannot be shown; empty if nothing can.
        """
        now = self._recorder.now_ns() / 1e9
        ended = (replace(g, end_seconds=now) if g.end_seconds is None else g for g in job.gpus)
        shown = job.having(ended if stored else job.gpus)
        with self._throttle.guarded("describing a job", job=job.id):
            return _packed(shown, self._until(shown))
        with self._throttle.guarded("describing a job in short", job=job.id):
            shaped = {"idle_lines": None, "recommendation": None, "score": None}
            gpus = [replace(gpu, **shaped) for gpu in shown.gpus]
            return _packed(replace(shown, gpus=gpus, claims={}, command=None), self._until(shown))
        return _NO_ROW

    def _until(self, job: Job) -> float:
        """Unix time when it ended, or now, rounded as in its document."""
        return round(end_of(job.gpus) or self._recorder.now_ns() / 1e9, 3)


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
