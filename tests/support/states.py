"""States as the sampler would return them, with known values for every figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpu_bottleneck_exporter.accounting import stall
from gpu_bottleneck_exporter.accounting.bucket import Counters
from gpu_bottleneck_exporter.accounting.tick import UNATTRIBUTED
from gpu_bottleneck_exporter.accounting.windows import WINDOW_BUCKETS
from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.driver import readings as kinds
from gpu_bottleneck_exporter.driver.about import UNKNOWN_DRIVER
from gpu_bottleneck_exporter.driver.nvml.remedies import NVIDIA
from gpu_bottleneck_exporter.driver.protocol import Driver, DriverMissing
from gpu_bottleneck_exporter.feeders.job import JobLimits, JobReading
from gpu_bottleneck_exporter.feeders.snapshot import Feeding
from gpu_bottleneck_exporter.host.machine import Machine
from gpu_bottleneck_exporter.host.sharedmemory import SharedMemory
from gpu_bottleneck_exporter.prescription import model
from gpu_bottleneck_exporter.sampling.gpureader import Outcome
from gpu_bottleneck_exporter.sampling.hostreader import HostSnapshot
from gpu_bottleneck_exporter.sampling.ledger import (
    OTHER_TENANTS,
    GpuSnapshot,
    GpuTotals,
    TenantTotals,
)
from gpu_bottleneck_exporter.sampling.sampler import Sampler, SamplerState
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.workload.identity import Owner
from gpu_bottleneck_exporter.workload.names import Tenant
from support.board import THROTTLE_REASONS

SYSTEM = kinds.System("580.95.05", "13.0")
AT_NS = 86_400_000_000_000
PIPES = ("tensor", "fp64", "fp32", "fp16", "int")
_LINKS = ("pcie", "nvlink", "c2c", "c2c_data")
TRAFFIC = tuple(f"{link}_{way}" for link in _LINKS for way in ("receive", "transmit"))
ACTIVE_REASONS = tuple(r for r in THROTTLE_REASONS if r not in ("board_limit", "reliability"))
"""Before driver 615, the other two have no event-reason bit."""

HOPPER = kinds.Identity(
    index=0,
    uuid="GPU-00000000-0000-0000-0000-000000000000",
    name="NVIDIA H100 80GB HBM3",
    architecture="hopper",
    pci_bus_id="00000000:10:00.0",
)
MIG_PARENT = replace(
    HOPPER, index=1, uuid="GPU-11111111-1111-1111-1111-111111111111", pci_bus_id="00000000:11:00.0"
)
MIG_INSTANCE = replace(
    MIG_PARENT,
    uuid="MIG-11111111-aaaa-1111-1111-111111111111",
    name="NVIDIA H100 80GB HBM3 MIG 3g.40gb",
    mig_profile="3g.40gb",
    parent_uuid=MIG_PARENT.uuid,
)
SHARED = kinds.Identity(index=4, uuid="GPU-44444444-4444-4444-4444-444444444444")
AMPERE = kinds.Identity(
    index=2,
    uuid="GPU-22222222-2222-2222-2222-222222222222",
    name="NVIDIA A100-SXM4-80GB",
    architecture="ampere",
    pci_bus_id="00000000:12:00.0",
)
LOST = replace(
    AMPERE, index=3, uuid="GPU-33333333-3333-3333-3333-333333333333", pci_bus_id="00000000:13:00.0"
)


class FixedSampler(Sampler):
    """A sampler that is never started and returns what a test gave it."""

    def __init__(self, now: SamplerState) -> None:
        super().__init__(_no_driver, ALL, Settings(node_name="node7"), lambda _: None)
        self.now = now

    def state(self) -> SamplerState:
        return self.now


def _no_driver() -> Driver:
    raise DriverMissing("not opened in this test")


def whole_gpu_readings() -> dict[type[object], object]:
    """The readings of a GPU of any generation."""
    return by_type(
        kinds.Utilization(gpu=(), memory=(), gpu_percent=62, memory_percent=21),
        kinds.Video({}, {"encoder": 0, "decoder": 4, "jpeg": 0, "ofa": 0}),
        kinds.Power(
            *(412.5, 700.0, 1_234_567.89),
            default_limit_watts=700.0,
            module_watts=640.5,
            module_limit_watts=1000.0,
        ),
        kinds.Thermal(
            sensors={"gpu": 61.0, "memory": 74.0, "hottest": 68.0},
            limits={"slowdown": 87.0, "shutdown": 92.0, "max_operating": 85.0}
            | {"memory_max_operating": 95.0},
            margin=21.0,
        ),
        kinds.Clocks(
            now={"sm": 1.755e9, "memory": 2.619e9, "graphics": 1.755e9, "video": 1.545e9},
            maximum={"sm": 1.98e9, "memory": 2.619e9, "graphics": 1.98e9, "video": 1.545e9},
        ),
        kinds.Throttle(
            spent_ns={reason: 1_500_000_000 * at for at, reason in enumerate(THROTTLE_REASONS)},
            active={reason: reason == "power_cap" for reason in (*ACTIVE_REASONS, "hw_slowdown")},
        ),
        kinds.Memory(total_bytes=80 * 2**30, used_bytes=52 * 2**30, reserved_bytes=538 * 2**20),
        kinds.Health(
            ecc_errors={"corrected": 3, "uncorrected": 0},
            remapped_rows={"corrected": 1, "uncorrected": 0},
            remap_pending=True,
            remap_failed=False,
        ),
        kinds.Condition(
            recovery_action="none",
            fabric_state="completed",
            nvlinks_active=18,
            nvlink_errors={"replay": 4, "recovery": 0},
            repair_pending=False,
            memory_unrepairable=False,
        ),
        kinds.Link(replays=2, generation=4, generation_max=5, width=16, width_max=16),
        kinds.Processes((kinds.Process(4711, 50 * 2**30), kinds.Process(4712))),
    )


def by_type(*readings: kinds.Reading) -> dict[type[object], object]:
    """Readings as a snapshot keeps them."""
    return {type(reading): reading for reading in readings}


def sampled_totals() -> GpuTotals:
    """Totals of a GPU with utilization samples, without GPM."""
    counts = (10, 20, 35, 60, 100, 120)
    return GpuTotals(
        observed_ns=119_000_000_000,
        unobserved_ns=1_000_000_000,
        lost_ns=250_000_000,
        busy_ns=73_780_000_000,
        memory_busy_ns=24_990_000_000,
        starts=3,
        productive_starts=2,
        window_counts=tuple(zip(WINDOW_BUCKETS, counts, strict=True)),
        window_sum=74.4,
        stall_ns=stall_ns(),
        storage_ns={"local": 1_000_000_000, "remote": 2_500_000_000},
        engine_ns={"encoder": 0, "decoder": 4_500_000_000, "jpeg": 0, "ofa": 0},
        last_busy_ratio=0.62,
        last_memory_ratio=0.21,
    )


def stall_ns() -> dict[str, int]:
    """The idle time above, for a job that is no server."""
    rare = {stall.REQUESTS, stall.VIDEO_ENGINE}
    of_a_job = [cause for cause in stall.WAITING_ON if cause not in rare]
    parts = {cause: 800_000_000 * at for at, cause in enumerate(of_a_job)}
    return parts | {stall.UNALLOCATED: 1_220_000_000, **dict.fromkeys(rare, 0)}


def with_gpm(totals: GpuTotals) -> GpuTotals:
    """The same totals with those that GPM adds."""
    return replace(
        totals,
        active_ns={"sm": 60_000_000_000, "occupancy": 18_000_000_000, "dram": 30_000_000_000},
        pipe_ns={pipe: 5_000_000_000 * at for at, pipe in enumerate(PIPES)},
        traffic_bytes={link: 1e12 + at for at, link in enumerate(TRAFFIC)},
    )


OWNER = Owner(
    namespace="research",
    pod="train-7f9c",
    container="trainer",
    pod_uid="3b2f8a1c-5c01-4b6e-8e4e-42010a800002",
    container_id="9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961",
    slurm_job_id="123456",
    job="pbs-1234.server",
    user="alice",
    rendezvous="5f3c9ab01d2e",
)
"""An owner with every field known, from all systems at once."""


def feeding() -> Feeding:
    """A main process with eight workers, in a container with limits; every field known."""
    return Feeding(
        at_ns=AT_NS,
        processes={"main": 1, "worker": 8},
        counters={
            "main": Counters(90_000_000_000, 0, 0, 1_250_000_000, 3, 2**20, 3 * 2**30),
            "worker": Counters(700_000_000_000, 0, 0, 44_000_000_000, 12, 40 * 2**30, 4096),
        },
        wait_ns={
            ("main", "queue"): 40_000_000_000,
            ("main", "sleep"): 100_000_000,
            ("main", "disk"): 2_000_000_000,
            ("worker", "queue"): 120_000_000_000,
            ("worker", "disk"): 60_500_000_000,
            ("worker", "network"): 7_000_000_000,
        },
        queue_known=True,
        worker_starts=16,
        throttled_ns=5_500_000_000,
        refault_bytes=123 * 4096,
        job=JobReading(
            limits=JobLimits(
                cpus_allowed=32,
                cpu_cores=7.5,
                memory_used_bytes=60 * 2**30,
                memory_bytes=64 * 2**30,
                shared_memory=SharedMemory(16 * 2**30, 3 * 2**30),
                throttling_known=True,
                refaults_known=True,
                interactive=True,
            ),
            age_seconds=3600.25,
            received_bytes=2**30,
            sent_bytes=2**20,
            shares_network=False,
            pressure_ns=pressure_ns(),
        ),
        owners=(OWNER,),
        outlook=model.Outlook(PRESCRIBED, SCORED),
    )


PRESCRIBED = model.Prescription(
    cause=stall.WORKER_CPU,
    knob=model.NUM_WORKERS,
    current_value=2,
    value=6,
    current_busy_ratio=0.44,
    busy_ratio=0.93,
    busy_low_ratio=0.88,
    busy_high_ratio=0.95,
    job_gpus=2,
    job_current_busy_ratio=0.4,
    job_busy_ratio=0.62,
    needs_cores=4.0,
    free_cores=7.0,
    needs_memory_bytes=2.1 * 2**30,
    free_memory_bytes=40 * 2**30,
    then=stall.HOST_CODE,
)
SCORED = model.Score(
    model.NUM_WORKERS,
    value_before=1,
    value_after=2,
    predicted_busy_ratio=0.46,
    predicted_low_ratio=0.42,
    predicted_high_ratio=0.5,
    busy_ratio=0.44,
)


def pressure_ns() -> dict[tuple[str, str], int]:
    """Values of a current kernel."""
    kinds = [(r, k) for r in ("cpu", "io", "memory") for k in ("some", "full")]
    return {labels: 250_000_000 * at for at, labels in enumerate(kinds, start=1)}


def machine() -> Machine:
    """A host with every field known."""
    return Machine(
        cpus=64,
        cpu_busy_seconds=1_234_567.89,
        iowait_seconds=4321.5,
        memory_total_bytes=512 * 2**30,
        memory_available_bytes=300 * 2**30,
        shared_memory=SharedMemory(256 * 2**30, 2**30),
        disk_io_seconds={"nvme0n1": 4000.5, "sda": 12.25},
        network_receive_bytes={"eth0": 10**12, "eth1": 0},
        network_transmit_bytes={"eth0": 10**11, "eth1": 0},
        rdma_receive_bytes={"mlx5_0:1": 10**13},
        rdma_transmit_bytes={"mlx5_0:1": 10**12},
        pressure_ns=pressure_ns(),
    )


_GIVEN = ("schedstat", "process_io", "wait_channel", "host_pids", "cgroup_cpu", "cgroup_memory")
SIGNALS = {"psi_host": True, "psi_cgroup": False, **dict.fromkeys(_GIVEN, True)}
WATCHED = {"whole": 9, "sampled": 0, "counted": 0}
HOST = HostSnapshot(AT_NS, machine(), SIGNALS, WATCHED)
NAMES = frozenset(collector.name for collector in ALL)
"""Names of the collectors; all are enabled."""


def hopper(identity: kinds.Identity = HOPPER) -> GpuSnapshot:
    """A GPU with every signal."""
    readings = whole_gpu_readings() | by_type(kinds.UnitActivity(interval_ns=1_000_000_000))
    gpu = snapshot(identity, with_gpm(sampled_totals()), readings)
    return replace(gpu, feeding=feeding())


def ampere() -> GpuSnapshot:
    """A GPU without GPM."""
    return snapshot(AMPERE, sampled_totals(), whole_gpu_readings())


def mig_parent() -> GpuSnapshot:
    """A GPU in MIG mode: no utilization samples."""
    gpu = hopper(MIG_PARENT)
    readings = {
        kind: reading for kind, reading in gpu.readings.items() if kind is not kinds.Utilization
    }
    totals = replace(gpu.totals, memory_busy_ns=None, last_memory_ratio=None)
    refused = replace(feeding(), outlook=model.Outlook(model.Refusal("mixed")))
    refused = replace(refused, job=replace(refused.job, shares_network=True, socket_bytes=2**20))
    return replace(gpu, readings=readings, totals=totals, feeding=refused)


def mig_instance() -> GpuSnapshot:
    """A MIG instance: GPM, memory and processes."""
    readings = by_type(
        kinds.UnitActivity(interval_ns=1_000_000_000),
        kinds.Memory(total_bytes=40 * 2**30, used_bytes=6 * 2**30, reserved_bytes=64 * 2**20),
        kinds.Processes((kinds.Process(4713),)),
    )
    totals = replace(with_gpm(sampled_totals()), memory_busy_ns=None, last_memory_ratio=None)
    return snapshot(MIG_INSTANCE, totals, readings)


def shared() -> GpuSnapshot:
    """A GPU of two pods, of nine tenants in all, with time that no process explains."""
    other = Owner(namespace="research", pod="infer-0", pod_uid="1c", container_id="9d", user="bob")
    pods = {"pod-3b": Tenant((OWNER,), frozenset({4711})), "pod-1c": Tenant((other,))}
    totals = {
        "pod-3b": TenantTotals(30_000_000_000, {stall.WORKER_CPU: 4_000_000_001}),
        "pod-1c": TenantTotals(50_000_000_000, {stall.REQUESTS: 4_000_000_000}),
        OTHER_TENANTS: TenantTotals(10_000_000_000, {stall.ASLEEP: 1_000_000_000}),
        UNATTRIBUTED: TenantTotals(999_999_999),
    }
    fed = Feeding(
        at_ns=AT_NS,
        processes={},
        counters={},
        wait_ns={},
        queue_known=True,
        worker_starts=None,
        throttled_ns=None,
        refault_bytes=None,
        job=JobReading(),
        tenants=pods,
    )
    processes = kinds.Processes((kinds.Process(4711, 2**30),))
    gpu = snapshot(SHARED, GpuTotals(tenants=totals), by_type(processes))
    return replace(gpu, feeding=fed)


def lost(identity: kinds.Identity = LOST) -> GpuSnapshot:
    """A GPU that no longer answers, with XIDs that say why."""
    gone = snapshot(identity, GpuTotals(), {})
    return replace(gone, up=False, errors={79: 1, 48: 2})


def snapshot(
    identity: kinds.Identity, totals: GpuTotals, readings: Mapping[type[object], object]
) -> GpuSnapshot:
    """A GPU that is up."""
    return GpuSnapshot(identity, AT_NS, totals, readings, {}, SYSTEM)


def state(*gpus: GpuSnapshot, simulated: bool = False) -> SamplerState:
    """These GPUs, and collectors that have all succeeded except one."""
    fine = Outcome(seconds=0.002, last_success=1_800_000_000.0)
    bad = Outcome(seconds=0.5, last_success=1_799_999_000.0, error="nvmlDeviceGetPowerUsage: 999")
    readers = [collector.name for collector in ALL if collector.read]
    return SamplerState(
        system=SYSTEM,
        about=replace(NVIDIA, simulated=simulated),
        collectors=NAMES,
        gpus=gpus,
        outcomes=tuple((name, bad if name == "power" else fine) for name in readers),
        driver_calls=123_456,
        driver_seconds=7.25,
        error_events=True,
        implausible={"utilization": 2, "power": 0},
        host=HOST,
        waited_for_cpu_seconds=12.5,
        starved=False,
    )


def mixed_state() -> SamplerState:
    """A Hopper, a Hopper in MIG mode with one instance, an Ampere with unlisted processes, and a
    lost GPU.
    """
    result = replace(ampere(), unlisted_pids=(4714, 4715))
    return state(hopper(), mig_parent(), mig_instance(), result, lost())


NO_DRIVER = SamplerState(
    kinds.System(None, None),
    about=UNKNOWN_DRIVER,
    collectors=NAMES,
    gpus=(),
    outcomes=(),
    driver_calls=0,
    driver_seconds=0.0,
    error_events=None,
)
"""The state of a machine without a driver."""
