"""Abuses of a node by a job, a client or a disk, and their cost.

Each row is provoked by `test_abuses.py` on a node with two GPUs, and is a line of the table in
exporter/OPERATIONS.md (`abuses_table.py`).
"""

from __future__ import annotations

import json
import math
import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from gpu_bottleneck_exporter.host.process import stat_of
from gpu_bottleneck_exporter.jobs.store import Row, Store
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from support.board import Board
from support.daemon import get, silent
from support.disks import filled
from support.groups import MOUNTS, container, group, move, usable
from support.hangs import ANSWERS_LATE
from support.leftovers import mark
from support.linetables import CODE_WITH_TABLE, entry
from support.metrics import Metrics
from support.programs import Program, descriptors, program
from support.rights import AS_WE_ARE, Way
from support.tools import missing
from support.waiting import until

NOTHING = "nothing"


@dataclass(frozen=True)
class Node:
    """An exporter with a ledger on disk, over HTTP. GPU 1 is held by another user's process."""

    board: Board
    sampler: Sampler
    port: int
    file: Path
    """The ledger's."""
    log: Callable[[], list[str]]
    """Warnings and errors of the exporter so far."""

    @contextmanager
    def holding(
        self, code: str, *arguments: object, gpu: int = 0, way: Way = AS_WE_ARE
    ) -> Iterator[Program]:
        """A program that holds a GPU, once its job runs."""
        with program(code, *arguments, way=way) as holder:
            if holder.words == ["denied"]:
                missing("userfaultfd is not allowed")
            with self.held_by(holder, gpu):
                yield holder

    @contextmanager
    def held_by(self, holder: Program, gpu: int = 0) -> Iterator[None]:
        """Let `holder` hold a GPU."""
        self.board.gpus[gpu].hold(holder.pid, 2**30)
        try:
            until(lambda: self.runs(gpu), "its job")
            yield
        finally:
            self.board.gpus[gpu].release(holder.pid)

    def metrics(self) -> Metrics:
        return Metrics(self._get("/metrics").decode())

    def document(self, gpu: int) -> dict[str, Any]:
        """The part of `gpu` of the node document."""
        gpus: list[dict[str, Any]] = json.loads(self._get("/api/v1/node"))["gpus"]
        return gpus[gpu]

    def jobs(self, gpu: int | None = None) -> list[dict[str, Any]]:
        """All jobs, or those of one GPU."""
        jobs: list[dict[str, Any]] = json.loads(self._get("/api/v1/jobs"))["jobs"]
        return [job for job in jobs if gpu is None or f"{gpu}" in _gpus(job)]

    def runs(self, gpu: int) -> dict[str, Any] | None:
        """The job that runs on `gpu`."""
        return next((job for job in self.jobs(gpu) if job["end_seconds"] is None), None)

    def _get(self, path: str) -> bytes:
        status, body = get(self.port, path)
        assert status == 200, path
        return body


def _gpus(job: dict[str, Any]) -> set[str]:
    """Indexes of the GPUs of a job."""
    return {part["gpu"] for part in job["gpus"]}


@dataclass(frozen=True)
class Abuse:
    """One row."""

    name: str
    cost: str
    """Cost in words, without a full stop."""
    provoke: Callable[[Node], AbstractContextManager[None]]
    """Brings the abuse about and checks its cost before the block; mends it after the block."""


ABUSES: list[Abuse] = []


def row(name: str, cost: str = NOTHING) -> Callable[[Callable[[Node], Iterator[None]]], None]:
    """Add a row to `ABUSES`."""
    return lambda provoke: ABUSES.append(Abuse(name, cost, contextmanager(provoke)))


LIVES = "ready(); told()"
SLEEPS = "ready()\nos.read(0, 1)"
UNNAMED = 'exec(compile("ready()\\nos.read(0, 1)", "", "exec"))'
LEAVES = """
threading.Thread(target=locked, daemon=True).start()
ready(); told()
ctypes.CDLL(None).pthread_exit(0)
"""


def lines_of(node: Node, gpu: int) -> list[dict[str, Any]]:
    """The lines for which `gpu` has waited in this session of looks at stacks."""
    idle = node.document(gpu).get("idle_lines") or {}
    return idle.get("lines") or idle.get("waits") or []


def look_at(node: Node, *gpus: int) -> None:
    """Look at the stacks of these GPUs, for a minute."""
    assert node.sampler.lines is not None
    for gpu in gpus:
        node.sampler.lines.request(node.sampler.state().gpus[gpu].identity.uuid)


@row("Code with a line number of thousands of digits", "that stack is unknown")
def long_line(node: Node) -> Iterator[None]:
    with node.holding(CODE_WITH_TABLE, entry(5000).hex()):
        look_at(node, 0, 1)
        until(lambda: lines_of(node, 1), "the other's lines")
        until(lambda: node.document(0)["idle_lines"]["looks"], "a look")
        assert lines_of(node, 0) == []
        yield


@row("Code of a file without a name")
def unnamed_file(node: Node) -> Iterator[None]:
    with node.holding(UNNAMED):
        look_at(node, 0)
        (line,) = until(lambda: lines_of(node, 0), "a line")
        assert line["file"] == ""
        yield


@row("The tenant of a GPU changes during stack sampling", "lines go to the previous job")
def change_of_hands(node: Node) -> Iterator[None]:
    with node.holding(SLEEPS):
        look_at(node, 0)
        until(lambda: lines_of(node, 0), "a line")
        before = node.runs(0)
    assert before is not None
    with node.holding(LIVES):
        until(lambda: "idle_lines" in node.jobs(0)[-1]["gpus"][0], "the lines of the first")
        with_lines = [job["id"] for job in node.jobs(0) if "idle_lines" in job["gpus"][0]]
        assert with_lines == [before["id"]]
        yield


@row("The first thread of a holder exits, others keep working")
def leaderless(node: Node) -> Iterator[None]:
    with program(LEAVES) as holder:
        holder.tell()
        proc = Path("/proc")
        until(lambda: (stat := stat_of(proc, holder.pid)) and stat.leaderless, "its zombie")
        with node.held_by(holder):
            still_billed(node)
            yield


def still_billed(node: Node) -> None:
    """Wait until the job on GPU 0 was charged for time from now on."""

    def charged() -> float:
        job = node.runs(0)
        assert job is not None, "it has ended"
        return float(job["gpus"][0]["observed_seconds"])

    before = charged()
    until(lambda: charged() > before, "more time")


@row("Memory that answers each read late", "a wait in `poll` counts as `asleep`")
def late_memory(node: Node) -> Iterator[None]:
    with node.holding(ANSWERS_LATE) as holder:
        until(lambda: int(holder.ask("?")[0]) > 0, "a read")
        asleep = {"gpu": "0", "waiting_on": "asleep"}
        until(lambda: node.metrics().total("gpu_stall_seconds_total", **asleep), "its wait")
        yield


@row("A control group named like a container by a user", "the user is its owner")
def posing_group(node: Node) -> Iterator[None]:
    user = f"{mark()}-{os.getpid()}.service".encode()  # unlike those of tests beside this one
    names = [user, b"kubepods", container(7).encode(), b"\xff\xfe"]
    with group(usable(MOUNTS["pids"]), *names) as folder, program(LIVES) as holder:
        move(holder.pid, folder)
        with node.held_by(holder):
            owner = until(lambda: node.metrics().samples_of("gpu_workload_info", gpu="0"), "owner")
            assert {*owner[0].labels} == {"gpu", "uuid", "user"}
            job = node.runs(0)
            assert job is not None
            assert job["id"].startswith("user-")
            yield


@row("A process that opens and closes its GPU repeatedly")
def giving_back(node: Node) -> Iterator[None]:
    with program(LIVES) as holder:
        before = pidfds()
        for _ in range(3):
            with node.held_by(holder):
                pass
            until(lambda: node.runs(0) is None, "its leave")
        until(lambda: pidfds() <= before, "the end of descriptors")
        yield


def pidfds() -> int:
    """Number of our descriptors of processes."""
    return sum(target == "anon_inode:[pidfd]" for _, target in descriptors())


def run_twice(node: Node) -> None:
    """A Slurm job that is requeued: the ledger writes its first run when the second one begins."""
    for restarts in range(2):
        way = ("env", "SLURM_JOB_ID=7", f"SLURM_RESTART_COUNT={restarts}")
        with node.holding(LIVES, way=way):
            pass
        until(lambda: node.runs(0) is None, "its end")
    ids = {job["id"] for job in node.jobs(0)}
    assert len([name for name in ids if name.startswith("slurm-7")]) == len(ids) == 2


@row("A Slurm job that is requeued", "a record for each run")
def requeued(node: Node) -> Iterator[None]:
    run_twice(node)
    yield


@row("Clients that do not read the list of jobs", "memory of one job for each")
def silent_clients(node: Node) -> Iterator[None]:
    now, result = time.time(), b"GET /api/v1/jobs?since=%d HTTP/1.1\r\nHost: x\r\n\r\n"
    noise = json.dumps([math.sin(n) for n in range(300)])
    documents = (f'{{"id": "{n}", "gpus": [], "noise": {noise}}}' for n in range(400))
    packed = (zlib.compress(document.encode(), 1) for document in documents)
    rows = [Row(f"{n}", "ada", now, body) for n, body in enumerate(packed)]
    with closing(Store(f"{node.file}", 1000, 1e9)) as store:
        store.write(rows, now)
    process = psutil.Process()
    before = process.memory_info().rss
    clients = [silent(node.port, result % number) for number in range(20)]
    try:
        assert [client.recv(12) for client in clients] == [b"HTTP/1.1 200"] * len(clients)
        assert process.memory_info().rss - before < 20 * 2**20
        yield
    finally:
        for client in clients:
            client.close()


@row("A full disk", "jobs are kept in memory and written once there is room")
def full_disk(node: Node) -> Iterator[None]:
    with filled(node.file.parent):
        run_twice(node)
        assert [line for line in node.log() if "cannot write jobs" in line]
        yield


@row(
    "The file of jobs is moved away",
    "earlier jobs are in the moved file; running ones are written to a new file",
)
def moved_file(node: Node) -> Iterator[None]:
    until(node.file.exists, "the file")
    node.file.rename(node.file.with_name("moved"))
    with node.holding(LIVES):
        yield
