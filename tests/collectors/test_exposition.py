from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from gpu_bottleneck_exporter.accounting.stall import REQUESTS
from gpu_bottleneck_exporter.collectors import ALL, feeders, host, prescription, workload
from gpu_bottleneck_exporter.driver.readings import (
    Activity,
    Clocks,
    Health,
    Identity,
    Link,
    Memory,
    Power,
    Process,
    Processes,
    Reading,
    RingSample,
    System,
    Thermal,
    Throttle,
    Utilization,
)
from gpu_bottleneck_exporter.exposition.render import Exposition
from gpu_bottleneck_exporter.feeders.job import Job
from gpu_bottleneck_exporter.host.machine import MOST_DEVICES, Machine
from gpu_bottleneck_exporter.host.signals import host_signals
from gpu_bottleneck_exporter.sampling.ledger import GpuLedger, GpuSnapshot, GpuTotals
from gpu_bottleneck_exporter.sampling.sampler import SamplerState
from gpu_bottleneck_exporter.workload.identity import Owner
from support.states import (
    HOPPER,
    HOST,
    NAMES,
    NO_DRIVER,
    OWNER,
    SIGNALS,
    SYSTEM,
    TRAFFIC,
    FixedSampler,
    ampere,
    by_type,
    feeding,
    hopper,
    lost,
    machine,
    mig_instance,
    mig_parent,
    mixed_state,
    state,
)

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
GPU_SERIES, HOST_SERIES = 136, 90
"""Budgets: per GPU with its stalls and feeders, four less without NVLink-C2C and
one less for a job with one GPU; and per host with the exporter's own."""
LOST_SAMPLES = "gpu_exporter_lost_samples_seconds_total"

Parse = Callable[[str], Iterable[Metric]]


def exposition(now: SamplerState) -> Exposition:
    return Exposition(FixedSampler(now), ALL)


def text_of(now: SamplerState, accept: str = "") -> str:
    return exposition(now).render(accept)[0].decode()


def samples(now: SamplerState) -> list[Sample]:
    """The samples of the GPUs and of the exporter; those of its process vary."""
    found = [sample for metric in parse_text(text_of(now)) for sample in metric.samples]
    return [sample for sample in found if sample.name.startswith("gpu_")]


def names(gpu: GpuSnapshot) -> set[str]:
    """What is said of one GPU, by the names of the samples."""
    return {sample.name for sample in samples(state(gpu)) if "uuid" in sample.labels}


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", TEXT_TYPE),
        ("text/html,application/xhtml+xml", TEXT_TYPE),
        (PROMETHEUS_2, OPENMETRICS_TYPE),
        (PROMETHEUS_3, OPENMETRICS_TYPE),
    ],
)
def test_the_accept_header_chooses_the_format(accept: str, content_type: str) -> None:
    body, answered = exposition(mixed_state()).render(accept)
    assert answered.startswith(content_type)
    assert body.endswith(b"# EOF\n") == ("openmetrics" in content_type)


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text;version=1.x;q=0.5",
        "text/plain;version=1.0.0;escaping=nonsense",
        ";;;,,,===",
        "\xff",
    ],
)
def test_a_strange_accept_header_gets_a_known_format(accept: str) -> None:
    _, content_type = exposition(mixed_state()).render(accept)
    assert "version=1.0.0;" in content_type or "version=0.0.4;" in content_type


def test_clients_cannot_fill_the_memory_with_versions_of_formats() -> None:
    shown = exposition(mixed_state())
    asked = [f"application/openmetrics-text;version=1.0.{number}" for number in range(20)]
    assert len({shown.render(accept)[1] for accept in asked}) == 1
    assert len(shown._last) == 1


def test_both_formats_say_the_same() -> None:
    now = mixed_state()

    def read(parse: Parse, accept: str) -> list[tuple[str, dict[str, str], float]]:
        metrics = [m for m in parse(text_of(now, accept)) if m.name.startswith("gpu_")]
        return [(s.name, s.labels, s.value) for metric in metrics for s in metric.samples]

    in_text, in_openmetrics = read(parse_text, ""), read(parse_openmetrics, PROMETHEUS_2)
    assert in_text == in_openmetrics
    assert len({(name, *sorted(labels.items())) for name, labels, _ in in_text}) == len(in_text)


@pytest.mark.parametrize("now", [mixed_state(), state(), NO_DRIVER], ids=["mixed", "none", "off"])
def test_the_exposition_holds_build_info_and_process_metrics(now: SamplerState) -> None:
    for text in (text_of(now), text_of(now, PROMETHEUS_2)):
        assert "\ngpu_exporter_build_info{" in text
        assert "\nprocess_resident_memory_bytes " in text


def test_without_a_driver_there_are_no_gpu_series() -> None:
    assert not any("uuid" in sample.labels for sample in samples(NO_DRIVER))
    assert {sample.name for sample in samples(NO_DRIVER)} == {
        "gpu_exporter_build_info",
        "gpu_exporter_simulated",
        LOST_SAMPLES,
        "gpu_exporter_driver_calls_total",
        "gpu_exporter_driver_seconds_total",
    }


def without(gpu: GpuSnapshot, *kinds: type[object]) -> GpuSnapshot:
    kept = {kind: reading for kind, reading in gpu.readings.items() if kind not in kinds}
    return replace(gpu, readings=kept)


@pytest.mark.parametrize(
    "kind", [Power, Thermal, Clocks, Throttle, Memory, Health, Link, Processes]
)
def test_a_reading_that_failed_takes_its_families_away_and_no_others(kind: type[object]) -> None:
    collector = next(c for c in ALL if c.name == kind.__name__.lower())
    gone = {family.name for family in collector.families}
    assert names(without(hopper(), kind)) == names(hopper()) - gone


@pytest.mark.parametrize(
    ("part", "gone"),
    [
        (Power(limit_watts=1, energy_joules=1, default_limit_watts=1), "gpu_power_watts"),
        (Thermal(sensors={"gpu": 1}), "gpu_temperature_limit_celsius"),
        (Throttle(active={"power_cap": True}), "gpu_throttle_seconds_total"),
        (Memory(used_bytes=1, reserved_bytes=1), "gpu_memory_total_bytes"),
        (Memory(total_bytes=1, reserved_bytes=1), "gpu_memory_used_bytes"),
        (Health({"corrected": 1}, {}, remap_pending=True, remap_failed=True), "gpu_remapped_rows"),
        (Link(1, None, 1, 1, 1), "gpu_pcie_link_generation"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_part_that_is_missing_takes_its_family_away(part: Reading, gone: str) -> None:
    gpu = replace(hopper(), readings={**hopper().readings, **by_type(part)})
    assert names(gpu) == names(hopper()) - {gone}


@pytest.mark.parametrize(
    ("changes", "gone"),
    [
        ({"memory_busy_ns": None}, {"gpu_memory_controller_busy_seconds_total"}),
        ({"last_busy_ratio": None}, {"gpu_utilization_ratio"}),
        ({"last_memory_ratio": None}, {"gpu_memory_controller_utilization_ratio"}),
        ({"active_ns": {"occupancy": 1, "dram": 1}}, {"gpu_sm_active_seconds_total"}),
        ({"pipe_ns": {}}, {"gpu_pipe_active_seconds_total"}),
        (
            {"traffic_bytes": {k: 1 for k in TRAFFIC if not k.startswith("nvlink")}},
            {"gpu_nvlink_receive_bytes_total", "gpu_nvlink_transmit_bytes_total"},
        ),
        (
            {"observed_ns": None, "window_counts": ()},
            {
                "gpu_observed_seconds_total",
                "gpu_unobserved_seconds_total",
                "gpu_busy_seconds_total",
                "gpu_window_utilization_ratio_bucket",
                "gpu_window_utilization_ratio_count",
                "gpu_window_utilization_ratio_sum",
            },
        ),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_a_sum_that_was_never_measured_is_absent(changes: dict[str, Any], gone: set[str]) -> None:
    totals = replace(hopper().totals, **changes)
    assert names(replace(hopper(), totals=totals)) == names(hopper()) - gone


@pytest.mark.parametrize(
    "held",
    [
        Processes((Process(4711, 2**30), Process(4712))),
        Processes((Process(4711, 2**30),), others_hidden=True),
    ],
    ids=["one unknown", "others hidden"],
)
def test_memory_of_the_machine_is_used_as_far_as_its_processes_are_known(held: Processes) -> None:
    of_machine = Memory(2**37, of_machine=True)
    known = replace(hopper(), readings=by_type(of_machine, Processes((Process(4711, 2**30),))))
    (used,) = [s.value for s in samples(state(known)) if s.name == "gpu_memory_used_bytes"]
    assert used == 2**30
    unknown = replace(known, readings=by_type(of_machine, held))
    assert names(known) - names(unknown) == {"gpu_memory_used_bytes"}


def test_one_missing_sensor_takes_only_its_series_away() -> None:
    thermal = Thermal(sensors={"memory": 70}, limits={"slowdown": 87})
    gpu = replace(hopper(), readings=by_type(thermal))
    found = [s.labels for s in samples(state(gpu)) if s.name.startswith("gpu_temperature")]
    assert [(f.get("sensor"), f.get("limit")) for f in found] == [
        ("memory", None),
        (None, "slowdown"),
    ]


def test_a_gpu_without_gpm_has_no_activity_series() -> None:
    activity = next(collector for collector in ALL if collector.name == "activity")
    fed = replace(ampere(), feeding=feeding())
    assert names(fed) == names(hopper()) - {family.name for family in activity.families}


def test_a_mig_instance_is_a_series_of_its_own_under_its_parents_index() -> None:
    found = samples(state(mig_parent(), mig_instance()))
    used = {s.labels["uuid"]: s.labels["gpu"] for s in found if s.name == "gpu_memory_used_bytes"}
    assert used == {mig_parent().identity.uuid: "1", mig_instance().identity.uuid: "1"}
    info = [s.labels for s in found if s.name == "gpu_info"]
    assert [labels.get("parent_uuid") for labels in info] == [None, mig_parent().identity.uuid]


def test_of_a_gpu_that_is_down_only_its_name_and_its_xids_are_told() -> None:
    found = [s for s in samples(state(hopper(), lost())) if s.labels.get("gpu") == "3"]
    assert [(s.name, s.labels.get("xid"), s.value) for s in found] == [
        ("gpu_up", None, 0.0),
        ("gpu_info", None, 1.0),
        ("gpu_xid_errors_total", "48", 2.0),
        ("gpu_xid_errors_total", "79", 1.0),
    ]


def test_a_gpu_of_which_nothing_is_known_is_down_all_the_same() -> None:
    gpu = lost(Identity(index=5, uuid=""))
    found = [s for s in samples(state(replace(gpu, errors={}))) if s.labels.get("gpu") == "5"]
    assert [(s.name, s.value) for s in found] == [("gpu_up", 0.0), ("gpu_info", 1.0)]


def test_lost_samples_stay_counted_when_the_gpu_goes_down() -> None:
    ledger = GpuLedger(HOPPER, SYSTEM, tick_ns=1_000_000_000)
    second = 1_000_000_000
    for at in (100, 101, 102, 122):
        ring = (RingSample(at * 1_000_000, 50),)
        ledger.add(at * second, 5 * second, Utilization(ring, ring))

    def lost_seconds(gpu: GpuSnapshot) -> float:
        return next(s.value for s in samples(state(gpu)) if s.name == LOST_SAMPLES)

    before = lost_seconds(ledger.snapshot(122 * second))
    assert before > 0
    assert lost_seconds(ledger.down(123 * second)) >= before


@pytest.mark.parametrize(
    "name",
    ['"', "\n", "\\", "\\n", '\\"', 'a"b\\c\nd', "}", '",x="', "# HELP", " ", "größer", "\t\r"],
)
@pytest.mark.parametrize(("parse", "accept"), [(parse_text, ""), (parse_openmetrics, PROMETHEUS_2)])
def test_hostile_names_survive_the_formats(name: str, parse: Parse, accept: str) -> None:
    gpu = replace(
        hopper(),
        identity=replace(HOPPER, uuid=name, name=name, pci_bus_id=name),
        system=System(driver_version=name, cuda_version=name),
    )
    text = text_of(state(gpu, ampere()), accept)
    info = next(metric for metric in parse(text) if metric.name == "gpu_info")
    labels = info.samples[0].labels
    told = ("uuid", "name", "pci_bus_id", "driver_version", "cuda_version")
    assert [labels[label] for label in told] == [name] * len(told)
    assert len(info.samples) == 2


def test_the_histogram_is_cumulative_and_ends_with_all_windows() -> None:
    found = [s for s in samples(state(hopper())) if s.name.startswith("gpu_window_utilization")]
    buckets = {s.labels["le"]: s.value for s in found if s.name.endswith("_bucket")}
    assert list(buckets) == ["0.05", "0.25", "0.5", "0.75", "0.95", "1.0", "+Inf"]
    assert list(buckets.values()) == sorted(buckets.values())
    rest = {s.name.rpartition("_")[2]: s.value for s in found if not s.name.endswith("_bucket")}
    assert rest == {"count": buckets["+Inf"], "sum": 74.4}


def test_a_ledgers_windows_come_out_as_a_histogram() -> None:
    ledger = GpuLedger(HOPPER, SYSTEM, tick_ns=1_000_000_000)
    ledger.without_utilization()
    second = 1_000_000_000
    for at, busy in enumerate((0.04, 0.5, 0.5, 0.96), start=1):
        ledger.add(at * second, 5 * second, Activity(interval_ns=second, graphics=busy))
    found = samples(state(ledger.snapshot(4 * second)))
    buckets = [s.value for s in found if s.name == "gpu_window_utilization_ratio_bucket"]
    assert buckets == [1, 1, 3, 3, 3, 4, 4]
    busy_seconds = [s.value for s in found if s.name == "gpu_busy_seconds_total"]
    assert busy_seconds == [pytest.approx(2.0)]


@pytest.mark.parametrize(("seconds", "told"), [(0, []), (2, [2.0])])
def test_only_of_a_server_it_is_told_how_long_it_had_no_request(
    seconds: int, told: list[float]
) -> None:
    gpu = hopper()
    stalls = {**(gpu.totals.stall_ns or {}), REQUESTS: seconds * 1_000_000_000}
    found = samples(state(replace(gpu, totals=replace(gpu.totals, stall_ns=stalls))))
    assert [s.value for s in found if s.labels.get("waiting_on") == REQUESTS] == told


def of_one_gpu(now: SamplerState) -> list[Sample]:
    """Its series; those that say whose it is grow with its tenants, not with GPUs."""
    return [s for s in samples(now) if "uuid" in s.labels and s.name != "gpu_workload_info"]


def test_a_hopper_gpu_stays_within_the_budget_of_series() -> None:
    assert len(of_one_gpu(state(hopper()))) <= GPU_SERIES


def test_a_hopper_gpu_stays_within_it_when_its_feeders_do_all_there_is_to_do() -> None:
    fed = feeding()
    counters = {**fed.counters, "worker": fed.counters["worker"]._replace(written_bytes=0)}
    waits = {(role, on): 1 for role in counters for on in ("disk", "network", "queue", "sleep")}
    gpu = replace(hopper(), feeding=replace(fed, wait_ns=waits, counters=counters))
    assert len(of_one_gpu(state(gpu))) <= GPU_SERIES + 1


def test_a_host_stays_within_the_budget_of_series() -> None:
    of_host = [sample for sample in samples(mixed_state()) if "uuid" not in sample.labels]
    assert len(of_host) <= HOST_SERIES


def test_a_host_with_all_the_devices_that_are_told_apart_has_few_enough_series() -> None:
    devices = {f"eth{number}": number for number in range(MOST_DEVICES)}
    everything = replace(
        machine(),
        disk_io_seconds=devices,
        network_receive_bytes=devices,
        network_transmit_bytes=devices,
    )
    found = samples(replace(NO_DRIVER, host=replace(HOST, machine=everything)))
    assert len([s for s in found if s.name.startswith("gpu_host_")]) <= HOST_SERIES


def test_without_a_driver_the_host_is_told() -> None:
    now = replace(NO_DRIVER, host=HOST)
    told = {sample.name for sample in samples(now)}
    assert {family.name for family in host.FAMILIES} <= told
    assert given(now) == {signal: float(value) for signal, value in SIGNALS.items()}


def test_a_host_that_cannot_be_read_has_no_series_and_no_zeros() -> None:
    found = samples(replace(NO_DRIVER, host=replace(HOST, machine=Machine())))
    assert not [sample for sample in found if sample.name.startswith("gpu_host_")]


def test_a_host_whose_collector_is_off_has_signals_only() -> None:
    off = replace(NO_DRIVER, host=replace(HOST, machine=None), collectors=NAMES - {"host"})
    found = samples(off)
    assert not [sample for sample in found if sample.name.startswith("gpu_host_")]
    assert given(off).keys() == SIGNALS.keys() - {"psi_host"}


def given(now: SamplerState) -> dict[str, float]:
    """Values of gpu_exporter_signal_available."""
    return {s.labels["signal"]: s.value for s in samples(now) if "signal" in s.labels}


def test_every_signal_of_the_host_is_told_where_all_collectors_are_on() -> None:
    found = host_signals(Path("/proc"), Path("/sys"), (os.getpid(),))
    told = given(replace(NO_DRIVER, host=replace(HOST, signals=found)))
    assert told == {signal: float(value) for signal, value in found.items()}


@pytest.mark.parametrize(
    ("off", "gone"),
    [
        ({"utilization"}, {"utilization_samples"}),
        ({"activity"}, {"gpm"}),
        ({"power"}, {"energy"}),
        ({"throttle"}, {"throttle_counters"}),
        ({"processes"}, {"processes"}),
        ({"feeders"}, {"psi_cgroup"}),
        ({"host"}, {"psi_host"}),
        ({"stall", "workload"}, set()),
        ({"stall", "feeders"}, SIGNALS.keys() - {"psi_host", "process_io", "host_pids"}),
        ({"stall", "feeders", "workload"}, SIGNALS.keys() - {"psi_host", "host_pids"}),
        ({"stall", "feeders", "workload", "host"}, SIGNALS.keys()),
    ],
    ids=lambda names: "+".join(sorted(names)) or "none",
)
def test_what_no_collector_reads_is_no_missing_signal(off: set[str], gone: set[str]) -> None:
    """A collector that is off must not look like hardware that gives nothing."""
    nothing = replace(HOST, signals=dict.fromkeys(SIGNALS, False))
    blind = replace(state(replace(hopper(), readings={})), host=nothing)
    assert given(replace(blind, collectors=NAMES - off)).keys() == given(blind).keys() - gone
    assert set(given(blind).values()) == {0.0, 1.0}


def test_feeders_that_were_not_seen_have_no_series() -> None:
    read_by = feeders, workload, prescription
    gone = {family.name for module in read_by for family in module.FAMILIES}
    assert names(replace(hopper(), feeding=None)) == names(hopper()) - gone


@pytest.mark.parametrize(
    ("changes", "gone"),
    [
        ({"throttled_ns": None}, {"gpu_feeder_throttled_seconds_total"}),
        ({"refault_bytes": None}, {"gpu_feeder_refault_bytes_total"}),
        ({"queue_known": False}, {"gpu_feeder_run_queue_seconds_total"}),
        ({"wait_ns": {}}, {"gpu_feeder_wait_seconds_total"}),
        ({"owners": ()}, {"gpu_workload_info"}),
        (
            {"job": Job()},
            {
                "gpu_feeder_age_seconds",
                "gpu_feeder_interactive",
                "gpu_feeder_cpu_limit_cores",
                "gpu_feeder_cpus_allowed",
                "gpu_feeder_memory_used_bytes",
                "gpu_feeder_memory_limit_bytes",
                "gpu_feeder_shm_size_bytes",
                "gpu_feeder_shm_used_bytes",
                "gpu_feeder_network_receive_bytes_total",
                "gpu_feeder_network_transmit_bytes_total",
                "gpu_feeder_pressure_seconds_total",
            },
        ),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_what_is_not_known_of_feeders_is_absent(changes: dict[str, Any], gone: set[str]) -> None:
    gpu = replace(hopper(), feeding=replace(feeding(), **changes))
    assert names(gpu) == names(hopper()) - gone


def workloads(*owners: Owner) -> list[dict[str, str]]:
    """The labels that tell of `owners`."""
    found = samples(state(replace(hopper(), feeding=replace(feeding(), owners=owners))))
    told = [s for s in found if s.name == "gpu_workload_info"]
    assert {s.value for s in told} <= {1.0}
    return [{k: v for k, v in s.labels.items() if k not in ("gpu", "uuid")} for s in told]


def test_whose_a_gpu_is() -> None:
    assert workloads(OWNER) == [
        {
            "workload_namespace": "research",
            "workload_pod": "train-7f9c",
            "workload_container": "trainer",
            "pod_uid": "3b2f8a1c-5c01-4b6e-8e4e-42010a800002",
            "container_id": "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961",
            "slurm_job_id": "123456",
            "user": "alice",
            "rendezvous": "5f3c9ab01d2e",
        }
    ]


def test_each_owner_is_a_series_that_leaves_out_what_is_not_known() -> None:
    owners = Owner(container_id="c" * 64, user="root"), Owner(slurm_job_id="7", user="1000")
    assert workloads(*owners) == [
        {"container_id": "c" * 64, "user": "root"},
        {"slurm_job_id": "7", "user": "1000"},
    ]


@pytest.mark.parametrize("name", ['a"b\\c\nd', 'x",user="root', "größer"])
def test_a_hostile_name_of_a_user_survives(name: str) -> None:
    assert workloads(Owner(user=name)) == [{"user": name}]


@pytest.mark.parametrize("interactive", [False, True])
def test_interactive_use_is_zero_or_one(interactive: bool) -> None:  # noqa: FBT001 - a parameter
    fed = feeding()
    job = replace(fed.job, limits=replace(fed.job.limits, interactive=interactive))
    found = samples(state(replace(hopper(), feeding=replace(fed, job=job))))
    told = [s.value for s in found if s.name == "gpu_feeder_interactive"]
    assert told == [float(interactive)]


def test_bytes_that_may_not_be_known_are_absent_for_that_role_only() -> None:
    denied = feeding().counters["worker"]._replace(read_bytes=None, written_bytes=None)
    fed = replace(feeding(), counters={**feeding().counters, "worker": denied})
    found = samples(state(replace(hopper(), feeding=fed)))
    read = [s.labels["role"] for s in found if s.name == "gpu_feeder_read_bytes_total"]
    written = [s.labels["role"] for s in found if s.name == "gpu_feeder_written_bytes_total"]
    assert (read, written) == (["main"], ["main"])


def test_new_feeders_and_a_new_look_at_the_host_are_rendered_anew() -> None:
    sampler = FixedSampler(state(hopper()))
    shown = Exposition(sampler, ALL)
    first, _ = shown.render()
    later = replace(feeding(), at_ns=feeding().at_ns + 1, worker_starts=17)
    sampler.now = state(replace(hopper(), feeding=later))
    second, _ = shown.render()
    assert second != first
    newer = replace(HOST, at_ns=HOST.at_ns + 1, machine=replace(machine(), cpus=63))
    sampler.now = replace(sampler.now, host=newer)
    assert shown.render()[0] not in (first, second)


def test_no_series_names_a_host_or_a_process() -> None:
    labels = {label for sample in samples(mixed_state()) for label in sample.labels}
    assert labels.isdisjoint({"host", "hostname", "node", "instance", "job", "pid"})


@pytest.mark.parametrize("accept", ["", PROMETHEUS_2])
def test_scrapes_within_a_tick_get_the_very_same_bytes(accept: str) -> None:
    shown = exposition(mixed_state())
    first, _ = shown.render(accept)
    assert shown.render("" if accept else PROMETHEUS_2)[0] != first
    assert shown.render(accept)[0] is first


def test_a_new_tick_is_rendered_anew() -> None:
    sampler = FixedSampler(mixed_state())
    shown = Exposition(sampler, ALL)
    before, _ = shown.render()
    newer = replace(hopper(), at_ns=hopper().at_ns + 1, totals=GpuTotals(observed_ns=5_000_000_000))
    sampler.now = state(newer)
    after, _ = shown.render()
    assert after != before
    assert b"gpu_observed_seconds_total{" in after
    assert b"} 5.0\n" in after


def test_a_gpu_that_goes_down_is_rendered_anew() -> None:
    sampler = FixedSampler(state(hopper()))
    shown = Exposition(sampler, ALL)
    assert b"gpu_power_watts{" in shown.render()[0]
    sampler.now = state(replace(hopper(), up=False, readings={}, totals=GpuTotals()))
    assert b"gpu_power_watts{" not in shown.render()[0]


def test_without_gpus_the_process_metrics_stay_current() -> None:
    shown = exposition(NO_DRIVER)

    def open_files() -> float:
        metrics = parse_text(shown.render()[0].decode())
        return next(m.samples[0].value for m in metrics if m.name == "process_open_fds")

    before = open_files()
    descriptors = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
    try:
        assert open_files() > before
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
