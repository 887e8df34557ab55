"""The metric contract: what is declared, what is documented and what Prometheus accepts.

Names, kinds and labels are pinned by the golden exposition (`test_golden.py`).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace

from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.exposition.render import Exposition
from gpu_bottleneck_exporter.sampling.collector import Family
from support.offenders import each
from support.states import FixedSampler, mixed_state
from support.tools import require
from tables import metrics

DECLARED = metrics.families()
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
WITHOUT_A_UNIT = {
    "0 or 1": (
        "gpu_up gpu_throttle_active gpu_feeder_interactive gpu_row_remap_pending "
        "gpu_row_remap_failed gpu_exporter_collector_success gpu_exporter_signal_available"
    ),
    "1 when .* 0 when": "gpu_exporter_simulated",
    "1 if": "gpu_prescription_upper_bound",
    "1 for": "gpu_prescription_refused",
    "Constant 1": "gpu_info gpu_workload_info gpu_exporter_build_info",
    "Processes": "gpu_processes gpu_feeder_processes gpu_exporter_feeder_processes",
    "Worker processes": "gpu_feeder_worker_starts_total",
    "processes": "gpu_prescription_value",
    "the same unit": "gpu_prescription_current_value",
    "Page faults": "gpu_feeder_major_faults_total",
    "CPU cores": "gpu_feeder_cpu_limit_cores",
    "CPUs": "gpu_feeder_cpus_allowed gpu_host_cpus",
    "XID events": "gpu_xid_errors_total",
    "ECC errors": "gpu_ecc_errors_total",
    "rows": "gpu_remapped_rows",
    "packets": "gpu_pcie_replays_total",
    "generation": "gpu_pcie_link_generation gpu_pcie_link_generation_max",
    "lanes": "gpu_pcie_link_width gpu_pcie_link_width_max",
    "Values": "gpu_exporter_implausible_values_total",
    "Calls": "gpu_exporter_driver_calls_total",
}
"""What the help says, of a truth value or of what is counted; and of which families."""
SAYS = {name: words for words, names in WITHOUT_A_UNIT.items() for name in names.split()}
REFUSED_WORDS = re.compile(
    "percent|pct|[kmg]i?b|[kmg]hz|[mun]s|[mu]?[wj]|milli.*|micro.*|nano.*|kilo.*|mega.*|giga.*"
)
KEYWORDS = {"and", "bool", "by", "ignoring", "offset", "on", "or", "unless", "without"}
OF_TARGETS = {"host", "hostname", "node", "instance", "job", "pid"}
RESERVED_ENDINGS = ("_bucket", "_count", "_sum", "_created")


def lint(family: Family) -> Iterator[str]:
    """What is wrong with a family."""
    if not family.name.startswith("gpu_"):
        yield "no prefix gpu_"
    for name in (family.name, *family.labels):
        if not re.fullmatch("[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
            yield f"{name!r} is not snake case"
        if name in KEYWORDS | OF_TARGETS:
            yield f"{name!r} is a keyword of PromQL or a label of targets"
    for word in family.name.split("_"):
        if REFUSED_WORDS.fullmatch(word):
            yield f"{word!r} is no base unit"
    if family.name.endswith(RESERVED_ENDINGS):
        yield "the ending is reserved"
    if (family.kind == "counter") != family.name.endswith("_total"):
        yield "counters end in _total, others do not"
    yield from lint_unit(family)
    if not re.fullmatch(r"\S.*[^.]\.", family.help):
        yield "the help is no sentence"


def lint_unit(family: Family) -> Iterator[str]:
    stem = family.name.removesuffix("_total")
    unit = next((unit for unit in UNITS if stem.endswith(f"_{unit}")), None)
    words = UNITS[unit] if unit else SAYS.get(family.name)
    if words is None:
        yield "no base unit"
    elif not re.search(words, family.help, re.IGNORECASE):
        yield f"the help does not say {words!r}"


@each(DECLARED, lambda family: family.name)
def test_every_declared_family_passes_the_lint(family: Family) -> None:
    assert list(lint(family)) == []
    assert sum(one.name == family.name for one in DECLARED) == 1, "it is declared twice"


def test_no_exemption_is_left_over() -> None:
    assert SAYS.keys() <= {family.name for family in DECLARED}


FINE = Family("counter", "gpu_fan_active_seconds_total", "Seconds in which the fan turned.")


BAD = {
    "fan_active_seconds_total": "prefix",
    "gpu_fanActive_seconds_total": "snake case",
    "gpu_fan_seconds": "_total",
    "gpu_fan_total": "no base unit",
    "gpu_fan_percent_seconds_total": "'percent'",
    "gpu_wait_ms_seconds_total": "'ms'",
    "gpu_fan_seconds_sum": "reserved",
}


def test_the_lint_refuses_a_bad_declaration() -> None:
    assert [*lint(FINE)] == []
    wrong = [(replace(FINE, name=name), complaint) for name, complaint in BAD.items()]
    wrong += [
        (replace(FINE, kind="gauge"), "_total"),
        (replace(FINE, labels=("fanName",)), "snake case"),
        (replace(FINE, labels=("on",)), "keyword"),
        (replace(FINE, labels=("pid",)), "targets"),
        (replace(FINE, help="Seconds in which the fan turned"), "sentence"),
        (replace(FINE, help="Time in which the fan turned."), "does not say"),
    ]
    for family, complaint in wrong:
        assert any(complaint in one for one in lint(family)), family


def test_the_table_has_one_row_per_family() -> None:
    listed = re.findall(r"^- `(\w+)", metrics.table(), re.MULTILINE)
    assert sorted(listed) == sorted(family.name for family in DECLARED)


def test_promtool_has_nothing_to_say_about_an_exposition_and_would() -> None:
    body, _ = Exposition(FixedSampler(mixed_state()), ALL).render()
    bad = b"# HELP gpu_power_milliwatts Power.\n# TYPE gpu_power_milliwatts counter\n"
    for given, right in ((body, True), (bad + b"gpu_power_milliwatts 1\n", False)):
        command = [require("promtool", "prometheus"), "check", "metrics"]
        result = subprocess.run(command, input=given, capture_output=True, check=False)
        assert (result.returncode == 0 and result.stdout + result.stderr == b"") is right
