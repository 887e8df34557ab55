"""The thread that records, serves and stores this machine's jobs."""

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
from gpu_bottleneck_exporter.jobs.model import DOCUMENT_VERSION, MAX_DECIMALS, Job, end_of
from gpu_bottleneck_exporter.jobs.recorder import SLURM_ID, JobRecorder
from gpu_bottleneck_exporter.jobs.store import MAX_ROW_BYTES, NEWEST, Row, Store
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.logthrottle import LogThrottle
from gpu_bottleneck_exporter.loop import Loop
from gpu_bottleneck_exporter.nodeview import wire
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from gpu_bottleneck_exporter.schedule import CADENCE, Every
from gpu_bottleneck_exporter.settings import Settings

log = logging.getLogger(__name__)

MAX_JOBS_BYTES = 8 * 2**20
"""Size limit of the list of jobs."""
_NO_ROW = Row("", "", 0.0, zlib.compress(b""))


class Ledger:
    """This machine's jobs, with a thread that may wait for the disk. Thread-safe."""

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
        """Guards the recorder."""
        # A quarter of an hour of eight GPUs, while the disk hangs.
        self._ticks: deque[Tick] = deque(maxlen=16_384)
        self._stored: set[Row] = set()
        self._saving_ended, self._saving_all = Every(CADENCE.probe_ns), Every(CADENCE.rare_ns)
        self._loop = Loop("jobs", self._run, log=log, last=self._close)

    def start(self, sampler: Sampler) -> None:
        """Start the thread."""
        self._recorder.start(sampler)
        self._loop.start()

    def stop(self, timeout_seconds: float = 2.0) -> None:
        """Store all jobs and stop the thread; continues after the timeout if the disk hangs."""
        self._loop.stop(0.0)
        self._exits.wake()
        self._loop.stop(timeout_seconds)

    def enqueue(self, tick: Tick) -> None:
        """Add `tick` for the thread to record."""
        relevant = tick.only(frozenset({Processes, Power, Memory}))
        if len(self._ticks) == self._ticks.maxlen and self._throttle.is_new("ticks", "lost"):
            log.warning(
                "the disk is too slow for the ledger; ticks are lost", {"kept": self._ticks.maxlen}
            )
        if relevant.windows or relevant.readings:
            self._ticks.append(relevant)
        if tick.reading(Processes):
            self._exits.wake()

    def documents(self, since: float = 0.0) -> Iterator[bytes]:
        """Jobs that run or ended after Unix time `since`, last first, as JSON in parts."""
        with self._lock:
            self._recorder.drain(self._ticks)
            ends = {job.id: self._until(job) for job in self._recorder.jobs.values()}
        # All other stored jobs ended before these.
        names = sorted((name for name in ends if ends[name] > since), key=lambda name: ends[name])
        yield f'{self._head()}, "jobs": ['.encode()
        left, end, comma = MAX_JOBS_BYTES, NEWEST, b""
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
        """The job with id `name`, as JSON; None if unknown.

        `slurm-7` also matches a single user's job that claims this number.
        """
        last = f"{name}-\x7f" if SLURM_ID.fullmatch(name) else name
        with self._lock:
            self._recorder.drain(self._ticks)
            ids = {job_id for job_id in self._recorder.jobs if name <= job_id <= last}
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
        """The document of `row`; empty, with a log line, if it is damaged."""
        with self._throttle.guarded("reading a document", job=f"{row.id!s:.100}"):
            text = row.text
            json.loads(text or "0")
            return text
        return ""

    def _head(self) -> str:
        head = {
            "version": DOCUMENT_VERSION,
            "node": self._settings.node,
            "time_seconds": time.time(),
        }
        return dumps(head)[:-1]

    def _run(self) -> float:
        self._exits.wait(4.0)
        if not self._loop.stopping:  # else `_close` stores all
            self._record(time.monotonic_ns(), stopping=False)
        return 0.0

    def _record(self, now_ns: int, *, stopping: bool) -> None:
        with self._lock:
            self._exits.notify()
            self._recorder.drain(self._ticks)
        if self._saving_ended.is_due(now_ns) or stopping:
            with self._lock:
                self._recorder.update()
            self._save(running=self._saving_all.is_due(now_ns) or stopping)

    def _close(self) -> None:
        with self._throttle.guarded("storing the jobs at the end"):
            self._record(time.monotonic_ns(), stopping=True)
        self._store.close()
        self._exits.close()

    def _store_run(self, job: Job) -> None:
        self._store.write((self._row(job, stored=True),), time.time())
        self._saving_all = Every(CADENCE.rare_ns)  # due now: the store has the run under both ids

    def _save(self, *, running: bool) -> None:
        """Store changed jobs, also `running` ones; evict those that ended `BACKFILL_NS` ago."""
        with self._lock:
            recorded = self._recorder.jobs.values()
            jobs = [job for job in recorded if running or end_of(job.gpus) is not None]
            rows = {self._row(job, stored=True) for job in jobs} - {_NO_ROW}
        # All: the file may be new.
        written = not (running or rows - self._stored) or self._store.write(rows, time.time())
        if written:
            self._stored = rows
        with self._lock:
            since_ns = self._recorder.now_ns() - BACKFILL_NS
            over = [job for job in jobs if (end_of(job.gpus) or math.inf) < since_ns / 1e9]
            over.sort(key=self._until)
            # While the disk is full, 256 jobs are retained.
            self._recorder.evict(over if written else over[:-256])

    def _row(self, job: Job, *, stored: bool = False) -> Row:
        """The row of `job`, without fields that the job controls if these cannot be encoded.

        If `stored`, a running job ends now.
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
        return round(end_of(job.gpus) or self._recorder.now_ns() / 1e9, 3)  # as in the document


def _packed(job: Job, until: float) -> Row:
    text = dumps(wire.document(job, MAX_DECIMALS)).encode()
    if len(text) > MAX_ROW_BYTES:
        raise ValueError(f"{len(text)} bytes exceed the limit of {MAX_ROW_BYTES}")
    return Row(job.id, _account(job), until, zlib.compress(text, 1))


def _account(job: Job) -> str:
    """The account for the retention limit: the owner, as far as trusted.

    Root in a container can claim any uid: the container, or a range of subordinate uids, is one
    account.
    """
    first_subordinate, uids = 100_000, 65_536  # useradd's defaults (login.defs)
    name, owner = printable(job.owner_name, wire.MAX_CHARACTERS), job.owner
    if "namespace" not in owner and owner.get("source") == "claim":
        name = owner.get("container_id", name)
    if "namespace" in owner or not name.isdecimal() or int(name) < uids:
        return name
    return f"uids {(int(name) - first_subordinate) // uids}"
