"""The fleet: which GPUs are wasted, why, whose they are, what it costs."""

from __future__ import annotations

from builders import pack, prescriptions
from builders.colours import OTHER_CAUSE
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
    cause_colours,
    cause_column,
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
    BARELY,
    WARN,
    Dashboard,
    Json,
    Panel,
    Query,
    Row,
    alert_annotation,
    mapped,
    override,
    override_all,
)
from builders.panels import (
    AMOUNT,
    DASHED,
    GAUGE,
    LEGEND_TABLE,
    NEUTRAL,
    lines,
    merged,
    narrow,
    stats,
    table,
)
from gpu_bottleneck_exporter import palette

HELD = f"gpu:held:info{{{TARGETS}, {SPACE}}}"
LOST = f"gpu:bottleneck:lost_gpus{{{TARGETS}, {SPACE}}}"
# By node and namespace: adds up over a day in a fraction of the time.
SUMMED = f"instance:lost_gpu_seconds:rate{{{TARGETS}, {SPACE}}}"
_UNEXPLAINED = SUMMED.replace("{", '{cause="unexplained_low_utilization", ', 1)
LOST_HOURS = f"(sum(sum_over_time({SUMMED}[$__range])) or {KNOWN}) {HOURS}"
OF_TARGETS = f'ALERTS{{alertstate="firing", alertname=~"Gpu.+", {TARGETS}}}'
FIRING = f'{OF_TARGETS} or ALERTS{{alertstate="firing", alertname=~"Gpu.+", {OF_NO_TARGET}}}'
NO_CAUSE = {"other": OTHER_CAUSE, "nothing": palette.WAIT_COLOURS["unallocated"]}
"""A zero and the rest must not look like a cause."""
LARGEST = 10
"""More colours cannot be told apart."""
MOST = f"topk({LARGEST}, sum by (cause) (sum_over_time({SUMMED}[$__range] @ end())))"
"""The causes that cost most over the time shown, the same at every point of it."""


def _counted(expr: str) -> str:
    """A count, 0 where GPUs are known and none matches."""
    return f"count({expr}) or {KNOWN}"


_OF_ANYBODY = f"gpu:held:bool{{{TARGETS}, {SPACE}}}"
# Free GPUs have no namespace: with one chosen there is no number, rather than a zero.
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
        "underused": _counted(_gate("underused")),
        "held and idle": _counted(_gate("idle")),
        "busy, inefficient": _counted(_gate("inefficient")),
        "blind: {{kind}}": _blind_now(),
        "no cause to name": _counted(fine),
        "held": _counted(HELD),
        "free": FREE,
    }
    blind = [kind.removesuffix("_causes") for kind in pack.blind_kinds()]
    return stats(
        "GPUs",
        "Underused: busy for less than half of the time. Held and idle: practically unused, "
        "including servers without requests. Busy, inefficient: it works, but few of its SMs do. "
        "Blind: signals for causes of this kind are missing. No cause to name: held, old enough "
        "to be judged, and no cause has enough evidence. Held: a process has it. Free: "
        "unallocated. A GPU may be in several groups. With a namespace chosen there are no free "
        "GPUs, because they belong to no namespace.",
        [Query(expr, name, instant=True) for name, expr in queries.items()],
        "none",
        width=24,
        height=4,
        alarms={
            "underused": WARN,
            "held and idle": WARN,
            "busy, inefficient": BARELY,
            **{f"blind: {kind}": BARELY for kind in blind},
        },
        no_value=NO_DATA,
    )


def _blind_now() -> str:
    """Blind GPUs by kind of causes, without its `_causes`; a zero where none is blind."""
    blind = f"gpu:blind:bool{{{TARGETS}}} and {OWNED}"
    named = f'label_replace({blind}, "kind", "$1", "blind", "(.+)_causes")'
    none = f'label_replace({KNOWN}, "kind", "nothing", "", "")'
    return f"count by (kind) ({named}) or ({none} unless on () ({blind}))"


def _lost_over_time() -> Panel:
    return lines(
        "Lost GPUs, by cause",
        "How many GPUs' worth of work is lost at a time, each GPU under one cause: the idle time "
        "of GPUs that wait, the idle SMs of GPUs that work in vain, all time of GPUs that are "
        f"down. The area is GPU-hours. Shown are the {LARGEST} causes that cost most over the "
        "time shown; other: all the rest.",
        [
            Query(f"sum by (cause) ({SUMMED}) and on (cause) {MOST}", "{{cause}}", step="1m"),
            Query(f"sum({SUMMED} unless on (cause) {MOST})", "other", step="1m"),
            Query(f"{KNOWN} unless on () {SUMMED}", "nothing", step="1m"),
        ],
        "none",
        colours=cause_colours() | NO_CAUSE,
        stacked=True,
        width=16,
        height=10,
        legend=LEGEND_TABLE,
        no_value=NO_DATA,
    )


def _lost_by_cause() -> Panel:
    return table(
        "GPU-hours lost, by cause",
        f"Over the time shown. {HOURS_TOLD}",
        [Query(f"sum by (cause) (sum_over_time({SUMMED}[$__range])) {HOURS}", table=True)],
        AMOUNT,
        sort="GPU-hours lost",
        width=8,
        height=10,
        transformations=merged(("cause", "Value")),
        overrides=[
            cause_column(),
            override(
                "Value",
                displayName="GPU-hours lost",
                **narrow(220),
                min=0,
                decimals=1,
                color=NEUTRAL,
                custom_cellOptions=GAUGE,
            ),
        ],
        no_value=or_no_data("No rows: nothing is lost"),
    )


def _totals() -> list[Panel]:
    held = f"sum(sum_over_time({HELD}[$__range]))"
    lost = f"sum(sum_over_time({SUMMED}[$__range]))"
    unexplained = f"(sum(sum_over_time({_UNEXPLAINED}[$__range])) or {lost} * 0) / ({lost} > 0)"
    # No good news in green, nor in any other colour of the palette.
    size: Json = {"width": 4, "height": 4, "defaults": {"color": NEUTRAL, "decimals": 1}}
    used = {
        name: f"({_counted(_busy_from(threshold))}) / (count({HELD}) > 0)"
        for name, threshold in (("well", "busy"), ("very well", "very_busy"))
    }
    return [
        stats(
            "GPU-hours lost",
            f"Over the time shown. {HOURS_TOLD}",
            [Query(LOST_HOURS, "lost", instant=True)],
            AMOUNT,
            no_value=NO_DATA,
            **size,
        ),
        stats(
            "Lost share of held GPU-hours",
            "GPU-hours lost, as a share of the GPU-hours in which a process held a GPU.",
            [Query(f"({lost} or {KNOWN}) / ({held} > 0)", "lost", instant=True)],
            "percentunit",
            no_value=or_no_data("None held"),
            **size,
        ),
        stats(
            "Unexplained",
            "The share of the loss for which no cause has enough evidence. It measures the rules "
            "themselves.",
            [Query(unexplained, "unexplained", instant=True)],
            "percentunit",
            no_value=or_no_data("No loss to explain"),
            **size,
        ),
        stats(
            "Cost of the loss",
            "GPU-hours lost times the cost of a GPU-hour, in the currency of the number entered "
            "above (with a point, like 2.5).",
            [Query(cost_of(LOST_HOURS), "cost", instant=True)],
            AMOUNT,
            no_value=or_no_data("No cost entered"),
            **size,
        ),
        stats(
            "Used well, used very well",
            "Shares of the held GPUs that are busy for at least 70 % and at least 85 % of the "
            "time: a measure for a fleet (cluster:gpus_used:ratio).",
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
        "Largest losses",
        "GPU-hours lost over the time shown, by owner and cause, the 20 largest; and their cost, "
        f"if one is entered above. {HOURS_TOLD}",
        [Query(most, table=True), Query(cost_of(most), table=True)],
        AMOUNT,
        sort="GPU-hours lost",
        width=12,
        height=8,
        transformations=merged(("owner", "cause", "Value", "Value #A", "Value #B")),
        overrides=[
            override("owner", displayName="Owner", custom_minWidth=200),
            cause_column(),
            # The letter is there only where the second query has an answer, too.
            override_all(
                "/^Value( #A)?$/", displayName="GPU-hours lost", **narrow(130), decimals=1
            ),
            override("Value #B", displayName="Cost", **narrow(110), decimals=2),
        ],
        no_value=or_no_data("No rows: nothing is lost"),
    )


_SEVERITIES = {"critical": ("critical", WARN), "warning": ("warning", BARELY)}
_ALERT_COLUMNS = ("severity", "alertname", "cause", "responder", "Value #B", "Value #C")


def _alerts() -> list[Panel]:
    by = "alertname, severity, responder, cause"
    of_gpus = OF_TARGETS.replace("{", '{uuid!="", ', 1)
    return [
        table(
            "Firing alerts",
            "On how many GPUs and nodes each alert fires, including alerts that Alertmanager "
            "silences or inhibits. Without GPUs, it is about nodes; without nodes, about the "
            "rules. `responder` is the team that acts, job or platform. The name links to the "
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
            height=8,
            # Without a letter where only the first query has an answer.
            transformations=merged(_ALERT_COLUMNS, "Value", "Value #A"),
            overrides=[
                override(
                    "alertname",
                    displayName="Alert",
                    custom_minWidth=225,
                    links=[
                        {
                            "title": "Runbook",
                            "url": "${runbooks}/${__value.text}.md",
                            "targetBlank": True,
                        }
                    ],
                ),
                override(
                    "severity",
                    displayName="Severity",
                    **narrow(85),
                    mappings=[mapped(_SEVERITIES)],
                    color=NEUTRAL,
                    custom_cellOptions={"type": "color-text"},
                ),
                override("cause", displayName="Cause", custom_minWidth=220),
                override("responder", displayName="Who", **narrow(80)),
                override("Value #B", displayName="GPUs", **narrow(70)),
                override("Value #C", displayName="Nodes", **narrow(70)),
            ],
            no_value=or_no_data("No rows: no alert fires"),
        ),
    ]


def _reclaimable() -> Panel:
    by, of = "workload_owner, instance, reason", f"{{{TARGETS}, {SPACE}}}"
    return table(
        "Could be free now",
        "GPUs of jobs that have used none of them for the hours of their reason, while nothing "
        "that is seen explains it, by owner and node; and the GPU-hours since their last use.",
        [
            Query(f"sum by ({by}) (owner:reclaimable:gpus{of})", table=True),
            Query(f"sum by ({by}) (owner:reclaimable:gpu_hours{of})", table=True),
        ],
        "none",
        sort="GPU-hours",
        width=24,
        height=6,
        transformations=merged(("workload_owner", "instance", "reason", "Value #A", "Value #B")),
        overrides=[
            override("workload_owner", displayName="Owner", custom_minWidth=160),
            override("instance", displayName="Node", custom_minWidth=160),
            override("reason", displayName="Reason", custom_minWidth=160),
            override("Value #A", displayName="GPUs", **narrow(90)),
            override("Value #B", displayName="GPU-hours", **narrow(110), decimals=1),
        ],
        no_value=or_no_data("No rows: none"),
    )


# Of the group gpu-bill, which records every ten minutes: older than what an instant selector finds.
_LATEST = "[15m]"
_BY_OWNER = "sum by (workload_owner)"
_BUDGET = f"max by (workload_owner) (last_over_time(owner:budget:gpu_hours{_LATEST}))"
_THIS_MONTH = 'and on (month) count_values("month", month())'


def _week(at: str = "") -> str:
    """GPU-seconds that each owner lost in the seven days before."""
    lost = 'owner:lost_gpu_seconds:sum5m{cluster=~"$cluster"}'
    return f"{_BY_OWNER} (sum_over_time({lost}[7d]{at}))"


def _budgets() -> list[Panel]:
    month = f'last_over_time(owner:lost_gpu_hours:month{{cluster=~"$cluster"}}{_LATEST})'
    spent = f"{_BY_OWNER} (last_over_time(owner:budget_spent:ratio{_LATEST}))"
    elapsed = "scalar((day_of_month() - 1 + hour() / 24) / days_in_month())"
    share: Json = {"unit": "percentunit", "decimals": 0}
    return [
        lines(
            "GPU-hours lost in a week, by owner",
            "At each time, the loss of the seven days before: idle time of an owner's GPUs. "
            f"The {LARGEST} owners with the largest loss; dashed: a week's part of a budget.",
            [
                Query(
                    f"{_week()} / 3600 and on (workload_owner) "
                    f"topk({LARGEST}, {_week(' @ end()')})",
                    "{{workload_owner}}",
                    step="6h",
                ),
                Query(
                    f"{_BUDGET} * 7 / scalar(days_in_month())",
                    "{{workload_owner}}: budget",
                    step="6h",
                ),
            ],
            AMOUNT,
            width=12,
            height=9,
            since="28d",
            overrides=[override_all("/: budget$/", color=NEUTRAL, custom_lineStyle=DASHED)],
            no_value=NO_DATA,
        ),
        table(
            "This month, by owner",
            "GPU-hours lost since the month began (UTC), the budget, the share of it that is "
            "spent, and the share of the month that is over. Budgets are of all clusters.",
            [
                Query(f"{_BY_OWNER} ({month} {_THIS_MONTH})", table=True),
                Query(_BUDGET, table=True),
                Query(spent, table=True),
                Query(f"{_BUDGET} * 0 + {elapsed}", table=True),
            ],
            AMOUNT,
            sort="GPU-hours lost",
            width=12,
            height=9,
            # Without a letter where only the first query has an answer: without budgets.
            transformations=merged(("workload_owner", "Value", *map("Value #{}".format, "ABCD"))),
            overrides=[
                override("workload_owner", displayName="Owner", custom_minWidth=160),
                override_all(
                    "/^Value( #A)?$/", displayName="GPU-hours lost", **narrow(130), decimals=1
                ),
                override("Value #B", displayName="Budget", **narrow(90), decimals=0),
                override("Value #C", displayName="Spent", **narrow(90), **share),
                override("Value #D", displayName="Of the month", **narrow(120), **share),
            ],
            no_value=or_no_data("No rows: nothing was lost"),
        ),
    ]


# What the engines tell is of no target of the exporter.
_DEPLOYMENTS = '{cluster=~"$cluster", namespace=~"$namespace"}'


def _engines() -> list[Panel]:
    of_cause = f'cause="no_demand", {TARGETS}, {SPACE}'
    unasked = f"gpu:bottleneck:lost_ratio{{{of_cause}}}"
    lost = f"sum(sum_over_time(instance:lost_gpu_seconds:rate{{{of_cause}}}[$__range]))"
    serving = f"{TARGETS}, {SPACE}"
    hours = f"sum(sum_over_time(gpu:serving_gpus:count{{{serving}}}[$__range])) {HOURS}"
    tokens = f"sum(sum_over_time(gpu:serving_tokens:rate5m{{{serving}}}[$__range]))"
    millions = f"({tokens} * {pack.interval_seconds()} / 1e6 > 0)"
    known = f"count(gpu:serving_gpus:count{{{serving}}}) * 0"
    no_engine = or_no_data("No engine is scraped")
    size: Json = {"width": 4, "height": 8, "defaults": {"color": NEUTRAL, "decimals": 1}}
    replicas = f"group by (cluster, workload_namespace, workload_pod) ({unasked})"
    by = "namespace, deployment"
    needed = f"last_over_time(serving:replicas:needed{_DEPLOYMENTS}{_LATEST})"
    return [
        stats(
            "Replicas without demand",
            "Inference engines (pods) without a request for most of the last 10 minutes.",
            [Query(f"count({replicas}) or {known}", "replicas", instant=True)],
            "none",
            no_value=no_engine,
            **{**size, "defaults": {"color": NEUTRAL}},
        ),
        stats(
            "GPU-hours without demand",
            f"GPU-hours lost to `no_demand` over the time shown. {HOURS_TOLD}",
            [Query(f"({lost} or {known}) {HOURS}", "lost", instant=True)],
            AMOUNT,
            no_value=no_engine,
            **size,
        ),
        stats(
            "Cost per million tokens",
            "Cost of the GPU-hours of engines over the time shown, with and without requests, "
            "per million tokens of prompts and answers. In the currency of the number entered "
            "above. Engines that count no tokens raise it.",
            [Query(cost_of(f"{hours} / {millions}"), "cost", instant=True)],
            AMOUNT,
            no_value=or_no_data("No cost entered, no tokens"),
            **{**size, "defaults": {"color": NEUTRAL, "decimals": 2}},
        ),
        table(
            "Replicas, by deployment",
            "Replicas now, and those that the last week needed: the most requests of all "
            "replicas at once, divided by the most that one replica held. Chosen by cluster and "
            "namespace only.",
            [
                Query(f"max by ({by}) (serving:replicas:count{_DEPLOYMENTS})", table=True),
                Query(f"max by ({by}) ({needed})", table=True),
            ],
            "none",
            sort="Replicas",
            width=12,
            height=8,
            transformations=merged((*by.split(", "), "Value #A", "Value #B"), "Value"),
            overrides=[
                override("namespace", displayName="Namespace"),
                override("deployment", displayName="Deployment"),
                override("Value #A", displayName="Replicas", **narrow(90)),
                override("Value #B", displayName="Needed", **narrow(90)),
            ],
            no_value=no_engine,
        ),
    ]


def _coverage() -> list[Panel]:
    blind = f"gpu:blind:bool{{{TARGETS}}} and {OWNED}"
    return [
        lines(
            "Blind GPUs",
            "Held GPUs for which a kind of causes cannot be determined, because signals are "
            "missing. `check` on the node names each gap and how to fix it.",
            [
                Query(f"count by (blind) ({blind})", "{{blind}}", step="5m"),
                Query(f"{KNOWN} unless on () ({blind})", "nothing", step="5m"),
            ],
            "none",
            colours=NO_CAUSE,
            width=12,
            height=7,
            no_value=NO_DATA,
        ),
        lines(
            "GPUs held and free",
            "Held: by a process, or assigned by a scheduler. With a namespace chosen there are "
            "no free GPUs, because they belong to no namespace.",
            [Query(_counted(HELD), "held", step="5m"), Query(FREE, "free", step="5m")],
            "none",
            colours={
                "held": palette.WAIT_COLOURS["network"],
                "free": palette.WAIT_COLOURS["unallocated"],
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
        title="GPU fleet: losses and causes",
        description="Underused GPUs with their causes, owners and cost.",
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
            Row(
                "Underused GPUs and firing alerts",
                [_counts(), *_alerts(), _owners(), _reclaimable()],
            ),
            Row("GPU by GPU", [verdicts("Verdicts", TARGETS, height=13)]),
            Row("Recommendations", prescriptions.of_fleet()),
            Row("Accuracy of predictions", prescriptions.track_record()),
            Row("Losses", [_lost_over_time(), _lost_by_cause(), *_totals()]),
            Row("Losses and budgets of owners", _budgets()),
            Row("Inference engines", _engines()),
            Row("Missing signals", _coverage()),
        ],
    )
