"""A made-up fleet for promtool: each GPU has a node of its own, and is one case.

What a GPU does is given as rates and levels. One run of promtool evaluates all cases of a
fleet, as a run over hours of rules costs seconds.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from gpu_bottleneck_exporter.accounting.stall import WAITING_ON
from gpu_bottleneck_exporter.prescription.model import NOTHING_KNOWN, Outlook, Prescription, Refusal
from rules import causes_table, promtool
from rules.parsed import groups, seconds
from rules.series import FOREVER, STALE, Labels, Series, Signal, level, like, mapped, total

RULES = Path(__file__).parents[2] / "rules"
FILES = tuple(
    RULES / name for name in ("thresholds.yml", "recording.yml", "alerts.yml", "serving.yml")
)


def group_names(*files: Path) -> tuple[str, ...]:
    """The groups of rule files in their order."""
    every = (groups(file.read_text(encoding="utf-8")) for file in files)
    return tuple(group["name"] for found in every for group in found)


GROUPS = group_names(*FILES[:2])
"""All but those of engines and alerts. promtool evaluates the groups that are not named first."""
ASIDE = ("gpu-prescription", "gpu-bill", "gpu-coverage")
"""What no alert needs but `GpuCausesBlind`, which `fired` does not count."""
JOB = "gpu"
OF_STARTS = {"workload_container", "pod_uid", "container_id"}
"""Labels that change with each start of a container: alerts have none of them."""


# What promtool prints of a query that was expected to give something else.
ANSWER = re.compile(r"time: (\S+),\n\s+exp: .*\n\s+got: (.*)")
SAMPLE = re.compile(r"(\{[^}]*\}) (\S+?)(?:, |$)")
LABEL = re.compile(r"(\w+)=\"([^\"]*)\"")


def fired(node: str, by: str = "", more: str = "") -> str:
    """A query for the alerts that fire on `node`, counted; what is blind there does not count."""
    matchers = f'alertstate="firing",instance="{node}",alertname!="GpuCausesBlind"{more}'
    return f"count by ({by}) (ALERTS{{{matchers}}})" if by else f"ALERTS{{{matchers}}}"


@dataclass(slots=True)
class Fleet:
    """Cases, and what is expected of each."""

    minutes: int
    files: Sequence[Path] = FILES
    groups: Sequence[str] = GROUPS
    evaluation_interval: str = "1m"
    """As the rules have it."""
    scraped_every: int = 60
    """Seconds, of which a minute has a whole number."""
    without: Collection[str] = ()
    """Groups that are left out."""
    _series: list[Series] = field(default_factory=list)
    _asked: list[tuple[str, float, Mapping[str, float]]] = field(default_factory=list)

    def gauge(self, name: str, signal: Signal, /, **labels: str) -> None:
        """Add a gauge."""
        self._series.append(Series(name, labels, level(self.minutes, signal)))

    def counter(
        self, name: str, rate: Signal, reset_at: int | None = None, /, **labels: str
    ) -> None:
        """Add a counter."""
        values = total(self.minutes, rate, reset_at=reset_at)
        self._series.append(Series(name, labels, values, is_counter=True))

    def change(
        self, values: Callable[[Series], Iterable[float | None]], *, first: int = 0, **labels: str
    ) -> None:
        """Give new values to all series with these labels, or from number `first` on."""
        for at, one in enumerate(self._series[first:], first):
            if labels.items() <= one.labels.items():
                self._series[at] = replace(one, values=tuple(values(one)))

    def fail_scrapes(self, node: str, start: int, end: int, *, up: float | None = 0.0) -> None:
        """From minute `start` up to `end` all series of `node` have ended, `up` has this value."""
        failed = range(start, end)

        def values(one: Series) -> list[float | None]:
            value = up if one.name == "up" else STALE
            return [value if m in failed else v for m, v in enumerate(one.values)]

        self.change(values, instance=node)

    def leave_out(self, name: str, node: str) -> None:
        """Take the series with this name away from `node`."""
        left = (name, node)
        self._series = [o for o in self._series if (o.name, o.labels.get("instance")) != left]

    def remove(self, uuid: str, start: int, end: int = FOREVER) -> None:
        """From minute `start`, up to `end`, GPU `uuid` is told of no more; its target answers."""
        gone = range(start, end)
        self.change(
            lambda one: [STALE if m in gone else v for m, v in enumerate(one.values)], uuid=uuid
        )

    def end(self, node: str, minutes: float) -> None:
        """Nothing more is asked of `node` after `minutes`: its series end, and cost no more time.

        What has been asked does not see it, as rules read the past only.
        """
        self.change(lambda one: one.values[: math.floor(minutes) + 1], instance=node)

    def expect(self, minutes: float, query: str, answer: Mapping[str, float]) -> None:
        """After `minutes`, `query` gives exactly `answer`: values by series, in PromQL."""
        self._asked.append((query, minutes, answer))

    def expect_firing(self, node: str, minutes: float, *alerts: str) -> None:
        """On `node` exactly these fire: keys of `alerts`. What is blind there does not count."""
        labels = ("alertname", "severity", "cause")
        pairs = [[*zip(labels, alert.split("/"), strict=False)] for alert in alerts]
        series = (",".join(f'{label}="{text}"' for label, text in one) for one in pairs)
        shared = causes_table.shared_names()
        with_cause = fired(node, ", ".join(labels), f',alertname=~"{shared}"')
        others = fired(node, "alertname, severity", f',alertname!~"{shared}"')
        self.expect(minutes, f"{with_cause} or {others}", {f"{{{one}}}": 1.0 for one in series})

    def expect_cause(self, node: str, minutes: float, cause: str | None) -> None:
        """The primary cause of the only GPU of `node`."""
        query = f'sum by (cause) (gpu:bottleneck:primary{{instance="{node}"}})'
        self.expect(minutes, query, {} if cause is None else {f'{{cause="{cause}"}}': 1.0})

    def check(self, folder: Path) -> None:
        """Let promtool judge; raises AssertionError with what it says."""
        done = self.run(folder)
        assert done.returncode == 0, done.stdout + done.stderr

    def unexpected(self, folder: Path) -> list[tuple[float, list[tuple[Labels, float]]]]:
        """What queries give that were expected to give something else: minutes, and the samples."""
        done = self.run(folder)
        found = ANSWER.findall(done.stdout + done.stderr)
        assert found, done.stdout + done.stderr
        return [
            (
                seconds(at) / 60,
                [(dict(LABEL.findall(of)), float(value)) for of, value in SAMPLE.findall(answer)],
            )
            for at, answer in found
        ]

    def run(self, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run promtool."""
        path = folder / "test.yml"
        path.write_text(json.dumps(self._test(folder)))  # JSON is YAML
        return promtool.test_rules(path)

    def _test(self, folder: Path) -> object:
        return {
            "rule_files": [str(_lean(file, self.without, folder)) for file in self.files],
            "evaluation_interval": self.evaluation_interval,
            "group_eval_order": [name for name in self.groups if name not in self.without],
            "tests": [
                {
                    "interval": f"{self.scraped_every}s",
                    "input_series": [
                        {"series": one.selector, "values": one.every(self.scraped_every).notation}
                        for one in self._series
                    ],
                    "promql_expr_test": [
                        {
                            "expr": query,
                            "eval_time": f"{round(minutes * 60)}s",
                            "exp_samples": [
                                {"labels": labels, "value": value}
                                for labels, value in answer.items()
                            ],
                        }
                        for query, minutes, answer in self._asked
                    ],
                }
            ],
        }


def _lean(file: Path, without: Collection[str], folder: Path) -> Path:
    """A copy without these groups and without annotations.

    To render annotations costs promtool a quarter of its time. Those of the pack are rendered by a
    real Prometheus in test_texts.
    """
    copy = folder / f"lean-{file.name}"
    left = [group for group in _lean_groups(file) if group["name"] not in without]
    copy.write_text(json.dumps({"groups": left}))  # JSON is YAML
    return copy


@cache
def _lean_groups(file: Path) -> Sequence[Any]:
    found = groups(file.read_text(encoding="utf-8"))
    for group in found:
        for rule in group["rules"]:
            rule.pop("annotations", None)
    return found


def gauge(value: Signal | None, family: str) -> Any:  # noqa: ANN401 - a field
    """A field that is shown as it is, by family and label."""
    return field(default=value, metadata={"gauge": family})


def counter(rate: Signal | None, families: str) -> Any:  # noqa: ANN401 - a field
    """The same, as what counters grow by."""
    return field(default=rate, metadata={"counters": families})


@dataclass(slots=True, kw_only=True)
class Gpu:
    """What one GPU and its feeders do. The defaults are a healthy H100 training job.

    Rates are per second, shares 0-1. None: the signal is not there.
    """

    busy: Signal = counter(0.98, "gpu_busy_seconds_total")
    stalls: Mapping[str, Signal] = field(default_factory=dict)
    """Seconds of each second, by `waiting_on`; what is left to one is asleep."""
    storage_remote: float | None = None
    """Share of those of storage that are for remote file systems; None: that is not known."""
    sm: Signal | None = counter(0.85, "gpu_sm_active_seconds_total")
    occupancy: Signal | None = counter(0.5, "gpu_sm_occupancy_seconds_total")
    dram: Signal | None = counter(0.5, "gpu_dram_active_seconds_total")
    pipes: Mapping[str, Signal] | None = field(
        default_factory=lambda: {"tensor": 0.5, "fp32": 0.1, "fp64": 0.0, "fp16": 0.0, "int": 0.1}
    )
    engines: Mapping[str, Signal] = field(default_factory=dict)
    """Busy shares of its video engines."""
    memory_controller: Signal | None = counter(0.4, "gpu_memory_controller_busy_seconds_total")
    power_watts: Signal | None = gauge(560.0, "gpu_power_watts")
    energy_watts: Signal | None = counter(None, "gpu_energy_joules_total")
    """What the energy counter grows by."""
    power_limit_watts: Signal = 700.0
    power_default_watts: Signal | None = gauge(None, "gpu_power_default_limit_watts")
    """What the board was made for; None: it is not known."""
    clock: Signal | None = 1.0
    """SM clock as a share of the highest."""
    throttle: Mapping[str, Signal] | None = field(default_factory=dict)
    throttle_active: Mapping[str, Signal] = field(default_factory=dict)
    """Found at each scrape: 0 or 1 by reason."""
    memory: Signal = 0.7
    """Used share of 80 GiB."""
    processes: Signal = gauge(1, "gpu_processes")
    unlisted: Signal | None = gauge(None, "gpu_unlisted_processes")
    celsius: Signal | None = gauge(65, "gpu_temperature_celsius sensor=gpu")
    memory_celsius: Signal | None = gauge(75, "gpu_temperature_celsius sensor=memory")
    margin_celsius: Signal | None = gauge(None, "gpu_temperature_margin_celsius")
    limit_celsius: Signal | None = gauge(90, "gpu_temperature_limit_celsius limit=slowdown")
    max_operating_celsius: Signal | None = gauge(
        None, "gpu_temperature_limit_celsius limit=max_operating"
    )
    memory_limit_celsius: Signal | None = gauge(
        None, "gpu_temperature_limit_celsius limit=memory_max_operating"
    )
    pcie_bytes: Signal | None = counter(2e8, "gpu_pcie_receive_bytes_total")
    """Received; a tenth of it is sent."""
    nvlink_bytes: Signal | None = counter(
        1e9, "gpu_nvlink_receive_bytes_total gpu_nvlink_transmit_bytes_total"
    )
    link_width: Signal = gauge(16, "gpu_pcie_link_width")
    link_generation: Signal = gauge(5, "gpu_pcie_link_generation")
    nvlinks: Signal | None = gauge(None, "gpu_nvlink_active_links")
    nvlink_recoveries: Signal | None = gauge(None, "gpu_nvlink_errors_total kind=recovery")
    """The counter's values, not a rate."""
    remapped_rows: Signal | None = gauge(None, "gpu_remapped_rows kind=uncorrectable")
    replays: Signal = counter(0.0, "gpu_pcie_replays_total")
    xids: Mapping[str, Signal] = field(default_factory=dict)
    """Counter values, not rates: by code."""
    row_remap_failed: Signal = gauge(0, "gpu_row_remap_failed")
    row_remap_pending: Signal = gauge(0, "gpu_row_remap_pending")
    repair_pending: Signal | None = gauge(None, "gpu_repair_pending")
    memory_unrepairable: Signal | None = gauge(None, "gpu_memory_unrepairable")
    recovery_action: str | None = None
    fabric_state: str | None = None
    up: Signal = gauge(1, "gpu_up")
    feeders: bool = True
    """Whether the exporter sees who feeds the GPU."""
    age_seconds: Signal | None = None
    """Of the oldest main; None: two hours at the beginning, growing."""
    interactive: Signal = gauge(0, "gpu_feeder_interactive")
    workers: Signal | None = 4
    """None: the job has never had one."""
    worker_cpu: Signal = 0.2
    """Cores that all workers use."""
    main_cpu: Signal = 1.0
    main_read_bytes: Signal = 0.0
    worker_read_bytes: Signal = 2e7
    main_written_bytes: Signal = 1e4
    network_bytes: Signal = counter(
        1e5, "gpu_feeder_network_receive_bytes_total gpu_feeder_network_transmit_bytes_total"
    )
    network_shared: Signal | None = gauge(None, "gpu_feeder_network_shared")
    socket_bytes: Signal | None = counter(None, "gpu_feeder_socket_bytes_total")
    starts: Signal | None = gauge(None, "gpu_workload_starts_total")
    """Counter values, not rates; None: as exporters before 0.1 have it."""
    productive_starts: Signal | None = gauge(None, "gpu_workload_productive_starts_total")
    worker_starts: Signal = counter(0.0, "gpu_feeder_worker_starts_total")
    throttled: Signal | None = counter(0.0, "gpu_feeder_throttled_seconds_total")
    cpu_limit_cores: Signal | None = gauge(None, "gpu_feeder_cpu_limit_cores")
    cpus_allowed: Signal | None = gauge(32, "gpu_feeder_cpus_allowed")
    memory_used_bytes: Signal | None = gauge(4e10, "gpu_feeder_memory_used_bytes")
    memory_limit_bytes: Signal | None = gauge(1e11, "gpu_feeder_memory_limit_bytes")
    shm_size_bytes: Signal | None = 6.4e10
    shm_used: Signal = 0.1
    host_cpus: Signal | None = 32
    host_busy_cores: Signal = 6.0
    host_iowait_cores: Signal = 0.0
    disk_busy: Signal | None = 0.05
    owner: Labels | None = None
    """Labels of gpu_workload_info."""
    owners: Sequence[Labels] = ()
    """Of several tenants."""
    engine: Mapping[str, Signal] = field(default_factory=dict)
    """What the inference engine of its pod tells, by `ENGINE`."""
    outlook: Outlook = NOTHING_KNOWN
    """What the exporter prescribes, and how good its last prediction was."""
    architecture: str = "hopper"
    collector_fails: Signal | None = None
    """Whether one of the exporter's collectors does; shown with GPU 0."""
    exempt: Signal | None = gauge(None, "gpu:exempt:info")
    """What a site's own rule records."""
    name: str = "NVIDIA H100 80GB HBM3"
    reset_at: int | None = None
    """Minute at which the exporter is restarted."""
    gap: tuple[int, int] | None = None
    """No scrapes from the one minute to the other, while the counters go on."""
    missing: str = ""
    """Families left out: a pattern."""
    target: Labels = field(default_factory=dict)
    """Further labels of the scrape target: the same for all GPUs of a node."""
    uuid: str | None = None
    """None: made from node and index. MIG instances of one board differ in this only."""
    parent_uuid: str | None = None
    """The board's, of a MIG instance."""


def changed(gpu: Gpu, **fields: object) -> Gpu:
    """`gpu` but for these."""
    return replace(gpu, **fields)  # type: ignore[arg-type]


def job(name: object) -> dict[str, str]:
    """The owner of the GPUs of a Slurm job."""
    return {"slurm_job_id": f"{name}", "user": "ada"}


def add_gpu(fleet: Fleet, node: str, gpu: Gpu, index: int = 0) -> None:
    """The series that the exporter on `node` would show of `gpu`; the host's with GPU 0."""
    first = len(fleet._series)
    _Writer(fleet, node, gpu, index).write()
    missed = range(*gpu.gap or (0, 0))
    fleet.change(
        lambda one: [None if m in missed else v for m, v in enumerate(one.values)], first=first
    )


ENGINE = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv": "vllm:kv_cache_usage_perc",
}
"""Gauges of an inference engine."""
ENGINE_RATES = {
    "preempted": "vllm:num_preemptions_total",
    "finished": "vllm:request_success_total",
    "decoded": "vllm:generation_tokens_total",
    "prefilled": "vllm:prompt_tokens_total",
    "queued_seconds": "vllm:request_queue_time_seconds_sum",
    "dequeued": "vllm:request_queue_time_seconds_count",
    "latency": "vllm:e2e_request_latency_seconds_sum",
    "inference": "vllm:request_inference_time_seconds_sum",
}
"""Counters, given as rates per second."""
PRESCRIBED = ("value", "current_value", "busy_ratio", "busy_low_ratio", "busy_high_ratio")
REASONS = ("power_cap", "sw_thermal", "hw_thermal", "hw_power_brake")
MEMORY_BYTES, CLOCK_HERTZ = 8e10, 1.98e9
CONSTANTS = {
    "gpu_memory_total_bytes": MEMORY_BYTES,
    "gpu_pcie_link_width_max": 16,
    "gpu_pcie_link_generation_max": 5,
}


class _Writer:
    def __init__(self, fleet: Fleet, node: str, gpu: Gpu, index: int) -> None:
        self._fleet = fleet
        self._gpu = gpu
        self._target = {"job": JOB, "instance": node, **gpu.target}
        uuid = gpu.uuid or f"GPU-{node}-{index}"
        self._labels = {**self._target, "gpu": f"{index}", "uuid": uuid}
        self._index = index
        self._owners = [*([gpu.owner] if gpu.owner else []), *gpu.owners]
        if gpu.engine and not self._owners:
            self._owners = [{"workload_namespace": "llm", "workload_pod": node}]

    def write(self) -> None:
        for family, value in CONSTANTS.items():
            self._g(family, value)
        self._fields()
        self._device()
        if self._gpu.engine:
            self._engine()
        self._condition()
        if self._gpu.feeders:
            self._stalls()
            self._feeders()
            self._outlook()
        if self._index == 0:
            self._host()

    def _fields(self) -> None:
        for one in fields(self._gpu):
            value, shown = getattr(self._gpu, one.name), one.metadata
            counters = shown.get("counters", "").split()
            if "gauge" in shown and self._is_shown(shown["gauge"]):
                self._g(shown["gauge"], value)
            for family in filter(self._is_shown, counters):
                self._c(family, value)

    def _is_shown(self, family: str) -> bool:
        return self._gpu.feeders or not family.startswith("gpu_feeder_")

    def _g(self, family: str, signal: Signal | None, /, **labels: str) -> None:
        name, *given = family.split()
        if signal is not None and not re.fullmatch(self._gpu.missing, name):
            more = dict(one.split("=") for one in given)
            self._fleet.gauge(name, signal, **self._labels, **more, **labels)

    def _c(self, name: str, rate: Signal | None, /, **labels: str) -> None:
        if rate is not None and not re.fullmatch(self._gpu.missing, name):
            self._fleet.counter(name, rate, self._gpu.reset_at, **self._labels, **labels)

    def _device(self) -> None:
        gpu = self._gpu
        above = {} if gpu.parent_uuid is None else {"parent_uuid": gpu.parent_uuid}
        self._g("gpu_info", 1, architecture=gpu.architecture, name=gpu.name, **above)
        self._c("gpu_observed_seconds_total", like(gpu.busy, 1.0))
        for pipe, share in (gpu.pipes or {}).items():
            self._c("gpu_pipe_active_seconds_total", share, pipe=pipe)
        if gpu.clock is not None:
            self._g("gpu_clock_hertz clock=sm", times(CLOCK_HERTZ, gpu.clock))
            self._g("gpu_clock_max_hertz clock=sm", CLOCK_HERTZ)
        if gpu.throttle is not None:
            for reason in dict.fromkeys((*REASONS, *gpu.throttle)):
                self._c("gpu_throttle_seconds_total", gpu.throttle.get(reason, 0.0), reason=reason)
        for reason, active in gpu.throttle_active.items():
            self._g("gpu_throttle_active", active, reason=reason)
        if gpu.power_watts is not None:
            self._g("gpu_power_limit_watts", gpu.power_limit_watts)
        self._g("gpu_memory_used_bytes", times(MEMORY_BYTES, gpu.memory))
        if gpu.pcie_bytes is not None:
            self._c("gpu_pcie_transmit_bytes_total", times(0.1, gpu.pcie_bytes))
        for xid, value in gpu.xids.items():
            self._g("gpu_xid_errors_total", value, xid=xid)
        for owner in self._owners:
            self._g("gpu_workload_info", 1, **owner)

    def _engine(self) -> None:
        """The target of the engine, which is the pod's."""
        (owner,) = self._owners
        pod = owner["workload_pod"]
        labels = {"job": "engines", "instance": f"{pod}:{8000 + self._index}", "pod": pod}
        labels |= {"namespace": owner["workload_namespace"], "model_name": "m"}
        labels |= {name: self._gpu.target[name] for name in self._gpu.target if name == "cluster"}
        for name, signal in self._gpu.engine.items():
            if name in ENGINE:
                self._fleet.gauge(ENGINE[name], signal, **labels)
            else:
                self._fleet.counter(ENGINE_RATES[name], signal, None, **labels)

    def _condition(self) -> None:
        if self._gpu.recovery_action is not None:
            self._g("gpu_recovery_action", 1, action=self._gpu.recovery_action)
        if self._gpu.fabric_state is not None:
            self._g("gpu_fabric_state", 1, state=self._gpu.fabric_state)

    def _stalls(self) -> None:
        for engine, share in self._gpu.engines.items():
            self._c("gpu_video_engine_busy_seconds_total", share, engine=engine)
        idle = mapped(self._gpu.busy, lambda v: 1 - v)
        for waiting_on in WAITING_ON:
            rest = idle if waiting_on == "asleep" and not self._gpu.stalls else 0.0
            rate = self._gpu.stalls.get(waiting_on, rest)
            self._c("gpu_stall_seconds_total", rate, waiting_on=waiting_on)
        if self._gpu.storage_remote is not None:
            storage, remote = self._gpu.stalls.get("storage", 0.0), self._gpu.storage_remote
            for filesystem, share in (("local", 1 - remote), ("remote", remote)):
                told = times(share, storage)
                self._c("gpu_storage_stall_seconds_total", told, filesystem=filesystem)

    def _feeders(self) -> None:
        gpu = self._gpu
        grown = [(1, 7200.0 + 60 * minute) for minute in range(self._fleet.minutes + 1)]
        self._g("gpu_feeder_age_seconds", grown if gpu.age_seconds is None else gpu.age_seconds)
        self._role("main", 1, gpu.main_cpu, gpu.main_read_bytes)
        self._c("gpu_feeder_written_bytes_total", gpu.main_written_bytes, role="main")
        if gpu.workers is not None:
            self._role("worker", gpu.workers, gpu.worker_cpu, gpu.worker_read_bytes)
        if gpu.shm_size_bytes is not None:
            size = gpu.shm_size_bytes
            assert isinstance(size, int | float), "its use is given as a share of it"
            self._g("gpu_feeder_shm_size_bytes", size)
            self._g("gpu_feeder_shm_used_bytes", times(size, gpu.shm_used))

    def _role(self, role: str, processes: Signal, cpu: Signal, read: Signal) -> None:
        self._g("gpu_feeder_processes", processes, role=role)
        self._c("gpu_feeder_cpu_seconds_total", cpu, role=role)
        self._c("gpu_feeder_read_bytes_total", read, role=role)

    def _outlook(self) -> None:
        advice, score, *_ = self._gpu.outlook
        if isinstance(advice, Prescription):
            for name in PRESCRIBED:
                self._g(f"gpu_prescription_{name}", getattr(advice, name), knob=advice.knob)
            self._g("gpu_prescription_upper_bound", int(advice.at_most), knob=advice.knob)
            if advice.job_busy_ratio is not None:
                job = advice.job_busy_ratio
                self._g("gpu_prescription_job_busy_ratio", job, knob=advice.knob)
        if isinstance(advice, Refusal):
            self._g("gpu_prescription_refused", 1, reason=advice.reason)
        if score is not None:
            self._g("gpu_prescription_scored_ratio", score.predicted_busy_ratio, knob=score.knob)
            self._g("gpu_prescription_error_ratio", score.error_ratio, knob=score.knob)

    def _host(self) -> None:
        gpu = self._gpu
        self._fleet.gauge("up", 1, **self._target)
        self._fleet.gauge("gpu_exporter_build_info", 1, **self._target)
        if gpu.collector_fails is not None:
            succeeds = mapped(gpu.collector_fails, lambda fails: 1 - fails)
            labels = {**self._target, "collector": "link"}
            self._fleet.gauge("gpu_exporter_collector_success", succeeds, **labels)
        # The kernel counts: it goes on when the exporter is restarted.
        if gpu.host_cpus is not None:
            self._fleet.gauge("gpu_host_cpus", gpu.host_cpus, **self._target)
            count = partial(self._fleet.counter, **self._target)
            count("gpu_host_cpu_busy_seconds_total", gpu.host_busy_cores)
            count("gpu_host_iowait_seconds_total", gpu.host_iowait_cores)
        if gpu.disk_busy is not None:
            disk = {**self._target, "device": "nvme0n1"}
            self._fleet.counter("gpu_host_disk_io_seconds_total", gpu.disk_busy, **disk)


def times(factor: float, signal: Signal) -> Signal:
    return mapped(signal, lambda value: value * factor)


def told_of(owner: Labels, node: str = "") -> dict[str, str]:
    """The labels of an alert about a GPU of `owner`: with its name, and the job that it is of."""
    if "workload_pod" in owner:
        space, pod = owner.get("workload_namespace", ""), owner["workload_pod"]
        name, group = f"pod {space}/{pod}", f"{node}/{space}/{pod}"
    else:
        kinds = {"Slurm job": "slurm_job_id", "job": "workload_job", "pod": "pod_uid"}
        kinds |= {"container": "container_id", "user": "user"}
        known = (f"{kind} {owner[label]}" for kind, label in kinds.items() if label in owner)
        name, group = next(known, "owner unknown"), ""
    groups = {"slurm": "slurm_job_id", "pod": "pod_uid", "container": "container_id"}
    own = [f"{kind}-{owner[label]}" for kind, label in groups.items() if label in owner]
    own = [owner["workload_job"]] if "workload_job" in owner else own
    group = next(iter(own), group)
    kept = {label: text for label, text in owner.items() if label not in OF_STARTS}
    return {**kept, "workload": name, **({"workload_group": group} if group else {})}
