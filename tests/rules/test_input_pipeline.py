"""What starves a GPU on the host, and the copies to it: each cause, and what resembles it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rules.cases import Row, Table, add_row, alert, firing, fleets_of, merged
from rules.fleet import Fleet, Gpu, add_gpu, told_of
from rules.series import Labels, Signal

MINUTES = 48
LATE = 37
"""Long enough for anything, the half hour of an unexplained one included."""
YOUNG = 9
"""Below every `for` of 10 minutes, however soon the evidence was there."""
UNEXPLAINED = "unexplained_low_utilization/warning"


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


PREP = FIRING["cpu_preprocessing_bound"]
Rows = Iterator[tuple[str, Row]]


def steady() -> Rows:
    """Each fires after its time, and not before; a restart and a gap change nothing."""
    for cause, gpu in FIRING.items():
        fires = f"{cause}/warning"
        waits = 1 if cause == "shm_exhausted" else YOUNG
        yield f"{cause} fires", Row(gpu, f"{waits} ?; {fires}")
        disturbed = replace(gpu, reset_at=18, gap=(26, 30))
        yield f"{cause} disturbed", Row(disturbed, f"17,19,21,24,28,31 ? {fires}; {fires}")


def well_used() -> Rows:
    """The same host beside a GPU that works: silence."""
    for cause, gpu in FIRING.items():
        if cause not in NO_GATE:
            stalls = {on: 0.02 * _number(part) / 0.75 for on, part in gpu.stalls.items()}
            busy = replace(gpu, busy=0.98, sm=0.85, dram=0.5, stalls=stalls, host_iowait_cores=12.0)
            yield f"{cause} well used", Row(replace(busy, disk_busy=0.95))


def little_evidence() -> Rows:
    """Two fifths of the idle time must speak for a cause; the rest is asleep here."""
    for cause in STALLED:
        gpu = FIRING[cause]
        (on,) = gpu.stalls
        short = replace(gpu, stalls={on: 0.75 * 0.39, "asleep": 0.75 * 0.61})
        yield f"{cause} little", Row(short, UNEXPLAINED)
        enough = replace(gpu, stalls={on: 0.75 * 0.41, "asleep": 0.75 * 0.59})
        yield f"{cause} enough", Row(enough, f"{cause}/warning")


def hardly_underused() -> Rows:
    """Between half and seven tenths the cause is known, but not told; above not looked for."""
    for cause, gpu in FIRING.items():
        if cause not in NO_GATE and cause != "pcie_transfer_bound":
            yield f"{cause} at half", Row(_used(gpu, 0.55), cause)
    yield "starved just below half", Row(_used(PREP, 0.48), "cpu_preprocessing_bound/warning")
    yield "starved just below seven tenths", Row(_used(PREP, 0.68), "cpu_preprocessing_bound")
    yield "starved at seven tenths", Row(_used(PREP, 0.72))


def _used(gpu: Gpu, busy: float) -> Gpu:
    stalls = {on: (1 - busy) * _number(part) / 0.75 for on, part in gpu.stalls.items()}
    return replace(gpu, busy=busy, sm=0.6, dram=0.5, stalls=stalls)


def without_signal() -> Rows:
    for cause, (family, told) in NEEDED.items():
        yield f"{cause} unseen", Row(replace(FIRING[cause], missing=frozenset({family})), told)


def _number(signal: Signal) -> float:
    assert isinstance(signal, int | float)
    return signal


JOB = {"slurm_job_id": "7"}
GROUP: dict[str, Any] = {"busy": 0.98, "sm": 0.25, "dram": 0.5, "nvlink_bytes": None, "owner": JOB}
FEW = FIRING["too_few_workers"]
LOOP = FIRING["host_loop_bound"]
DISK = FIRING["local_storage_bound"]


def starving_between(start: int, end: int) -> Gpu:
    """Well used before and after."""
    busy = ((start, 0.98), (end - start, 0.25), (MINUTES, 0.98))
    idle = [(length, 1 - share) for length, share in busy]
    return replace(PREP, busy=busy, sm=busy, dram=0.5, stalls={"worker_cpu": idle})


APART: Table = {
    # cpu_throttled: lost time over lost and used, a tenth of it.
    "throttled a quarter": Row(
        starved({"cpu_quota": 0.75}, throttled=0.68, **QUOTA), "cpu_throttled/warning"
    ),
    "throttled a tenth": Row(
        starved({"worker_cpu": 0.75}, throttled=0.23, **QUOTA), "cpu_throttled/warning"
    ),
    "throttled less than a tenth": Row(
        starved({"worker_cpu": 0.75}, throttled=0.21, **QUOTA), "cpu_preprocessing_bound/warning"
    ),
    "throttled with the disk as the reason": Row(
        starved({"storage": 0.75}, throttled=2.0, disk_busy=0.9, **QUOTA),
        "local_storage_bound/warning",
    ),
    "throttled and churning": Row(
        starved({"cpu_quota": 0.75}, throttled=2.0, worker_starts=0.1, **QUOTA),
        "cpu_throttled/warning",
    ),
    "throttled rank that reports nothing of its CPU": Row(
        replace(FIRING["cpu_throttled"], missing=frozenset({"gpu_feeder_cpu_seconds_total"})),
        "cpu_oversubscribed/warning",
    ),
    # worker_churn: five generations of four workers in ten minutes are 20 starts.
    "churn of five generations": Row(
        starved({"worker_cpu": 0.75}, worker_starts=21 / 600), "worker_churn/warning"
    ),
    "churn of fewer": Row(
        starved({"worker_cpu": 0.75}, worker_starts=19 / 600), "cpu_preprocessing_bound/warning"
    ),
    "churn that the network outlasts": Row(
        starved({"network": 0.75}, worker_starts=0.1), "network_storage_bound/warning"
    ),
    "churn and little shared memory": Row(
        starved({"worker_cpu": 0.75}, worker_starts=0.1, shm_used=0.95),
        "worker_churn/warning shm_exhausted/warning",
    ),
    # shm_exhausted: not gated by use; the default size alone is for information.
    "shm nearly nine tenths": Row(Gpu(shm_used=0.89)),
    "shm just nine tenths": Row(
        Gpu(shm_used=0.91), "1 ?; 4 ? shm_exhausted/warning; shm_exhausted/warning"
    ),
    "shm small": Row(Gpu(shm_size_bytes=67108864, shm_used=0.51), "9 ?; - shm_exhausted/info"),
    "shm small after a restart": Row(
        Gpu(shm_size_bytes=67108864, shm_used=0.6, reset_at=30),
        "31 ? shm_exhausted/info; - shm_exhausted/info",
    ),
    "shm small in a gap": Row(
        Gpu(shm_size_bytes=67108864, shm_used=0.6, gap=(30, 34)),
        "33,36 ? shm_exhausted/info; - shm_exhausted/info",
    ),
    "shm small and less than half used": Row(Gpu(shm_size_bytes=67108864, shm_used=0.49)),
    "shm small, and half used but for a while": Row(
        Gpu(shm_size_bytes=67108864, shm_used=[(10, 0.2), (5, 0.6), (99, 0.2)]),
        "9 ?; 36 ? shm_exhausted/info; - shm_exhausted/info",
    ),
    "shm larger": Row(Gpu(shm_size_bytes=67108865, shm_used=0.6)),
    "shm small without workers": Row(Gpu(shm_size_bytes=67108864, shm_used=0.6, workers=None)),
    "shm small and full": Row(Gpu(shm_size_bytes=67108864, shm_used=0.95), "shm_exhausted/warning"),
    "shm unseen": Row(Gpu(shm_size_bytes=None)),
    "shm of nobody": Row(
        Gpu(processes=0, shm_used=0.95, stalls={"unallocated": 1.0}, busy=0.0, sm=0.0)
    ),
    "shm full and too few workers": Row(replace(FEW, shm_used=0.95), "shm_exhausted/warning"),
    # checkpoint_stall: 5 and 15 % of all time, as a mean of 30 minutes.
    "checkpoints of a sixth": Row(
        Gpu(busy=0.8, stalls={"storage": 0.16, "asleep": 0.04}, **WRITING),
        "checkpoint_stall/warning",
    ),
    "checkpoints of a seventh": Row(
        Gpu(busy=0.8, stalls={"storage": 0.14, "asleep": 0.06}, **WRITING),
        "9 ?; checkpoint_stall/info",
    ),
    "checkpoints of a twentieth": Row(
        Gpu(busy=0.93, stalls={"storage": 0.055, "asleep": 0.015}, **WRITING),
        "checkpoint_stall/info",
    ),
    "checkpoints of less": Row(
        Gpu(busy=0.94, stalls={"storage": 0.045, "asleep": 0.015}, **WRITING)
    ),
    "checkpoints of a twentieth after a restart": Row(
        Gpu(busy=0.93, stalls={"storage": 0.055, "asleep": 0.015}, reset_at=30, **WRITING),
        "31 ? checkpoint_stall/info; checkpoint_stall/info",
    ),
    # A minute in eight: nothing of it in most 5-minute windows, all of it in 30.
    "checkpoints every eight minutes": Row(
        Gpu(
            busy=[(7, 0.97), (1, 0.05)] * 7,
            stalls={"storage": [(7, 0.0), (1, 0.95)] * 7, "asleep": [(7, 0.03), (1, 0.0)] * 7},
            main_written_bytes=[(7, 1e4), (1, 2e8)] * 7,
            worker_read_bytes=1e6,
        ),
        "checkpoint_stall/info",
    ),
    "checkpoints written meanwhile": Row(Gpu(busy=0.98, stalls={"storage": 0.02}, **WRITING)),
    "checkpoints that are read more than written": Row(
        starved({"storage": 0.75}, main_written_bytes=2e8, worker_read_bytes=1.1e8, disk_busy=0.9),
        "local_storage_bound/warning",
    ),
    "checkpoints that are written twice as much": Row(
        starved({"storage": 0.75}, main_written_bytes=2e8, worker_read_bytes=9e7, disk_busy=0.9),
        "checkpoint_stall/warning",
    ),
    # 50 MB/s while it waits: .75 of that over all time.
    "checkpoints as slow as logs": Row(
        starved({"storage": 0.75}, main_written_bytes=3.7e7, worker_read_bytes=0.0, disk_busy=0.9),
        "local_storage_bound/warning",
    ),
    "checkpoints faster than logs": Row(
        starved({"storage": 0.75}, main_written_bytes=3.8e7, worker_read_bytes=0.0, disk_busy=0.9),
        "checkpoint_stall/warning",
    ),
    "checkpoints as usual and too few workers": Row(
        starved(
            {"worker_cpu": 0.68, "storage": 0.07},
            **{**WRITING, "workers": 2, "worker_cpu": 1.98, "main_cpu": 0.1},
        ),
        "too_few_workers/warning",
    ),
    "checkpoint once and too few workers": Row(
        replace(
            FEW,
            stalls={
                "storage": [(5, 0.0), (3, 0.75), (35, 0.0)],
                "worker_cpu": [(5, 0.75), (3, 0.0), (35, 0.75)],
            },
            main_written_bytes=[(5, 1e4), (3, 1e9), (35, 1e4)],
            worker_read_bytes=1e6,
        ),
        "24 ? too_few_workers/warning; too_few_workers/warning",
    ),
    "checkpoints unseen": Row(
        starved({"storage": 0.75}, missing=frozenset({"gpu_feeder_read_bytes_total"}), **WRITING),
        "local_storage_bound/warning",
    ),
    # page_cache_thrash and its neighbour, the disk.
    "thrash and disk": Row(
        starved({"memory": 0.35, "storage": 0.4}, disk_busy=0.9), "page_cache_thrash/warning"
    ),
    "thrash and churn": Row(
        starved({"memory": 0.34, "storage": 0.41}, disk_busy=0.9, worker_starts=0.1),
        "worker_churn/warning",
    ),
    # local and network storage: as the exporter tells.
    "NFS beside a busy disk": Row(
        replace(DISK, storage_remote=1.0, disk_busy=0.95), "network_storage_bound/warning"
    ),
    "a slow disk that is hardly busy": Row(
        replace(DISK, storage_remote=0.0, disk_busy=0.1), "local_storage_bound/warning"
    ),
    "NFS without disks": Row(
        replace(DISK, storage_remote=1.0, disk_busy=None), "network_storage_bound/warning"
    ),
    "mostly NFS": Row(
        replace(DISK, storage_remote=0.7, disk_busy=0.95), "network_storage_bound/warning"
    ),
    "mostly a disk": Row(
        replace(DISK, storage_remote=0.3, disk_busy=0.1), "local_storage_bound/warning"
    ),
    "NFS, sockets and a busy disk": Row(
        starved({"network": 0.2, "storage": 0.4, "asleep": 0.15}, storage_remote=0.8),
        "network_storage_bound/warning",
    ),
    "NFS beside a busy disk, disturbed": Row(
        replace(DISK, storage_remote=1.0, disk_busy=0.95, reset_at=18, gap=(26, 30)),
        "17,19,21,24,28,31 ? network_storage_bound/warning; network_storage_bound/warning",
    ),
    # Where it cannot tell: whether a disk of the host is busy.
    "disk half busy": Row(replace(DISK, disk_busy=0.51), "local_storage_bound/warning"),
    "disk less than half busy": Row(replace(DISK, disk_busy=0.49), "network_storage_bound/warning"),
    "disk unseen": Row(replace(DISK, disk_busy=None), "local_storage_bound/warning"),
    "network beside a busy disk": Row(
        starved({"network": 0.75}, disk_busy=0.95, host_iowait_cores=12.0),
        "network_storage_bound/warning",
    ),
    "network without disks": Row(
        starved({"network": 0.75}, disk_busy=None), "network_storage_bound/warning"
    ),
    "network file system and sockets": Row(
        starved({"network": 0.2, "storage": 0.2, "asleep": 0.35}), "network_storage_bound/warning"
    ),
    "network file system, restarted": Row(
        starved({"storage": 0.75}, reset_at=30),
        "9 ?; 31 ? network_storage_bound/warning; network_storage_bound/warning",
    ),
    "network file system, well used": Row(
        Gpu(busy=0.98, stalls={"storage": 0.02}, host_iowait_cores=12.0)
    ),
    "network waits that the kernel does not tell": Row(
        starved({"unknown": 0.75}, network_bytes=5e7), "unexplained_low_utilization/warning"
    ),
    "disk and crowded CPUs": Row(
        starved({"storage": 0.35, "cpu_queue": 0.4}, disk_busy=0.9), "local_storage_bound/warning"
    ),
    # A server: its requests, or what holds up the answers, whichever takes more of the time.
    "disk beside few requests": Row(
        starved({"storage": 0.39, "requests": 0.36}, disk_busy=0.9), "local_storage_bound/warning"
    ),
    "few requests beside a disk": Row(
        starved({"storage": 0.22, "requests": 0.53}, disk_busy=0.9), "29 ?; waits_for_requests/info"
    ),
    # CPU causes: queue before saturation, free cores before none.
    "queue and saturated workers": Row(
        starved({"cpu_queue": 0.36, "worker_cpu": 0.39}, workers=2, worker_cpu=1.98),
        "cpu_oversubscribed/warning",
    ),
    "few workers just not saturated": Row(
        replace(FEW, worker_cpu=1.58), "cpu_preprocessing_bound/warning"
    ),
    "few workers just saturated": Row(replace(FEW, worker_cpu=1.62), "too_few_workers/warning"),
    "few workers on a host that is not idle": Row(
        replace(FEW, host_busy_cores=22.7), "cpu_preprocessing_bound/warning"
    ),
    "few workers on a host just idle enough": Row(
        replace(FEW, host_busy_cores=22.1), "too_few_workers/warning"
    ),
    "few workers in a quota with room": Row(
        replace(FEW, cpu_limit_cores=2.9), "too_few_workers/warning"
    ),
    "few workers in a quota without": Row(
        replace(FEW, cpu_limit_cores=2.8), "cpu_preprocessing_bound/warning"
    ),
    "few workers in a full CPU set of an idle host": Row(
        replace(FEW, cpus_allowed=2), "cpu_preprocessing_bound/warning"
    ),
    "few workers on a host unseen": Row(
        replace(FEW, host_cpus=None), "cpu_preprocessing_bound/warning"
    ),
    "threads that load instead of workers": Row(
        starved({"worker_cpu": 0.75}, workers=None, main_cpu=6.0), "cpu_preprocessing_bound/warning"
    ),
    "saturated workers and copies": Row(
        replace(PREP, pcie_bytes=2.2e10), "cpu_preprocessing_bound/warning"
    ),
    # Main process: what it reads, and whether it has workers.
    "inline that reads just enough": Row(
        starved({"host_code": 0.75}, **{**INLINE, "main_read_bytes": 1.1e6}),
        "inline_loading/warning",
    ),
    "inline that reads from memory": Row(
        starved({"host_code": 0.75}, **{**INLINE, "main_read_bytes": 9e5}),
        "host_loop_bound/warning",
    ),
    "inline beside a worker": Row(
        starved({"host_code": 0.75}, **{**INLINE, "workers": 1}), "host_loop_bound/warning"
    ),
    "inline that waits for the disk in part": Row(
        starved({"host_code": 0.5, "storage": 0.25}, disk_busy=0.9, **INLINE),
        "inline_loading/warning",
    ),
    "inline that waits for the disk": Row(
        starved({"storage": 0.7, "host_code": 0.05}, disk_busy=0.9, **INLINE),
        "local_storage_bound/warning",
    ),
    "inline of an unknown number of workers": Row(
        replace(FIRING["inline_loading"], missing=frozenset({"gpu_feeder_processes"})),
        "host_loop_bound/warning",
    ),
    "loop beside a busy disk": Row(
        replace(LOOP, disk_busy=0.95, host_iowait_cores=12.0), "host_loop_bound/warning"
    ),
    "loop that spins while the GPU works": Row(Gpu(main_cpu=1.0, workers=None)),
    # Copies: half of the healthy rate; for information 1 GB/s.
    "copies just too few": Row(Gpu(**{**COPYING, "pcie_bytes": 1.9e10})),
    "copies with SMs at work": Row(Gpu(**{**COPYING, "sm": 0.51})),
    "copies judged by power": Row(
        Gpu(**{**COPYING, "sm": None, "power_watts": 250.0}), "pcie_transfer_bound/warning"
    ),
    "copies at high power": Row(Gpu(**{**COPYING, "sm": None, "power_watts": 300.0})),
    "copies over a link unseen": Row(Gpu(missing=frozenset({"gpu_pcie_link_width"}), **COPYING)),
    "copies over half a link": Row(
        Gpu(**{**COPYING, "pcie_bytes": 1.05e10, "link_width": 8}),
        "pcie_transfer_bound/warning pcie_link_degraded/warning",
    ),
    "copies and a busy loop": Row(
        starved({"host_code": 0.75}, pcie_bytes=2.1e10), "pcie_transfer_bound/warning"
    ),
    "copies, some": Row(starved({"asleep": 0.75}, pcie_bytes=1e9), "9 ?; pcie_transfer_bound/info"),
    "copies, some, restarted": Row(
        starved({"asleep": 0.75}, pcie_bytes=1e9, reset_at=30),
        "31 ? pcie_transfer_bound/info; pcie_transfer_bound/info",
    ),
    "copies, hardly": Row(
        starved({"asleep": 0.75}, pcie_bytes=9e8), "unexplained_low_utilization/warning"
    ),
    "copies, some, and a busy loop": Row(
        starved({"host_code": 0.75}, pcie_bytes=1e9), "host_loop_bound/warning"
    ),
    "copies, some, on a host unseen": Row(
        starved({"unknown": 0.75}, pcie_bytes=1e9), "unexplained_low_utilization/warning"
    ),
    "gradients over PCIe, one": Row(
        Gpu(pcie_bytes=2.2e10, pipes={"tensor": 0.1}, **GROUP), "communication_bound/info"
    ),
    "gradients over PCIe, other": Row(
        Gpu(pcie_bytes=2.2e10, pipes={"tensor": 0.1}, **GROUP), "communication_bound/info"
    ),
    # What holds for all of them.
    "young": Row(replace(PREP, age_seconds=300)),
    # Without the job's age it counts as warm, and its time begins, ten minutes later.
    "feeders unseen": Row(starved({}, feeders=False), "unexplained_low_utilization"),
    "healthy": Row(Gpu(), "1,7,13,19,25,31 ?; -"),
    "healthy restarted": Row(Gpu(reset_at=30), "31,33,36,41 ?; -"),
    "healthy gap": Row(Gpu(gap=(30, 34)), "31,33,36,41 ?; -"),
    "a slow epoch of eight minutes": Row(starving_between(10, 18), "12,16,20,24,28,32 ?; -"),
    # Its `for` begins once ten minutes' mean is below a half, 7 minutes later. It is told for 20
    # minutes more, as the next phase of the work may starve again.
    "late and over": Row(
        starving_between(6, 20),
        "18,20 ?; 25 ? cpu_preprocessing_bound/warning; ? cpu_preprocessing_bound/warning; "
        "47 - cpu_preprocessing_bound/warning",
    ),
    "a gap longer than the windows": Row(
        replace(PREP, gap=(18, 26)),
        "17,22,25,27,30,36 ? cpu_preprocessing_bound/warning; cpu_preprocessing_bound/warning",
    ),
}

# What a real loader did on two CPUs (CAUSES: measured host signatures). Shares as measured there;
# of the main process's idle time, what it ran itself is host code, the rest is whatever most of
# its workers did (asleep: they had batches ready).
TWO_CPUS: dict[str, Any] = {"host_cpus": 2, "cpus_allowed": 2}


def measured(  # noqa: PLR0913, PLR0917 - the columns of the table
    busy: float,
    stalls: Mapping[str, float],
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


MEASURED: Table = {
    # busy, stalls, workers, and their CPU, that of main, idle and iowait of the host
    "healthy, 2 workers": Row(measured(0.99, {}, 2, 0.01, 0.01, 0.93)),
    "prep, 0 workers": Row(
        measured(0.13, {"host_code": 0.87}, 0, 0, 0.87, 0.54), "host_loop_bound/warning"
    ),
    "prep, 1 worker": Row(
        measured(0.15, {"host_code": 0.03, "worker_cpu": 0.82}, 1, 1.0, 0.03, 0.44),
        "too_few_workers/warning",
    ),
    "prep, 2 workers = cores": Row(
        measured(0.26, {"host_code": 0.05, "worker_cpu": 0.69}, 2, 0.92, 0.05, 0.01),
        "cpu_preprocessing_bound/warning",
    ),
    "prep, 6 workers on 2 cores": Row(
        measured(0.32, {"cpu_queue": 0.68}, 6, 0.31, 0.04, 0.0), "cpu_oversubscribed/warning"
    ),
    "direct disk reads, 1": Row(
        measured(
            0.12, {"host_code": 0.03, "storage": 0.85}, 1, 0.23, 0.03, 0.47, 0.36, disk_busy=0.81
        ),
        "local_storage_bound/warning",
    ),
    "direct disk reads, 4": Row(
        measured(
            0.13, {"host_code": 0.03, "storage": 0.84}, 4, 0.05, 0.03, 0.01, 0.33, disk_busy=0.94
        ),
        "local_storage_bound/warning",
    ),
    "socket fetch, 2": Row(
        measured(0.03, {"network": 0.97}, 2, 0.01, 0.01, 0.91), "network_storage_bound/warning"
    ),
    "socket fetch, 8": Row(
        measured(0.12, {"host_code": 0.03, "network": 0.85}, 8, 0.01, 0.03, 0.74, 0.05),
        "network_storage_bound/warning",
    ),
    "slow main loop": Row(
        measured(0.09, {"host_code": 0.91}, 2, 0.01, 0.91, 0.51), "host_loop_bound/warning"
    ),
    "quota 0.6 core, 4 workers": Row(
        measured(
            0.30,
            {"cpu_quota": 0.70},
            4,
            0.15,
            0.01,
            0.67,
            cpu_limit_cores=0.6,
            throttled=0.61 * 0.70 / 0.30,
        ),
        "cpu_throttled/warning",
    ),
    # Its loss is given as .10, rounded.
    "quota 1.7 of 2 cores": Row(
        measured(
            0.06,
            {"host_code": 0.04, "worker_cpu": 0.90},
            2,
            0.83,
            0.04,
            0.10,
            cpu_limit_cores=1.7,
            throttled=1.70 * 0.104 / 0.896,
        ),
        "cpu_throttled/warning",
    ),
    "2 GB data, 0.9 GB memory limit": Row(
        measured(
            0.14,
            {"host_code": 0.08, "memory": 0.78},
            4,
            0.22,
            0.08,
            0.01,
            0.43,
            worker_read_bytes=7.86e8,
            disk_busy=0.9,
        ),
        "page_cache_thrash/warning",
    ),
    "workers respawned every epoch": Row(
        measured(
            0.45,
            {"host_code": 0.20, "worker_cpu": 0.14},
            4,
            0.25,
            0.20,
            0.26,
            worker_starts=79 / 12,
        ),
        "worker_churn/warning",
    ),
    "sync checkpoint, 512 MB each": Row(
        measured(
            0.34,
            {"host_code": 0.02, "storage": 0.28},
            2,
            0.02,
            0.02,
            0.47,
            0.15,
            main_written_bytes=4.99e8,
            worker_read_bytes=0.0,
            disk_busy=0.5,
        ),
        "checkpoint_stall/warning",
    ),
    "6 CPU hogs beside 2 workers": Row(
        measured(0.36, {"cpu_queue": 0.64}, 2, 0.24, 0.02, 0.0), "cpu_oversubscribed/warning"
    ),
    "busy host, GPU fine": Row(measured(0.98, {}, 2, 0.06, 0.0, 0.23, 0.08, disk_busy=0.9)),
    "disk neighbour, GPU fine": Row(measured(0.99, {}, 2, 0.0, 0.01, 0.35, 0.40, disk_busy=0.95)),
    "disk + heavy prep": Row(
        measured(
            0.11,
            {"host_code": 0.03, "worker_cpu": 0.72, "storage": 0.14},
            2,
            0.74,
            0.03,
            0.05,
            0.16,
            disk_busy=0.9,
        ),
        "cpu_preprocessing_bound/warning",
    ),
    "disk + light prep": Row(
        measured(
            0.33,
            {"host_code": 0.10, "worker_cpu": 0.22, "storage": 0.35},
            2,
            0.28,
            0.10,
            0.20,
            0.41,
            disk_busy=0.9,
        ),
        "local_storage_bound/warning",
    ),
    "slow main loop + disk neighbour": Row(
        measured(0.09, {"host_code": 0.90}, 2, 0.01, 0.90, 0.04, 0.30, disk_busy=0.95),
        "host_loop_bound/warning",
    ),
    "everything asleep": Row(
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
        "job_stalled/warning",
    ),
}


def judge(table: Table, folder: Path) -> None:
    for fleet in fleets_of(table, MINUTES, usual={LATE}, end=LATE):
        fleet.check(folder)


def test_each_cause_fires_in_time_and_survives_restarts_and_gaps(tmp_path: Path) -> None:
    judge(dict(steady()), tmp_path)


def test_used_gpus_and_little_evidence_stay_silent(tmp_path: Path) -> None:
    silent = (well_used(), hardly_underused(), little_evidence(), without_signal())
    judge(merged(*map(dict, silent)), tmp_path)


def test_causes_that_resemble_each_other_are_told_apart(tmp_path: Path) -> None:
    judge(APART, tmp_path)


def test_measured_loaders_get_their_labels(tmp_path: Path) -> None:
    fleet = Fleet(MINUTES)
    for name, row in MEASURED.items():
        add_row(fleet, name, row, LATE)
    fleet.check(tmp_path)


def test_only_the_guilty_gpu_of_a_node_is_named(tmp_path: Path) -> None:
    fleet = Fleet(20)
    add_gpu(fleet, "pair", PREP)
    add_gpu(fleet, "pair", Gpu(), index=1)
    fleet.expect_firing("pair", 18, alert("cpu_preprocessing_bound/warning"))
    named = 'ALERTS{alertstate="firing",instance="pair"}'
    fleet.expect(18, f"count by (gpu) ({named})", {'{gpu="0"}': 1.0})
    fleet.check(tmp_path)


def test_alerts_carry_exactly_these_labels(tmp_path: Path) -> None:
    names = {
        "workload_namespace": "vision",
        "workload_pod": "train-0",
        "workload_container": "main",
    }
    pod = {**names, "pod_uid": "1-2-3", "container_id": "abc"}
    fleet = Fleet(20)
    expected: tuple[tuple[str, Gpu, str, Labels], ...] = (
        ("pod", PREP, "cpu_preprocessing_bound/warning", pod),
        ("slurm", DISK, "local_storage_bound/warning", {"slurm_job_id": "7", "user": "ann"}),
        ("nobody", LOOP, "host_loop_bound/warning", {}),
        ("shm", Gpu(shm_used=0.95), "shm_exhausted/warning", pod),
        ("small", Gpu(shm_size_bytes=6e7, shm_used=0.6), "shm_exhausted/info", pod),
        ("small-nobody", Gpu(shm_size_bytes=6e7, shm_used=0.6), "shm_exhausted/info", {}),
    )
    for node, gpu, told, owner in expected:
        add_gpu(fleet, node, replace(gpu, owner=owner or None))
        query = f'ALERTS{{alertstate="firing",instance="{node}"}}'
        fleet.expect(18, query, {firing(node, told, **told_of(owner)): 1.0})
    fleet.check(tmp_path)
