"""Threads of a main that burn: beside workers they copy what these hand over, else they load."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.accounting.bucket import Role
from gpu_bottleneck_exporter.accounting.stall import (
    CPU_QUEUE,
    HOST_CODE,
    STORAGE,
    UNKNOWN,
    WORKER_CPU,
    split,
)
from gpu_bottleneck_exporter.accounting.windows import Window
from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.feeders.tcp import AnswerTimeouts
from gpu_bottleneck_exporter.feeders.tree import ProcessTree
from gpu_bottleneck_exporter.host.cgroup import Cgroups
from gpu_bottleneck_exporter.sampling.watching import HostSampler
from gpu_bottleneck_exporter.settings import Settings
from support.programs import program
from support.rows import rows
from support.ticks import note_split, tick
from support.waiting import until

SECOND = 10**9
COPIES = """
import hashlib
data = bytes(10**8)
def workers(do):
    for _ in range(2):
        if os.fork() == 0:
            do()
def threads():
    for _ in range(3):
        named("pt_data_pin", lambda: [hashlib.md5(data) for _ in iter(int, 1)])
"""
BEHIND = {WORKER_CPU, CPU_QUEUE}
"""Causes of slow helpers, which wait for a core on a machine with few."""


@rows(
    "code, causes",
    {
        "beside workers that rest": ("workers(locked); threads()", {HOST_CODE}),
        "beside workers that compute": ("workers(burn); threads()", BEHIND),
        "without workers": ("threads()", BEHIND),
    },
)
def test_wait_of_a_gpu(code: str, causes: Collection[str]) -> None:
    with program(f"{COPIES}\n{code}; ready(); locked()") as process:
        assert_settles(process.pid, causes)


def assert_settles(pid: int, causes: Collection[str], busy: float = 0.0) -> None:
    """Await one of `causes` as its largest, in ticks with this busy share of the GPU."""
    watch = HostSampler(Settings())
    watch.hold("a", frozenset({pid}))
    watch.start()
    fields: dict[str, int] = {}

    def settled() -> bool:
        note_split(watch, "a", 0, {UNKNOWN: 1})
        now_ns = time.monotonic_ns()
        bucket = watch.explaining("a", now_ns - 4 * SECOND, now_ns)
        if bucket is None or bucket.elapsed_ns < 3 * SECOND:
            return False
        fields.clear()
        fields.update(split([Window(now_ns, SECOND, round(busy * SECOND))], 1, bucket))
        return max(fields, key=lambda cause: fields[cause]) in causes

    try:
        until(settled, lambda: f"{causes}, not {fields}")
    finally:
        watch.stop()


@rows(
    "code, awaited",
    {
        "in a lock": ("threads(); ready(); locked()", True),
        "in a timer": ("threads(); ready(); time.sleep(600)", False),
        "in a lock, and threads rest": ("named('rests', locked); ready(); locked()", False),
    },
)
def test_a_main_in_a_lock_waits_for_its_active_threads(code: str, awaited: bool) -> None:  # noqa: FBT001
    with program(f"{COPIES}\n{code}") as process:
        feed = FeederGroup(Path("/proc"), Cgroups(Path("/sys")), AnswerTimeouts(60_000))
        feed.adopt(ProcessTree({process.pid}, others={process.pid}))

        def looks() -> tuple[int, int]:
            now_ns = time.monotonic_ns()
            feed.note(tick(0, {UNKNOWN: 1}, now_ns))
            feed.sample(now_ns)
            feed.advance(now_ns)
            total = feed.history.total
            return total.awaited_threads, total.of(Role.MAIN).samples

        try:
            until(lambda: looks()[1] >= 20, "looks")
            result, samples = looks()
            assert result > samples / 2 if awaited else result == 0
        finally:
            feed.close()


POOL = """
import hashlib, mmap, random
from concurrent.futures import ThreadPoolExecutor
pool, rows = ThreadPoolExecutor(4), os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
rooms = [mmap.mmap(-1, 4096) for _ in range(4)]
def reads(room):
    end = time.monotonic() + 0.03
    while time.monotonic() < end:
        os.preadv(rows, [room], 4096 * random.randrange(4096))
def computes(room):
    end = time.thread_time() + 0.02  # however fast the machine is
    while time.thread_time() < end:
        hashlib.pbkdf2_hmac("sha256", b"", room[:16], 1_000)
def train(load):
    while True:
        for done in [pool.submit(load, room) for room in rooms]:
            done.result()
        end = time.thread_time() + 0.02  # overlaps with the GPU's work
        while time.thread_time() < end:
            pass
        time.sleep(0.04)
"""


@rows("load, causes", {"short reads": ("reads", {STORAGE}), "digests": ("computes", BEHIND)})
def test_activity_of_pool_threads_of_an_overlapping_main(
    load: str, causes: Collection[str], tmp_path: Path
) -> None:
    data = tmp_path / "rows"
    data.write_bytes(bytes(4096 * 4096))
    try:
        os.close(os.open(data, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("a file system without direct I/O")
    with program(f"{POOL}\nready(); train({load})", f"{data}") as process:
        assert_settles(process.pid, causes, busy=0.6)
