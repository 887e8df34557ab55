"""Prescriptions: what to change on each GPU and what came of it; what a fleet would win."""

from __future__ import annotations

from builders.common import (
    CHOSEN,
    KNOWN,
    NO_DATA,
    OF_GPU,
    OWNED,
    SPACE,
    TARGETS,
    or_no_data,
    with_owner,
)
from builders.model import Json, Panel, Query, mapped, override
from builders.panels import AMOUNT, GAUGE, NEUTRAL, merged, narrow, stats, table
from gpu_bottleneck_exporter.prescription.model import REFUSALS

BOUNDS = (
    "An upper bound for host_code, checkpoints, and workers that read from storage or the network."
)
_RATIO: Json = {"unit": "percentunit", "decimals": 0}
_HOURS = f"gpu:prescription:gain_hours{{{TARGETS}, {SPACE}}}"


# --- For each GPU ---------------------------------------------------------------------------------
def of_gpus(*, height: int) -> Panel:
    """One row for each GPU with a prescription, a reason against one, or a score."""
    columns = ("instance", "gpu", "knob", *(f"Value #{letter}" for letter in "ABCDEFG"))
    more = ("reason", "changed", "Value #I", "Value #J")
    return table(
        "Recommendation",
        "The recommended change: the setting, its value now and then, the busy share now "
        f"and as predicted, with the interval of nine of ten outcomes. {BOUNDS} GPU-hours a week: "
        "GPU time saved for the same work. Or the reason why an idle GPU has no recommendation. "
        "And the last change found: the busy share predicted for it, and since then.",
        [Query(expr, table=True) for expr in _queries()],
        "none",
        width=24,
        height=height,
        sort="GPU-hours a week",
        # Without a letter where only one query has an answer: the reason.
        transformations=merged((*columns, *more), "job", "uuid", "Value", "Value #H"),
        overrides=_columns(),
        no_value=or_no_data("No rows: it is busy, or too little is known yet"),
    )


def _queries() -> tuple[str, ...]:
    by = f"max by ({OF_GPU}, knob)"
    predicted = _of("busy_ratio")
    now = f"({predicted} * 0 + ignoring (knob) group_left () gpu:busy:ratio_rate5m{{{CHOSEN}}})"
    outcome = f"({_of('scored_ratio')} + {_of('error')})"
    return (
        *(f"{by} ({series})" for series in (_of("current_value"), _of("value"), now, predicted)),
        *(f"{by} ({_of(name)})" for name in ("busy_low_ratio", "busy_high_ratio", "gain_hours")),
        f"max by ({OF_GPU}, reason) ({_of('refused')})",
        *(f"max by ({OF_GPU}, changed) ({_changed(it)})" for it in (_of("scored_ratio"), outcome)),
    )


def _of(name: str) -> str:
    return f"gpu:prescription:{name}{{{CHOSEN}}}"


def _changed(series: str) -> str:
    """Its knob may be another one than that of the prescription in the same row."""
    return f'label_replace({series}, "changed", "$1", "knob", "(.+)")'


def _columns() -> list[Json]:
    reasons = mapped({reason: (f"none: {why}", None) for reason, why in REFUSALS.items()})
    shares = {"C": "Busy", "D": "Predicted", "E": "From", "F": "To", "I": "Then", "J": "Came to"}
    return [
        override("instance", displayName="Node", custom_minWidth=110),
        override("gpu", displayName="GPU", **narrow(50)),
        override("knob", displayName="Setting", **narrow(115)),
        override("Value #A", displayName="Is", **narrow(60)),
        override("Value #B", displayName="Set to", **narrow(70)),
        *(
            override(f"Value #{letter}", displayName=name, **narrow(85), **_RATIO)
            for letter, name in shares.items()
        ),
        override("Value #G", displayName="GPU-hours a week", **narrow(175), decimals=0),
        override("reason", displayName="Why not", custom_minWidth=330, mappings=[reasons]),
        override("changed", displayName="Last changed", **narrow(115)),
    ]


# --- For the fleet --------------------------------------------------------------------------------
def of_fleet() -> list[Panel]:
    """GPU-hours a week that the prescriptions of now would return, by owner and in all."""
    most = f"topk(20, sum by (owner, knob) ({with_owner(_HOURS)}))"
    gpus = f"count by (owner, knob) ({with_owner(_HOURS)}) and {most}"
    size: Json = {"width": 4, "height": 8, "defaults": {"color": NEUTRAL, "decimals": 1}}
    return [
        table(
            "Gain of recommendations",
            "GPU-hours a week saved for each owner's work by the present recommendations, the 20 "
            f"largest. {BOUNDS} A row of Verdicts leads to the values.",
            [Query(most, table=True), Query(gpus, table=True)],
            AMOUNT,
            sort="GPU-hours a week",
            width=20,
            height=8,
            transformations=merged(("owner", "knob", "Value #A", "Value #B")),
            overrides=[
                override("owner", displayName="Owner", custom_minWidth=200),
                override("knob", displayName="Setting", custom_minWidth=130),
                override(
                    "Value #A",
                    displayName="GPU-hours a week",
                    custom_minWidth=200,
                    custom_filterable=False,
                    min=0,
                    decimals=0,
                    color=NEUTRAL,
                    custom_cellOptions=GAUGE,
                ),
                override("Value #B", displayName="GPUs", **narrow(70)),
            ],
            no_value=or_no_data("No rows: nothing is recommended"),
        ),
        stats(
            "GPU-hours a week to win",
            f"The gain of all present recommendations, of 168 for each GPU. {BOUNDS}",
            [Query(f"sum({_HOURS}) or {KNOWN}", "to win", instant=True)],
            AMOUNT,
            no_value=NO_DATA,
            **size,
        ),
    ]


def track_record() -> list[Panel]:
    """How good predictions were, of the last change of a knob on each GPU."""
    size: Json = {"width": 8, "height": 5, "defaults": {"color": NEUTRAL}}
    error = f"abs(gpu:prescription:error{{{TARGETS}}} and {OWNED})"
    inside = f"{error} <= bool 0.12 * gpu:prescription:scored_ratio{{{TARGETS}}}"
    none = or_no_data("No change was noticed")
    return [
        stats(
            "Changes followed",
            "GPUs on which a change of workers or of the CPU limit was noticed for which there was "
            "a prediction.",
            [Query(f"count({error})", "changes", instant=True)],
            AMOUNT,
            no_value=none,
            **size,
        ),
        stats(
            "Outcomes as predicted",
            "The share of these changes with an outcome within 12 % of the prediction: nine of "
            "ten should be, except for upper bounds.",
            [Query(f"avg({inside})", "inside", instant=True)],
            "percentunit",
            no_value=none,
            **size,
        ),
        stats(
            "Median error of predictions",
            "The median distance between the busy share that was predicted for these changes, and "
            "the one since then: 2 % are two points of busy share.",
            [Query(f"quantile(0.5, {error})", "error", instant=True)],
            "percentunit",
            no_value=none,
            **size,
        ),
    ]
