"""The exporter itself: whether it answers, how fresh it is, what it sees, what it costs."""

from __future__ import annotations

from builders.common import (
    EXPORTER_UID,
    OF_NO_TARGET,
    RATE,
    TARGETS,
    runbook,
    runbooks_variable,
    target_variables,
)
from builders.model import (
    WARN,
    Dashboard,
    Panel,
    Query,
    Row,
    alert_annotation,
    mapped,
    override,
)
from builders.panels import LEGEND_TABLE, lines, merged, narrow, states, stats, table
from gpu_bottleneck_exporter import palette

OF_US = f"gpu_exporter_build_info{{{TARGETS}}}"
OURS = f"on (job, instance) {OF_US}"
UP, BAD = palette.WAIT_COLOURS["unknown"], WARN
_FROM_ONE = {"color": BAD, "value": 1}
_KNOWN = f"count(gpu_up{{{TARGETS}}}) * 0"
"""Zero where exporters report GPUs at all: added by `or`, it makes a count of none a zero."""
NO_EXPORTER = "No data: does Prometheus scrape the exporters?"


def _answers() -> list[Panel]:
    return [
        states(
            "Targets",
            "Whether Prometheus reaches each exporter. Those that have not answered for 6 hours "
            "are left out.",
            [
                Query(
                    f"max by (job, instance) (up{{{TARGETS}}} "
                    f"and on (job, instance) last_over_time({OF_US}[6h]))",
                    "{{instance}}",
                )
            ],
            [mapped({"1": ("up", UP), "0": ("down", BAD)})],
            width=15,
            links=[runbook("GpuExporterDown")],
            no_value=NO_EXPORTER,
        ),
        stats(
            "GPUs",
            "GPUs that answered the driver's calls within the deadline, and those that did not.",
            [
                Query(f"count(gpu_up{{{TARGETS}}} == 1) or {_KNOWN}", "answer", instant=True),
                Query(f"count(gpu_up{{{TARGETS}}} == 0) or {_KNOWN}", "do not", instant=True),
            ],
            "none",
            alarms={"do not": BAD},
            width=4,
            links=[runbook("GpuTelemetryLost")],
            no_value="No data",
        ),
        stats(
            "Rules",
            "Whether the rule pack is loaded, without which there are no causes. Loaded more "
            "than once is as bad as not at all.",
            [Query("count(gpu:threshold:evidence)", "loaded", instant=True)],
            "none",
            defaults={
                "mappings": [mapped({"1": ("loaded", "text")})],
                "color": {"mode": "fixed", "fixedColor": BAD},
            },
            width=5,
            links=[
                runbook("GpuThresholdsMissing"),
                runbook("GpuMonitoringAbsent"),
                runbook("GpuCountedTwice"),
            ],
            no_value="Not loaded",
        ),
        table(
            "GPUs that do not answer",
            "The exporter's log and status page give the reason.",
            [
                Query(
                    f"max by (instance, gpu, uuid) (gpu_up{{{TARGETS}}} == 0)",
                    table=True,
                )
            ],
            "none",
            height=6,
            transformations=merged(("instance", "gpu", "uuid"), "Value"),
            overrides=[
                override("instance", displayName="Node"),
                override("gpu", displayName="GPU", **narrow(50)),
                override("uuid", displayName="UUID"),
            ],
            links=[runbook("GpuTelemetryLost")],
            no_value="No rows: all GPUs answer, or no data: see Targets and GPUs above",
        ),
        table(
            "Versions",
            "Versions of the exporter and its Python. Simulated: the GPUs are made up (demo).",
            [
                Query(
                    "max by (instance, version, python_version) "
                    f"({OF_US} * 0 "
                    f"+ on (job, instance) group_left () gpu_exporter_simulated{{{TARGETS}}})",
                    table=True,
                )
            ],
            "none",
            height=6,
            transformations=merged(("instance", "version", "python_version", "Value")),
            overrides=[
                override("instance", displayName="Node"),
                override("version", displayName="Version"),
                override("python_version", displayName="Python"),
                override(
                    "Value",
                    displayName="GPUs",
                    mappings=[mapped({"0": ("real", None), "1": ("simulated", None)})],
                ),
            ],
        ),
    ]


def _fresh() -> list[Panel]:
    last = f"gpu_exporter_collector_last_success_timestamp_seconds{{{TARGETS}}}"
    return [
        lines(
            "Age of the last success, by collector",
            "On the exporter where it is longest ago. Most collectors read once a second; "
            "health, link and processes every 10 s.",
            [Query(f"time() - min by (collector) ({last})", "{{collector}}")],
            "s",
            height=9,
            legend=LEGEND_TABLE,
        ),
        lines(
            "Collectors that fail",
            "The number of exporters on which a collector's last reading failed on a GPU that "
            "supports it, even in part. The log gives the reason, once.",
            [
                Query(
                    f"sum by (collector) (1 - gpu_exporter_collector_success{{{TARGETS}}})",
                    "{{collector}}",
                )
            ],
            "short",
            height=9,
            legend=LEGEND_TABLE,
        ),
        lines(
            "Time that is not accounted for",
            "The share of time, over all GPUs, for which it is unknown whether they were busy, "
            "and the part of it that the driver dropped before it was read.",
            [
                Query(
                    f"sum(rate(gpu_unobserved_seconds_total{{{TARGETS}}}{RATE})) "
                    f"/ (sum(rate(gpu_observed_seconds_total{{{TARGETS}}}{RATE})) "
                    f"+ sum(rate(gpu_unobserved_seconds_total{{{TARGETS}}}{RATE})) > 0)",
                    "not observed",
                ),
                Query(
                    f"sum(rate(gpu_exporter_lost_samples_seconds_total{{{TARGETS}}}{RATE})) "
                    f"/ (sum(rate(gpu_observed_seconds_total{{{TARGETS}}}{RATE})) "
                    f"+ sum(rate(gpu_unobserved_seconds_total{{{TARGETS}}}{RATE})) > 0)",
                    "dropped",
                ),
            ],
            "percentunit",
            colours={"not observed": palette.WAIT_COLOURS["unknown"], "dropped": BAD},
            reaches=0.05,
        ),
        lines(
            "Duration of a reading, by collector",
            "Over all GPUs of an exporter, on the slowest exporter. Readings run in the "
            "background: a scrape does not wait for them.",
            [
                Query(
                    f"max by (collector) (gpu_exporter_collector_duration_seconds{{{TARGETS}}})",
                    "{{collector}}",
                )
            ],
            "s",
            legend=LEGEND_TABLE,
        ),
    ]


def _sees() -> list[Panel]:
    given = f"min by (instance, signal) (gpu_exporter_signal_available{{{TARGETS}}})"
    lacks = {"mode": "absolute", "steps": [{"color": "text", "value": None}, _FROM_ONE]}
    return [
        table(
            "Signals",
            "Nodes for which it is known whether every GPU that is up, or the host, gives the "
            "signal, and nodes where it is missing. It is unknown where the collectors that read "
            "the signal are off.",
            [
                Query(f"count by (signal) ({given})", table=True),
                Query(
                    f"count by (signal) ({given} == 0) or count by (signal) ({given}) * 0",
                    table=True,
                ),
            ],
            "none",
            height=10,
            sort="Missing",
            transformations=merged(("signal", "Value #A", "Value #B")),
            links=[runbook("GpuCausesBlind")],
            overrides=[
                override("signal", displayName="Signal", custom_minWidth=200),
                override("Value #A", displayName="Nodes", **narrow(90)),
                override(
                    "Value #B",
                    displayName="Missing",
                    **narrow(90),
                    color={"mode": "thresholds"},
                    thresholds=lacks,
                    custom_cellOptions={"type": "color-text"},
                ),
            ],
            no_value=NO_EXPORTER,
        ),
        table(
            "Where signals are missing",
            "Series built on the signal are absent or coarser there. `check` on the node reports "
            "how to fix it.",
            [Query(f"{given} == 0", table=True)],
            "none",
            height=10,
            sort="Signal",
            transformations=merged(("signal", "instance"), "Value"),
            overrides=[
                override("signal", displayName="Signal"),
                override("instance", displayName="Node"),
            ],
            no_value="No rows: no signal is missing, or no data: see Signals",
        ),
    ]


def _costs() -> list[Panel]:
    by = "{{instance}}"
    return [
        lines(
            "CPU",
            "Cores that the exporter uses, the driver included.",
            [Query(f"rate(process_cpu_seconds_total{{{TARGETS}}}{RATE}) and {OURS}", by)],
            "short",
            reaches=0.1,
            width=8,
        ),
        lines(
            "Memory",
            "Resident memory of the exporter.",
            [Query(f"process_resident_memory_bytes{{{TARGETS}}} and {OURS}", by)],
            "bytes",
            width=8,
        ),
        lines(
            "Inside the driver",
            "Share of time that its threads spend inside driver calls.",
            [Query(f"rate(gpu_exporter_driver_seconds_total{{{TARGETS}}}{RATE})", by)],
            "percentunit",
            reaches=0.05,
            width=8,
        ),
        lines(
            "Driver calls",
            "Calls into the driver per second.",
            [Query(f"rate(gpu_exporter_driver_calls_total{{{TARGETS}}}{RATE})", by)],
            "cps",
            width=8,
        ),
        lines(
            "Duration of a scrape",
            "As Prometheus measures it. A scrape renders the last readings and does not call the "
            "driver.",
            [Query(f"scrape_duration_seconds{{{TARGETS}}} and {OURS}", by)],
            "s",
            width=8,
        ),
        lines(
            "Samples of a scrape",
            "Series that the exporter returns.",
            [Query(f"scrape_samples_scraped{{{TARGETS}}} and {OURS}", by)],
            "short",
            width=8,
        ),
    ]


def dashboard() -> Dashboard:
    """The exporter."""
    alerts = (
        "GpuExporterDown|GpuMonitoringAbsent|GpuCountedTwice|GpuTelemetryLost|GpuThresholdsMissing"
        "|GpuCausesBlind"
    )
    firing = f'alertstate="firing", alertname=~"{alerts}"'
    return Dashboard(
        name="exporter",
        uid=EXPORTER_UID,
        title="GPU exporter: health and cost",
        description="Health of the exporters, age of their readings, missing signals and cost.",
        variables=[*target_variables("gpu_exporter_build_info"), runbooks_variable()],
        annotations=[
            alert_annotation(
                f"ALERTS{{{firing}, {TARGETS}}} or ALERTS{{{firing}, {OF_NO_TARGET}}}",
                "{{instance}}",
                enabled=True,
            )
        ],
        since="6h",
        rows=[
            Row("Availability", _answers()),
            Row("Age of readings", _fresh()),
            Row("Signals and gaps", _sees()),
            Row("Cost", _costs()),
        ],
    )
