"""What the rules say of whole fleets, and that an incident is told once and by its name.

One cause for many, ranks that wait, how well a fleet is used. What is lost all day, and what comes
and goes for hours, is in test_hours.
"""

from __future__ import annotations

from pathlib import Path

from rules.cases import expect, gpu_of, gpus, rows, table
from rules.fleet import Fleet, Gpu, add_gpu, changed, fired, job

END = 50
SYNCHRONOUS = 8
SPINS, GUILTY, DISK = (gpus("fleet_gpus")[name] for name in ("spins", "guilty", "disk"))
BY = "alertname, gpu, cause"
TOLD = '{alertname="GpuTooFewWorkers",cause="too_few_workers",gpu="0"}'


def test_fleets(tmp_path: Path) -> None:
    fleet = Fleet(END, evaluation_interval="2m")
    for add in PARTS:
        add(fleet)
    fleet.check(tmp_path)


def starved_rank(fleet: Fleet) -> None:
    """It costs its whole job.

    It is busy for four fifths, far above what else is told, and seven others spin meanwhile.
    """
    add_gpu(fleet, "sync", changed(GUILTY, owner=job("sync")))
    for index in range(1, SYNCHRONOUS):
        add_gpu(fleet, "sync", changed(SPINS, owner=job("sync")), index)
    fleet.expect(38, fired("sync", BY), {TOLD: 1.0})
    primary = 'count by (gpu) (gpu:bottleneck:primary{instance="sync"})'
    fleet.expect(38, primary, {'{gpu="0"}': 1.0})
    told = (
        'cause="too_few_workers",gpu="0",instance="sync",job="gpu",slurm_job_id="sync",user="ada",'
        'uuid="GPU-sync-0",workload="Slurm job sync",workload_group="slurm-sync"'
    )
    lost = 'round(gpu:bottleneck:lost_ratio{instance="sync"} * 100)'
    fleet.expect(38, lost, {f"{{{told}}}": 20.0})
    # The same idle time on a GPU that nobody waits for is worth no alert.
    add_gpu(fleet, "alone", changed(GUILTY, owner=job("alone")))
    fleet.expect(38, fired("alone", BY), {})
    # Nor is it its siblings' where half of them idle as well: they do not wait for it.
    for index in range(4):
        add_gpu(fleet, "apart", changed(GUILTY, owner=job("apart")), index)
    fleet.expect(38, fired("apart", BY), {})
    rate = 'round(instance:lost_gpu_seconds:rate{instance=~"sync|alone|apart"}, 0.01)'
    of_job = '{cause="too_few_workers",instance="sync",job="gpu"}'
    fleet.expect(38, rate, {of_job: 1.6})


def ranks_of_pods(fleet: Fleet) -> None:
    """Those of many pods are one job by where they meet."""
    for rank in range(SYNCHRONOUS):
        pod = {"workload_namespace": "nlp", "workload_pod": f"train-{rank}", "pod_uid": f"u-{rank}"}
        gpu = GUILTY if rank == 5 else SPINS
        add_gpu(fleet, f"node-{rank}", changed(gpu, owner={**pod, "rendezvous": "5f3c9ab01d2e"}))
    # Another namespace has a job that meets at an address of the same name.
    stranger = {"workload_namespace": "vision", "workload_pod": "train-0", "pod_uid": "v-0"}
    add_gpu(fleet, "other", changed(GUILTY, owner={**stranger, "rendezvous": "5f3c9ab01d2e"}))
    fleet.expect(38, fired("node-5", BY), {TOLD: 1.0})
    for node in ("other", *(f"node-{rank}" for rank in range(SYNCHRONOUS) if rank != 5)):
        fleet.expect(38, fired(node, BY), {})
    group = 'max by (workload_group) (gpu:group:size{workload_group=~".*5f3c9ab01d2e"})'
    sizes = {"nlp": 8.0, "vision": 1.0}
    answer = {f'{{workload_group="{space}/5f3c9ab01d2e"}}': n for space, n in sizes.items()}
    fleet.expect(38, group, answer)
    rate = 'sum(instance:lost_gpu_seconds:rate{instance=~"node-.|other"})'
    fleet.expect(38, f"round({rate}, 0.01)", {"{}": 1.6})


def slow_for_many(fleet: Fleet) -> None:
    """One for the platform."""
    for cluster, parts in rows("clusters").items():
        every = [part for part in parts for _ in range(part["times"])]
        for number, part in enumerate(every):
            whose = job(number % part["jobs"]) if "jobs" in part else None
            gpu = changed(gpu_of(part, "jobs"), owner=whose, target={"cluster": cluster})
            add_gpu(fleet, f"{cluster}-{number}", gpu)
    causes = {name: parts[0].get("told") for name, parts in rows("clusters").items()}
    told = 'ALERTS{alertstate="firing",alertname="GpuFleetBottleneck"}'
    answer = {f'{{cause="{of}",cluster="{name}"}}': 1.0 for name, of in causes.items() if of}
    fleet.expect(38, f"count by (cluster, cause) ({told})", answer)
    slow = '{cause="network_storage_bound"}'
    fleet.expect(18, f'count by (cause) ({told[:-1]},cluster="slow for all"}})', {slow: 1.0})


def well_used(fleet: Fleet) -> None:
    """How well a fleet is used."""
    target = {"cluster": "use"}
    for number, busy in enumerate((0.95, 0.9, 0.75, 0.6)):
        add_gpu(fleet, f"use-{number}", Gpu(busy=busy, target=target))
    free = Gpu(busy=0.0, sm=0.0, processes=0, memory=0.0, target=target)
    add_gpu(fleet, "free", free)
    used = 'cluster:gpus_used:ratio{cluster="use"}'
    shares = {"well": 0.75, "very_well": 0.5}
    answer = {f'{used[:-1]},used="{name}"}}': share for name, share in shares.items()}
    fleet.expect(18, used, answer)


def failing_scrapes(fleet: Fleet) -> None:
    """Now and then: they delay no alert."""
    for every in (3, 9):
        for name, row in table("failing").items():
            node = f"{name}-{every}"
            add_gpu(fleet, node, row.gpu)
            for minute in range(every, 40, every):
                fleet.fail_scrapes(node, minute, minute + 1)
            fleet.end(node, expect(fleet, node, row.told, END))


def bad_hardware(fleet: Fleet) -> None:
    """Ranks wait for one with bad hardware.

    They spin with little to do; their time is lost to its cause, not to small batches.
    """
    for node, row in table("bad_hardware").items():
        for index in range(8):
            gpu = row.gpu if index == 3 else changed(SPINS, memory=0.2, dram=0.1)
            add_gpu(fleet, node, changed(gpu, owner=job(node)), index)
        primary = f'sum by (gpu, cause) (gpu:bottleneck:primary{{instance="{node}"}})'
        fleet.expect(48, primary, {f'{{cause="{row.told}",gpu="3"}}': 1.0})


def test_what_is_slow_for_several_jobs_of_a_node_is_the_nodes_incident(tmp_path: Path) -> None:
    """Before the jobs' own alerts, which it mutes."""
    fleet = Fleet(11)
    for node, cause in (("disk", "local_storage_bound"), ("crowd", "cpu_oversubscribed")):
        gpu = gpus("fleet_gpus")[node]
        for index in range(8):
            add_gpu(fleet, node, changed(gpu, owner=job(f"{node}-{index}")), index)
        told = f'{{alertname="GpuNodeBottleneck",cause="{cause}"}}'
        every = f'ALERTS{{alertstate="firing",instance="{node}"}}'
        fleet.expect(11, f"count by (alertname, cause) ({every})", {told: 1.0})
    fleet.check(tmp_path)


def two_jobs(fleet: Fleet) -> None:
    """Too few for an incident of their node."""
    for index in range(8):
        add_gpu(fleet, "two-jobs", changed(DISK, owner=job(f"two-{index % 2}")), index)
    fleet.expect(39, 'ALERTS{alertname="GpuNodeBottleneck",instance="two-jobs"}', {})
    fleet.end("two-jobs", 39)


PARTS = (
    *(starved_rank, ranks_of_pods, slow_for_many, well_used),
    *(failing_scrapes, bad_hardware, two_jobs),
)
