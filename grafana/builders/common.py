"""What several dashboards share: selectors, variables, causes and their colours, the verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from builders import pack
from builders.model import (
    Json,
    Panel,
    Query,
    constant,
    datasource_variable,
    mapped,
    override,
    query_variable,
    textbox,
)
from builders.panels import AMOUNT, GAUGE, NEUTRAL, merged, narrow, table
from gpu_bottleneck_exporter import palette

FLEET_UID, GPU_UID, EXPORTER_UID = (
    "gpu-bottleneck-fleet",
    "gpu-bottleneck-gpu",
    "gpu-bottleneck-self",
)

TARGETS = 'cluster=~"$cluster", job=~"$job", instance=~"$instance"'
OF_NO_TARGET = 'cluster=~"$cluster|", job="", instance=""'
"""Of alerts about the rules themselves, wherever they are evaluated."""
CHOSEN = f'{TARGETS}, uuid=~"$gpu"'
SPACE = 'workload_namespace=~"$namespace"'
ON_GPU = "on (job, instance, gpu, uuid)"
OF_GPU = "job, instance, gpu, uuid"
RATE = "[$__rate_interval]"
HOURS = f"* {pack.interval_seconds()} / 3600"
"""Makes GPU-hours of a sum over the samples of a share."""
HOURS_TOLD = (
    f"Counted in steps of {pack.interval_seconds()} s, the interval of the pack's rule groups: "
    "with another one, build the dashboards anew."
)
NO_DATA = "No data: see the exporter's dashboard"
OWNED = f"{ON_GPU} gpu:held:info{{{TARGETS}, {SPACE}}}"
"""Narrows series of GPUs down to those that somebody of the namespace has."""

KNOWN = f"count(gpu:held:bool{{{TARGETS}}}) * 0"
"""Of instances with a rule pack, whatever they hold: what makes a count of none a zero."""


def or_no_data(reading: str) -> str:
    """What an empty panel says where that may be the answer, and may be a lack of one."""
    return f"{reading}, or {NO_DATA[0].lower()}{NO_DATA[1:]}"


def with_owner(expr: str) -> str:
    """`expr` with the label `owner`: one text for pod, Slurm job, container or user."""
    return f'label_replace({expr}, "owner", "$1", "workload", "(.+)")'


def cause_colours() -> dict[str, str]:
    """For series named by a cause."""
    return dict(palette.CAUSES)


def causes_by_name() -> Json:
    """Shows a cause in its colour."""
    return mapped({cause: (cause, colour) for cause, colour in palette.CAUSES.items()})


def cause_column(**others: object) -> Json:
    """A column of causes, in their colours."""
    return override(
        "cause",
        displayName="Cause",
        custom_minWidth=220,
        mappings=[causes_by_name()],
        custom_cellOptions={"type": "color-background", "mode": "basic"},
        color=UNCOLOURED,
        **others,
    )


def causes_by_rank() -> Json:
    """Shows the rank of a primary cause as the cause."""
    ranks = sorted(pack.ranks().items(), key=lambda item: item[1])
    return mapped({f"{rank:g}": (cause, palette.CAUSES[cause]) for cause, rank in ranks})


def waits_colours() -> dict[str, str]:
    """For series named by what is waited on, and for the busy time."""
    return {"busy": palette.BUSY, **palette.WAITING_ON}


def target_variables(metric: str) -> list[Json]:
    """Data source, and which targets, by a metric that all of them have."""
    within = 'cluster=~"$cluster"'
    return [
        datasource_variable(),
        query_variable("cluster", "Cluster", f"label_values({metric}, cluster)", everything=".*"),
        query_variable("job", "Job", f"label_values({metric}{{{within}}}, job)"),
        query_variable(
            "instance", "Instance", f'label_values({metric}{{{within}, job=~"$job"}}, instance)'
        ),
    ]


def namespace_variable() -> Json:
    """Whose: a namespace; All are also those without any."""
    query = f"label_values(gpu:held:info{{{TARGETS}}}, workload_namespace)"
    return query_variable("namespace", "Namespace", query, everything=".*")


def runbooks_variable() -> Json:
    """Where the runbooks are."""
    return constant("runbooks", pack.runbooks())


def runbook(alert: str) -> Json:
    """A link in the head of a panel: what to do when it shows that."""
    return {"title": f"Runbook {alert}", "url": f"${{runbooks}}/{alert}.md", "targetBlank": True}


def cost_variable() -> Json:
    """What a GPU-hour costs."""
    return textbox("cost", "Cost of a GPU-hour (like 2.5; 0: none)", "0")


def cost_of(hours: str) -> str:
    """`hours` in money; nothing where no cost is typed in."""
    # With an exponent, an empty box makes the name of a metric that there is not, and no error. A
    # leading zero would do as well, but makes an octal number of 10.
    return f"{hours} * ${{cost}}e0 unless on () vector(1) * ${{cost}}e0 == 0"


# --- The verdicts ---------------------------------------------------------------------------------
_TO_GPU = (
    f"/d/{GPU_UID}?${{__url_time_range}}&${{datasource:queryparam}}&${{cluster:queryparam}}"
    "&var-job=${__data.fields.job}&var-instance=${__data.fields.instance}"
    "&var-gpu=${__data.fields.uuid}"
)
_OPENS = "open"
_RUNBOOK = "${runbooks}/${__data.fields.page}"
_ALL_RUNBOOKS = "."
"""Below the folder of the runbooks: that folder. Of a GPU without a cause."""
UNCOLOURED: Json = {"mode": "fixed", "fixedColor": "transparent"}
"""For cells with a coloured ground: one without a value has none; mappings have their own."""
_COLUMNS = ("cluster", "instance", "gpu", "owner", "cause", "Value #B", "Value #C", "Value #D")
_MORE_COLUMNS = ("Value #E", "Value #F", "Value #G", "runbook", "job", "uuid", "page")
_ROW = f"cluster, {OF_GPU}"


def verdicts(title: str, selector: str, *, height: int) -> Panel:
    """One row for each GPU that somebody has: whose, how busy, what is wrong, since when."""
    owned = f"{ON_GPU} gpu:held:info{{{selector}, {SPACE}}}"
    return table(
        title,
        "Each GPU that somebody has, the most expensive one first. The cause is the first one with "
        "enough evidence; none: it is used well, or too young to be judged (10 minutes). Lost is "
        "counted over the time shown. A click on the cause leads to the GPU, the last column to "
        f"the runbook. {HOURS_TOLD}",
        _verdict_queries(selector, owned),
        "none",
        width=24,
        height=height,
        sort="GPU-hours lost",
        transformations=merged((*_COLUMNS, *_MORE_COLUMNS), "Value #A"),
        overrides=_verdict_columns(),
        no_value=or_no_data("No rows: nobody has a GPU"),
    )


def _verdict_queries(selector: str, owned: str) -> list[Query]:
    lost = f"gpu:bottleneck:lost_ratio{{{selector}, {SPACE}}}"
    hours = f"gpu:bottleneck:lost_gpus{{{selector}, {SPACE}}}"
    named = f'label_replace({lost}, "runbook", "$1", "cause", "(.+)")'
    named = f'label_replace({named}, "page", "$1", "cause", "(.+)")'
    held = with_owner(f"gpu:held:info{{{selector}, {SPACE}}}")
    return [
        Query(expr, table=True)
        for expr in (
            f"max by ({_ROW}, owner) ({held})",
            f"max by ({_ROW}) (gpu:busy:ratio_rate5m{{{selector}}} and {owned})",
            f"max by ({_ROW}) (gpu:sm_active:ratio_rate5m{{{selector}}} and {owned})",
            f"max by ({_ROW}) (gpu:power:ratio_avg5m{{{selector}}} and {owned})",
            f"max by ({_ROW}, cause, runbook, page) ({named})",
            f"max by ({_ROW}) (gpu:bottleneck:since_timestamp{{{selector}}} and {owned}) * 1000",
            f"sum by ({_ROW}) (sum_over_time({hours}[$__range])) {HOURS}",
        )
    ]


def _verdict_columns() -> Sequence[Json]:
    alert_names = mapped(dict.fromkeys(pack.alerts(), (_OPENS, None)))
    pages = mapped({cause: (f"{name}.md", None) for cause, name in pack.alerts().items()})
    to_gpu = [{"title": "Look into this GPU", "url": _TO_GPU}]
    to_runbook = [{"title": "Runbook", "url": _RUNBOOK, "targetBlank": True}]
    shares = {"Value #B": "Busy", "Value #C": "SM active", "Value #D": "Power"}
    ratio = {"unit": "percentunit", "decimals": 0, "min": 0, "max": 1}
    return [
        override("cluster", displayName="Cluster", custom_width=110),
        override("instance", displayName="Node", custom_minWidth=130, links=to_gpu),
        override("gpu", displayName="GPU", **narrow(50), links=to_gpu),
        override("owner", displayName="Owner", custom_minWidth=165),
        cause_column(links=to_gpu),
        override(
            "runbook",
            displayName="Runbook",
            **narrow(85),
            mappings=[alert_names],
            noValue=_OPENS,
            links=to_runbook,
        ),
        *(
            override(
                name,
                displayName=text,
                custom_cellOptions=GAUGE,
                color=NEUTRAL,
                **narrow(92),
                **ratio,
            )
            for name, text in shares.items()
        ),
        override("Value #E", displayName="Lost now", **narrow(80), **ratio),
        override("Value #F", displayName="Since", **narrow(115), unit="dateTimeFromNow"),
        override("Value #G", displayName="GPU-hours lost", **narrow(145), unit=AMOUNT, decimals=1),
        override("page", mappings=[pages], noValue=_ALL_RUNBOOKS),
        # As Grafana says it up to 12.1, and later.
        *(
            override(name, custom_hidden=True, custom_hideFrom={"viz": True})
            for name in ("job", "uuid", "page")
        ),
    ]
