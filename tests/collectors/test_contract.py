"""The metric contract: what is declared, what is documented and what Prometheus accepts."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.exposition.render import Exposition
from gpu_bottleneck_exporter.sampling.collector import Family
from support.states import FixedSampler, mixed_state
from support.tools import require
from tables import metrics

README = Path(__file__).parents[2] / "exporter/README.md"
GPU = ("gpu", "uuid")


@dataclass(frozen=True, slots=True)
class Promise:
    """What users of a family rely on."""

    kind: str
    labels: tuple[str, ...]
    says: str | None = None
    """What the help names where the name has no base unit: a truth value, or what is counted."""


def gauge(*labels: str, says: str | None = None) -> Promise:
    return Promise("gauge", labels, says)


def counter(*labels: str, says: str | None = None) -> Promise:
    return Promise("counter", labels, says)


CONTRACT = {
    "gpu_up": gauge(*GPU, says="0 or 1"),
    "gpu_info": gauge(
        *GPU,
        "name",
        "architecture",
        "pci_bus_id",
        "driver_version",
        "cuda_version",
        "mig_profile",
        "parent_uuid",
        says="Constant 1",
    ),
    "gpu_processes": gauge(*GPU, says="Processes"),
    "gpu_workload_info": gauge(
        *GPU,
        "workload_namespace",
        "workload_pod",
        "workload_container",
        "pod_uid",
        "container_id",
        "slurm_job_id",
        "user",
        "rendezvous",
        says="Constant 1",
    ),
    "gpu_observed_seconds_total": counter(*GPU),
    "gpu_unobserved_seconds_total": counter(*GPU),
    "gpu_busy_seconds_total": counter(*GPU),
    "gpu_memory_controller_busy_seconds_total": counter(*GPU),
    "gpu_utilization_ratio": gauge(*GPU),
    "gpu_memory_controller_utilization_ratio": gauge(*GPU),
    "gpu_window_utilization_ratio": Promise("histogram", GPU),
    "gpu_stall_seconds_total": counter(*GPU, "waiting_on"),
    "gpu_storage_stall_seconds_total": counter(*GPU, "filesystem"),
    "gpu_prescription_value": gauge(*GPU, "knob", says="processes"),
    "gpu_prescription_current_value": gauge(*GPU, "knob", says="the same unit"),
    "gpu_prescription_busy_ratio": gauge(*GPU, "knob"),
    "gpu_prescription_busy_low_ratio": gauge(*GPU, "knob"),
    "gpu_prescription_busy_high_ratio": gauge(*GPU, "knob"),
    "gpu_prescription_upper_bound": gauge(*GPU, "knob", says="1 if"),
    "gpu_prescription_job_busy_ratio": gauge(*GPU, "knob"),
    "gpu_prescription_refused": gauge(*GPU, "reason", says="1 for"),
    "gpu_prescription_scored_ratio": gauge(*GPU, "knob"),
    "gpu_prescription_error_ratio": gauge(*GPU, "knob"),
    "gpu_feeder_processes": gauge(*GPU, "role", says="Processes"),
    "gpu_feeder_cpu_seconds_total": counter(*GPU, "role"),
    "gpu_feeder_run_queue_seconds_total": counter(*GPU, "role"),
    "gpu_feeder_wait_seconds_total": counter(*GPU, "role", "state"),
    "gpu_feeder_read_bytes_total": counter(*GPU, "role"),
    "gpu_feeder_written_bytes_total": counter(*GPU, "role"),
    "gpu_feeder_major_faults_total": counter(*GPU, "role", says="Page faults"),
    "gpu_feeder_refault_bytes_total": counter(*GPU),
    "gpu_feeder_worker_starts_total": counter(*GPU, says="Worker processes"),
    "gpu_feeder_age_seconds": gauge(*GPU),
    "gpu_feeder_interactive": gauge(*GPU, says="0 or 1"),
    "gpu_feeder_throttled_seconds_total": counter(*GPU),
    "gpu_feeder_cpu_limit_cores": gauge(*GPU, says="CPU cores"),
    "gpu_feeder_cpus_allowed": gauge(*GPU, says="CPUs"),
    "gpu_feeder_memory_used_bytes": gauge(*GPU),
    "gpu_feeder_memory_limit_bytes": gauge(*GPU),
    "gpu_feeder_shm_size_bytes": gauge(*GPU),
    "gpu_feeder_shm_used_bytes": gauge(*GPU),
    "gpu_feeder_network_receive_bytes_total": counter(*GPU),
    "gpu_feeder_network_transmit_bytes_total": counter(*GPU),
    "gpu_feeder_pressure_seconds_total": counter(*GPU, "resource", "kind"),
    "gpu_sm_active_seconds_total": counter(*GPU),
    "gpu_sm_occupancy_seconds_total": counter(*GPU),
    "gpu_dram_active_seconds_total": counter(*GPU),
    "gpu_pipe_active_seconds_total": counter(*GPU, "pipe"),
    "gpu_pcie_receive_bytes_total": counter(*GPU),
    "gpu_pcie_transmit_bytes_total": counter(*GPU),
    "gpu_nvlink_receive_bytes_total": counter(*GPU),
    "gpu_nvlink_transmit_bytes_total": counter(*GPU),
    "gpu_c2c_receive_bytes_total": counter(*GPU),
    "gpu_c2c_transmit_bytes_total": counter(*GPU),
    "gpu_c2c_data_receive_bytes_total": counter(*GPU),
    "gpu_c2c_data_transmit_bytes_total": counter(*GPU),
    "gpu_power_watts": gauge(*GPU),
    "gpu_power_limit_watts": gauge(*GPU),
    "gpu_power_default_limit_watts": gauge(*GPU),
    "gpu_energy_joules_total": counter(*GPU),
    "gpu_temperature_celsius": gauge(*GPU, "sensor"),
    "gpu_temperature_limit_celsius": gauge(*GPU, "limit"),
    "gpu_clock_hertz": gauge(*GPU, "clock"),
    "gpu_clock_max_hertz": gauge(*GPU, "clock"),
    "gpu_throttle_seconds_total": counter(*GPU, "reason"),
    "gpu_throttle_active": gauge(*GPU, "reason", says="0 or 1"),
    "gpu_memory_total_bytes": gauge(*GPU),
    "gpu_memory_used_bytes": gauge(*GPU),
    "gpu_memory_reserved_bytes": gauge(*GPU),
    "gpu_xid_errors_total": counter(*GPU, "xid", says="XID events"),
    "gpu_ecc_errors_total": counter(*GPU, "kind", says="ECC errors"),
    "gpu_remapped_rows": gauge(*GPU, "kind", says="rows"),
    "gpu_row_remap_pending": gauge(*GPU, says="0 or 1"),
    "gpu_row_remap_failed": gauge(*GPU, says="0 or 1"),
    "gpu_pcie_replays_total": counter(*GPU, says="packets"),
    "gpu_pcie_link_generation": gauge(*GPU, says="generation"),
    "gpu_pcie_link_generation_max": gauge(*GPU, says="generation"),
    "gpu_pcie_link_width": gauge(*GPU, says="lanes"),
    "gpu_pcie_link_width_max": gauge(*GPU, says="lanes"),
    "gpu_host_pressure_seconds_total": counter("resource", "kind"),
    "gpu_host_cpus": gauge(says="CPUs"),
    "gpu_host_cpu_busy_seconds_total": counter(),
    "gpu_host_iowait_seconds_total": counter(),
    "gpu_host_memory_total_bytes": gauge(),
    "gpu_host_memory_available_bytes": gauge(),
    "gpu_host_shm_size_bytes": gauge(),
    "gpu_host_shm_used_bytes": gauge(),
    "gpu_host_disk_io_seconds_total": counter("device"),
    "gpu_host_network_receive_bytes_total": counter("device"),
    "gpu_host_network_transmit_bytes_total": counter("device"),
    "gpu_exporter_build_info": gauge("version", "python_version", says="Constant 1"),
    "gpu_exporter_simulated": gauge(says="1 when .* 0 when"),
    "gpu_exporter_collector_success": gauge("collector", says="0 or 1"),
    "gpu_exporter_collector_duration_seconds": gauge("collector"),
    "gpu_exporter_collector_last_success_timestamp_seconds": gauge("collector"),
    "gpu_exporter_signal_available": gauge("signal", says="0 or 1"),
    "gpu_exporter_feeder_processes": gauge("watched", says="Processes"),
    "gpu_exporter_lost_samples_seconds_total": counter(),
    "gpu_exporter_implausible_values_total": counter("collector", says="Values"),
    "gpu_exporter_cpu_wait_seconds_total": counter(),
    "gpu_exporter_driver_calls_total": counter(says="Calls"),
    "gpu_exporter_driver_seconds_total": counter(),
}

UNITS = {
    "seconds": r"\b(seconds|Unix time)\b",
    "bytes": r"\bbytes\b",
    "joules": r"\bjoules\b",
    "watts": r"\bwatts\b",
    "celsius": r"\bdegrees Celsius\b",
    "hertz": r"\bhertz\b",
    "ratio": r"\b0-1\b",
}
"""Base units, and how a help text names each."""

REFUSED_WORDS = re.compile(
    "percent|pct|[kmg]i?b|[kmg]hz|[mun]s|[mu]?[wj]|milli.*|micro.*|nano.*|kilo.*|mega.*|giga.*"
)
KEYWORDS = {"and", "bool", "by", "ignoring", "offset", "on", "or", "unless", "without"}
RESERVED_ENDINGS = ("_bucket", "_count", "_sum", "_created")
DECLARED = metrics.families()


def lint(family: Family) -> Iterator[str]:
    """What is wrong with a family."""
    yield from lint_name(family)
    yield from lint_kind(family)
    yield from lint_unit(family)
    if not re.fullmatch(r"\S.*[^.]\.", family.help):
        yield "the help is no sentence"


def lint_name(family: Family) -> Iterator[str]:
    if not family.name.startswith("gpu_"):
        yield "no prefix gpu_"
    for name in (family.name, *family.labels):
        if not re.fullmatch("[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
            yield f"{name!r} is not snake case"
        if name in KEYWORDS:
            yield f"{name!r} is a keyword of PromQL"
    for word in family.name.split("_"):
        if REFUSED_WORDS.fullmatch(word):
            yield f"{word!r} is no base unit"
    if family.name.endswith(RESERVED_ENDINGS):
        yield "the ending is reserved"


def lint_kind(family: Family) -> Iterator[str]:
    if (family.kind == "counter") != family.name.endswith("_total"):
        yield "counters end in _total, others do not"


def _says(name: str) -> str | None:
    return CONTRACT[name].says if name in CONTRACT else None


def lint_unit(family: Family) -> Iterator[str]:
    stem = family.name.removesuffix("_total")
    unit = next((unit for unit in UNITS if stem.endswith(f"_{unit}")), None)
    reason = UNITS[unit] if unit else _says(family.name)
    if reason is None:
        yield "no base unit"
    elif not re.search(reason, family.help, re.IGNORECASE):
        yield f"the help does not say {reason!r}"


@pytest.mark.parametrize("family", DECLARED, ids=lambda family: family.name)
def test_every_declared_family_passes_the_lint(family: Family) -> None:
    assert list(lint(family)) == []


FINE = Family("counter", "gpu_fan_active_seconds_total", "Seconds in which the fan turned.")


def test_the_lint_finds_nothing_wrong_with_a_proper_family() -> None:
    assert list(lint(FINE)) == []


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (replace(FINE, name="fan_active_seconds_total"), "prefix"),
        (replace(FINE, name="gpu_fanActive_seconds_total"), "snake case"),
        (replace(FINE, name="gpu_fan_seconds"), "_total"),
        (replace(FINE, name="gpu_fan_total"), "no base unit"),
        (replace(FINE, name="gpu_fan_percent_seconds_total"), "'percent'"),
        (replace(FINE, name="gpu_clock_mhz_seconds_total"), "'mhz'"),
        (replace(FINE, name="gpu_memory_mib_seconds_total"), "'mib'"),
        (replace(FINE, name="gpu_wait_ms_seconds_total"), "'ms'"),
        (replace(FINE, name="gpu_energy_millijoules_total"), "'millijoules'"),
        (replace(FINE, name="gpu_fan_seconds_sum"), "reserved"),
        (replace(FINE, kind="gauge"), "_total"),
        (replace(FINE, labels=("fanName",)), "snake case"),
        (replace(FINE, labels=("on",)), "keyword"),
        (replace(FINE, help="Seconds in which the fan turned"), "sentence"),
        (replace(FINE, help="Seconds in which\nthe fan turned."), "sentence"),
        (replace(FINE, help="Time in which the fan turned."), "does not say"),
    ],
)
def test_the_lint_refuses_a_bad_declaration(bad: Family, complaint: str) -> None:
    assert any(complaint in found for found in lint(bad))


def test_the_declared_families_are_those_of_the_contract() -> None:
    declared = {family.name: (family.kind, family.labels) for family in DECLARED}
    assert declared == {name: (one.kind, one.labels) for name, one in CONTRACT.items()}


def test_no_family_is_declared_twice() -> None:
    assert {n for n, count in Counter(f.name for f in DECLARED).items() if count > 1} == set()


def test_the_table_has_one_row_per_family() -> None:
    _, rule, *rows = metrics.table().splitlines()
    assert [row.split("|")[1].strip(" `") for row in rows] == [family.name for family in DECLARED]
    assert {row.replace(r"\|", "").count("|") for row in rows} == {rule.count("|")}


def test_promtool_has_nothing_to_say_about_an_exposition() -> None:
    promtool = require("promtool", "prometheus")
    body, _ = Exposition(FixedSampler(mixed_state()), ALL).render()
    result = subprocess.run(
        [promtool, "check", "metrics"], input=body, capture_output=True, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")


def test_promtool_would_say_something() -> None:
    promtool = require("promtool", "prometheus")
    body = b"# HELP gpu_power_milliwatts Power.\n# TYPE gpu_power_milliwatts counter\n"
    result = subprocess.run(
        [promtool, "check", "metrics"],
        input=body + b"gpu_power_milliwatts 1\n",
        capture_output=True,
        check=False,
    )
    assert result.returncode != 0
