"""What starves a GPU on the host, and the copies to it: each cause, and what resembles it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rules.cases import Row, fleets_of, gpus, table
from rules.fleet import Gpu
from rules.series import Signal

MINUTES = 48
LATE = 37
"""Long enough for anything, the half hour of an unexplained one included."""
YOUNG = 9
"""Below every `for` of 10 minutes, however soon the evidence was there."""
UNEXPLAINED = "unexplained_low_utilization/warning"
FIRING = gpus("starving")
"""One that fires for each cause."""
NO_GATE = {"shm_exhausted", "checkpoint_stall"}
"""Told of well-used GPUs too."""
NEEDED = {
    "cpu_throttled": ("gpu_feeder_throttled_seconds_total", "cpu_oversubscribed/warning"),
    # Nothing else takes two fifths of the time.
    "worker_churn": ("gpu_feeder_worker_starts_total", UNEXPLAINED),
    "shm_exhausted": ("gpu_feeder_shm_used_bytes", "-"),
    "checkpoint_stall": ("gpu_feeder_written_bytes_total", "-"),
    "too_few_workers": ("gpu_feeder_cpus_allowed", "cpu_preprocessing_bound/warning"),
    "inline_loading": ("gpu_feeder_read_bytes_total", "host_loop_bound/warning"),
    "pcie_transfer_bound": ("gpu_pcie_receive_bytes_total", "-"),
}
"""The signal that makes each what it is, and what is said without it."""
STALLED = sorted(FIRING.keys() - NO_GATE - {"worker_churn", "pcie_transfer_bound"})
"""Those that a share of the idle time speaks for."""
Rows = Iterator[tuple[str, Row]]


def variations() -> Rows:
    """Each cause in time, on a well-used GPU, without its signal, and with little evidence."""
    for cause, gpu in FIRING.items():
        waits = 1 if cause == "shm_exhausted" else YOUNG
        yield f"{cause} fires", Row(gpu, f"{waits} ?; {cause}/warning")
        if cause not in NO_GATE:
            busy = replace(used(gpu, 0.98), sm=0.85, host_iowait_cores=12.0, disk_busy=0.95)
            yield f"{cause} well used", Row(busy)
            if cause != "pcie_transfer_bound":
                yield f"{cause} at half", Row(used(gpu, 0.55), cause)
    for cause, (family, told) in NEEDED.items():
        yield f"{cause} unseen", Row(replace(FIRING[cause], missing=family), told)
    # Two fifths of the idle time must speak for a cause; the rest is asleep here.
    for cause in STALLED:
        (on,) = FIRING[cause].stalls
        for name, share, told in (
            ("little", 0.39, UNEXPLAINED),
            ("enough", 0.41, f"{cause}/warning"),
        ):
            stalls = {on: 0.75 * share, "asleep": 0.75 * (1 - share)}
            yield f"{cause} {name}", Row(replace(FIRING[cause], stalls=stalls), told)


def used(gpu: Gpu, busy: float) -> Gpu:
    """Between half and seven tenths the cause is known, but not told; above not looked for."""
    stalls = {on: (1 - busy) * _number(part) / 0.75 for on, part in gpu.stalls.items()}
    return replace(gpu, busy=busy, sm=0.6, dram=0.5, stalls=stalls)


def _number(signal: Signal) -> float:
    assert isinstance(signal, int | float)
    return signal


def test_each_cause_is_told_where_it_matters(tmp_path: Path) -> None:
    for fleet in fleets_of(dict(variations()), MINUTES, usual={LATE}, end=LATE):
        fleet.check(tmp_path)


def test_causes_that_resemble_each_other_are_told_apart(tmp_path: Path) -> None:
    rows = table("apart", "measured")
    for fleet in fleets_of(rows, MINUTES, usual={LATE}, end=LATE):
        fleet.check(tmp_path)
