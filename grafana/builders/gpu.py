"""One GPU, or the GPUs of a job, on one time axis: what it did, what it waited for, and why."""

from __future__ import annotations

from builders import pack, prescriptions
from builders.common import (
    CHOSEN,
    GPU_UID,
    NO_DATA,
    OF_GPU,
    ON_GPU,
    RATE,
    SPACE,
    TARGETS,
    cause_colours,
    causes_by_rank,
    namespace_variable,
    or_no_data,
    runbooks_variable,
    target_variables,
    verdicts,
    waits_colours,
)
from builders.model import (
    WARN,
    Dashboard,
    Json,
    Panel,
    Query,
    Row,
    alert_annotation,
    override,
    query_variable,
)
from builders.panels import GAUGE, LEGEND_TABLE, lines, merged, narrow, states, table
from gpu_bottleneck_exporter import palette

WAIT = palette.WAIT_COLOURS
DIM = WAIT["unknown"]
NAMED = "{{instance}} GPU {{gpu}}"


def _sum(metric: str, *, by: str = "", where: str = "") -> str:
    """The sum of a gauge over the chosen GPUs."""
    return f"sum{_by(by)} ({metric}{{{where}{CHOSEN}}})"


def _rate(metric: str, *, by: str = "", where: str = "") -> str:
    """The summed rate of a counter over the chosen GPUs, per second."""
    return f"sum{_by(by)} (rate({metric}{{{where}{CHOSEN}}}{RATE}))"


def _mean(series: str, *, by: str = "", where: str = "") -> str:
    return f"avg{_by(by)} ({series}{{{where}{CHOSEN}}})"


def _by(labels: str) -> str:
    return f" by ({labels})" if labels else ""


# --- What is wrong --------------------------------------------------------------------------------
def _verdict() -> list[Panel]:
    return [
        verdicts("Verdict", CHOSEN, height=5),
        prescriptions.of_gpus(height=5),
        states(
            "Primary cause",
            "The first cause with enough evidence, over time. A gap means none. It takes some "
            "minutes to appear, because it is judged over 10 minutes.",
            [Query(f"min by ({OF_GPU}) (gpu:cause:rank{{{CHOSEN}}})", NAMED)],
            [causes_by_rank()],
            width=24,
            height=5,
            no_value=or_no_data("No cause"),
        ),
        _evidence_table(),
        lines(
            "Evidence over time",
            "The evidence for each cause, on the GPU where it is strongest. Causes without any "
            "are left out.",
            [Query(f"max by (cause) (gpu:cause:evidence{{{CHOSEN}}})", "{{cause}}")],
            "percentunit",
            colours=cause_colours(),
            thresholds=("evidence",),
            share=True,
            height=9,
            no_value=or_no_data("Nothing speaks for any cause"),
        ),
    ]


def _evidence_table() -> Panel:
    return table(
        "Evidence",
        "Every cause that something speaks for, so that a wrong verdict can be recognised: "
        "100 % is certain. The primary cause is the first one in the order of the rules that "
        "reaches the threshold, not the one with the most evidence. A cause that is missing is "
        "ruled out, or could not be weighed: a signal is absent, or the GPU is used well.",
        [
            Query(
                f"max by ({OF_GPU}, cause) (gpu:cause:evidence{{{CHOSEN}}})",
                table=True,
            )
        ],
        "percentunit",
        height=9,
        sort="Evidence",
        thresholds=("evidence",),
        transformations=merged(("instance", "gpu", "cause", "Value"), "job", "uuid"),
        overrides=[
            override("instance", displayName="Node"),
            # Without a unit of its own, GPU 1 would be 100 %.
            override("gpu", displayName="GPU", **narrow(50), unit="string"),
            # Without its colour: most causes here are not the primary one.
            override("cause", displayName="Cause", custom_minWidth=230),
            override(
                "Value",
                displayName="Evidence",
                min=0,
                max=1,
                decimals=0,
                custom_minWidth=120,
                custom_filterable=False,
                color={"mode": "thresholds"},
                thresholds={
                    "mode": "absolute",
                    "steps": [
                        {"color": DIM, "value": None},
                        {"color": WARN, "value": pack.threshold("evidence")},
                    ],
                },
                custom_cellOptions=GAUGE,
            ),
        ],
        no_value=or_no_data("No rows: nothing is weighed"),
    )


# --- Where the time goes --------------------------------------------------------------------------
def _time() -> list[Panel]:
    observed = _rate("gpu_observed_seconds_total")
    return [
        lines(
            "Busy, and idle by cause",
            "All of the observed time: busy, and idle by the wait of the processes that feed the "
            "GPU. It adds up to 100 %.",
            [
                Query(f"{_rate('gpu_busy_seconds_total')} / ({observed} > 0)", "busy"),
                Query(
                    f"{_rate('gpu_stall_seconds_total', by='waiting_on')} "
                    f"/ on () group_left () ({observed} > 0)",
                    "{{waiting_on}}",
                ),
            ],
            "percentunit",
            colours=waits_colours(),
            # The waits matter most, so busy time is pale.
            overrides=[override("busy", custom_fillOpacity=25)],
            stacked=True,
            share=True,
            height=10,
            legend=LEGEND_TABLE,
            no_value=NO_DATA,
        ),
        lines(
            "Activity",
            "Busy: a kernel ran. SM active: how much of the GPU it used. Tensor, FP32 and DRAM "
            "are shares of the peak. Before Hopper there is only busy and memory controller.",
            [
                Query(_mean("gpu:busy:ratio_rate5m"), "busy"),
                Query(_mean("gpu:sm_active:ratio_rate5m"), "SM active"),
                Query(_mean("gpu:sm_occupancy:ratio_rate5m"), "SM occupancy"),
                Query(
                    _mean("gpu:pipe_active:ratio_rate5m", by="pipe", where='pipe=~"tensor|fp32", '),
                    "{{pipe}}",
                ),
                Query(_mean("gpu:dram_active:ratio_rate5m"), "DRAM"),
                Query(_mean("gpu:memory_controller:ratio_rate5m"), "memory controller"),
            ],
            "percentunit",
            colours={
                "busy": palette.BUSY_COLOUR,
                "SM active": WAIT["storage"],
                "SM occupancy": WAIT["network"],
                "tensor": WAIT["worker_cpu"],
                "fp32": WAIT["peer"],
                "DRAM": WAIT["host_code"],
                "memory controller": DIM,
            },
            share=True,
            height=10,
            legend=LEGEND_TABLE,
        ),
    ]


# --- Its tenants ----------------------------------------------------------------------------------
def _tenants() -> list[Panel]:
    not_shared = or_no_data("Not shared")
    return [
        lines(
            "Busy time, by tenant",
            "Each tenant's part of a shared GPU's busy time. The rest is of further tenants, or of "
            "no known process.",
            [
                Query(
                    f"avg by (workload) (gpu:tenant_busy:share_rate5m{{{CHOSEN}}})", "{{workload}}"
                )
            ],
            "percentunit",
            share=True,
            stacked=True,
            legend=LEGEND_TABLE,
            no_value=not_shared,
        ),
        lines(
            "Idle time, by tenant",
            "Seconds per second: a tenant's equal part of a shared GPU's idle time, by its own "
            "wait.",
            [
                Query(
                    f"sum by (workload, waiting_on) (gpu:tenant_stall:ratio_rate5m{{{CHOSEN}}})",
                    "{{workload}}: {{waiting_on}}",
                )
            ],
            "s",
            stacked=True,
            legend=LEGEND_TABLE,
            no_value=not_shared,
        ),
    ]


# --- Who feeds it ---------------------------------------------------------------------------------
_STATES = {
    "runs": WAIT["worker_cpu"],
    "waits for a CPU": WAIT["cpu_queue"],
    "disk": WAIT["storage"],
    "network": WAIT["network"],
    "queue": WAIT["unallocated"],
    "sleep": WAIT["asleep"],
    "unknown": WAIT["unknown"],
}


def _waterfall(title: str, description: str, role: str, runs: str) -> Panel:
    of_role = f'role="{role}", '
    return lines(
        title,
        description,
        [
            Query(_rate("gpu_feeder_cpu_seconds_total", where=of_role), "runs"),
            Query(_rate("gpu_feeder_run_queue_seconds_total", where=of_role), "waits for a CPU"),
            Query(_rate("gpu_feeder_wait_seconds_total", by="state", where=of_role), "{{state}}"),
        ],
        "short",
        colours={**_STATES, "runs": runs},
        stacked=True,
        height=9,
        legend=LEGEND_TABLE,
        no_value=or_no_data("Such processes are not seen"),
    )


def _feeders() -> list[Panel]:
    return [
        _waterfall(
            "Time of the workers",
            "Seconds per second, of all workers together: 4 is the time of four workers. Queue "
            "is waiting for the main process or for work, which is good. A worker with several "
            "threads counts for more than one.",
            "worker",
            WAIT["worker_cpu"],
        ),
        _waterfall(
            "Time of the main process",
            "Seconds per second, of the processes that hold the GPU. Runs includes all threads, "
            "and spinning while they wait for the GPU. Queue is waiting for the workers or for "
            "the GPU.",
            "main",
            WAIT["host_code"],
        ),
        *_cpu(),
        *_io(),
        *_host_memory(),
    ]


def _cpu() -> list[Panel]:
    host = (
        f"instance:cpu_idle:ratio_rate5m{{{TARGETS}}} and on (job, instance) "
        f"gpu:up:bool{{{CHOSEN}}}"
    )
    return [
        lines(
            "CPU of the job, and its limit",
            "Cores that its processes use, that the limit of their control groups allows, and "
            "that are in their CPU set.",
            [
                Query(_rate("gpu_feeder_cpu_seconds_total", by="role"), "{{role}}"),
                Query(f"max (gpu_feeder_cpu_limit_cores{{{CHOSEN}}})", "limit"),
                Query(f"max (gpu_feeder_cpus_allowed{{{CHOSEN}}})", "CPU set"),
            ],
            "short",
            colours={
                "main": WAIT["host_code"],
                "worker": WAIT["worker_cpu"],
                "CPU set": DIM,
            },
            limits=["limit"],
        ),
        lines(
            "Throttled by the limit",
            "The share of CPU time that the limit took away, which is the throughput lost.",
            [Query(f"max (gpu:throttled:ratio_rate5m{{{CHOSEN}}})", "throttled")],
            "percentunit",
            colours={"throttled": WAIT["cpu_quota"]},
            share=True,
            thresholds=("throttled",),
            width=6,
        ),
        lines(
            "Idle CPUs of the node",
            "The share of the node's CPUs with nothing to do, on the busiest node.",
            [Query(f"min ({host})", "idle")],
            "percentunit",
            colours={"idle": WAIT["asleep"]},
            share=True,
            width=6,
        ),
    ]


def _io() -> list[Panel]:
    disks = (
        f"instance:disk_busy:ratio_rate5m{{{TARGETS}}} "
        f"and on (job, instance) gpu:up:bool{{{CHOSEN}}}"
    )
    return [
        lines(
            "Reads and writes of the job",
            "Read and written: from and to storage, past the page cache. Evicted: read before, "
            "dropped from memory and read again. Received and sent: in its network namespace, "
            "which is the node's with hostNetwork.",
            [
                Query(_rate("gpu_feeder_read_bytes_total"), "read"),
                Query(_rate("gpu_feeder_written_bytes_total"), "written"),
                Query(_rate("gpu_feeder_refault_bytes_total"), "evicted"),
                Query(_rate("gpu_feeder_network_receive_bytes_total"), "received"),
                Query(_rate("gpu_feeder_network_transmit_bytes_total"), "sent"),
            ],
            "Bps",
            colours={
                "read": WAIT["storage"],
                "written": WAIT["worker_cpu"],
                "evicted": WAIT["memory"],
                "received": WAIT["network"],
                "sent": WAIT["host_code"],
            },
        ),
        lines(
            "Pressure of the job",
            "The share of time in which some task of the job's control groups was held up for "
            "lack of CPU, disk or memory.",
            [
                Query(
                    "max by (resource) (rate(gpu_feeder_pressure_seconds_total"
                    f'{{kind="some", {CHOSEN}}}{RATE}))',
                    "{{resource}}",
                )
            ],
            "percentunit",
            colours={
                "cpu": WAIT["cpu_queue"],
                "io": WAIT["storage"],
                "memory": WAIT["memory"],
            },
            share=True,
            width=6,
        ),
        lines(
            "Busiest disk of the node",
            "The share of time in which the disk had work, of any process.",
            [Query(f"max ({disks})", "disk")],
            "percentunit",
            colours={"disk": WAIT["storage"]},
            share=True,
            thresholds=("disk_busy",),
            width=6,
        ),
        lines(
            "Network and RDMA of the node",
            "Over all interfaces and cards, of all jobs. RDMA: InfiniBand, RoCE and EFA, "
            "which bypass the kernel and the other two.",
            [
                Query(_of_node("gpu_host_network_receive_bytes_total"), "received"),
                Query(_of_node("gpu_host_network_transmit_bytes_total"), "sent"),
                Query(_of_node("gpu_host_rdma_receive_bytes_total"), "RDMA received"),
                Query(_of_node("gpu_host_rdma_transmit_bytes_total"), "RDMA sent"),
            ],
            "Bps",
            colours={
                "received": WAIT["network"],
                "sent": WAIT["host_code"],
                "RDMA received": WAIT["peer"],
                "RDMA sent": WAIT["worker_cpu"],
            },
            width=24,
        ),
    ]


def _of_node(metric: str) -> str:
    return f"sum (rate({metric}{{{TARGETS}}}{RATE}) and on (job, instance) gpu:up:bool{{{CHOSEN}}})"


def _host_memory() -> list[Panel]:
    return [
        lines(
            "Host memory of the job",
            "Memory use of its control groups, without reclaimable page cache, and their limit. "
            "At the limit the kernel ends a process of the job.",
            [
                Query(f"max (gpu_feeder_memory_used_bytes{{{CHOSEN}}})", "used"),
                Query(f"max (gpu_feeder_memory_limit_bytes{{{CHOSEN}}})", "limit"),
            ],
            "bytes",
            colours={"used": WAIT["memory"]},
            limits=["limit"],
        ),
        lines(
            "Shared memory",
            "The used share of the job's /dev/shm, through which workers pass their batches. "
            "When it is full, they die.",
            [Query(f"max (gpu:shm:used_ratio{{{CHOSEN}}})", "used")],
            "percentunit",
            colours={"used": WAIT["memory"]},
            share=True,
            thresholds=("shm_full",),
            width=6,
        ),
        lines(
            "Workers, and their starts",
            "Loader workers now, and those started within 10 minutes. Many starts: workers are "
            "recreated every epoch.",
            [
                Query(_sum("gpu:workers:count"), "workers"),
                Query(
                    f"{_sum('gpu:worker_starts:increase10m')} or {_sum('gpu:workers:count')} * 0",
                    "started in 10 min",
                ),
            ],
            "short",
            colours={"workers": WAIT["worker_cpu"], "started in 10 min": DIM},
            width=6,
        ),
    ]


# --- The GPU itself -------------------------------------------------------------------------------
def _device() -> list[Panel]:
    return [
        *_device_memory(),
        *_power(),
        *_links(),
        lines(
            "Errors",
            "XIDs, ECC errors and PCIe replays within 10 minutes. XIDs 13, 31, 43, 45, 68 and "
            "109 come from the application, others from the hardware or the driver. An XID's "
            "series starts with its first event, so it shows here from the second event on, and "
            "in alerts at once.",
            [
                Query(_increase("gpu_xid_errors_total", "xid"), "XID {{xid}}"),
                Query(_increase("gpu_ecc_errors_total", "kind"), "ECC {{kind}}"),
                Query(_increase("gpu_pcie_replays_total", "gpu"), "PCIe replays"),
            ],
            "short",
            width=24,
            height=6,
        ),
    ]


def _increase(metric: str, label: str) -> str:
    return f"sum by ({label}) (increase({metric}{{{CHOSEN}}}[10m]))"


def _device_memory() -> list[Panel]:
    return [
        lines(
            "GPU memory",
            "Allocated by processes, including caches of frameworks, and installed. If memory is "
            "free and SMs idle, try a larger batch.",
            [
                Query(_sum("gpu_memory_used_bytes"), "used"),
                Query(_sum("gpu_memory_total_bytes"), "installed"),
            ],
            "bytes",
            colours={"used": WAIT["memory"]},
            limits=["installed"],
        ),
        lines(
            "GPU memory, share used",
            "Close to the upper line and growing: it will run out. Below the lower line: there "
            "is room for a larger batch.",
            [Query(f"max (gpu:memory:used_ratio{{{CHOSEN}}})", "used")],
            "percentunit",
            colours={"used": WAIT["memory"]},
            share=True,
            thresholds=("memory_free", "near_oom"),
        ),
    ]


def _power() -> list[Panel]:
    limits = f'gpu_temperature_limit_celsius{{limit=~"slowdown|max_operating", {CHOSEN}}}'
    return [
        lines(
            "Power",
            "Drawn, and the limit. Much less than the limit at full utilization means that "
            "little of the GPU works.",
            [
                Query(_sum("gpu_power_watts"), "drawn"),
                Query(_sum("gpu_power_limit_watts"), "limit"),
            ],
            "watt",
            colours={"drawn": WAIT["worker_cpu"]},
            limits=["limit"],
        ),
        lines(
            "SM clock, share of the maximum",
            "The clock falls by itself when the GPU idles. If it is below the lines while the "
            "GPU is busy, something holds it down.",
            [Query(f"min (gpu:clock:ratio_avg5m{{{CHOSEN}}})", "clock")],
            "percentunit",
            colours={"clock": WAIT["storage"]},
            share=True,
            thresholds=("clock_low", "clock_reduced"),
            below_is_bad=True,
        ),
        lines(
            "Throttled, by reason",
            "The share of time in which the reason held the clocks down. `power_cap` now and "
            "then is healthy under full load.",
            [Query(f"max by (reason) (gpu:throttle:ratio_rate5m{{{CHOSEN}}})", "{{reason}}")],
            "percentunit",
            share=True,
        ),
        lines(
            "Temperature",
            "Temperature of the hottest GPU chosen, where the driver starts to slow it down if it "
            "states that, and the degrees left until then.",
            [
                Query(f"max by (sensor) (gpu_temperature_celsius{{{CHOSEN}}})", "{{sensor}}"),
                Query(f"min ({limits})", "slows down"),
                Query(f"min (gpu:temperature_margin:celsius_avg5m{{{CHOSEN}}})", "degrees left"),
            ],
            "celsius",
            colours={
                "gpu": WAIT["worker_cpu"],
                "memory": WAIT["memory"],
                "degrees left": WAIT["network"],
            },
            limits=["slows down"],
        ),
    ]


def _links() -> list[Panel]:
    all_lanes = f"gpu:pcie:lanes{{{CHOSEN}}} > bool 0"
    return [
        lines(
            "PCIe and NVLink traffic",
            "PCIe: to and from the host. NVLink: between GPUs. Not available before Hopper. "
            "Capacity is that of PCIe in one direction.",
            [
                Query(_rate("gpu_pcie_receive_bytes_total"), "PCIe received"),
                Query(_rate("gpu_pcie_transmit_bytes_total"), "PCIe sent"),
                Query(_rate("gpu_nvlink_receive_bytes_total"), "NVLink received"),
                Query(_rate("gpu_nvlink_transmit_bytes_total"), "NVLink sent"),
                Query(_sum("gpu:pcie:capacity_bytes"), "PCIe capacity"),
            ],
            "Bps",
            colours={
                "PCIe received": WAIT["storage"],
                "PCIe sent": WAIT["network"],
                "NVLink received": WAIT["worker_cpu"],
                "NVLink sent": WAIT["peer"],
            },
            limits=["PCIe capacity"],
        ),
        lines(
            "PCIe link, share of the maximum",
            "Lanes and generation in use. The generation falls while the GPU idles; fewer lanes "
            "are a fault.",
            [
                Query(f"min (gpu:pcie_width:ratio{{{CHOSEN}}} or {all_lanes})", "lanes"),
                Query(f"min (gpu:pcie_generation:ratio{{{CHOSEN}}})", "generation"),
            ],
            "percentunit",
            colours={"lanes": WAIT["storage"], "generation": WAIT["network"]},
            share=True,
        ),
    ]


# --- Its inference engines ------------------------------------------------------------------------
def _engines() -> list[Panel]:
    no_engine = or_no_data("No engine is scraped")
    energy = f"rate(gpu_energy_joules_total{{{CHOSEN}}}{RATE})"
    tokens = _sum("gpu:serving_tokens:rate5m")
    return [
        lines(
            "Requests of the engine",
            "Requests that run, and that wait in the engine's queue. An engine with several GPUs "
            "counts in equal parts for each of them.",
            [Query(_sum("gpu:serving_requests:count", by="state"), "{{state}}")],
            "short",
            colours={"running": palette.BUSY_COLOUR, "waiting": WAIT["cpu_queue"]},
            width=8,
            no_value=no_engine,
        ),
        lines(
            "KV cache",
            "The used share of the cache for keys and values, of the fullest engine. When it is "
            "full, requests wait or are preempted.",
            [Query(f"max (gpu:serving_kv_cache:used_ratio{{{CHOSEN}}})", "used")],
            "percentunit",
            colours={"used": WAIT["memory"]},
            share=True,
            thresholds=("serving_kv_full",),
            width=8,
            no_value=no_engine,
        ),
        lines(
            "Time in the queue",
            "The mean wait of the requests that left the queue within 5 minutes, of the slowest "
            "engine.",
            [Query(f"max (gpu:serving_queue:seconds{{{CHOSEN}}})", "in the queue")],
            "s",
            colours={"in the queue": WAIT["cpu_queue"]},
            width=8,
            no_value=no_engine,
        ),
        lines(
            "Tokens per second",
            "Prefill: tokens of prompts. Decode: generated tokens.",
            [Query(_sum("gpu:serving_tokens:rate5m", by="phase"), "{{phase}}")],
            "short",
            colours={"prefill": WAIT["storage"], "decode": WAIT["worker_cpu"]},
            no_value=no_engine,
        ),
        lines(
            "Tokens per joule",
            "Tokens of both phases per joule of the GPUs that serve, by their energy counters. "
            "Larger batches raise it.",
            [
                Query(
                    f"{tokens} / (sum ({energy} and {ON_GPU} gpu:serving:info{{{CHOSEN}}}) > 0)",
                    "tokens",
                )
            ],
            "short",
            colours={"tokens": palette.BUSY_COLOUR},
            no_value=no_engine,
        ),
    ]


# --- Its siblings ---------------------------------------------------------------------------------
def _siblings() -> list[Panel]:
    size: Json = {"width": 8, "legend": {**LEGEND_TABLE, "placement": "bottom"}, "height": 10}
    no_job = or_no_data("No job is known")
    return [
        lines(
            "Job: busy",
            "All GPUs of the same job, on any node. A GPU below the others is starved or has "
            "less to do; in a synchronous job the others wait for it and look busy.",
            [Query(_of_job("gpu:busy:ratio_rate10m"), NAMED)],
            "percentunit",
            share=True,
            thresholds=("underused",),
            below_is_bad=True,
            no_value=no_job,
            **size,
        ),
        lines(
            "Job: power, share of the limit",
            "All GPUs of the same job. One that draws more has more work than its peers, which "
            "wait for it.",
            [Query(_of_job("gpu:power:ratio_avg5m"), NAMED)],
            "percentunit",
            share=True,
            no_value=no_job,
            **size,
        ),
        lines(
            "Job: SM clock, share of the maximum",
            "All GPUs of the same job. A slower one delays the others.",
            [Query(_of_job("gpu:clock:ratio_avg5m"), NAMED)],
            "percentunit",
            share=True,
            no_value=no_job,
            **size,
        ),
    ]


def _of_job(series: str) -> str:
    """`series` of all GPUs of the jobs that the chosen ones belong to."""
    return (
        f'{series}{{cluster=~"$cluster", job=~"$job"}} * {ON_GPU} group_left (workload_group) '
        f'gpu:workload:group{{cluster=~"$cluster", job=~"$job"}} '
        f"and on (cluster, workload_group) gpu:workload:group{{{CHOSEN}}}"
    )


# --- Which GPUs -----------------------------------------------------------------------------------
def _variables() -> list[Json]:
    return [
        *target_variables("gpu:up:bool"),
        namespace_variable(),
        query_variable(
            "workload",
            "Workload",
            f"query_result(group by (workload_group) ({_groups('')} and {ON_GPU} {_of_space()}))",
            everything=".*",
            regex='/workload_group="([^"]+)"/',
        ),
        query_variable(
            "gpu",
            "GPU",
            f'query_result(label_join({_chosen()}, "text", " GPU ", "instance", "gpu"))',
            # The pattern of everything would take in GPUs of other jobs.
            everything=None,
            regex='/text="(?<text>[^"]+)".*uuid="(?<value>[^"]+)"/',
        ),
        runbooks_variable(),
    ]


def _chosen() -> str:
    """The GPUs of the namespace and of the workload; of All also those that have none."""
    return f"{_seen('gpu:up:bool')} and {ON_GPU} {_of_space()} and {ON_GPU} {_of_workload()}"


def _of_space() -> str:
    # GPUs have no such label: the first part has any only where the pattern takes an empty one.
    return f"({_seen('gpu:up:bool', SPACE)} or {_seen('gpu:owner:info', SPACE)})"


def _of_workload() -> str:
    chosen = 'workload_group=~"$workload"'
    return f"({_seen('gpu:up:bool', chosen)} or {_groups(chosen)})"


def _groups(where: str) -> str:
    return _seen("gpu:workload:group", where)


def _seen(series: str, where: str = "") -> str:
    """Of the targets, at any time in the range: jobs that have ended can be looked at."""
    matchers = f"{TARGETS}, {where}" if where else TARGETS
    return f"last_over_time({series}{{{matchers}}}[$__range])"


def dashboard() -> Dashboard:
    """One GPU."""
    alerts = f'ALERTS{{alertstate="firing", alertname=~"Gpu.+", {CHOSEN}}}'
    return Dashboard(
        name="gpu",
        uid=GPU_UID,
        title="GPU: waits and causes",
        description="One GPU, or several of a job: activity, waits and evidence.",
        variables=_variables(),
        annotations=[alert_annotation(alerts, "{{instance}} GPU {{gpu}}: {{cause}}", enabled=True)],
        since="3h",
        rows=[
            Row("Verdict and recommendation", _verdict()),
            Row("Time by cause", _time()),
            Row("Tenants", _tenants(), collapsed=True),
            Row("Feeders", _feeders()),
            Row("The GPU itself", _device(), collapsed=True),
            Row("Inference engines", _engines(), collapsed=True),
            Row("Other GPUs of the same job", _siblings(), collapsed=True),
        ],
    )
