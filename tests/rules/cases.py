"""Tables of situations, which `situations.yml` holds: a row is a GPU, and what is told of it.

A row has the fields of `fleet.Gpu` that differ from those of a healthy GPU; a field that changes
is written as `signal` reads it. What is told over time is one line:

    29 -; 35 gpu_fault; 38,75 gpu_fault/critical; 80 - gpu_fault/critical GpuUnderused/info

Each part names minutes, then the primary cause (`-`: none, `?`: not asked), then the alerts that
fire: `cause/severity` is the alert of that cause, also in place of the primary cause itself.
Nothing else may fire. A part without minutes holds at the end; `after 15 cause/severity` means
that the alert fires at the end, and two minutes before minute 15 only the cause is there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from gpu_bottleneck_exporter.prescription.model import CPU_LIMIT, Outlook, Refusal
from rules import causes_table
from rules.fleet import ASIDE, JOB, Fleet, Gpu, add_gpu, changed, job
from rules.parsed import Rule
from rules.series import FOREVER, Signal
from support.rows import beside
from support.states import PRESCRIBED, SCORED

CHANGING = ("engine", "stalls", "throttle", "throttle_active", "pipes", "xids")
"""Fields with several signals."""
TEXTS = (
    *("recovery_action", "fabric_state", "architecture", "name"),
    *("missing", "uuid", "parent_uuid"),
)


OUTLOOKS = {
    "recommends": Outlook(PRESCRIBED, SCORED),
    "recommends another": Outlook(
        replace(
            PRESCRIBED, knob=CPU_LIMIT, busy_ratio=0.6, busy_low_ratio=0.5, busy_high_ratio=0.7
        ),
        replace(SCORED, predicted_busy_ratio=0.48, busy_ratio=0.44),
    ),
    "recommends roughly": Outlook(
        replace(PRESCRIBED, busy_ratio=0.9, busy_low_ratio=0.8, busy_high_ratio=0.97, value=5)
    ),
    "mixed": Outlook(Refusal("mixed")),
    "changing": Outlook(Refusal("changing"), SCORED),
    "missed": Outlook(Refusal("mixed"), replace(SCORED, busy_ratio=0.56)),
}
"""What the exporter recommends."""


@dataclass(frozen=True, slots=True)
class Row:
    """One GPU on a node of its own, and what is told of it."""

    gpu: Gpu
    told: str = "-"
    unscraped: tuple[int, int] | None = None
    """Minutes between which the exporter does not answer."""
    unknown_until: int = 0
    """Minute at which Prometheus begins to scrape it."""
    each_minute: bool = False
    """Rules must be evaluated each minute, as one more or less matters."""


Table = Mapping[str, Row]


def rows(section: str) -> Mapping[str, Any]:
    """The rows of a section of the file, as they are written."""
    return _sections()[section]


@cache
def _sections() -> Mapping[str, Mapping[str, Any]]:
    return dict(beside(__file__, "situations.yml"))


def table(*sections: str, told: str = "-") -> dict[str, Row]:
    """The rows of sections; of what is not said, `told`. Their names tell of failures."""
    every = [(name, row) for section in sections for name, row in rows(section).items()]
    assert len(dict(every)) == len(every)
    return {name: row_of({"told": told, **row}) for name, row in every}


def jobs(section: str) -> dict[str, list[Row]]:
    """A section of whose rows each is a list: the GPUs of one job, some of them several times."""
    return {
        name: [row_of(row) for row in ranks for _ in range(row.get("times", 1))]
        for name, ranks in rows(section).items()
    }


def gpus(section: str) -> dict[str, Gpu]:
    """The GPUs of a section."""
    return {name: gpu_of(row) for name, row in rows(section).items()}


def row_of(row: Mapping[str, Any]) -> Row:
    unscraped = row.get("unscraped")
    return Row(
        gpu_of(row),
        f"{row.get('told', '-')}",
        tuple(unscraped) if unscraped else None,
        row.get("unknown_until", 0),
        row.get("each_minute", False),
    )


def gpu_of(row: Mapping[str, Any], *others: str) -> Gpu:
    """Its GPU; `others` are names in `row` that are no fields of one."""
    of_rows = {"told", "times", "index", "unscraped", "unknown_until", "each_minute", "gpm"}
    of_rows.update(others)
    if not row.get("gpm", True):
        row = {**row, **rows("bases")["no_gpm"]}
    return Gpu(**{name: field(name, row[name]) for name in row.keys() - of_rows})


def field(name: str, value: Any) -> Any:  # noqa: ANN401 - of any field of Gpu
    """The value of a field of `Gpu` as a row has it."""
    if name == "gap":
        return tuple(value)
    if name == "outlook":
        return OUTLOOKS[value]
    if name in CHANGING and value is not None:
        return {key: field("", one) for key, one in value.items()}
    return signal(value) if isinstance(value, str) and name not in TEXTS else value


def signal(text: str) -> Signal:
    """What `text` says over time: numbers, `none` (no sample) and `stale` (the series ends).

    `0 @30 0.1`: from minute 30 on 0.1. `0.8 ~30 0.97`: in a line until then. `0 @5 1 @6 again`:
    from minute 6 on the same again and again.
    """
    first, *changes = text.split()
    if not changes:
        return float(text)
    phases: list[tuple[int, float | None]] = []
    at, value = 0, _value(first)
    for change, word in zip(changes[::2], changes[1::2], strict=True):
        minutes = int(change[1:]) - at
        if change.startswith("~"):
            slope = ((_value(word) or 0.0) - (value or 0.0)) / minutes
            phases += [(1, (value or 0.0) + slope * minute) for minute in range(minutes)]
        else:
            phases.append((minutes, value))
        at += minutes
        if word == "again":
            return phases * (FOREVER // at)
        value = _value(word)
    return [*phases, (FOREVER, value)]


def _value(word: str) -> float | None:
    return None if word == "none" else math.nan if word == "stale" else float(word)


@dataclass(frozen=True, slots=True)
class At:
    """What is told at one minute."""

    minute: float
    cause: str
    alerts: tuple[str, ...]


def timeline(told: str, end: float) -> Iterator[At]:
    """The parts of `told`, one for each minute."""
    for part in told.split(";"):
        words = part.split()
        if words[0] == "after":
            _, due, fires = words
            yield At(float(due) - 2, fires.partition("/")[0], ())
            words = [fires]
        minutes = [*map(float, words.pop(0).split(","))] if words[0][0].isdigit() else [end]
        cause, *alerts = words
        alerts += [cause] * ("/" in cause)
        for minute in minutes:
            yield At(minute, cause.partition("/")[0], tuple(map(alert, alerts)))


def alert(text: str) -> str:
    """The alert of "cause/severity", as `alerts` names it; others are named as they are."""
    cause, _, severity = text.partition("/")
    rule = _alerts().get(cause)
    return key_of(rule, severity) if rule else text


@cache
def _alerts() -> dict[str, Rule]:
    return dict(causes_table.causes())


def key_of(rule: Rule, severity: str) -> str:
    """ "Name/severity", or "Name/severity/cause" where several causes share the name."""
    key = f"{rule.name}/{severity}"
    return f"{key}/{rule.labels['cause']}" if causes_table.names_cause(rule) else key


def expect(fleet: Fleet, node: str, told: str, end: float) -> float:
    """`told` holds of `node`; the last minute that is asked for."""
    asked = [*timeline(told, end)]
    for at in asked:
        if at.cause != "?":
            fleet.expect_cause(node, at.minute, None if at.cause == "-" else at.cause)
        fleet.expect_firing(node, at.minute, *at.alerts)
    return max(at.minute for at in asked)


def node_of(name: str) -> str:
    """A situation as the name of a node."""
    return name.replace(" ", "-")


def fleets_of(table: Table, minutes: int, end: float | None = None) -> tuple[Fleet, Fleet]:
    """The rows as two fleets: those that need rules each minute, and those half as often."""
    fleets = (
        Fleet(minutes, without=ASIDE),
        Fleet(minutes, evaluation_interval="2m", without=ASIDE),
    )
    for name, row in table.items():
        add_row(fleets[not row.each_minute], name, row, minutes if end is None else end)
    return fleets


def add_row(fleet: Fleet, name: str, row: Row, end: float) -> None:
    """The GPU on a node of its own, until the last minute that is asked for."""
    node = node_of(name)
    add_gpu(fleet, node, row.gpu)
    if row.unscraped:
        fleet.fail_scrapes(node, *row.unscraped)
    fleet.fail_scrapes(node, 0, row.unknown_until, up=None)
    fleet.end(node, expect(fleet, node, row.told, end))


def add_job(fleet: Fleet, name: str, ranks: Sequence[Row], end: float) -> None:
    """The GPUs of one Slurm job, each on a node of its own; one alone has the owner it says."""
    for rank, row in enumerate(ranks):
        owned = row.gpu.owner or row.gpu.owners or len(ranks) == 1
        gpu = row.gpu if owned else changed(row.gpu, owner=job(name))
        add_row(fleet, f"{name} {rank}", replace(row, gpu=gpu), end)


@cache
def alerts() -> Mapping[str, Rule]:
    """The alerts of the pack by `key_of`."""
    return {key_of(rule, rule.labels["severity"]): rule for rule in causes_table.alerts()}


def firing(name: str, node: str, **labels: str) -> str:
    """The alert of that key of `node` while it fires, complete: nothing but these labels."""
    rule = alerts()[name]
    every = {"alertname": rule.name, "alertstate": "firing", **rule.labels, "job": JOB}
    pairs = (f'{key}="{text}"' for key, text in {**every, "instance": node, **labels}.items())
    return f"ALERTS{{{','.join(pairs)}}}"


def of_gpu(node: str, index: int = 0) -> dict[str, str]:
    """The labels that a GPU has itself."""
    return {"gpu": f"{index}", "uuid": f"GPU-{node}-{index}"}
