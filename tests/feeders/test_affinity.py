"""Workers that are pinned to few CPUs of their job, and others that are not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.accounting.stall import CPU_QUEUE, UNKNOWN
from gpu_bottleneck_exporter.feeders.group import Pinned, pinned_workers
from gpu_bottleneck_exporter.sampling.watching import HostSampler
from gpu_bottleneck_exporter.settings import Settings
from support.programs import program
from support.rows import rows
from support.ticks import note_split
from support.waiting import until

PROC = Path("/proc")
CPUS = sorted(os.sched_getaffinity(0))
FIRST = CPUS[0]
WORKERS = """
import json
def workers(*masks, do=locked):
    pids = []
    for mask in masks:
        pids.append(os.fork())
        if pids[-1] == 0:
            os.sched_setaffinity(0, json.loads(mask))
            do()
    ready(*pids); locked()
first, both = sys.argv[1:]
"""
needs_two = pytest.mark.skipif(len(CPUS) < 2, reason="every process is pinned to the only CPU")


@needs_two
@rows(
    "code, pinned",
    {
        "all": ("workers(*4 * [first])", 4),
        "most": ("workers(*3 * [first], both)", 3),
        "as many as CPUs": ("workers(first, both)", 0),
        "none": ("workers(*4 * [both])", 0),
        "the whole job": ("os.sched_setaffinity(0, json.loads(first)); workers(*4 * [first])", 0),
        "they inherit it from one thread of several": (
            (
                "named('other', locked); os.sched_setaffinity(0, json.loads(first))\n"
                "workers(*4 * [first])"
            ),
            4,
        ),
    },
)
def test_pinned_workers_are_more_than_their_cpus(code: str, pinned: int) -> None:
    first, both = f"[{FIRST}]", f"{CPUS[:2]}"
    with program(WORKERS + code, first, both) as process:
        pids = [int(word) for word in process.words]
        expected = Pinned(pinned, len(pids), frozenset({FIRST})) if pinned else None
        until(lambda: pinned_workers(PROC, [process.pid], pids) == expected, f"{expected}")


@rows(
    "pinned, text",
    {
        "all": (Pinned(8, 8, frozenset({0})), "all 8 workers may run on CPU 0 only"),
        "some": (
            Pinned(6, 8, frozenset({0, 1, 2, 8})),
            "6 of 8 workers may run on CPU 0-2, 8 only",
        ),
    },
)
def test_wording_of_pinned_processes(pinned: Pinned, text: str) -> None:
    assert f"{pinned}" == text


@needs_two
def test_a_gpu_that_waits_for_pinned_processes_is_reported() -> None:
    with program(f"{WORKERS}workers(*4 * [first], do=burn)", f"[{FIRST}]", "") as process:
        watch = HostSampler(Settings())
        watch.hold("a", frozenset({process.pid}))
        watch.start()
        try:

            def said() -> bool:
                note_split(watch, "a", 0, {UNKNOWN: 1})
                feeding = watch.feeding("a")
                text = f"all 4 workers may run on CPU {FIRST} only"
                return feeding is not None and (CPU_QUEUE, text) in feeding.evidence

            until(said, "what they wait for")
        finally:
            watch.stop()
