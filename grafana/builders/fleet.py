"""The fleet: which GPUs are wasted, why, whose they are, what it costs."""

from __future__ import annotations

from builders.common import (
    FLEET_UID,
    HOURS,
    OF_GPU,
    ON_GPU,
    OWNED,
    SPACE,
    TARGETS,
    UNCOLOURED,
    cause_colours,
    causes_by_name,
    cost_variable,
    namespace_variable,
    runbooks_variable,
    target_variables,
    verdicts,
    with_owner,
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
)
from builders.panels import LEGEND_TABLE, bars, lines, merged, stats, table
from gpu_bottleneck_exporter import palette

HELD = f"gpu:held:info{{{TARGETS}, {SPACE}}}"
LOST = f"gpu:bottleneck:lost_ratio{{{TARGETS}, {SPACE}}}"
# By node and namespace: adds up over a day in a fraction of the time.
SUMMED = f"instance:lost_gpu_seconds:rate{{{TARGETS}, {SPACE}}}"
_UNEXPLAINED = SUMMED.replace("{", '{cause="unexplained_low_utilization", ', 1)
LOST_HOURS = f"sum(sum_over_time({SUMMED}[$__range])) {HOURS}"
# Of instances with a rule pack, whatever they hold: what makes a count of none a zero.
_KNOWN = f"count(gpu:held:bool{{{TARGETS}}}) * 0"
FIRING = f'ALERTS{{alertstate="firing", alertname=~"Gpu.+", {TARGETS}}}'


def _counted(expr: str) -> str:
    """How many; none where GPUs are known and none is like that."""
    return f"count({expr}) or {_KNOWN}"


def _gate(name: str) -> str:
    return f"gpu:gate:{name}{{{TARGETS}}} and {OWNED}"


def _counts() -> Panel:
    fine = (
        f"gpu:gate:warm{{{TARGETS}}} and {OWNED} "
        f"unless {ON_GPU} gpu:bottleneck:primary{{{TARGETS}}}"
    )
    free = (
        f"gpu:held:bool{{{TARGETS}, {SPACE}}} == 0 unless {ON_GPU} gpu:tenants:count{{{TARGETS}}}"
    )
    blind = f"max by ({OF_GPU}) (gpu:blind:bool{{{TARGETS}}}) and {OWNED}"
    queries = {
        "held": HELD,
        "free": free,
        "underused": _gate("underused"),
        "held and idle": _gate("idle"),
        "busy, inefficient": _gate("inefficient"),
        "no cause to name": fine,
        "blind": blind,
    }
    unused = palette.WAITING_ON["unallocated"]
    return stats(
        "GPUs",
        "Held: somebody has it. Free: nobody has. Underused: busy for less than half of the time. "
        "Held and idle: practically unused. Busy, inefficient: it works and few of its SMs do. No "
        "cause to name: held, old enough to be judged, nothing is wrong. Blind: signals are "
        "missing for some causes. A GPU may count as several.",
        [Query(_counted(expr), name, instant=True) for name, expr in queries.items()],
        "none",
        width=24,
        height=4,
        colours={
            "held": palette.WAITING_ON["network"],
            "free": unused,
            "underused": WARN,
            "held and idle": palette.CAUSES["allocated_idle"],
            "busy, inefficient": palette.CAUSES["small_batch"],
            "no cause to name": palette.BUSY,
            "blind": palette.WAITING_ON["host_code"],
        },
        no_value="No rules",
    )


def _lost_over_time() -> Panel:
    return lines(
        "Lost GPUs, by cause",
        "How many GPUs' worth of work is lost at a time, each GPU under one cause: the idle time "
        "of those that wait, the idle SMs of those that work in vain, all of those that are down. "
        "The area is GPU-hours.",
        [Query(f"sum by (cause) ({SUMMED})", "{{cause}}", step="1m")],
        "short",
        colours=cause_colours(),
        stacked=True,
        width=16,
        height=10,
        legend=LEGEND_TABLE,
        no_value="Nothing is lost",
    )


def _lost_by_cause() -> Panel:
    return bars(
        "GPU-hours lost, by cause",
        "Over the time shown.",
        [
            Query(
                f"sort_desc(sum by (cause) (sum_over_time({SUMMED}[$__range])) {HOURS})",
                "{{cause}}",
                instant=True,
            )
        ],
        "short",
        colours=cause_colours(),
        width=8,
        height=10,
        no_value="Nothing is lost",
    )


def _totals() -> list[Panel]:
    held = f"sum(sum_over_time({HELD}[$__range]))"
    lost = f"sum(sum_over_time({SUMMED}[$__range]))"
    unexplained = f"(sum(sum_over_time({_UNEXPLAINED}[$__range])) or {lost} * 0) / ({lost} > 0)"
    size: Json = {"width": 6, "height": 4}
    return [
        stats(
            "GPU-hours lost",
            "Over the time shown.",
            [Query(LOST_HOURS, "lost", instant=True)],
            "short",
            no_value="Nothing is lost",
            **size,
        ),
        stats(
            "Share of what is held",
            "GPU-hours lost, of those that somebody had a GPU.",
            [Query(f"{lost} / ({held} > 0)", "lost", instant=True)],
            "percentunit",
            no_value="Nothing is lost",
            **size,
        ),
        stats(
            "Unexplained",
            "The part of the loss for which no cause has enough evidence: the measure of the rules "
            "themselves.",
            [Query(unexplained, "unexplained", instant=True)],
            "percentunit",
            no_value="Nothing is lost",
            **size,
        ),
        stats(
            "Cost of what is lost",
            "GPU-hours lost times the cost of a GPU-hour, in the currency in which it is typed in "
            "above.",
            [Query(f"{LOST_HOURS} * $cost and on () vector($cost) > 0", "cost", instant=True)],
            "short",
            no_value="Type in a cost",
            **size,
        ),
    ]


def _owners() -> Panel:
    hours = f"sum by (owner, cause) ({with_owner(f'sum_over_time({LOST}[$__range])')})"
    return table(
        "Who loses most",
        "GPU-hours lost over the time shown, by owner and cause, the 20 largest.",
        [Query(f"topk(20, {hours} {HOURS})", table=True)],
        "short",
        sort="GPU-hours lost",
        width=12,
        height=9,
        transformations=merged(("owner", "cause", "Value")),
        overrides=[
            override("owner", displayName="Owner"),
            override(
                "cause",
                displayName="Cause",
                mappings=[causes_by_name()],
                custom_cellOptions={"type": "color-background", "mode": "basic"},
                color=UNCOLOURED,
            ),
            override("Value", displayName="GPU-hours lost", decimals=1),
        ],
        no_value="Nothing is lost",
    )


def _alerts() -> list[Panel]:
    by = "alertname, severity, owner, cause"
    return [
        table(
            "Firing alerts",
            "How many GPUs each alert fires for, those that Alertmanager silences or inhibits "
            "included. `owner` says who can do something: job or platform. The name leads to the "
            "runbook.",
            [Query(f"count by ({by}) ({FIRING})", table=True)],
            "none",
            sort="GPUs",
            width=12,
            height=9,
            transformations=merged(("severity", "alertname", "cause", "owner", "Value")),
            overrides=[
                override(
                    "alertname",
                    displayName="Alert",
                    links=[
                        {
                            "title": "Runbook",
                            "url": "${runbooks}/${__value.text}.md",
                            "targetBlank": True,
                        }
                    ],
                ),
                override("severity", displayName="Severity", custom_width=90),
                override("cause", displayName="Cause"),
                override("owner", displayName="Who", custom_width=90),
                override("Value", displayName="GPUs", custom_width=80),
            ],
            no_value="No alert fires",
        ),
    ]


def _coverage() -> list[Panel]:
    blind = f"count by (blind) (gpu:blind:bool{{{TARGETS}}} and {OWNED})"
    return [
        lines(
            "Blind GPUs",
            "Held GPUs for which a kind of causes cannot be told, as signals are missing. `check` "
            "on the node names each gap and its remedy.",
            [Query(blind, "{{blind}}", step="5m")],
            "short",
            width=12,
            height=7,
            no_value="No GPU is blind",
        ),
        lines(
            "GPUs held and free",
            "Held by a process or assigned by a scheduler, and free.",
            [
                Query(f"count({HELD})", "held", step="5m"),
                Query(
                    f"count(gpu:held:bool{{{TARGETS}, {SPACE}}} == 0 "
                    f"unless {ON_GPU} gpu:tenants:count{{{TARGETS}}})",
                    "free",
                    step="5m",
                ),
            ],
            "short",
            colours={
                "held": palette.WAITING_ON["network"],
                "free": palette.WAITING_ON["unallocated"],
            },
            stacked=True,
            width=12,
            height=7,
        ),
    ]


def dashboard() -> Dashboard:
    """The fleet."""
    return Dashboard(
        name="fleet",
        uid=FLEET_UID,
        title="GPU fleet: what is lost, and why",
        description="Which GPUs are underused, by what cause, whose they are and what it costs.",
        variables=[
            *target_variables("gpu:held:bool"),
            namespace_variable(),
            cost_variable(),
            runbooks_variable(),
        ],
        annotations=[
            alert_annotation(f"count by (alertname, cause) ({FIRING})", "{{cause}}", enabled=False)
        ],
        since="24h",
        rows=[
            Row("Which GPUs are wasted", [_counts(), verdicts("Verdicts", TARGETS, height=13)]),
            Row("What is lost", [_lost_over_time(), _lost_by_cause(), *_totals()]),
            Row("Who, and what fires", [_owners(), *_alerts()]),
            Row("What cannot be seen", _coverage()),
        ],
    )
