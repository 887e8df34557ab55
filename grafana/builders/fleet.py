"""The fleet: which GPUs are wasted, why, whose they are, what it costs."""

from __future__ import annotations

from builders import pack
from builders.common import (
    FLEET_UID,
    HOURS,
    HOURS_TOLD,
    KNOWN,
    NO_DATA,
    OF_NO_TARGET,
    ON_GPU,
    OWNED,
    SPACE,
    TARGETS,
    UNCOLOURED,
    cause_colours,
    causes_by_name,
    cost_of,
    cost_variable,
    namespace_variable,
    or_no_data,
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
    override_all,
)
from builders.panels import LEGEND_TABLE, NEUTRAL, bars, lines, merged, stats, table
from gpu_bottleneck_exporter import palette

HELD = f"gpu:held:info{{{TARGETS}, {SPACE}}}"
LOST = f"gpu:bottleneck:lost_gpus{{{TARGETS}, {SPACE}}}"
# By node and namespace: adds up over a day in a fraction of the time.
SUMMED = f"instance:lost_gpu_seconds:rate{{{TARGETS}, {SPACE}}}"
_UNEXPLAINED = SUMMED.replace("{", '{cause="unexplained_low_utilization", ', 1)
LOST_HOURS = f"(sum(sum_over_time({SUMMED}[$__range])) or {KNOWN}) {HOURS}"
OF_TARGETS = f'ALERTS{{alertstate="firing", alertname=~"Gpu.+", {TARGETS}}}'
FIRING = f'{OF_TARGETS} or ALERTS{{alertstate="firing", alertname=~"Gpu.+", {OF_NO_TARGET}}}'
NOTHING = {"nothing": palette.WAITING_ON["unallocated"]}
"""A zero is no cause and has no colour that looks like one."""


def _counted(expr: str) -> str:
    """How many; none where GPUs are known and none is like that."""
    return f"count({expr}) or {KNOWN}"


_OF_ANYBODY = f"gpu:held:bool{{{TARGETS}, {SPACE}}}"
# They have no namespace: with one chosen there is no number, rather than a zero.
FREE = (
    f"count({_OF_ANYBODY} == 0 unless {ON_GPU} gpu:tenants:count{{{TARGETS}}}) "
    f"or count({_OF_ANYBODY}) * 0"
)


def _gate(name: str) -> str:
    return f"gpu:gate:{name}{{{TARGETS}}} and {OWNED}"


def _busy_from(threshold: str) -> str:
    busy = f"gpu:busy:ratio_rate10m{{{TARGETS}}}"
    return f"{busy} >= {pack.threshold(threshold):g} and {OWNED}"


def _counts() -> Panel:
    fine = (
        f"gpu:gate:warm{{{TARGETS}}} and {OWNED} "
        f"unless {ON_GPU} gpu:bottleneck:primary{{{TARGETS}}}"
    )
    queries = {
        "held": _counted(HELD),
        "free": FREE,
        "underused": _counted(_gate("underused")),
        "held and idle": _counted(_gate("idle")),
        "busy, inefficient": _counted(_gate("inefficient")),
        "no cause to name": _counted(fine),
        "blind: {{kind}}": _blind_now(),
    }
    blind = [kind.removesuffix("_causes") for kind in pack.blind_kinds()]
    unused = palette.WAITING_ON["unallocated"]
    return stats(
        "GPUs",
        "Held: somebody has it. Free: nobody has. Underused: busy for less than half of the time. "
        "Held and idle: practically unused, servers without requests among them. Busy, "
        "inefficient: it works and few of its SMs do. No cause to name: held, old enough to be "
        "judged, no cause has enough evidence. Blind: signals are missing for causes of this kind. "
        "A GPU may count as several. With a namespace chosen, none is free: free GPUs are "
        "nobody's.",
        [Query(expr, name, instant=True) for name, expr in queries.items()],
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
            **{f"blind: {kind}": palette.WAITING_ON["host_code"] for kind in blind},
            "blind: nothing": unused,
        },
        no_value=NO_DATA,
    )


def _blind_now() -> str:
    """How many by the kind of causes, without its `_causes`; a zero where none is blind."""
    blind = f"gpu:blind:bool{{{TARGETS}}} and {OWNED}"
    named = f'label_replace({blind}, "kind", "$1", "blind", "(.+)_causes")'
    none = f'label_replace({KNOWN}, "kind", "nothing", "", "")'
    return f"count by (kind) ({named}) or ({none} unless on () ({blind}))"


def _lost_over_time() -> Panel:
    return lines(
        "Lost GPUs, by cause",
        "How many GPUs' worth of work is lost at a time, each GPU under one cause: the idle time "
        "of those that wait, the idle SMs of those that work in vain, all of those that are down. "
        "The area is GPU-hours.",
        [
            Query(f"sum by (cause) ({SUMMED})", "{{cause}}", step="1m"),
            Query(f"{KNOWN} unless on () {SUMMED}", "nothing", step="1m"),
        ],
        "short",
        colours=cause_colours() | NOTHING,
        stacked=True,
        width=16,
        height=10,
        legend=LEGEND_TABLE,
        no_value=NO_DATA,
    )


def _lost_by_cause() -> Panel:
    return bars(
        "GPU-hours lost, by cause",
        f"Over the time shown. {HOURS_TOLD}",
        [
            Query(
                f"sort_desc(sum by (cause) (sum_over_time({SUMMED}[$__range])) {HOURS})",
                "{{cause}}",
                instant=True,
            ),
            Query(
                f"{KNOWN} unless on () sum_over_time({SUMMED}[$__range])", "nothing", instant=True
            ),
        ],
        "short",
        colours=cause_colours() | NOTHING,
        width=8,
        height=10,
        no_value=NO_DATA,
    )


def _totals() -> list[Panel]:
    held = f"sum(sum_over_time({HELD}[$__range]))"
    lost = f"sum(sum_over_time({SUMMED}[$__range]))"
    unexplained = f"(sum(sum_over_time({_UNEXPLAINED}[$__range])) or {lost} * 0) / ({lost} > 0)"
    # No good news in green, nor in any other colour of the palette.
    size: Json = {"width": 4, "height": 4, "defaults": {"color": NEUTRAL}}
    used = {
        name: f"({_counted(_busy_from(threshold))}) / (count({HELD}) > 0)"
        for name, threshold in (("well", "busy"), ("very well", "very_busy"))
    }
    return [
        stats(
            "GPU-hours lost",
            f"Over the time shown. {HOURS_TOLD}",
            [Query(LOST_HOURS, "lost", instant=True)],
            "short",
            no_value=NO_DATA,
            **size,
        ),
        stats(
            "Share of what is held",
            "GPU-hours lost, of those that somebody had a GPU.",
            [Query(f"({lost} or {KNOWN}) / ({held} > 0)", "lost", instant=True)],
            "percentunit",
            no_value=or_no_data("None held"),
            **size,
        ),
        stats(
            "Unexplained",
            "The part of the loss for which no cause has enough evidence: the measure of the rules "
            "themselves.",
            [Query(unexplained, "unexplained", instant=True)],
            "percentunit",
            no_value=or_no_data("No loss to explain"),
            **size,
        ),
        stats(
            "Cost of what is lost",
            "GPU-hours lost times the cost of a GPU-hour, in the currency in which it is typed in "
            "above: a number with a point, like 2.5.",
            [Query(cost_of(LOST_HOURS), "cost", instant=True)],
            "short",
            no_value=or_no_data("No cost typed in"),
            **size,
        ),
        stats(
            "Used well, used very well",
            "Share of the held GPUs that are busy for 70 % of the time and more, and for 85 % and "
            "more: what a fleet may be measured by (cluster:gpus_used:ratio).",
            [Query(expr, name, instant=True) for name, expr in used.items()],
            "percentunit",
            no_value=or_no_data("None held"),
            **{**size, "width": 8},
        ),
    ]


def _owners() -> Panel:
    hours = f"sum by (owner, cause) ({with_owner(f'sum_over_time({LOST}[$__range])')})"
    most = f"topk(20, {hours} {HOURS})"
    return table(
        "Who loses most",
        "GPU-hours lost over the time shown, by owner and cause, the 20 largest, and what they "
        f"cost, where a cost is typed in above. {HOURS_TOLD}",
        [Query(most, table=True), Query(cost_of(most), table=True)],
        "short",
        sort="GPU-hours lost",
        width=12,
        height=9,
        transformations=merged(("owner", "cause", "Value", "Value #A", "Value #B")),
        overrides=[
            override("owner", displayName="Owner"),
            override(
                "cause",
                displayName="Cause",
                mappings=[causes_by_name()],
                custom_cellOptions={"type": "color-background", "mode": "basic"},
                color=UNCOLOURED,
            ),
            # The letter is there only where the second query has an answer, too.
            override_all("/^Value( #A)?$/", displayName="GPU-hours lost", decimals=1),
            override("Value #B", displayName="Cost", decimals=2),
        ],
        no_value=or_no_data("No rows: nothing is lost"),
    )


_ALERT_COLUMNS = ("severity", "alertname", "cause", "owner", "Value #B", "Value #C")


def _alerts() -> list[Panel]:
    by = "alertname, severity, owner, cause"
    of_gpus = OF_TARGETS.replace("{", '{uuid!="", ', 1)
    return [
        table(
            "Firing alerts",
            "For how many GPUs and on how many nodes each alert fires, whatever Alertmanager "
            "silences or inhibits included. Without GPUs: it is about nodes; without nodes: about "
            "the rules. `owner` says who can do something: job or platform. The name leads to the "
            "runbook.",
            [
                Query(f"max by ({by}) ({FIRING})", table=True),
                Query(f"count by ({by}) (group by ({by}, uuid) ({of_gpus}))", table=True),
                Query(
                    f"count by ({by}) (group by ({by}, cluster, instance) ({OF_TARGETS}))",
                    table=True,
                ),
            ],
            "none",
            sort="GPUs",
            width=12,
            height=9,
            # Without a letter where only the first query has an answer.
            transformations=merged(_ALERT_COLUMNS, "Value", "Value #A"),
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
                override("Value #B", displayName="GPUs", custom_width=70),
                override("Value #C", displayName="Nodes", custom_width=70),
            ],
            no_value=or_no_data("No rows: no alert fires"),
        ),
    ]


def _coverage() -> list[Panel]:
    blind = f"gpu:blind:bool{{{TARGETS}}} and {OWNED}"
    return [
        lines(
            "Blind GPUs",
            "Held GPUs for which a kind of causes cannot be told, as signals are missing. `check` "
            "on the node names each gap and its remedy.",
            [
                Query(f"count by (blind) ({blind})", "{{blind}}", step="5m"),
                Query(f"{KNOWN} unless on () ({blind})", "nothing", step="5m"),
            ],
            "short",
            colours=NOTHING,
            width=12,
            height=7,
            no_value=NO_DATA,
        ),
        lines(
            "GPUs held and free",
            "Held by a process or assigned by a scheduler, and free. With a namespace chosen, none "
            "is free: free GPUs are nobody's.",
            [Query(_counted(HELD), "held", step="5m"), Query(FREE, "free", step="5m")],
            "short",
            colours={
                "held": palette.WAITING_ON["network"],
                "free": palette.WAITING_ON["unallocated"],
            },
            stacked=True,
            width=12,
            height=7,
            no_value=NO_DATA,
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
