from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from gpu_bottleneck_exporter.accounting.stall import REQUESTS
from gpu_bottleneck_exporter.collectors import ALL, feeders, host, prescription
from gpu_bottleneck_exporter.driver import readings
from gpu_bottleneck_exporter.driver.readings import Identity, Memory, Process, Processes, RingSample
from gpu_bottleneck_exporter.exposition import render
from gpu_bottleneck_exporter.exposition.render import OPENMETRICS_TYPE, TEXT_TYPE, Exposition
from gpu_bottleneck_exporter.feeders.job import JobReading
from gpu_bottleneck_exporter.host.machine import MAX_DEVICES, Machine
from gpu_bottleneck_exporter.host.signals import host_signals
from gpu_bottleneck_exporter.sampling.collector import Family
from gpu_bottleneck_exporter.sampling.ledger import (
    OTHER_TENANTS,
    GpuLedger,
    GpuSnapshot,
    GpuTotals,
)
from gpu_bottleneck_exporter.sampling.sampler import SamplerState
from gpu_bottleneck_exporter.workload.identity import Owner
from gpu_bottleneck_exporter.workload.names import Tenant
from support import states
from support.metrics import Metrics
from support.rows import rows
from support.states import (
    HOST,
    NO_DRIVER,
    SIGNALS,
    FixedSampler,
    feeding,
    hopper,
    mixed_state,
    shared,
)
from support.states import state as of

ASKS_OPENMETRICS = "application/openmetrics-text;version=1.0.0,*/*;q=0.1"
GPU_SERIES, HOST_SERIES = 155, 90
"""Budgets: per GPU with its stalls and feeders, four less without NVLink-C2C and one less for a job
with one GPU; and per host with the exporter's own."""
SECOND = 1_000_000_000
Parse = Callable[[str], Iterable[Metric]]


def exposition(now: SamplerState) -> Exposition:
    return Exposition(FixedSampler(now), ALL)


def text_of(now: SamplerState, accept: str = "") -> str:
    return exposition(now).render(accept)[0].decode()


def samples(now: SamplerState, prefix: str = "gpu_", **labels: str) -> list[Sample]:
    """Samples by the beginning of their names; those of the exporter's process vary."""
    result = Metrics(text_of(now)).samples
    return [s for s in result if s.name.startswith(prefix) and labels.items() <= s.labels.items()]


def values(gpu: GpuSnapshot, prefix: str, **labels: str) -> list[float]:
    return [sample.value for sample in samples(of(gpu), prefix, **labels)]


def names(gpu: GpuSnapshot) -> set[str]:
    """Samples of one GPU, by name."""
    return {sample.name for sample in samples(of(gpu)) if "uuid" in sample.labels}


# --- Formats --------------------------------------------------------------------------------------
@rows(
    "accept, content_type",
    {
        "text": ("text/plain;version=1.0.0;escaping=nonsense", TEXT_TYPE),
        "OpenMetrics": (ASKS_OPENMETRICS, OPENMETRICS_TYPE),
        "an unknown version": ("application/openmetrics-text;version=1.x;q=0.5", OPENMETRICS_TYPE),
    },
)
def test_the_accept_header_chooses_the_format(accept: str, content_type: str) -> None:
    body, answered = exposition(mixed_state()).render(accept)
    assert answered == content_type
    assert body.endswith(b"# EOF\n") == (content_type == OPENMETRICS_TYPE)


def test_clients_cannot_fill_the_memory_with_versions_of_formats() -> None:
    shown = exposition(mixed_state())
    items = [f"application/openmetrics-text;version=1.0.{number}" for number in range(20)]
    bodies = [shown.render(accept)[0] for accept in items]
    assert all(body is bodies[0] for body in bodies)


def test_both_formats_have_the_same_samples() -> None:
    now = mixed_state()

    def read(parse: Parse, accept: str) -> list[tuple[str, dict[str, str], float]]:
        metrics = [m for m in parse(text_of(now, accept)) if m.name.startswith("gpu_")]
        return [(s.name, s.labels, s.value) for metric in metrics for s in metric.samples]

    in_text, in_openmetrics = read(parse_text, ""), read(parse_openmetrics, ASKS_OPENMETRICS)
    assert in_text == in_openmetrics
    assert len({(name, *sorted(labels.items())) for name, labels, _ in in_text}) == len(in_text)


HOSTILE = ['a"b\\c\nd', "\\n", '",x="', "# HELP", " ", "größer", "\t\r"]


@pytest.mark.parametrize("name", HOSTILE)
@rows(
    "parse, accept",
    {"text": (parse_text, ""), "OpenMetrics": (parse_openmetrics, ASKS_OPENMETRICS)},
)
def test_hostile_names_survive_the_formats(name: str, parse: Parse, accept: str) -> None:
    gpu = replace(
        fed(owners=(Owner(user=name),)),
        identity=replace(states.HOPPER, uuid=name, name=name, pci_bus_id=name),
        system=readings.System(driver_version=name, cuda_version=name),
    )
    fields = {m.name: m.samples for m in parse(text_of(of(gpu, states.ampere()), accept))}
    items = ("uuid", "name", "pci_bus_id", "driver_version", "cuda_version")
    assert [fields["gpu_info"][0].labels[label] for label in items] == [name] * len(items)
    assert len(fields["gpu_info"]) == 2
    assert fields["gpu_workload_info"][0].labels["user"] == name


# --- What is not known is absent ------------------------------------------------------------------
def without(kind: type[object]) -> GpuSnapshot:
    fields = {result: reading for result, reading in hopper().readings.items() if result != kind}
    return replace(hopper(), readings=fields)


def read(*parts: readings.Reading) -> GpuSnapshot:
    return replace(hopper(), readings={**hopper().readings, **states.by_type(*parts)})


def summed(**changes: object) -> GpuSnapshot:
    return replace(hopper(), totals=replace(hopper().totals, **changes))  # type: ignore[arg-type]


def fed(**changes: object) -> GpuSnapshot:
    return replace(hopper(), feeding=replace(feeding(), **changes))  # type: ignore[arg-type]


def families(name: str) -> str:
    """Families of a collector."""
    return " ".join(family.name for item in ALL if item.name == name for family in item.families)


KINDS = (
    "Condition",
    "Power",
    "Thermal",
    "Clocks",
    "Throttle",
    "Memory",
    "Health",
    "Link",
    "Processes",
)
NO_NVLINK = {name: 1 for name in states.TRAFFIC if not name.startswith("nvlink")}
CONDITION = readings.Condition(
    *("none", "completed", 18, {"replay": 1}), repair_pending=True, memory_unrepairable=False
)
ABSENT: dict[str, tuple[GpuSnapshot, str]] = {
    **{kind: (without(getattr(readings, kind)), families(kind.lower())) for kind in KINDS},
    "power now": (read(readings.Power(None, 1, 1, 1, 1, 1)), "gpu_power_watts"),
    "a fabric": (
        read(replace(CONDITION, fabric_state=None)),
        "gpu_fabric_state",
    ),
    "NVLinks": (
        read(replace(CONDITION, nvlinks_active=None, nvlink_errors={})),
        "gpu_nvlink_active_links gpu_nvlink_errors_total",
    ),
    "a module": (
        read(readings.Power(1, 1, 1, 1)),
        "gpu_module_power_watts gpu_module_power_limit_watts",
    ),
    "limits": (read(readings.Thermal({"gpu": 1}, margin=1)), "gpu_temperature_limit_celsius"),
    "margin": (
        read(readings.Thermal({"gpu": 1}, {"slowdown": 1})),
        "gpu_temperature_margin_celsius",
    ),
    "throttled": (read(readings.Throttle(active={"sync": True})), "gpu_throttle_seconds_total"),
    "all memory": (read(Memory(used_bytes=1, reserved_bytes=1)), "gpu_memory_total_bytes"),
    "used memory": (read(Memory(total_bytes=1, reserved_bytes=1)), "gpu_memory_used_bytes"),
    "remapped rows": (
        read(readings.Health({"corrected": 1}, {}, remap_pending=True, remap_failed=True)),
        "gpu_remapped_rows",
    ),
    "generation": (read(readings.Link(1, None, 1, 1, 1)), "gpu_pcie_link_generation"),
    "video engines": (summed(engine_ns={}), "gpu_video_engine_busy_seconds_total"),
    "memory busy": (summed(memory_busy_ns=None), "gpu_memory_controller_busy_seconds_total"),
    "last busy": (summed(last_busy_ratio=None), "gpu_utilization_ratio"),
    "last memory": (summed(last_memory_ratio=None), "gpu_memory_controller_utilization_ratio"),
    "SM": (summed(active_ns={"occupancy": 1, "dram": 1}), "gpu_sm_active_seconds_total"),
    "pipes": (summed(pipe_ns={}), "gpu_pipe_active_seconds_total"),
    "NVLink": (
        summed(traffic_bytes=NO_NVLINK),
        "gpu_nvlink_receive_bytes_total gpu_nvlink_transmit_bytes_total",
    ),
    "utilization": (
        summed(observed_ns=None, window_counts=()),
        (
            "gpu_observed_seconds_total gpu_unobserved_seconds_total gpu_busy_seconds_total "
            "gpu_window_utilization_ratio_bucket gpu_window_utilization_ratio_count "
            "gpu_window_utilization_ratio_sum"
        ),
    ),
    "GPM": (replace(states.ampere(), feeding=feeding()), families("activity")),
    "feeders": (
        replace(hopper(), feeding=None),
        "gpu_workload_info "
        + " ".join(f.name for part in (feeders, prescription) for f in part.FAMILIES),
    ),
    "quota": (fed(throttled_ns=None), "gpu_feeder_throttled_seconds_total"),
    "refaults": (fed(refault_bytes=None), "gpu_feeder_refault_bytes_total"),
    "queue": (fed(queue_known=False), "gpu_feeder_run_queue_seconds_total"),
    "waits": (fed(wait_ns={}), "gpu_feeder_wait_seconds_total"),
    "owners": (fed(owners=()), "gpu_workload_info"),
    "job": (
        fed(job=JobReading()),
        (
            "gpu_feeder_age_seconds gpu_feeder_interactive gpu_feeder_cpu_limit_cores "
            "gpu_feeder_cpus_allowed gpu_feeder_memory_used_bytes gpu_feeder_memory_limit_bytes "
            "gpu_feeder_shm_size_bytes gpu_feeder_shm_used_bytes gpu_feeder_pressure_seconds_total "
            "gpu_feeder_network_receive_bytes_total gpu_feeder_network_transmit_bytes_total"
        ),
    ),
}
"""Unknown values: such a GPU, and the families that go with it, and no others."""


@rows("gpu, gone", ABSENT)
def test_an_unknown_value_removes_its_families_and_no_others(gpu: GpuSnapshot, gone: str) -> None:
    assert names(gpu) == names(hopper()) - {*gone.split()}
    assert gone


ONE = Process(4711, 2**30)


@rows(
    "held, used",
    {
        "all known": (Processes((ONE,)), [2**30]),
        "one unknown": (Processes((ONE, Process(4712))), []),
        "others hidden": (Processes((ONE,), others_hidden=True), []),
    },
)
def test_memory_of_the_machine_is_used_as_far_as_its_processes_are_known(
    held: Processes, used: list[float]
) -> None:
    gpu = read(Memory(2**37, of_machine=True), held)
    assert values(gpu, "gpu_memory_used_bytes") == used
    assert values(gpu, "gpu_memory_total_bytes") == [2**37]


def test_memory_that_the_kernel_uses_too_is_that_of_the_processes() -> None:
    of_kernel = read(Memory(2**37, 2**36, 2**20), Processes((ONE,)))
    gpu = replace(of_kernel, identity=replace(of_kernel.identity, coherent=True))
    assert values(gpu, "gpu_memory_used_bytes") == [2**30]
    free = replace(gpu, readings={**gpu.readings, **states.by_type(Processes())})
    assert values(free, "gpu_memory_used_bytes") == [0]


GPU_0 = {"0", states.HOPPER.uuid}


def test_one_missing_sensor_takes_only_its_series_away() -> None:
    gpu = read(readings.Thermal(sensors={"memory": 70}, limits={"slowdown": 87}))
    items = [{*s.labels.values()} - GPU_0 for s in samples(of(gpu), "gpu_temperature")]
    assert items == [{"memory"}, {"slowdown"}]


def test_bytes_that_may_not_be_known_are_absent_for_that_role_only() -> None:
    denied = feeding().counters["worker"]._replace(read_bytes=None, written_bytes=None)
    gpu = fed(counters={**feeding().counters, "worker": denied})
    for name in ("gpu_feeder_read_bytes_total", "gpu_feeder_written_bytes_total"):
        assert [s.labels["role"] for s in samples(of(gpu), name)] == ["main"]


def test_a_gpu_that_is_down_and_has_no_name_is_exported() -> None:
    nameless = replace(states.lost(Identity(index=5, uuid="")), errors={})
    result = samples(of(hopper(), nameless), gpu="5")
    assert [(s.name, s.value) for s in result] == [("gpu_up", 0), ("gpu_info", 1)]


def test_without_a_driver_there_are_no_gpu_series() -> None:
    own = "build_info simulated lost_samples_seconds_total driver_calls_total driver_seconds_total"
    assert {s.name for s in samples(NO_DRIVER)} == {f"gpu_exporter_{name}" for name in own.split()}
    assert "\nprocess_resident_memory_bytes " in text_of(NO_DRIVER)


# --- The host and its signals ---------------------------------------------------------------------
def given(now: SamplerState) -> dict[str, float]:
    """Values of gpu_exporter_signal_available."""
    return {s.labels["signal"]: s.value for s in samples(now) if "signal" in s.labels}


def on(host: Machine | None, off: Iterable[str] = ()) -> SamplerState:
    """A machine without a driver, of whose host this is known."""
    now = replace(NO_DRIVER, host=replace(HOST, machine=host))
    return replace(now, collectors=states.NAMES - {*off})


def test_without_a_driver_the_host_and_its_signals_are_exported() -> None:
    result = host_signals(Path("/proc"), Path("/sys"), (os.getpid(),))
    now = replace(NO_DRIVER, host=replace(HOST, signals=result))
    assert {family.name for family in host.FAMILIES} <= {s.name for s in samples(now)}
    assert given(now) == {signal: float(value) for signal, value in result.items()}


def test_a_host_that_cannot_be_read_has_no_series_and_no_zeros() -> None:
    assert samples(on(Machine()), "gpu_host_") == []
    off = on(None, {"host"})
    assert samples(off, "gpu_host_") == []
    assert given(off).keys() == SIGNALS.keys() - {"psi_host"}


@pytest.mark.parametrize(
    ("off", "gone"),
    [
        ("utilization", {"busy_time", "utilization_samples"}),
        ("activity", {"gpm"}),
        ("power", {"energy"}),
        ("throttle", {"throttle_counters"}),
        ("processes", {"processes"}),
        ("feeders", {"psi_cgroup"}),
        ("host", {"psi_host"}),
        ("stall workload", set()),
        ("stall feeders", SIGNALS.keys() - {"psi_host", "process_io", "host_pids"}),
        ("stall feeders workload", SIGNALS.keys() - {"psi_host", "host_pids"}),
        ("stall feeders workload host", SIGNALS.keys()),
    ],
)
def test_a_signal_of_no_collector_is_not_missing(off: str, gone: set[str]) -> None:
    """A collector that is off must not look like hardware that gives nothing."""
    nothing = replace(HOST, signals=dict.fromkeys(SIGNALS, False))
    blind = replace(of(replace(hopper(), readings={})), host=nothing)
    left = replace(blind, collectors=states.NAMES - {*off.split()})
    assert given(left).keys() == given(blind).keys() - gone
    assert set(given(blind).values()) == {0.0, 1.0}


def test_a_reading_without_its_counters_is_a_missing_signal() -> None:
    assert given(of(read(readings.Throttle(active={"power_cap": True}))))["throttle_counters"] == 0


# --- Values ---------------------------------------------------------------------------------------
def test_lost_samples_stay_counted_when_the_gpu_goes_down() -> None:
    ledger = GpuLedger(states.HOPPER, states.SYSTEM, tick_ns=SECOND)
    for at in (100, 101, 102, 122):
        ring = (RingSample(at * 1_000_000, 50),)
        ledger.add(at * SECOND, 5 * SECOND, readings.Utilization(ring, ring))
    name = "gpu_exporter_lost_samples_seconds_total"
    (before,) = values(ledger.snapshot(122 * SECOND), name)
    (after,) = values(ledger.down(123 * SECOND), name)
    assert after >= before > 0


def test_a_ledgers_windows_come_out_as_a_histogram() -> None:
    ledger = GpuLedger(states.HOPPER, states.SYSTEM, tick_ns=SECOND)
    ledger.without_utilization()
    for at, busy in enumerate((0.04, 0.5, 0.5, 0.96), start=1):
        ledger.add(at * SECOND, 5 * SECOND, readings.UnitActivity(SECOND, graphics=busy))
    gpu = ledger.snapshot(4 * SECOND)
    assert values(gpu, "gpu_window_utilization_ratio") == [1, 1, 3, 3, 3, 4, 4, 4, 2.0]
    assert values(gpu, "gpu_busy_seconds_total") == [pytest.approx(2.0)]


def test_time_without_requests_is_exported_for_servers_only() -> None:
    for seconds, result in ((0, []), (2, [2.0])):
        gpu = summed(stall_ns={**states.stall_ns(), REQUESTS: seconds * SECOND})
        assert values(gpu, "gpu_stall_seconds_total", waiting_on=REQUESTS) == result


def test_interactive_use_is_zero_or_one() -> None:
    job = feeding().job
    for interactive in (False, True):
        gpu = fed(job=replace(job, limits=replace(job.limits, interactive=interactive)))
        assert values(gpu, "gpu_feeder_interactive") == [float(interactive)]


def test_each_owner_is_a_series_without_labels_of_unknown_value() -> None:
    """The golden exposition has an owner of whom all is known."""
    gpu = fed(owners=(Owner(container_id="c" * 64, user="root"), Owner(slurm_job_id="7")))
    items = [s.labels for s in samples(of(gpu), "gpu_workload_info")]
    place = {"gpu": "0", "uuid": states.HOPPER.uuid}
    expected = ({"container_id": "c" * 64, "user": "root"}, {"slurm_job_id": "7"})
    assert items == [{**place, **labels} for labels in expected]


def tenants_of(gpu: GpuSnapshot, metric: str = "gpu_tenant_busy_seconds_total") -> set[str]:
    return {sample.labels["tenant"] for sample in samples(of(gpu), metric)}


def test_tenants_that_left_have_no_series_without_labels() -> None:
    gpu = shared()
    assert gpu.feeding
    (stays, leaves) = gpu.feeding.tenants
    tenants = {stays: gpu.feeding.tenants[stays]}
    later = replace(gpu, feeding=replace(gpu.feeding, tenants=tenants))
    assert tenants_of(gpu) - tenants_of(later) == {leaves}
    assert not tenants_of(replace(gpu, feeding=replace(gpu.feeding, tenants={}))), "one is left"


def test_the_memory_of_a_tenant_outlasts_the_exit_of_a_process() -> None:
    gpu = shared()
    assert gpu.feeding
    ((name, tenant), *_) = gpu.feeding.tenants.items()
    tenants = {name: tenant._replace(pids=tenant.pids | {99}), "new": Tenant((), tenant.pids)}
    gpu = replace(gpu, feeding=replace(gpu.feeding, tenants=tenants))
    totals = {of: total for of, total in gpu.totals.tenants.items() if of != OTHER_TENANTS}
    gpu = replace(gpu, totals=replace(gpu.totals, tenants=totals))
    assert tenants_of(gpu, "gpu_tenant_memory_used_bytes") == {name}


# --- Budgets --------------------------------------------------------------------------------------
def busiest() -> GpuSnapshot:
    """A GPU whose feeders do all that there is to do."""
    counters = feeding().counters
    writing = {**counters, "worker": counters["worker"]._replace(written_bytes=0)}
    how = ("disk", "network", "queue", "sleep")
    return fed(wait_ns={(role, on): 1 for role in counters for on in how}, counters=writing)


def test_a_hopper_gpu_stays_within_the_budget_of_series() -> None:
    """But for those that say whose it is, which grow with its tenants."""
    for gpu, most in ((hopper(), GPU_SERIES), (busiest(), GPU_SERIES + 1)):
        own = [s for s in samples(of(gpu)) if "uuid" in s.labels and s.name != "gpu_workload_info"]
        assert len(own) <= most


def test_a_host_stays_within_the_budget_of_series() -> None:
    of_host = [sample for sample in samples(mixed_state()) if "uuid" not in sample.labels]
    assert len(of_host) <= HOST_SERIES
    devices = {f"eth{number}": number for number in range(MAX_DEVICES)}
    many = ("disk_io_seconds", "network_receive_bytes", "network_transmit_bytes")
    everything = replace(states.machine(), **dict.fromkeys(many, devices))  # type: ignore[arg-type]
    assert len(samples(on(everything), "gpu_host_")) <= HOST_SERIES


# --- When it is rendered anew ---------------------------------------------------------------------
@pytest.mark.parametrize("accept", ["", ASKS_OPENMETRICS])
def test_scrapes_within_a_tick_get_the_very_same_bytes(accept: str) -> None:
    shown = exposition(mixed_state())
    first, _ = shown.render(accept)
    assert shown.render("" if accept else ASKS_OPENMETRICS)[0] != first
    assert shown.render(accept)[0] is first


LATER_NS = states.AT_NS + 1
GPU_LATER = replace(hopper(), at_ns=LATER_NS, totals=GpuTotals(observed_ns=5 * SECOND))
DOWN = of(replace(hopper(), up=False, readings={}, totals=GpuTotals()))
HOST_LATER = replace(HOST, at_ns=LATER_NS, machine=replace(states.machine(), cpus=63))
LATER = {
    "feeders": (of(fed(at_ns=LATER_NS, worker_starts=17)), "gpu_feeder_worker_starts_total 17.0"),
    "host": (replace(of(hopper()), host=HOST_LATER), "gpu_host_cpus 63.0"),
    "GPU": (of(GPU_LATER), "gpu_observed_seconds_total 5.0"),
    "down": (DOWN, "gpu_up 0.0"),
}
"""The state of `hopper`, a tick later, and what is new."""


@pytest.mark.parametrize("accept", ["", ASKS_OPENMETRICS])
def test_cached_scrapes_equal_a_first_one(accept: str) -> None:
    sampler = FixedSampler(mixed_state())
    shown = Exposition(sampler, ALL)
    for now in (mixed_state(), of(hopper()), DOWN, mixed_state()):
        sampler.now = now
        result, first = (
            item.render(accept)[0].decode().partition("# HELP process_")
            for item in (shown, exposition(now))
        )
        assert result[0] == first[0]
        assert result[2].endswith("# EOF\n") is bool(accept)


MOVED = summed(
    busy_ns=7 * SECOND,
    stall_ns={**states.stall_ns(), "storage": 3 * SECOND},
    window_counts=tuple((bound, 2 * count) for bound, count in hopper().totals.window_counts),
    window_sum=4e7,
)
"""`hopper` with other values of the same series."""


@pytest.mark.parametrize("accept", ["", ASKS_OPENMETRICS])
def test_new_values_of_the_same_series_need_no_encoding(
    accept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[str] = []
    metric = render._metric

    def counted(family: Family, found: render.ByGpu) -> Metric:
        encoded.append(family.name)
        return metric(family, found)

    sampler = FixedSampler(of(hopper()))
    shown = Exposition(sampler, ALL)
    shown.render(accept)
    sampler.now = of(replace(MOVED, at_ns=LATER_NS))
    expected = text_of(sampler.now, accept).partition("# HELP process_")[0]
    monkeypatch.setattr(render, "_metric", counted)
    assert shown.render(accept)[0].decode().partition("# HELP process_")[0] == expected
    assert encoded == []
    sampler.now = of(replace(hopper(), errors={63: 1}, at_ns=LATER_NS + 1))
    shown.render(accept)
    assert encoded == ["gpu_xid_errors_total"]


def test_the_cache_is_bounded_by_the_last_rendering() -> None:
    sampler = FixedSampler(mixed_state())
    shown = Exposition(sampler, ALL)
    shown.render()
    sampler.now = DOWN
    shown.render()
    assert {labels for _, labels in shown._shown} == {(), ("0", states.HOPPER.uuid)}
    assert {*shown._texts[TEXT_TYPE]} == {s.name for s in samples(DOWN)}


@rows("later, series", LATER)
def test_newer_values_are_rendered_anew(later: SamplerState, series: str) -> None:
    sampler = FixedSampler(of(hopper()))
    shown = Exposition(sampler, ALL)

    def told() -> list[str]:
        result = Metrics(shown.render()[0].decode()).samples
        return [f"{sample.name} {sample.value}" for sample in result]

    assert series not in told()
    sampler.now = later
    assert series in told()
    assert ("gpu_power_watts 412.5" in told()) == (later is not DOWN)


def test_without_gpus_the_process_metrics_stay_current() -> None:
    shown = exposition(NO_DRIVER)

    def open_files() -> float:
        return Metrics(shown.render()[0].decode()).total("process_open_fds") or 0.0

    before = open_files()
    descriptors = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
    try:
        assert open_files() > before
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
