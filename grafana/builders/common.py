"""Shared by several dashboards: selectors, variables, causes and their colours, verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from builders import colours, pack
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
"""Turns a sum over samples of a share into GPU-hours."""
HOURS_TOLD = (
    f"Counted in steps of {pack.interval_seconds()} s, the interval of the pack's rule groups: "
    "with another interval, rebuild the dashboards."
)
NO_DATA = "No data: see the exporter's dashboard"
OWNED = f"{ON_GPU} gpu:held:info{{{TARGETS}, {SPACE}}}"
"""Narrows series down to GPUs that are held from the namespace."""

KNOWN = f"count(gpu:held:bool{{{TARGETS}}}) * 0"
"""Zero for instances with a rule pack: added by `or`, it makes a count of none a zero."""


def or_no_data(reading: str) -> str:
    """The text of a panel whose emptiness may be the answer, or a lack of data."""
    return f"{reading}, or {NO_DATA[0].lower()}{NO_DATA[1:]}"


def with_owner(expr: str) -> str:
    """`expr` with the label `owner`: one text for pod, Slurm job, container or user."""
    return f'label_replace({expr}, "owner", "$1", "workload", "(.+)")'


def cause_colours() -> dict[str, str]:
    """Colours of series named by a cause."""
    return dict(colours.CAUSES)


def causes_by_name() -> Json:
    """Shows a cause in its colour."""
    return mapped({cause: (cause, colour) for cause, colour in cause_colours().items()})


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
    return mapped({f"{rank:g}": (cause, colours.CAUSES[cause]) for cause, rank in ranks})


def waits_colours() -> dict[str, str]:
    """Colours of series named by `waiting_on`, and of busy time."""
    return {"busy": palette.BUSY_COLOUR, **palette.WAIT_COLOURS}


def target_variables(metric: str) -> list[Json]:
    """Data source and targets; `metric` is one that all targets have."""
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
    """Namespace of the job; All includes GPUs without one."""
    query = f"label_values(gpu:held:info{{{TARGETS}}}, workload_namespace)"
    return query_variable("namespace", "Namespace", query, everything=".*")


def runbooks_variable() -> Json:
    """Base address of the runbooks."""
    return constant("runbooks", pack.runbooks())


def runbook(alert: str) -> Json:
    """A link in the head of a panel to the runbook for what it shows."""
    return {"title": f"Runbook {alert}", "url": f"${{runbooks}}/{alert}.md", "targetBlank": True}


def cost_variable() -> Json:
    """Cost of a GPU-hour."""
    return textbox("cost", "Cost of a GPU-hour (like 2.5; 0: none)", "0")


def cost_of(hours: str) -> str:
    """`hours` in money; nothing if no cost is entered."""
    # With the exponent, an empty box becomes the name of an unknown metric instead of an error.
    # A leading zero would do the same, but turns 10 into an octal number.
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
"""The folder of the runbooks itself, for a GPU without a cause."""
UNCOLOURED: Json = {"mode": "fixed", "fixedColor": "transparent"}
"""For cells with a coloured background: without a value it is transparent; mappings win."""
_COLUMNS = ("cluster", "instance", "gpu", "owner", "cause", "Value #B", "Value #C", "Value #D")
_MORE_COLUMNS = ("Value #E", "Value #F", "Value #G", "runbook", "job", "uuid", "page")
_ROW = f"cluster, {OF_GPU}"


def verdicts(title: str, selector: str, *, height: int) -> Panel:
    """One row for each held GPU: whose, how busy, what is wrong, since when."""
    owned = f"{ON_GPU} gpu:held:info{{{selector}, {SPACE}}}"
    return table(
        title,
        "Each held GPU, the largest loss first. The cause is the first one with "
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
        no_value=or_no_data("No rows: no GPU is held"),
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
    pages = mapped({cause: (page, None) for cause, page in pack.pages().items()})
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
        # Two spellings: up to Grafana 12.1, and later.
        *(
            override(name, custom_hidden=True, custom_hideFrom={"viz": True})
            for name in ("job", "uuid", "page")
        ),
    ]
