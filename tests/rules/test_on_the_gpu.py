"""Causes on the GPU and between the GPUs of a job: what fires, and what must not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from rules.cases import Row, expect, firing, node_of
from rules.fleet import GROUPS, RULES, Fleet, Gpu, add_gpu, told_of
from rules.parsed import groups
from rules.series import Phases, Signal

END = 50
"""Minutes that a fleet runs: enough for the longest `for`, half an hour."""
DAY = 1440

HEALTHY = Gpu()
PIPES = {"tensor": 0.5, "fp32": 0.1, "fp64": 0.0}
NO_GPM = {"sm": None, "occupancy": None, "dram": None, "pipes": None, "nvlink_bytes": None}
FEEDERLESS = 10
"""Minutes after which a GPU counts as warm where the age of its processes cannot be read."""
SILENT = {"main_cpu": 0.0, "worker_cpu": 0.0, "worker_read_bytes": 0.0, "network_bytes": 0.0}


def changed(gpu: Gpu, **fields: object) -> Gpu:
    """`gpu` but for these."""
    return replace(gpu, **fields)  # type: ignore[arg-type]


def pipes(**shares: Signal) -> dict[str, Signal]:
    """Shares of the pipes: those of a healthy job, but for these."""
    return {**PIPES, **shares}


def after(minutes: int, told: str) -> str:
    """The cause is there before; its alert fires after so many minutes."""
    return f"{minutes - 2} {told.partition('/')[0]}; {told}"


def check(cases: Mapping[str, Sequence[Row]], folder: Path) -> None:
    """Evaluate the jobs, each of as many nodes with one GPU as it has rows."""
    fleet = Fleet(END, evaluation_interval="2m")  # of `for`s of 5 minutes and more
    for name, ranks in cases.items():
        for rank, row in enumerate(ranks):
            node = f"{node_of(name)}-{rank}"
            owned = row.gpu.owner or row.gpu.owners or len(ranks) == 1
            add_gpu(fleet, node, row.gpu if owned else changed(row.gpu, owner=job(name)))
            expect(fleet, node, row.told, END)
    fleet.check(folder)


def job(name: str) -> dict[str, str]:
    """The owner of the GPUs of a Slurm job."""
    return {"slurm_job_id": name, "user": "ada"}


def ranks(gpu: Gpu, *others: Row, size: int = 4) -> list[Row]:
    """A job of `size` GPUs: others, and `gpu`s of which nothing is said."""
    return [Row(gpu) for _ in range(size - len(others))] + list(others)


IS_SMALL = after(30, "small_batch/info")
UNEXPLAINED = after(30, "unexplained_low_utilization/warning")

# --- Several GPUs of one job -----------------------------------------------------------------

IDLE_SIBLING = changed(HEALTHY, busy=0.05, sm=0.03)
UNEVEN = changed(HEALTHY, busy=0.4, sm=0.3)
IS_UNEVEN = after(15, "gpu_imbalance/warning")
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
    "imbalance idle sibling": ranks(HEALTHY, Row(IDLE_SIBLING, IS_UNEVEN)),
    "imbalance uneven": ranks(HEALTHY, Row(UNEVEN, IS_UNEVEN), size=2),
    # Nothing at all from the sibling, for longer than an idle GPU takes: uneven all the same.
    "imbalance sibling at nought": ranks(
        HEALTHY, Row(changed(HEALTHY, busy=0.0, sm=0.0, **SILENT), IS_UNEVEN), size=2
    ),
    # Replicas: one has requests, one has not. A rank that listens and waits for another is none.
    "imbalance of replicas": ranks(
        HEALTHY,
        Row(
            changed(HEALTHY, busy=0.0, sm=0.0, stalls={"requests": 1.0}, **SILENT),
            after(30, "waits_for_requests/info"),
        ),
        size=2,
    ),
    "imbalance of ranks that listen": ranks(
        HEALTHY,
        Row(
            changed(HEALTHY, busy=0.05, sm=0.03, stalls={"peer": 0.5, "requests": 0.45}), IS_UNEVEN
        ),
        size=2,
    ),
    # .28 apart.
    "imbalance just below": ranks(
        changed(HEALTHY, busy=0.7), Row(changed(HEALTHY, busy=0.42, sm=0.35), UNEXPLAINED), size=2
    ),
    # A sibling with a reason of its own: that is the cause.
    "imbalance of a starved rank": ranks(
        HEALTHY, Row(STARVED, after(10, "cpu_preprocessing_bound/warning")), size=2
    ),
    # Who feeds it is not known, or whose it is: the other one of the two says it.
    "imbalance without feeders": ranks(
        changed(HEALTHY, feeders=False),
        Row(changed(UNEVEN, feeders=False), after(FEEDERLESS + 15, "gpu_imbalance/warning")),
        size=2,
    ),
    "imbalance without owner": [Row(changed(UNEVEN, stalls={"peer": 0.6}), IS_UNEVEN)],
    "imbalance of two jobs": [
        Row(changed(HEALTHY, owner=job("one"))),
        Row(changed(UNEVEN, owner=job("another")), UNEXPLAINED),
    ],
    # Younger than ten minutes it may still be starting.
    "imbalance at the start": ranks(HEALTHY, Row(changed(UNEVEN, age_seconds=500.0)), size=2),
}

PEER = changed(HEALTHY, feeders=False, power_watts=450.0)
SLOW_CLOCK = changed(PEER, clock=0.85)
MORE_WORK = changed(PEER, power_watts=560.0, pipes=pipes(tensor=0.6))
IS_STRAGGLER = after(FEEDERLESS + 15, "straggler/warning")

STRAGGLER = {
    "straggler clock": ranks(PEER, Row(SLOW_CLOCK, IS_STRAGGLER)),
    "straggler clock just above": ranks(PEER, Row(changed(PEER, clock=0.91))),
    "straggler of three": ranks(PEER, Row(SLOW_CLOCK), size=3),
    "straggler not busy": ranks(PEER, Row(changed(SLOW_CLOCK, busy=0.88))),
    "straggler without clocks": ranks(changed(PEER, clock=None)),
    "straggler all slow": ranks(SLOW_CLOCK),
    "straggler work": ranks(PEER, Row(MORE_WORK, IS_STRAGGLER)),
    "straggler work just below": ranks(PEER, Row(changed(MORE_WORK, power_watts=513.0))),
    # It draws more and does not do more: another board, not more work.
    "straggler power alone": ranks(PEER, Row(changed(PEER, power_watts=560.0))),
    "straggler work without pipes": ranks(
        changed(PEER, pipes=None), Row(changed(MORE_WORK, pipes=None), IS_STRAGGLER)
    ),
    "straggler without power": ranks(
        changed(PEER, power_watts=None), Row(changed(MORE_WORK, power_watts=None))
    ),
    # One rank is starved on its host, the others spin: theirs are no causes of their own.
    "straggler starved": ranks(WAITING, Row(STARVED, after(10, "cpu_preprocessing_bound/warning"))),
    # The hardware's reason comes first.
    "straggler with a brake": ranks(
        PEER,
        Row(changed(SLOW_CLOCK, throttle={"hw_power_brake": 0.1}), after(5, "hw_slowdown/warning")),
    ),
}

COLLECTIVES = changed(
    HEALTHY, busy=1.0, sm=0.6, pipes=pipes(tensor=0.08), power_watts=350.0, nvlink_bytes=1.8e11
)
"""40 % of an H100's NVLink in each direction."""


def bound(gpu: Gpu) -> list[Row]:
    return 2 * [Row(gpu, after(15, "communication_bound/info"))]


def quiet(gpu: Gpu) -> list[Row]:
    return 2 * [Row(gpu)]


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
    "communication with itself": [Row(COLLECTIVES)],
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
HANGS = after(25 + 10, "collective_hang/warning")
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
SPINNING = changed(TINY, dram=0.01, memory_controller=0.01)
"""In a collective, from the start: it looks at a flag again and again."""

HANG = {
    "hang": [
        Row(HANGING, HANGS),
        Row(HANGING, HANGS),
        # The rank that the others wait for; it sleeps. Not uneven, not idle, not stalled alone.
        Row(
            changed(HANGING, busy=then(0.98, 0.0), power_watts=then(560.0, 80.0)),
            HANGS,
        ),
    ],
    # That rank still talks to somebody: it is the one all the same.
    "hang for a rank that talks": [
        Row(HANGING, HANGS),
        Row(
            changed(
                HANGING, busy=then(0.98, 0.0), power_watts=then(560.0, 80.0), network_bytes=1e6
            ),
            HANGS,
        ),
    ],
    # Never worked, so that there is nothing to compare with: the group tells it.
    "hang from the start": [Row(SPINNING, after(10, "collective_hang/warning")) for _ in range(2)],
    "hang of a sweep of small models": 2 * [Row(TINY, IS_SMALL)],
    "hang of an unknown group": [Row(HANGING, HANGS)],
    "hang of tiny kernels": [Row(TINY, IS_SMALL)],
    "hang with traffic": [
        Row(changed(HANGING, nvlink_bytes=then(1e9, 6e7), dram=0.5), "low_parallelism")
    ],
    "hang with less signals": [Row(changed(HANGING, **NO_GPM, pcie_bytes=None), HANGS)],
    # A little more than .35 of the limit, and not less than half of what it was.
    "hang with power": [Row(changed(HANGING, power_watts=then(560.0, 250.0), sm=0.6, pipes=PIPES))],
    "hang without power": [Row(changed(HANGING, power_watts=None, sm=0.6))],
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
    "sharing": Row(SHARED, after(15, "sharing_contention/info")),
    "sharing just below": Row(changed(SHARED, busy=0.89)),
    "sharing with nobody": Row(changed(HEALTHY, owner=TENANTS[0])),
    "sharing unknown": Row(HEALTHY),
    "sharing with a sidecar": Row(
        changed(HEALTHY, owners=[{"pod_uid": "1", "container_id": name} for name in ("a", "b")])
    ),
    "sharing with oneself": Row(
        changed(HEALTHY, owners=[{"slurm_job_id": "1", "user": name} for name in ("ann", "root")])
    ),
    "sharing with another user": Row(
        changed(HEALTHY, owners=[{"user": "ann"}, {"user": "bob"}]),
        after(15, "sharing_contention/info"),
    ),
    # Before what runs on the GPU: it cannot be said of whom.
    "sharing small batches": Row(
        changed(SHARED, sm=0.25, dram=0.1, memory=0.2), after(15, "sharing_contention/info")
    ),
    "sharing at the start": Row(changed(SHARED, age_seconds=500.0)),
}

CAPPED = changed(HEALTHY, busy=0.4, sm=0.15, power_watts=100.0, memory=0.85)
IS_CAPPED = after(30, "gpu_memory_capped/info")
MEMORY_CAPPED = {
    "capped": Row(CAPPED, IS_CAPPED),
    "capped while busy": Row(changed(CAPPED, busy=0.95), IS_CAPPED),
    "capped at its peak": Row(
        changed(CAPPED, memory=[(25, 0.85), (END, 0.3)], dram=0.1), IS_CAPPED
    ),
    "capped just below": Row(
        changed(CAPPED, busy=0.95, memory=0.8), after(30, "low_parallelism/info")
    ),
    "capped and used": Row(changed(CAPPED, busy=0.95, sm=0.51)),
    "capped without GPM": Row(changed(CAPPED, **{**NO_GPM, "power_watts": 100.0}), IS_CAPPED),
    "capped without power": Row(changed(CAPPED, **{**NO_GPM, "power_watts": None}), UNEXPLAINED),
    "capped without memory": Row(
        changed(CAPPED, missing=frozenset({"gpu_memory_total_bytes"})), UNEXPLAINED
    ),
}

BERT = changed(HEALTHY, busy=0.64, sm=0.25, memory=0.19, dram=0.1, power_watts=250.0)
"""The ICSE'24 study's example: 4.9 times the throughput were possible."""
SMALL_BATCH = {
    "batch": Row(BERT, IS_SMALL),
    "batch with half the memory": Row(changed(BERT, memory=0.6), IS_SMALL),
    "batch just below": Row(changed(BERT, sm=0.51)),
    "batch with bandwidth": Row(changed(BERT, dram=0.41)),
    "batch that fills the memory": Row(changed(BERT, memory=0.82), IS_CAPPED),
    # The host keeps it waiting; at .64 that is told, and alerted below .50 only.
    "batch of a slow loop": Row(changed(BERT, stalls={"host_code": 0.36}), "host_loop_bound"),
    "batch hardly used": Row(changed(BERT, busy=0.29), UNEXPLAINED),
    "batch without GPM": Row(changed(BERT, **{**NO_GPM, "power_watts": 170.0}), IS_SMALL),
    "batch without GPM underused": Row(
        changed(BERT, **{**NO_GPM, "power_watts": 350.0}, busy=0.45), UNEXPLAINED
    ),
    "batch without GPM with power": Row(changed(BERT, **NO_GPM, power_watts=285.0)),
    "batch without power": Row(changed(BERT, **NO_GPM, power_watts=None)),
    "batch without feeders": Row(
        changed(BERT, feeders=False), after(FEEDERLESS + 30, "small_batch/info")
    ),
}

STREAMING = changed(
    HEALTHY, busy=1.0, dram=0.75, sm=0.8, pipes=pipes(tensor=0.02, fp32=0.3), memory_controller=0.9
)
IS_STREAMING = after(30, "memory_bandwidth_bound/info")
OLD = changed(STREAMING, **NO_GPM, power_watts=450.0)
BANDWIDTH = {
    "bandwidth": Row(STREAMING, IS_STREAMING),
    # Then it is the other one of the two.
    "bandwidth just below": Row(changed(STREAMING, dram=0.59), after(30, "tensor_cores_idle/info")),
    "bandwidth for tensor cores": Row(changed(STREAMING, pipes=pipes(tensor=0.31))),
    "bandwidth without GPM": Row(OLD, IS_STREAMING),
    "bandwidth without GPM just below": Row(changed(OLD, memory_controller=0.79)),
    "bandwidth without GPM with power": Row(changed(OLD, power_watts=495.0)),
    "bandwidth without anything": Row(changed(OLD, memory_controller=None)),
    # Where DRAM can be read, the controller is not asked.
    "bandwidth of the controller": Row(changed(STREAMING, dram=0.3, pipes=PIPES)),
}

FP32 = changed(HEALTHY, sm=0.9, dram=0.2, pipes=pipes(tensor=0.0, fp32=0.6))
IS_FP32 = after(30, "tensor_cores_idle/info")
TENSOR = {
    "tensor": Row(FP32, IS_FP32),
    "tensor just above": Row(changed(FP32, pipes=pipes(tensor=0.06, fp32=0.6))),
    "tensor with little FP32": Row(changed(FP32, pipes=pipes(tensor=0.0, fp32=0.19))),
    "tensor of FP64": Row(changed(FP32, pipes=pipes(tensor=0.0, fp32=0.3, fp64=0.6))),
    "tensor without FP64": Row(changed(FP32, pipes={"tensor": 0.0, "fp32": 0.6}), IS_FP32),
    "tensor without FP32": Row(changed(FP32, pipes={"tensor": 0.0}), IS_FP32),
    "tensor without pipes": Row(changed(FP32, pipes=None)),
    "tensor without GPM": Row(changed(FP32, **NO_GPM)),
}

SEQUENTIAL = changed(HEALTHY, busy=1.0, sm=0.1, occupancy=0.05, dram=0.45, main_cpu=0.1)
PARALLELISM = {
    "parallelism": Row(SEQUENTIAL, after(30, "low_parallelism/info")),
    "parallelism just above": Row(changed(SEQUENTIAL, sm=0.51)),
    "parallelism while not busy": Row(changed(SEQUENTIAL, busy=0.69)),
    # With free memory and a quiet DRAM, batches are small.
    "parallelism of small batches": Row(changed(SEQUENTIAL, dram=0.1, memory=0.3), IS_SMALL),
    "parallelism without GPM": Row(changed(SEQUENTIAL, **NO_GPM, power_watts=200.0), IS_SMALL),
    "parallelism without anything": Row(changed(SEQUENTIAL, **NO_GPM, power_watts=None)),
}


def ramp(*points: tuple[int, float]) -> Phases:
    """Values on the lines between the points, which are minutes and values."""
    phases: list[tuple[int, float | None]] = []
    for (start, low), (end, high) in pairwise(points):
        phases += [(1, low + (high - low) * at / (end - start)) for at in range(end - start)]
    return [*phases, (END, points[-1][1])]


LEAK = ramp((0, 0.80), (30, 0.97), (END, 0.995))
OOM = {
    "oom of a cache that comes and goes": Row(
        changed(HEALTHY, memory=[(2, 0.994 + 0.00005 * minute) for minute in range(60)])
    ),
    "oom": Row(changed(HEALTHY, memory=LEAK), "39 -; - near_oom/warning"),
    "oom of a job that takes all at once": Row(
        changed(HEALTHY, memory=ramp((0, 0.0), (9, 0.0), (10, 0.98), (END, 0.98)))
    ),
    "oom flat": Row(changed(HEALTHY, memory=0.98)),
    "oom just below": Row(changed(HEALTHY, memory=ramp((0, 0.80), (END, 0.965)))),
    "oom falling": Row(changed(HEALTHY, memory=ramp((0, 0.995), (END, 0.975)))),
    "oom without total": Row(
        changed(HEALTHY, memory=LEAK, missing=frozenset({"gpu_memory_total_bytes"}))
    ),
}

SLEEPING = changed(HEALTHY, busy=0.2, sm=0.15, power_watts=150.0, **SILENT)
REST = {
    "unexplained": Row(SLEEPING, UNEXPLAINED),
    "unexplained just above": Row(changed(SLEEPING, busy=0.51, sm=0.5)),
    # A little of this and of that: no cause has enough.
    "unexplained mixture": Row(
        changed(SLEEPING, stalls={"host_code": 0.25, "network": 0.25, "asleep": 0.3}), UNEXPLAINED
    ),
    "unexplained loop": Row(
        changed(SLEEPING, stalls={"host_code": 0.4, "asleep": 0.4}),
        after(10, "host_loop_bound/warning"),
    ),
    "unexplained without feeders": Row(
        changed(SLEEPING, feeders=False),
        after(FEEDERLESS + 30, "unexplained_low_utilization/warning"),
    ),
    "unexplained without GPM": Row(changed(SLEEPING, **NO_GPM), UNEXPLAINED),
    "unexplained at the start": Row(changed(SLEEPING, age_seconds=500.0)),
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
    query = 'ALERTS{alertname="GpuOversized",instance="pair"}'
    second = {**told_of(pod), "gpu": "1", "uuid": "GPU-pair-1"}
    fleet.expect(DAY + 70, query, {firing("pair", "oversized_gpu/info", **second): 1.0})
