"""What starves a GPU on the host, and the copies to it: each cause, and what resembles it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rules.fleet import Fleet, Gpu, Labels, Signal, add_gpu, nodes, told_of

pytestmark = pytest.mark.timeout(300)  # 15 s at most, but for a machine with much else to do

MINUTES = 48
LATE = 37
"""Long enough for anything, the half hour of an unexplained one included."""
YOUNG = 9
"""Below every `for` of 10 minutes, however soon the evidence was there."""
UNEXPLAINED = ("GpuUnexplainedLowUtilization/warning",)

Checks = Mapping[float, tuple[str, ...]]
"""Exactly what fires, by minute."""


@dataclass(frozen=True, slots=True)
class Case:
    """What a GPU and its host do, and what is to be said of it."""

    name: str
    gpu: Gpu
    cause: str | None
    alerts: tuple[str, ...] = ()
    at: float = LATE
    earlier: Checks | None = None


def starved(stalls: Mapping[str, Signal], **rest: Any) -> Gpu:  # noqa: ANN401 - fields of Gpu
    """A GPU that works a quarter of the time unless told otherwise."""
    return Gpu(**{"busy": 0.25, "sm": 0.2, "dram": 0.1, "stalls": stalls, **rest})


SATURATED: dict[str, Any] = {"workers": 8, "worker_cpu": 7.8, "main_cpu": 0.1, "cpus_allowed": 8}
"""As many workers as the job has cores."""
QUOTA: dict[str, Any] = {"workers": 4, "worker_cpu": 1.9, "main_cpu": 0.1, "cpu_limit_cores": 2.0}
"""Two cores are used; `throttled` 2 is a loss of a half."""
WRITING: dict[str, Any] = {"main_written_bytes": 2e8, "worker_read_bytes": 1e6, "disk_busy": 0.6}
COPYING: dict[str, Any] = {
    "busy": 0.6,
    "sm": 0.35,
    "dram": 0.5,
    "stalls": {"asleep": 0.4},
    "pcie_bytes": 2.1e10,
}
"""23 GB/s both ways: half of what PCIe 5 x16 carries in healthy copies is 22."""
INLINE: dict[str, Any] = {"workers": None, "main_cpu": 0.9, "main_read_bytes": 5e6}

# One that fires for each cause; most of what follows are variations of these.
FIRING = {
    "cpu_throttled": starved({"cpu_quota": 0.75}, throttled=2.0, **QUOTA),
    "worker_churn": starved(
        {"host_code": 0.25, "worker_cpu": 0.2, "asleep": 0.3}, worker_starts=0.1
    ),
    "shm_exhausted": Gpu(shm_used=0.95),
    "checkpoint_stall": Gpu(busy=0.7, stalls={"storage": 0.25, "asleep": 0.05}, **WRITING),
    "page_cache_thrash": starved({"memory": 0.75}, worker_read_bytes=8e8, disk_busy=0.9),
    "local_storage_bound": starved({"storage": 0.75}, disk_busy=0.9),
    "network_storage_bound": starved({"network": 0.75}, network_bytes=5e7),
    "cpu_oversubscribed": starved(
        {"cpu_queue": 0.75}, workers=64, worker_cpu=30.0, host_busy_cores=32.0
    ),
    "too_few_workers": starved({"worker_cpu": 0.75}, workers=2, worker_cpu=1.98, main_cpu=0.1),
    "cpu_preprocessing_bound": starved({"worker_cpu": 0.75}, host_busy_cores=30.0, **SATURATED),
    "inline_loading": starved({"host_code": 0.75}, **INLINE),
    "host_loop_bound": starved({"host_code": 0.75}),
    "pcie_transfer_bound": Gpu(**COPYING),
}
NO_GATE = {"shm_exhausted", "checkpoint_stall"}
"""Told of well-used GPUs too."""
NEEDED = {
    "cpu_throttled": ("gpu_feeder_throttled_seconds_total", "cpu_oversubscribed"),
    "worker_churn": ("gpu_feeder_worker_starts_total", None),
    "shm_exhausted": ("gpu_feeder_shm_used_bytes", None),
    "checkpoint_stall": ("gpu_feeder_written_bytes_total", None),
    "too_few_workers": ("gpu_feeder_cpus_allowed", "cpu_preprocessing_bound"),
    "inline_loading": ("gpu_feeder_read_bytes_total", "host_loop_bound"),
    "pcie_transfer_bound": ("gpu_pcie_receive_bytes_total", None),
}
"""The signal that makes each what it is, and what is said without it."""
STALLED = sorted(FIRING.keys() - NO_GATE - {"worker_churn", "pcie_transfer_bound"})
"""Those that a share of the idle time speaks for."""


def alert(cause: str, severity: str = "warning") -> tuple[str, ...]:
    return ("Gpu" + "".join(word.capitalize() for word in cause.split("_")) + "/" + severity,)


def steady() -> Iterable[Case]:
    """Each fires after its time, and not before; a restart and a gap change nothing."""
    for cause, gpu in FIRING.items():
        fires = alert(cause)
        waits = {1.0: ()} if cause == "shm_exhausted" else {float(YOUNG): ()}
        yield Case(f"{cause} fires", gpu, cause, fires, earlier=waits)
        disturbed = replace(gpu, reset_at=18, gap=(26, 30))
        throughout = dict.fromkeys((17.0, 19.0, 21.0, 24.0, 28.0, 31.0), fires)
        yield Case(f"{cause} disturbed", disturbed, cause, fires, earlier=throughout)


def well_used() -> Iterable[Case]:
    """The same host beside a GPU that works: silence."""
    for cause, gpu in FIRING.items():
        if cause not in NO_GATE:
            stalls = {on: 0.02 * _number(part) / 0.75 for on, part in gpu.stalls.items()}
            busy = replace(gpu, busy=0.98, sm=0.85, dram=0.5, stalls=stalls, host_iowait_cores=12.0)
            yield Case(f"{cause} well used", replace(busy, disk_busy=0.95), None)


def little_evidence() -> Iterable[Case]:
    """Two fifths of the idle time must speak for a cause; the rest is asleep here."""
    for cause in STALLED:
        gpu = FIRING[cause]
        (on,) = gpu.stalls
        short = replace(gpu, stalls={on: 0.75 * 0.39, "asleep": 0.75 * 0.61})
        yield Case(f"{cause} little", short, "unexplained_low_utilization", UNEXPLAINED)
        enough = replace(gpu, stalls={on: 0.75 * 0.41, "asleep": 0.75 * 0.59})
        yield Case(f"{cause} enough", enough, cause, alert(cause))


def hardly_underused() -> Iterable[Case]:
    """Between half and seven tenths the cause is known, but not told; above not looked for."""
    for cause, gpu in FIRING.items():
        if cause not in NO_GATE and cause != "pcie_transfer_bound":
            yield Case(f"{cause} at half", _used(gpu, 0.55), cause)
    cause = "cpu_preprocessing_bound"
    yield Case("starved just below half", _used(FIRING[cause], 0.48), cause, alert(cause))
    yield Case("starved just below seven tenths", _used(FIRING[cause], 0.68), cause)
    yield Case("starved at seven tenths", _used(FIRING[cause], 0.72), None)


def _used(gpu: Gpu, busy: float) -> Gpu:
    stalls = {on: (1 - busy) * _number(part) / 0.75 for on, part in gpu.stalls.items()}
    return replace(gpu, busy=busy, sm=0.6, dram=0.5, stalls=stalls)


def without_signal() -> Iterable[Case]:
    for cause, (family, instead) in NEEDED.items():
        gpu = replace(FIRING[cause], missing=frozenset({family}))
        if instead:
            yield Case(f"{cause} unseen", gpu, instead, alert(instead))
        elif cause == "worker_churn":
            # Nothing else takes two fifths of the time.
            yield Case(f"{cause} unseen", gpu, "unexplained_low_utilization", UNEXPLAINED)
        else:
            yield Case(f"{cause} unseen", gpu, None)


def _number(signal: Signal) -> float:
    assert isinstance(signal, int | float)
    return signal


JOB = {"slurm_job_id": "7"}
GROUP: dict[str, Any] = {"busy": 0.98, "sm": 0.25, "dram": 0.5, "nvlink_bytes": None, "owner": JOB}
PREP = FIRING["cpu_preprocessing_bound"]
FEW = FIRING["too_few_workers"]
LOOP = FIRING["host_loop_bound"]
DISK = FIRING["local_storage_bound"]


def starving_between(start: int, end: int) -> Gpu:
    """Well used before and after."""
    busy = ((start, 0.98), (end - start, 0.25), (MINUTES, 0.98))
    idle = [(length, 1 - share) for length, share in busy]
    return replace(PREP, busy=busy, sm=busy, dram=0.5, stalls={"worker_cpu": idle})


APART = (
    # cpu_throttled: lost time over lost and used, a tenth and a quarter of it.
    Case(
        "throttled a quarter",
        starved({"cpu_quota": 0.75}, throttled=0.68, **QUOTA),
        "cpu_throttled",
        alert("cpu_throttled"),
    ),
    Case(
        "throttled less than a quarter",
        starved({"cpu_quota": 0.75}, throttled=0.64, **QUOTA),
        "cpu_throttled",
        alert("cpu_throttled", "info"),
    ),
    Case(
        "throttled a tenth",
        starved({"worker_cpu": 0.75}, throttled=0.23, **QUOTA),
        "cpu_throttled",
        alert("cpu_throttled", "info"),
    ),
    Case(
        "throttled less than a tenth",
        starved({"worker_cpu": 0.75}, throttled=0.21, **QUOTA),
        "cpu_preprocessing_bound",
        alert("cpu_preprocessing_bound"),
    ),
    Case(
        "throttled with the disk as the reason",
        starved({"storage": 0.75}, throttled=2.0, disk_busy=0.9, **QUOTA),
        "local_storage_bound",
        alert("local_storage_bound"),
    ),
    Case(
        "throttled and churning",
        starved({"cpu_quota": 0.75}, throttled=2.0, worker_starts=0.1, **QUOTA),
        "cpu_throttled",
        alert("cpu_throttled"),
    ),
    Case(
        "throttled rank that reports nothing of its CPU",
        replace(FIRING["cpu_throttled"], missing=frozenset({"gpu_feeder_cpu_seconds_total"})),
        "cpu_oversubscribed",
        alert("cpu_oversubscribed"),
    ),
    # worker_churn: five generations of four workers in ten minutes are 20 starts.
    Case(
        "churn of five generations",
        starved({"worker_cpu": 0.75}, worker_starts=21 / 600),
        "worker_churn",
        alert("worker_churn"),
    ),
    Case(
        "churn of fewer",
        starved({"worker_cpu": 0.75}, worker_starts=19 / 600),
        "cpu_preprocessing_bound",
        alert("cpu_preprocessing_bound"),
    ),
    Case(
        "churn that the network outlasts",
        starved({"network": 0.75}, worker_starts=0.1),
        "network_storage_bound",
        alert("network_storage_bound"),
    ),
    Case(
        "churn and little shared memory",
        starved({"worker_cpu": 0.75}, worker_starts=0.1, shm_used=0.95),
        "worker_churn",
        (*alert("shm_exhausted"), *alert("worker_churn")),
    ),
    # shm_exhausted: not gated by use; the default size alone is for information.
    Case("shm nearly nine tenths", Gpu(shm_used=0.89), None),
    Case(
        "shm just nine tenths",
        Gpu(shm_used=0.91),
        "shm_exhausted",
        alert("shm_exhausted"),
        earlier={1: (), 4: alert("shm_exhausted")},
    ),
    Case(
        "shm small",
        Gpu(shm_size_bytes=67108864, shm_used=0.51),
        None,
        alert("shm_exhausted", "info"),
        earlier={9: ()},
    ),
    Case(
        "shm small after a restart",
        Gpu(shm_size_bytes=67108864, shm_used=0.6, reset_at=30),
        None,
        alert("shm_exhausted", "info"),
        earlier={31: alert("shm_exhausted", "info")},
    ),
    Case(
        "shm small in a gap",
        Gpu(shm_size_bytes=67108864, shm_used=0.6, gap=(30, 34)),
        None,
        alert("shm_exhausted", "info"),
        earlier={33: alert("shm_exhausted", "info"), 36: alert("shm_exhausted", "info")},
    ),
    Case("shm small and less than half used", Gpu(shm_size_bytes=67108864, shm_used=0.49), None),
    Case(
        "shm small, and half used but for a while",
        Gpu(shm_size_bytes=67108864, shm_used=[(10, 0.2), (5, 0.6), (99, 0.2)]),
        None,
        alert("shm_exhausted", "info"),
        earlier={9: (), 36: alert("shm_exhausted", "info")},
    ),
    Case("shm larger", Gpu(shm_size_bytes=67108865, shm_used=0.6), None),
    Case(
        "shm small without workers",
        Gpu(shm_size_bytes=67108864, shm_used=0.6, workers=None),
        None,
    ),
    Case(
        "shm small and full",
        Gpu(shm_size_bytes=67108864, shm_used=0.95),
        "shm_exhausted",
        alert("shm_exhausted"),
    ),
    Case("shm unseen", Gpu(shm_size_bytes=None), None),
    Case(
        "shm of nobody",
        Gpu(processes=0, shm_used=0.95, stalls={"unallocated": 1.0}, busy=0.0, sm=0.0),
        None,
    ),
    Case(
        "shm full and too few workers",
        replace(FEW, shm_used=0.95),
        "shm_exhausted",
        alert("shm_exhausted"),
    ),
    # checkpoint_stall: 5 and 15 % of all time, as a mean of 30 minutes.
    Case(
        "checkpoints of a sixth",
        Gpu(busy=0.8, stalls={"storage": 0.16, "asleep": 0.04}, **WRITING),
        "checkpoint_stall",
        alert("checkpoint_stall"),
    ),
    Case(
        "checkpoints of a seventh",
        Gpu(busy=0.8, stalls={"storage": 0.14, "asleep": 0.06}, **WRITING),
        "checkpoint_stall",
        alert("checkpoint_stall", "info"),
        earlier={9: ()},
    ),
    Case(
        "checkpoints of a twentieth",
        Gpu(busy=0.93, stalls={"storage": 0.055, "asleep": 0.015}, **WRITING),
        "checkpoint_stall",
        alert("checkpoint_stall", "info"),
    ),
    Case(
        "checkpoints of less",
        Gpu(busy=0.94, stalls={"storage": 0.045, "asleep": 0.015}, **WRITING),
        None,
    ),
    Case(
        "checkpoints of a twentieth after a restart",
        Gpu(busy=0.93, stalls={"storage": 0.055, "asleep": 0.015}, reset_at=30, **WRITING),
        "checkpoint_stall",
        alert("checkpoint_stall", "info"),
        earlier={31: alert("checkpoint_stall", "info")},
    ),
    # A minute in eight: nothing of it in most 5-minute windows, all of it in 30.
    Case(
        "checkpoints every eight minutes",
        Gpu(
            busy=[(7, 0.97), (1, 0.05)] * 7,
            stalls={"storage": [(7, 0.0), (1, 0.95)] * 7, "asleep": [(7, 0.03), (1, 0.0)] * 7},
            main_written_bytes=[(7, 1e4), (1, 2e8)] * 7,
            worker_read_bytes=1e6,
        ),
        "checkpoint_stall",
        alert("checkpoint_stall", "info"),
    ),
    Case(
        "checkpoints written meanwhile", Gpu(busy=0.98, stalls={"storage": 0.02}, **WRITING), None
    ),
    Case(
        "checkpoints that are read more than written",
        starved({"storage": 0.75}, main_written_bytes=2e8, worker_read_bytes=1.1e8, disk_busy=0.9),
        "local_storage_bound",
        alert("local_storage_bound"),
    ),
    Case(
        "checkpoints that are written twice as much",
        starved({"storage": 0.75}, main_written_bytes=2e8, worker_read_bytes=9e7, disk_busy=0.9),
        "checkpoint_stall",
        alert("checkpoint_stall"),
    ),
    # 50 MB/s while it waits: .75 of that over all time.
    Case(
        "checkpoints as slow as logs",
        starved({"storage": 0.75}, main_written_bytes=3.7e7, worker_read_bytes=0.0, disk_busy=0.9),
        "local_storage_bound",
        alert("local_storage_bound"),
    ),
    Case(
        "checkpoints faster than logs",
        starved({"storage": 0.75}, main_written_bytes=3.8e7, worker_read_bytes=0.0, disk_busy=0.9),
        "checkpoint_stall",
        alert("checkpoint_stall"),
    ),
    Case(
        "checkpoints as usual and too few workers",
        starved(
            {"worker_cpu": 0.68, "storage": 0.07},
            **{**WRITING, "workers": 2, "worker_cpu": 1.98, "main_cpu": 0.1},
        ),
        "too_few_workers",
        alert("too_few_workers"),
    ),
    Case(
        "checkpoint once and too few workers",
        replace(
            FEW,
            stalls={
                "storage": [(5, 0.0), (3, 0.75), (35, 0.0)],
                "worker_cpu": [(5, 0.75), (3, 0.0), (35, 0.75)],
            },
            main_written_bytes=[(5, 1e4), (3, 1e9), (35, 1e4)],
            worker_read_bytes=1e6,
        ),
        "too_few_workers",
        alert("too_few_workers"),
        earlier={24: alert("too_few_workers")},
    ),
    Case(
        "checkpoints unseen",
        starved({"storage": 0.75}, missing=frozenset({"gpu_feeder_read_bytes_total"}), **WRITING),
        "local_storage_bound",
        alert("local_storage_bound"),
    ),
    # page_cache_thrash and its neighbour, the disk.
    Case(
        "thrash and disk",
        starved({"memory": 0.35, "storage": 0.4}, disk_busy=0.9),
        "page_cache_thrash",
        alert("page_cache_thrash"),
    ),
    Case(
        "thrash and churn",
        starved({"memory": 0.34, "storage": 0.41}, disk_busy=0.9, worker_starts=0.1),
        "worker_churn",
        alert("worker_churn"),
    ),
    # local and network storage: whether a disk of the host is busy.
    Case(
        "disk half busy",
        replace(DISK, disk_busy=0.51),
        "local_storage_bound",
        alert("local_storage_bound"),
    ),
    Case(
        "disk less than half busy",
        replace(DISK, disk_busy=0.49),
        "network_storage_bound",
        alert("network_storage_bound"),
    ),
    Case(
        "disk unseen",
        replace(DISK, disk_busy=None),
        "local_storage_bound",
        alert("local_storage_bound"),
    ),
    Case(
        "network beside a busy disk",
        starved({"network": 0.75}, disk_busy=0.95, host_iowait_cores=12.0),
        "network_storage_bound",
        alert("network_storage_bound"),
    ),
    Case(
        "network without disks",
        starved({"network": 0.75}, disk_busy=None),
        "network_storage_bound",
        alert("network_storage_bound"),
    ),
    Case(
        "network file system and sockets",
        starved({"network": 0.2, "storage": 0.2, "asleep": 0.35}),
        "network_storage_bound",
        alert("network_storage_bound"),
    ),
    Case(
        "network file system, restarted",
        starved({"storage": 0.75}, reset_at=30),
        "network_storage_bound",
        alert("network_storage_bound"),
        earlier={9: (), 31: alert("network_storage_bound")},
    ),
    Case(
        "network file system, well used",
        Gpu(busy=0.98, stalls={"storage": 0.02}, host_iowait_cores=12.0),
        None,
    ),
    Case(
        "network waits that the kernel does not tell",
        starved({"unknown": 0.75}, network_bytes=5e7),
        "unexplained_low_utilization",
        UNEXPLAINED,
    ),
    Case(
        "disk and crowded CPUs",
        starved({"storage": 0.35, "cpu_queue": 0.4}, disk_busy=0.9),
        "local_storage_bound",
        alert("local_storage_bound"),
    ),
    # A server: its requests, or what holds up the answers, whichever takes more of the time.
    Case(
        "disk beside few requests",
        starved({"storage": 0.39, "requests": 0.36}, disk_busy=0.9),
        "local_storage_bound",
        alert("local_storage_bound"),
    ),
    Case(
        "few requests beside a disk",
        starved({"storage": 0.22, "requests": 0.53}, disk_busy=0.9),
        "waits_for_requests",
        alert("waits_for_requests", "info"),
        earlier={29: ()},
    ),
    # CPU causes: queue before saturation, free cores before none.
    Case(
        "queue and saturated workers",
        starved({"cpu_queue": 0.36, "worker_cpu": 0.39}, workers=2, worker_cpu=1.98),
        "cpu_oversubscribed",
        alert("cpu_oversubscribed"),
    ),
    Case(
        "few workers just not saturated",
        replace(FEW, worker_cpu=1.58),
        "cpu_preprocessing_bound",
        alert("cpu_preprocessing_bound"),
    ),
    Case(
        "few workers just saturated",
        replace(FEW, worker_cpu=1.62),
        "too_few_workers",
        alert("too_few_workers"),
    ),
    Case(
        "few workers on a host that is not idle",
        replace(FEW, host_busy_cores=22.7),
        "cpu_preprocessing_bound",
        alert("cpu_preprocessing_bound"),
    ),
    Case(
        "few workers on a host just idle enough",
        replace(FEW, host_busy_cores=22.1),
        "too_few_workers",
        alert("too_few_workers"),
    ),
    Case(
        "few workers in a quota with room",
        replace(FEW, cpu_limit_cores=2.9),
        "too_few_workers",
        alert("too_few_workers"),
    ),
    Case(
        "few workers in a quota without",
        replace(FEW, cpu_limit_cores=2.8),
        "cpu_preprocessing_bound",
        alert("cpu_preprocessing_bound"),
    ),
    Case(
        "few workers in a full CPU set of an idle host",
        replace(FEW, cpus_allowed=2),
        "cpu_preprocessing_bound",
        alert("cpu_preprocessing_bound"),
    ),
    Case(
        "few workers on a host unseen",
        replace(FEW, host_cpus=None),
        "cpu_preprocessing_bound",
        alert("cpu_preprocessing_bound"),
    ),
    Case(
        "threads that load instead of workers",
        starved({"worker_cpu": 0.75}, workers=None, main_cpu=6.0),
        "cpu_preprocessing_bound",
        alert("cpu_preprocessing_bound"),
    ),
    Case(
        "saturated workers and copies",
        replace(PREP, pcie_bytes=2.2e10),
        "cpu_preprocessing_bound",
        alert("cpu_preprocessing_bound"),
    ),
    # Main process: what it reads, and whether it has workers.
    Case(
        "inline that reads just enough",
        starved({"host_code": 0.75}, **{**INLINE, "main_read_bytes": 1.1e6}),
        "inline_loading",
        alert("inline_loading"),
    ),
    Case(
        "inline that reads from memory",
        starved({"host_code": 0.75}, **{**INLINE, "main_read_bytes": 9e5}),
        "host_loop_bound",
        alert("host_loop_bound"),
    ),
    Case(
        "inline beside a worker",
        starved({"host_code": 0.75}, **{**INLINE, "workers": 1}),
        "host_loop_bound",
        alert("host_loop_bound"),
    ),
    Case(
        "inline that waits for the disk in part",
        starved({"host_code": 0.5, "storage": 0.25}, disk_busy=0.9, **INLINE),
        "inline_loading",
        alert("inline_loading"),
    ),
    Case(
        "inline that waits for the disk",
        starved({"storage": 0.7, "host_code": 0.05}, disk_busy=0.9, **INLINE),
        "local_storage_bound",
        alert("local_storage_bound"),
    ),
    Case(
        "inline of an unknown number of workers",
        replace(FIRING["inline_loading"], missing=frozenset({"gpu_feeder_processes"})),
        "host_loop_bound",
        alert("host_loop_bound"),
    ),
    Case(
        "loop beside a busy disk",
        replace(LOOP, disk_busy=0.95, host_iowait_cores=12.0),
        "host_loop_bound",
        alert("host_loop_bound"),
    ),
    Case("loop that spins while the GPU works", Gpu(main_cpu=1.0, workers=None), None),
    # Copies: half of the healthy rate; for information 1 GB/s.
    Case("copies just too few", Gpu(**{**COPYING, "pcie_bytes": 1.9e10}), None),
    Case("copies with SMs at work", Gpu(**{**COPYING, "sm": 0.51}), None),
    Case(
        "copies judged by power",
        Gpu(**{**COPYING, "sm": None, "power_watts": 250.0}),
        "pcie_transfer_bound",
        alert("pcie_transfer_bound"),
    ),
    Case("copies at high power", Gpu(**{**COPYING, "sm": None, "power_watts": 300.0}), None),
    Case(
        "copies over a link unseen",
        Gpu(missing=frozenset({"gpu_pcie_link_width"}), **COPYING),
        None,
    ),
    Case(
        "copies over half a link",
        Gpu(**{**COPYING, "pcie_bytes": 1.05e10, "link_width": 8}),
        "pcie_transfer_bound",
        (*alert("pcie_link_degraded"), *alert("pcie_transfer_bound")),
    ),
    Case(
        "copies and a busy loop",
        starved({"host_code": 0.75}, pcie_bytes=2.1e10),
        "pcie_transfer_bound",
        alert("pcie_transfer_bound"),
    ),
    Case(
        "copies, some",
        starved({"asleep": 0.75}, pcie_bytes=1e9),
        "pcie_transfer_bound",
        alert("pcie_transfer_bound", "info"),
        earlier={9: ()},
    ),
    Case(
        "copies, some, restarted",
        starved({"asleep": 0.75}, pcie_bytes=1e9, reset_at=30),
        "pcie_transfer_bound",
        alert("pcie_transfer_bound", "info"),
        earlier={31: alert("pcie_transfer_bound", "info")},
    ),
    Case(
        "copies, hardly",
        starved({"asleep": 0.75}, pcie_bytes=9e8),
        "unexplained_low_utilization",
        UNEXPLAINED,
    ),
    Case(
        "copies, some, and a busy loop",
        starved({"host_code": 0.75}, pcie_bytes=1e9),
        "host_loop_bound",
        alert("host_loop_bound"),
    ),
    Case(
        "copies, some, on a host unseen",
        starved({"unknown": 0.75}, pcie_bytes=1e9),
        "unexplained_low_utilization",
        UNEXPLAINED,
    ),
    Case(
        "gradients over PCIe, one",
        Gpu(pcie_bytes=2.2e10, pipes={"tensor": 0.1}, **GROUP),
        "communication_bound",
        ("GpuCommunicationBound/info",),
    ),
    Case(
        "gradients over PCIe, other",
        Gpu(pcie_bytes=2.2e10, pipes={"tensor": 0.1}, **GROUP),
        "communication_bound",
        ("GpuCommunicationBound/info",),
    ),
    # What holds for all of them.
    Case("young", replace(PREP, age_seconds=300), None),
    # Without the job's age it counts as warm, and its time begins, ten minutes later.
    Case("feeders unseen", starved({}, feeders=False), "unexplained_low_utilization"),
    Case("healthy", Gpu(), None, earlier=dict.fromkeys(range(1, 38, 6), ())),
    Case("healthy restarted", Gpu(reset_at=30), None, earlier=dict.fromkeys((31, 33, 36, 41), ())),
    Case("healthy gap", Gpu(gap=(30, 34)), None, earlier=dict.fromkeys((31, 33, 36, 41), ())),
    Case(
        "a slow epoch of eight minutes",
        starving_between(10, 18),
        None,
        earlier=dict.fromkeys((12, 16, 20, 24, 28, 32), ()),
    ),
    # Its `for` begins once ten minutes' mean is below a half, 7 minutes later. It is told for 20
    # minutes more, as the next phase of the work may starve again.
    Case(
        "late and over",
        starving_between(6, 20),
        None,
        earlier={
            18: (),
            20: (),
            25: alert("cpu_preprocessing_bound"),
            37: alert("cpu_preprocessing_bound"),
        },
        at=47,
    ),
    Case(
        "a gap longer than the windows",
        replace(PREP, gap=(18, 26)),
        "cpu_preprocessing_bound",
        alert("cpu_preprocessing_bound"),
        earlier={minute: alert("cpu_preprocessing_bound") for minute in (17, 22, 25, 27, 30, 36)},
    ),
)

# What a real loader did on two CPUs (CAUSES: measured host signatures). Shares as measured there;
# of the main process's idle time, what it ran itself is host code, the rest is whatever most of
# its workers did (asleep: they had batches ready).
TWO_CPUS: dict[str, Any] = {"host_cpus": 2, "cpus_allowed": 2}


def measured(  # noqa: PLR0913 - the columns of the table
    busy: float,
    stalls: Mapping[str, float],
    *,
    workers: int,
    cpu: float,
    main: float,
    idle: float,
    iowait: float = 0.0,
    **rest: Any,  # noqa: ANN401 - fields of Gpu
) -> Gpu:
    """`cpu` of each worker, `idle` and `iowait` of the host; what is left of the time sleeps."""
    asleep = round(1 - busy - sum(stalls.values()), 6)
    return Gpu(
        **{
            "busy": busy,
            "sm": 0.85 * busy,
            "stalls": {**stalls, "asleep": asleep},
            "workers": workers or None,
            "worker_cpu": workers * cpu,
            "main_cpu": main,
            "host_busy_cores": 2 * (1 - idle - iowait),
            "host_iowait_cores": 2 * iowait,
            **TWO_CPUS,
            **rest,
        }
    )


MEASURED: tuple[tuple[str, Gpu, str | None], ...] = (
    (
        "healthy, 2 workers",
        measured(0.99, {}, workers=2, cpu=0.01, main=0.01, idle=0.93),
        None,
    ),
    (
        "prep, 0 workers",
        measured(0.13, {"host_code": 0.87}, workers=0, cpu=0, main=0.87, idle=0.54),
        "host_loop_bound",
    ),
    (
        "prep, 1 worker",
        measured(
            0.15, {"host_code": 0.03, "worker_cpu": 0.82}, workers=1, cpu=1.0, main=0.03, idle=0.44
        ),
        "too_few_workers",
    ),
    (
        "prep, 2 workers = cores",
        measured(
            0.26, {"host_code": 0.05, "worker_cpu": 0.69}, workers=2, cpu=0.92, main=0.05, idle=0.01
        ),
        "cpu_preprocessing_bound",
    ),
    (
        "prep, 6 workers on 2 cores",
        measured(0.32, {"cpu_queue": 0.68}, workers=6, cpu=0.31, main=0.04, idle=0.0),
        "cpu_oversubscribed",
    ),
    (
        "direct disk reads, 1",
        measured(
            0.12,
            {"host_code": 0.03, "storage": 0.85},
            workers=1,
            cpu=0.23,
            main=0.03,
            idle=0.47,
            iowait=0.36,
            disk_busy=0.81,
        ),
        "local_storage_bound",
    ),
    (
        "direct disk reads, 4",
        measured(
            0.13,
            {"host_code": 0.03, "storage": 0.84},
            workers=4,
            cpu=0.05,
            main=0.03,
            idle=0.01,
            iowait=0.33,
            disk_busy=0.94,
        ),
        "local_storage_bound",
    ),
    (
        "socket fetch, 2",
        measured(0.03, {"network": 0.97}, workers=2, cpu=0.01, main=0.01, idle=0.91),
        "network_storage_bound",
    ),
    (
        "socket fetch, 8",
        measured(
            0.12,
            {"host_code": 0.03, "network": 0.85},
            workers=8,
            cpu=0.01,
            main=0.03,
            idle=0.74,
            iowait=0.05,
        ),
        "network_storage_bound",
    ),
    (
        "slow main loop",
        measured(0.09, {"host_code": 0.91}, workers=2, cpu=0.01, main=0.91, idle=0.51),
        "host_loop_bound",
    ),
    (
        "quota 0.6 core, 4 workers",
        measured(
            0.30,
            {"cpu_quota": 0.70},
            workers=4,
            cpu=0.15,
            main=0.01,
            idle=0.67,
            cpu_limit_cores=0.6,
            throttled=0.61 * 0.70 / 0.30,
        ),
        "cpu_throttled",
    ),
    # Its loss is given as .10, rounded.
    (
        "quota 1.7 of 2 cores",
        measured(
            0.06,
            {"host_code": 0.04, "worker_cpu": 0.90},
            workers=2,
            cpu=0.83,
            main=0.04,
            idle=0.10,
            cpu_limit_cores=1.7,
            throttled=1.70 * 0.104 / 0.896,
        ),
        "cpu_throttled",
    ),
    (
        "2 GB data, 0.9 GB memory limit",
        measured(
            0.14,
            {"host_code": 0.08, "memory": 0.78},
            workers=4,
            cpu=0.22,
            main=0.08,
            idle=0.01,
            iowait=0.43,
            worker_read_bytes=7.86e8,
            disk_busy=0.9,
        ),
        "page_cache_thrash",
    ),
    (
        "workers respawned every epoch",
        measured(
            0.45,
            {"host_code": 0.20, "worker_cpu": 0.14},
            workers=4,
            cpu=0.25,
            main=0.20,
            idle=0.26,
            worker_starts=79 / 12,
        ),
        "worker_churn",
    ),
    (
        "sync checkpoint, 512 MB each",
        measured(
            0.34,
            {"host_code": 0.02, "storage": 0.28},
            workers=2,
            cpu=0.02,
            main=0.02,
            idle=0.47,
            iowait=0.15,
            main_written_bytes=4.99e8,
            worker_read_bytes=0.0,
            disk_busy=0.5,
        ),
        "checkpoint_stall",
    ),
    (
        "6 CPU hogs beside 2 workers",
        measured(0.36, {"cpu_queue": 0.64}, workers=2, cpu=0.24, main=0.02, idle=0.0),
        "cpu_oversubscribed",
    ),
    (
        "busy host, GPU fine",
        measured(0.98, {}, workers=2, cpu=0.06, main=0.0, idle=0.23, iowait=0.08, disk_busy=0.9),
        None,
    ),
    (
        "disk neighbour, GPU fine",
        measured(0.99, {}, workers=2, cpu=0.0, main=0.01, idle=0.35, iowait=0.40, disk_busy=0.95),
        None,
    ),
    (
        "disk + heavy prep",
        measured(
            0.11,
            {"host_code": 0.03, "worker_cpu": 0.72, "storage": 0.14},
            workers=2,
            cpu=0.74,
            main=0.03,
            idle=0.05,
            iowait=0.16,
            disk_busy=0.9,
        ),
        "cpu_preprocessing_bound",
    ),
    (
        "disk + light prep",
        measured(
            0.33,
            {"host_code": 0.10, "worker_cpu": 0.22, "storage": 0.35},
            workers=2,
            cpu=0.28,
            main=0.10,
            idle=0.20,
            iowait=0.41,
            disk_busy=0.9,
        ),
        "local_storage_bound",
    ),
    (
        "slow main loop + disk neighbour",
        measured(
            0.09,
            {"host_code": 0.90},
            workers=2,
            cpu=0.01,
            main=0.90,
            idle=0.04,
            iowait=0.30,
            disk_busy=0.95,
        ),
        "host_loop_bound",
    ),
    (
        "everything asleep",
        Gpu(
            busy=[(8, 0.9), (31, 0.0)],
            sm=[(8, 0.8), (31, 0.0)],
            workers=2,
            worker_cpu=0.0,
            worker_read_bytes=0.0,
            network_bytes=0.0,
            main_cpu=0.0,
            **TWO_CPUS,
        ),
        "job_stalled",
    ),
)


def judge(cases: Iterable[Case], folder: Path) -> None:
    """Put all to promtool at once; what it says of a failure names the case as the instance.

    Those of which something is asked in the end only are evaluated half as often.
    """
    every, seldom = (Fleet(MINUTES, evaluation_interval=time) for time in ("1m", "2m"))
    seen: set[str] = set()
    for case in cases:
        (node,) = nodes([case.name])
        assert node not in seen, f"two cases are named {case.name}"
        seen.add(node)
        fleet = every if case.earlier or case.gpu.gap else seldom
        add_gpu(fleet, node, case.gpu)
        fleet.expect_cause(node, case.at, case.cause)
        for minute, alerts in {**(case.earlier or {}), case.at: case.alerts}.items():
            fleet.expect_firing(node, minute, *alerts)
    for fleet in (every, seldom):
        fleet.check(folder)


def test_each_cause_fires_in_time_and_survives_restarts_and_gaps(tmp_path: Path) -> None:
    judge(steady(), tmp_path)


def test_used_gpus_and_little_evidence_stay_silent(tmp_path: Path) -> None:
    judge((*well_used(), *hardly_underused(), *little_evidence(), *without_signal()), tmp_path)


def test_causes_that_resemble_each_other_are_told_apart(tmp_path: Path) -> None:
    judge(APART, tmp_path)


def test_measured_loaders_get_their_labels(tmp_path: Path) -> None:
    fleet = Fleet(MINUTES)
    names = nodes(name for name, _, _ in MEASURED)
    for node, (_, gpu, cause) in zip(names, MEASURED, strict=True):
        add_gpu(fleet, node, gpu)
        fleet.expect_cause(node, LATE, cause)
        quota = node == "quota-1.7-of-2-cores"
        alerts = alert(cause, "info" if quota else "warning") if cause else ()
        fleet.expect_firing(node, LATE, *alerts)
    fleet.check(tmp_path)


def test_only_the_guilty_gpu_of_a_node_is_named(tmp_path: Path) -> None:
    fleet = Fleet(20)
    add_gpu(fleet, "pair", PREP)
    add_gpu(fleet, "pair", Gpu(), index=1)
    fleet.expect_firing("pair", 18, *alert("cpu_preprocessing_bound"))
    named = 'ALERTS{alertstate="firing",instance="pair"}'
    fleet.expect(18, f"count by (gpu) ({named})", {'{gpu="0"}': 1.0})
    fleet.check(tmp_path)


def labels_of(node: str, cause: str, severity: str, owner: Labels) -> str:
    """The alert as a selector, complete."""
    (name,) = alert(cause, severity)
    labels = {
        "alertname": name.partition("/")[0],
        "alertstate": "firing",
        "cause": cause,
        "gpu": "0",
        "instance": node,
        "job": "gpu",
        "owner": "job",
        "severity": severity,
        "uuid": f"GPU-{node}-0",
        **owner,
    }
    return "ALERTS{" + ",".join(f'{label}="{text}"' for label, text in labels.items()) + "}"


def test_alerts_carry_exactly_these_labels(tmp_path: Path) -> None:
    pod = {
        "workload_namespace": "vision",
        "workload_pod": "train-0",
        "workload_container": "main",
    }
    pod |= {"pod_uid": "1-2-3", "container_id": "abc"}
    fleet = Fleet(20)
    expected: tuple[tuple[str, Gpu, str, str, Labels], ...] = (
        ("pod", PREP, "cpu_preprocessing_bound", "warning", pod),
        ("slurm", DISK, "local_storage_bound", "warning", {"slurm_job_id": "7", "user": "ann"}),
        ("nobody", LOOP, "host_loop_bound", "warning", {}),
        ("shm", Gpu(shm_used=0.95), "shm_exhausted", "warning", pod),
        ("small", Gpu(shm_size_bytes=6e7, shm_used=0.6), "shm_exhausted", "info", pod),
        ("small-nobody", Gpu(shm_size_bytes=6e7, shm_used=0.6), "shm_exhausted", "info", {}),
    )
    for node, gpu, cause, severity, owner in expected:
        add_gpu(fleet, node, replace(gpu, owner=owner or None))
        query = f'ALERTS{{alertstate="firing",instance="{node}"}}'
        fleet.expect(18, query, {labels_of(node, cause, severity, told_of(owner)): 1.0})
    fleet.check(tmp_path)
