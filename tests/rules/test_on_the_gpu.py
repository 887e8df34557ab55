"""Causes on the GPU and between the GPUs of a job: what fires, and what must not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from rules.fleet import GROUPS, RULES, Fleet, Gpu, Phases, Signal, add_gpu, told_of
from rules.parsed import groups

END = 50
"""Minutes that a fleet runs: enough for the longest `for`, half an hour."""
DAY = 1440

HEALTHY = Gpu()
PIPES = {"tensor": 0.5, "fp32": 0.1, "fp64": 0.0}
NO_GPM = {"sm": None, "occupancy": None, "dram": None, "pipes": None, "nvlink_bytes": None}
SILENT = {"main_cpu": 0.0, "worker_cpu": 0.0, "worker_read_bytes": 0.0, "network_bytes": 0.0}


def changed(gpu: Gpu, **fields: object) -> Gpu:
    """`gpu` but for these."""
    return replace(gpu, **fields)  # type: ignore[arg-type]


def pipes(**shares: Signal) -> dict[str, Signal]:
    """Shares of the pipes: those of a healthy job, but for these."""
    return {**PIPES, **shares}


@dataclass(frozen=True, slots=True)
class Case:
    """A GPU, and what is said of it in the end."""

    gpu: Gpu
    cause: str | None = None
    alert: str | None = None
    """It fires after `minutes` of the cause."""
    minutes: int = 30
    begins: int = 0
    """Minute at which the cause begins: what is asked before counts from it."""

    def of(self, gpu: Gpu) -> Case:
        """The same of another GPU."""
        return replace(self, gpu=gpu)


def check(cases: Mapping[str, Sequence[Case]], folder: Path) -> None:
    """Evaluate the jobs, each of as many nodes with one GPU as it has cases."""
    fleet = Fleet(END, evaluation_interval="2m")  # of `for`s of 5 minutes and more
    for name, ranks in cases.items():
        for rank, case in enumerate(ranks):
            node = f"{name.replace(' ', '-')}-{rank}"
            owned = case.gpu.owner or case.gpu.owners or len(ranks) == 1
            add_gpu(fleet, node, case.gpu if owned else changed(case.gpu, owner=job(name)))
            fleet.expect_cause(node, END, case.cause)
            fleet.expect_firing(node, END, *([case.alert] if case.alert else []))
            if case.alert:
                waiting = case.begins + case.minutes - 2
                fleet.expect_cause(node, waiting, case.cause)
                fleet.expect_firing(node, waiting)
    fleet.check(folder)


def job(name: str) -> dict[str, str]:
    """The owner of the GPUs of a Slurm job."""
    return {"slurm_job_id": name, "user": "ada"}


def ranks(gpu: Gpu, *others: Case, size: int = 4) -> list[Case]:
    """A job of `size` GPUs: others, and `gpu`s of which nothing is said."""
    return [Case(gpu) for _ in range(size - len(others))] + list(others)


# --- Several GPUs of one job -----------------------------------------------------------------

IDLE_SIBLING = changed(HEALTHY, busy=0.05, sm=0.03)
UNEVEN = Case(
    changed(HEALTHY, busy=0.4, sm=0.3), "gpu_imbalance", "GpuImbalance/warning", minutes=15
)
STARVED = changed(
    HEALTHY,
    busy=0.4,
    sm=0.3,
    stalls={"worker_cpu": 0.6},
    workers=8,
    worker_cpu=7.9,
    host_busy_cores=30.0,
)
WAITING = changed(HEALTHY, busy=1.0, sm=0.2, dram=0.1, memory=0.3, power_watts=210.0)
"""Spins in a collective most of the time."""

IMBALANCE = {
    "imbalance idle sibling": ranks(
        HEALTHY,
        Case(IDLE_SIBLING, "gpu_imbalance", "GpuImbalance/warning", minutes=15),
    ),
    "imbalance uneven": ranks(HEALTHY, UNEVEN, size=2),
    # Nothing at all from the sibling, for longer than an idle GPU takes: uneven all the same.
    "imbalance sibling at nought": ranks(
        HEALTHY,
        Case(
            changed(HEALTHY, busy=0.0, sm=0.0, **SILENT),
            "gpu_imbalance",
            "GpuImbalance/warning",
            minutes=15,
        ),
        size=2,
    ),
    # Replicas: one has requests, one has not. A rank that listens and waits for another is none.
    "imbalance of replicas": ranks(
        HEALTHY,
        Case(
            changed(HEALTHY, busy=0.0, sm=0.0, stalls={"requests": 1.0}, **SILENT),
            "waits_for_requests",
            "GpuWaitsForRequests/info",
        ),
        size=2,
    ),
    "imbalance of ranks that listen": ranks(
        HEALTHY,
        Case(
            changed(HEALTHY, busy=0.05, sm=0.03, stalls={"peer": 0.5, "requests": 0.45}),
            "gpu_imbalance",
            "GpuImbalance/warning",
            minutes=15,
        ),
        size=2,
    ),
    # .28 apart.
    "imbalance just below": ranks(
        changed(HEALTHY, busy=0.7),
        Case(
            changed(HEALTHY, busy=0.42, sm=0.35),
            "unexplained_low_utilization",
            "GpuUnexplainedLowUtilization/warning",
        ),
        size=2,
    ),
    # A sibling with a reason of its own: that is the cause.
    "imbalance of a starved rank": ranks(
        HEALTHY,
        Case(STARVED, "cpu_preprocessing_bound", "GpuCpuPreprocessingBound/warning", minutes=10),
        size=2,
    ),
    # Who feeds it is not known, or whose it is: the other one of the two says it.
    "imbalance without feeders": ranks(
        changed(HEALTHY, feeders=False),
        Case(changed(UNEVEN.gpu, feeders=False), UNEVEN.cause, UNEVEN.alert, minutes=25),
        size=2,
    ),
    "imbalance without owner": [
        Case(
            changed(UNEVEN.gpu, stalls={"peer": 0.6}),
            "gpu_imbalance",
            "GpuImbalance/warning",
            minutes=15,
        )
    ],
    "imbalance of two jobs": [
        Case(changed(HEALTHY, owner=job("one"))),
        Case(
            changed(UNEVEN.gpu, owner=job("another")),
            "unexplained_low_utilization",
            "GpuUnexplainedLowUtilization/warning",
        ),
    ],
    # Younger than ten minutes it may still be starting.
    "imbalance at the start": ranks(HEALTHY, Case(changed(UNEVEN.gpu, age_seconds=500.0)), size=2),
}

PEER = changed(HEALTHY, feeders=False, power_watts=450.0)
SLOW_CLOCK = Case(changed(PEER, clock=0.85), "straggler", "GpuStraggler/warning", minutes=15)
MORE_WORK = Case(
    changed(PEER, power_watts=560.0, pipes=pipes(tensor=0.6)),
    "straggler",
    "GpuStraggler/warning",
    minutes=15,
)
FEEDERLESS = 10
"""Minutes after which a GPU counts as warm where the age of its processes cannot be read."""


def later(case: Case) -> Case:
    """The case where it takes ten minutes for the GPU to be judged at all."""
    return replace(case, begins=case.begins + FEEDERLESS)


STRAGGLER = {
    "straggler clock": ranks(PEER, later(SLOW_CLOCK)),
    "straggler clock just above": ranks(PEER, Case(changed(PEER, clock=0.91))),
    "straggler of three": ranks(PEER, Case(SLOW_CLOCK.gpu), size=3),
    "straggler not busy": ranks(PEER, Case(changed(SLOW_CLOCK.gpu, busy=0.88))),
    "straggler without clocks": ranks(changed(PEER, clock=None)),
    "straggler all slow": ranks(SLOW_CLOCK.gpu),
    "straggler work": ranks(PEER, later(MORE_WORK)),
    "straggler work just below": ranks(PEER, Case(changed(MORE_WORK.gpu, power_watts=513.0))),
    # It draws more and does not do more: another board, not more work.
    "straggler power alone": ranks(PEER, Case(changed(PEER, power_watts=560.0))),
    "straggler work without pipes": ranks(
        changed(PEER, pipes=None), later(replace(MORE_WORK, gpu=changed(MORE_WORK.gpu, pipes=None)))
    ),
    "straggler without power": ranks(
        changed(PEER, power_watts=None), Case(changed(MORE_WORK.gpu, power_watts=None))
    ),
    # One rank is starved on its host, the others spin: theirs are no causes of their own.
    "straggler starved": ranks(
        WAITING,
        Case(STARVED, "cpu_preprocessing_bound", "GpuCpuPreprocessingBound/warning", minutes=10),
    ),
    # The hardware's reason comes first.
    "straggler with a brake": ranks(
        PEER,
        Case(
            changed(SLOW_CLOCK.gpu, throttle={"hw_power_brake": 0.1}),
            "hw_slowdown",
            "GpuHardwareSlowdown/warning",
            minutes=5,
        ),
    ),
}

COLLECTIVES = changed(
    HEALTHY, busy=1.0, sm=0.6, pipes=pipes(tensor=0.08), power_watts=350.0, nvlink_bytes=1.8e11
)
"""40 % of an H100's NVLink in each direction."""
BOUND = Case(COLLECTIVES, "communication_bound", "GpuCommunicationBound/info", minutes=15)


def bound(gpu: Gpu) -> list[Case]:
    return [BOUND.of(gpu) for _ in range(2)]


def quiet(gpu: Gpu) -> list[Case]:
    return [Case(gpu) for _ in range(2)]


COMMUNICATION = {
    "communication": bound(COLLECTIVES),
    # Few SMs are enough for collectives: neither small batches nor copies.
    "communication on few SMs": bound(changed(COLLECTIVES, sm=0.2, memory=0.3, dram=0.1)),
    "communication just below": quiet(changed(COLLECTIVES, nvlink_bytes=1.3e11)),
    "communication beside work": quiet(changed(COLLECTIVES, pipes=pipes(tensor=0.16))),
    # 44 GB/s are healthy on a PCIe 5 link; half of that.
    "communication over PCIe": bound(
        changed(COLLECTIVES, nvlink_bytes=0.0, pcie_bytes=2.2e10, sm=0.3)
    ),
    "communication over a little PCIe": quiet(
        changed(COLLECTIVES, nvlink_bytes=0.0, pcie_bytes=1.8e10)
    ),
    "communication without GPM": bound(
        changed(COLLECTIVES, **{**NO_GPM, "nvlink_bytes": 1.8e11}, power_watts=400.0)
    ),
    "communication without GPM with power": quiet(
        changed(COLLECTIVES, **{**NO_GPM, "nvlink_bytes": 1.8e11}, power_watts=430.0)
    ),
    "communication on an unknown board": quiet(changed(COLLECTIVES, architecture="unknown")),
    "communication with itself": [Case(COLLECTIVES)],
}


def then(before: float, after: float) -> Phases:
    """A change after twenty minutes."""
    return [(20, before), (END, after)]


HANGING = changed(
    HEALTHY,
    busy=then(0.98, 1.0),
    sm=then(0.85, 0.2),
    dram=then(0.5, 0.01),
    memory_controller=then(0.4, 0.01),
    pipes={"tensor": then(0.5, 0.0), "fp32": then(0.1, 0.0)},
    power_watts=then(560.0, 140.0),
    pcie_bytes=then(2e8, 0.0),
    nvlink_bytes=then(1e9, 0.0),
    **SILENT,
)
"""After twenty minutes; five more until the averages show it."""
HANGS = Case(HANGING, "collective_hang", "GpuCollectiveHang/warning", minutes=10, begins=25)
TINY = changed(
    HEALTHY,
    busy=1.0,
    sm=0.2,
    dram=0.1,
    pipes=pipes(tensor=0.0),
    power_watts=140.0,
    pcie_bytes=0.0,
    nvlink_bytes=0.0,
    memory=0.3,
)
SMALL = Case(TINY, "small_batch", "GpuSmallBatch/info")
SPINNING = changed(TINY, dram=0.01, memory_controller=0.01)
"""In a collective, from the start: it looks at a flag again and again."""

HANG = {
    "hang": [
        HANGS,
        HANGS,
        # The rank that the others wait for; it sleeps. Not uneven, not idle: it has stalled.
        Case(
            changed(HANGING, busy=then(0.98, 0.0), power_watts=then(560.0, 80.0)),
            "job_stalled",
            "GpuJobStalled/warning",
            minutes=5,
            begins=36,
        ),
    ],
    # That rank still talks to somebody: nothing is said of it, least of all that it is uneven.
    "hang for a rank that talks": [
        HANGS,
        Case(
            changed(
                HANGING, busy=then(0.98, 0.0), power_watts=then(560.0, 80.0), network_bytes=1e6
            ),
            "unexplained_low_utilization",
        ),
    ],
    # Never worked, so that there is nothing to compare with: the group tells it.
    "hang from the start": [
        Case(SPINNING, "collective_hang", "GpuCollectiveHang/warning", minutes=10) for _ in range(2)
    ],
    "hang of a sweep of small models": [SMALL, SMALL],
    "hang of an unknown group": [HANGS],
    "hang of tiny kernels": [SMALL],
    "hang with traffic": [
        Case(changed(HANGING, nvlink_bytes=then(1e9, 6e7), dram=0.5), "low_parallelism"),
    ],
    "hang with less signals": [replace(HANGS, gpu=changed(HANGING, **NO_GPM, pcie_bytes=None))],
    # A little more than .35 of the limit, and not less than half of what it was.
    "hang with power": [
        Case(changed(HANGING, power_watts=then(560.0, 250.0), sm=0.6, pipes=PIPES))
    ],
    "hang without power": [Case(changed(HANGING, power_watts=None, sm=0.6))],
}


def test_imbalance(tmp_path: Path) -> None:
    check(IMBALANCE, tmp_path)


def test_straggler(tmp_path: Path) -> None:
    check(STRAGGLER, tmp_path)


def test_communication_and_hang(tmp_path: Path) -> None:
    check(COMMUNICATION | HANG, tmp_path)


# --- One GPU ---------------------------------------------------------------------------------

TENANTS = ({"workload_pod": "a"}, {"workload_pod": "b"})
SHARED = changed(HEALTHY, owners=TENANTS)
SHARING = {
    "sharing": Case(SHARED, "sharing_contention", "GpuSharingContention/info", minutes=15),
    "sharing just below": Case(changed(SHARED, busy=0.89)),
    "sharing with nobody": Case(changed(HEALTHY, owner=TENANTS[0])),
    "sharing unknown": Case(HEALTHY),
    "sharing with a sidecar": Case(
        changed(HEALTHY, owners=[{"pod_uid": "1", "container_id": name} for name in ("a", "b")])
    ),
    "sharing with oneself": Case(
        changed(HEALTHY, owners=[{"slurm_job_id": "1", "user": name} for name in ("ann", "root")])
    ),
    "sharing with another user": Case(
        changed(HEALTHY, owners=[{"user": "ann"}, {"user": "bob"}]),
        "sharing_contention",
        "GpuSharingContention/info",
        minutes=15,
    ),
    # Before what runs on the GPU: it cannot be said of whom.
    "sharing small batches": Case(
        changed(SHARED, sm=0.25, dram=0.1, memory=0.2),
        "sharing_contention",
        "GpuSharingContention/info",
        minutes=15,
    ),
    "sharing at the start": Case(changed(SHARED, age_seconds=500.0)),
}

CAPPED = changed(HEALTHY, busy=0.4, sm=0.3, memory=0.85)
IS_CAPPED = Case(CAPPED, "gpu_memory_capped", "GpuMemoryCapped/info")
MEMORY_CAPPED = {
    "capped": IS_CAPPED,
    "capped while busy": IS_CAPPED.of(changed(CAPPED, busy=0.95)),
    "capped at its peak": IS_CAPPED.of(changed(CAPPED, memory=[(25, 0.85), (END, 0.3)], dram=0.1)),
    "capped just below": Case(
        changed(CAPPED, busy=0.95, memory=0.8), "low_parallelism", "GpuLowParallelism/info"
    ),
    "capped and used": Case(changed(CAPPED, busy=0.95, sm=0.51)),
    "capped without GPM": IS_CAPPED.of(changed(CAPPED, **NO_GPM, power_watts=350.0)),
    "capped without power": IS_CAPPED.of(changed(CAPPED, **NO_GPM, power_watts=None)),
    "capped without memory": Case(
        changed(CAPPED, missing=frozenset({"gpu_memory_total_bytes"})),
        "unexplained_low_utilization",
        "GpuUnexplainedLowUtilization/warning",
    ),
}

BERT = changed(HEALTHY, busy=0.64, sm=0.25, memory=0.19, dram=0.1, power_watts=250.0)
"""The ICSE'24 study's example: 4.9 times the throughput were possible."""
IS_SMALL = Case(BERT, "small_batch", "GpuSmallBatch/info")
SMALL_BATCH = {
    "batch": IS_SMALL,
    "batch with half the memory": IS_SMALL.of(changed(BERT, memory=0.6)),
    "batch just below": Case(changed(BERT, sm=0.51)),
    "batch with bandwidth": Case(changed(BERT, dram=0.41)),
    "batch that fills the memory": IS_CAPPED.of(changed(BERT, memory=0.82)),
    # The host keeps it waiting; at .64 that is told, and alerted below .50 only.
    "batch of a slow loop": Case(changed(BERT, stalls={"host_code": 0.36}), "host_loop_bound"),
    "batch hardly used": Case(
        changed(BERT, busy=0.29),
        "unexplained_low_utilization",
        "GpuUnexplainedLowUtilization/warning",
    ),
    "batch without GPM": IS_SMALL.of(changed(BERT, **NO_GPM)),
    "batch without GPM underused": IS_SMALL.of(
        changed(BERT, **NO_GPM, busy=0.45, power_watts=350.0)
    ),
    "batch without GPM with power": Case(changed(BERT, **NO_GPM, power_watts=285.0)),
    "batch without power": Case(changed(BERT, **NO_GPM, power_watts=None)),
    "batch without feeders": later(IS_SMALL.of(changed(BERT, feeders=False))),
}

STREAMING = changed(
    HEALTHY, busy=1.0, dram=0.75, sm=0.8, pipes=pipes(tensor=0.02, fp32=0.3), memory_controller=0.9
)
IS_STREAMING = Case(STREAMING, "memory_bandwidth_bound", "GpuMemoryBandwidthBound/info")
OLD = changed(STREAMING, **NO_GPM, power_watts=450.0)
BANDWIDTH = {
    "bandwidth": IS_STREAMING,
    # Then it is the other one of the two.
    "bandwidth just below": Case(
        changed(STREAMING, dram=0.59), "tensor_cores_idle", "GpuTensorCoresIdle/info"
    ),
    "bandwidth for tensor cores": Case(changed(STREAMING, pipes=pipes(tensor=0.31))),
    "bandwidth without GPM": IS_STREAMING.of(OLD),
    "bandwidth without GPM just below": Case(changed(OLD, memory_controller=0.79)),
    "bandwidth without GPM with power": Case(changed(OLD, power_watts=495.0)),
    "bandwidth without anything": Case(changed(OLD, memory_controller=None)),
    # Where DRAM can be read, the controller is not asked.
    "bandwidth of the controller": Case(changed(STREAMING, dram=0.3, pipes=PIPES)),
}

FP32 = changed(HEALTHY, sm=0.9, dram=0.2, pipes=pipes(tensor=0.0, fp32=0.6))
IS_FP32 = Case(FP32, "tensor_cores_idle", "GpuTensorCoresIdle/info")
TENSOR = {
    "tensor": IS_FP32,
    "tensor just above": Case(changed(FP32, pipes=pipes(tensor=0.06, fp32=0.6))),
    "tensor with little FP32": Case(changed(FP32, pipes=pipes(tensor=0.0, fp32=0.19))),
    "tensor of FP64": Case(changed(FP32, pipes=pipes(tensor=0.0, fp32=0.3, fp64=0.6))),
    "tensor without FP64": IS_FP32.of(changed(FP32, pipes={"tensor": 0.0, "fp32": 0.6})),
    "tensor without FP32": IS_FP32.of(changed(FP32, pipes={"tensor": 0.0})),
    "tensor without pipes": Case(changed(FP32, pipes=None)),
    "tensor without GPM": Case(changed(FP32, **NO_GPM)),
}

SEQUENTIAL = changed(HEALTHY, busy=1.0, sm=0.1, occupancy=0.05, dram=0.45, main_cpu=0.1)
PARALLELISM = {
    "parallelism": Case(SEQUENTIAL, "low_parallelism", "GpuLowParallelism/info"),
    "parallelism just above": Case(changed(SEQUENTIAL, sm=0.51)),
    "parallelism while not busy": Case(changed(SEQUENTIAL, busy=0.69)),
    # With free memory and a quiet DRAM, batches are small.
    "parallelism of small batches": Case(
        changed(SEQUENTIAL, dram=0.1, memory=0.3), "small_batch", "GpuSmallBatch/info"
    ),
    "parallelism without GPM": Case(
        changed(SEQUENTIAL, **NO_GPM, power_watts=200.0), "small_batch", "GpuSmallBatch/info"
    ),
    "parallelism without anything": Case(changed(SEQUENTIAL, **NO_GPM, power_watts=None)),
}


def ramp(*points: tuple[int, float]) -> Phases:
    """Values on the lines between the points, which are minutes and values."""
    phases: list[tuple[int, float | None]] = []
    for (start, low), (end, high) in pairwise(points):
        phases += [(1, low + (high - low) * at / (end - start)) for at in range(end - start)]
    return [*phases, (END, points[-1][1])]


LEAK = ramp((0, 0.80), (30, 0.97), (END, 0.995))
OOM = {
    "oom of a cache that comes and goes": Case(
        changed(HEALTHY, memory=[(2, 0.994 + 0.00005 * minute) for minute in range(60)])
    ),
    "oom": Case(changed(HEALTHY, memory=LEAK), None, "GpuNearOom/warning", 10, begins=31),
    "oom of a job that takes all at once": Case(
        changed(HEALTHY, memory=ramp((0, 0.0), (9, 0.0), (10, 0.98), (END, 0.98)))
    ),
    "oom flat": Case(changed(HEALTHY, memory=0.98)),
    "oom just below": Case(changed(HEALTHY, memory=ramp((0, 0.80), (END, 0.965)))),
    "oom falling": Case(changed(HEALTHY, memory=ramp((0, 0.995), (END, 0.975)))),
    "oom without total": Case(
        changed(HEALTHY, memory=LEAK, missing=frozenset({"gpu_memory_total_bytes"}))
    ),
}

SLEEPING = changed(HEALTHY, busy=0.2, sm=0.15, power_watts=150.0, **SILENT)
UNEXPLAINED = Case(SLEEPING, "unexplained_low_utilization", "GpuUnexplainedLowUtilization/warning")
REST = {
    "unexplained": UNEXPLAINED,
    "unexplained just above": Case(changed(SLEEPING, busy=0.51, sm=0.5)),
    # A little of this and of that: no cause has enough.
    "unexplained mixture": UNEXPLAINED.of(
        changed(SLEEPING, stalls={"host_code": 0.25, "network": 0.25, "asleep": 0.3})
    ),
    "unexplained loop": Case(
        changed(SLEEPING, stalls={"host_code": 0.4, "asleep": 0.4}),
        "host_loop_bound",
        "GpuHostLoopBound/warning",
        minutes=10,
    ),
    "unexplained without feeders": later(UNEXPLAINED.of(changed(SLEEPING, feeders=False))),
    "unexplained without GPM": UNEXPLAINED.of(changed(SLEEPING, **NO_GPM)),
    "unexplained at the start": Case(changed(SLEEPING, age_seconds=500.0)),
}


def test_one_gpu(tmp_path: Path) -> None:
    cases = SHARING | MEMORY_CAPPED | SMALL_BATCH | BANDWIDTH | TENSOR | PARALLELISM | OOM | REST
    check({name: [case] for name, case in cases.items()}, tmp_path)


def test_oversized(tmp_path: Path) -> None:
    # A day is long: few evaluations, no more series than needed. Groups that are not named are
    # evaluated first, and alerts would look for what was recorded ten minutes ago.
    alerts = [group["name"] for group in groups((RULES / "alerts.yml").read_text())]
    fleet = Fleet(DAY + 70, groups=(*GROUPS, *alerts), evaluation_interval="10m")
    oversized = changed(HEALTHY, busy=0.1, sm=0.05, memory=0.1, pipes=None, feeders=False)
    cases = {
        "oversized": oversized,
        "larger": changed(oversized, busy=0.16),
        "fuller": changed(oversized, memory=0.21),
        "fuller-once": changed(oversized, memory=[(600, 0.1), (10, 0.5), (DAY, 0.1)]),
        "idle": changed(oversized, busy=0.0),
        "unreadable": changed(oversized, missing=frozenset({"gpu_memory_total_bytes"})),
    }
    for node, gpu in cases.items():
        add_gpu(fleet, node, gpu)
    add_pair(fleet, oversized)
    query = (
        "count by (instance, severity) "
        '(ALERTS{alertstate="firing",alertname="GpuOversized",instance!="pair"})'
    )
    fleet.expect(DAY - 10, 'gpu:cause:evidence{cause="oversized_gpu"} == 1', {})
    fleet.expect(DAY + 60, query, {})
    fleet.expect(DAY + 70, query, {'{instance="oversized",severity="info"}': 1.0})
    fleet.expect_cause("oversized", DAY + 70, "unexplained_low_utilization")
    fleet.check(tmp_path)


def add_pair(fleet: Fleet, oversized: Gpu) -> None:
    """Of two GPUs the second one; its exporter is restarted, and scrapes fail for three minutes."""
    pod = {"workload_namespace": "nlp", "workload_pod": "serve-0", "pod_uid": "7d1f"}
    guilty = changed(oversized, owner=pod, reset_at=700)
    add_gpu(fleet, "pair", changed(guilty, busy=0.98, owner=job("healthy")))
    add_gpu(fleet, "pair", guilty, 1)
    fleet.fail_scrapes("pair", 900, 903)
    labels = {
        "cause": "oversized_gpu",
        "owner": "job",
        "severity": "info",
        "job": "gpu",
        **told_of(pod),
    }
    labels |= {"instance": "pair", "gpu": "1", "uuid": "GPU-pair-1", "alertstate": "firing"}
    pairs = ",".join(f'{name}="{text}"' for name, text in labels.items())
    query = 'ALERTS{alertname="GpuOversized",instance="pair"}'
    fleet.expect(DAY + 70, query, {f'ALERTS{{alertname="GpuOversized",{pairs}}}': 1.0})
