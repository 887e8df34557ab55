"""Threads of a main that burn: beside workers they copy what these hand over, else they load."""

from __future__ import annotations

import time
from collections.abc import Collection

from gpu_bottleneck_exporter.accounting.stall import (
    CPU_QUEUE,
    HOST_CODE,
    UNKNOWN,
    WORKER_CPU,
    split,
)
from gpu_bottleneck_exporter.accounting.windows import Window
from gpu_bottleneck_exporter.sampling.watching import HostSampler
from gpu_bottleneck_exporter.settings import Settings
from support.programs import program
from support.rows import rows
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
"""On a machine with few cores, they wait for one."""


@rows(
    "code, causes",
    {
        "beside workers that rest": ("workers(locked); threads()", {HOST_CODE}),
        "beside workers that compute": ("workers(burn); threads()", BEHIND),
        "without workers": ("threads()", BEHIND),
    },
)
def test_what_a_gpu_waits_for(code: str, causes: Collection[str]) -> None:
    with program(f"{COPIES}\n{code}; ready(); locked()") as one:
        watch = HostSampler(Settings())
        watch.hold("a", frozenset({one.pid}))
        watch.start()
        found: dict[str, int] = {}

        def settled() -> bool:
            watch.note_split("a", 0, {UNKNOWN: 1})
            now_ns = time.monotonic_ns()
            did = watch.explaining("a", now_ns - 4 * SECOND, now_ns)
            if did is None or did.elapsed_ns < 3 * SECOND:
                return False
            found.clear()
            found.update(split([Window(now_ns, SECOND, 0)], 1, did))
            return max(found, key=lambda cause: found[cause]) in causes

        try:
            until(settled, lambda: f"{causes}, not {found}")
        finally:
            watch.stop()
