"""Tables of situations: a row is a GPU, and what is told of it over time in one line.

    29 -; 35 gpu_fault; 38,75 gpu_fault/critical; 80 - gpu_fault/critical GpuUnderused/info

Each part names minutes, then the primary cause (`-`: none, `?`: not asked), then the alerts that
fire: `cause/severity` is the alert of that cause, also in place of the primary cause itself.
Nothing else may fire. A part without minutes holds at the end.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from rules import causes_table
from rules.fleet import JOB, Fleet, Gpu, add_gpu


@dataclass(frozen=True, slots=True)
class Row:
    """One GPU on a node of its own, and what is told of it."""

    gpu: Gpu
    told: str = "-"
    unscraped: tuple[int, int] | None = None
    """Minutes between which the exporter does not answer."""
    unknown_until: int = 0
    """Minute at which Prometheus begins to scrape it."""


Table = Mapping[str, Row]


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
        minutes = words.pop(0).split(",") if words[0][0].isdigit() else [end]
        cause, *alerts = words
        alerts += [cause] * ("/" in cause)
        for minute in minutes:
            yield At(float(minute), cause.partition("/")[0], tuple(map(alert, alerts)))


def alert(text: str) -> str:
    """The alert "Name/severity" of "cause/severity"; others are named as they are."""
    cause, _, severity = text.partition("/")
    return f"{_alerts().get(cause, cause)}/{severity}"


@cache
def _alerts() -> dict[str, str]:
    return dict(causes_table.causes())


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


def merged(*tables: Table) -> dict[str, Row]:
    """All rows; each has a name of its own, by which promtool tells of a failure."""
    found: dict[str, Row] = {}
    for table in tables:
        assert not found.keys() & table.keys()
        found.update(table)
    return found


def fleets_of(
    table: Table, minutes: int, usual: Container[float], end: float | None = None
) -> tuple[Fleet, Fleet]:
    """The rows as two fleets.

    Where it is no matter of one minute more or less, at `usual` minutes, a row is in the second
    one, which is evaluated half as often.
    """
    fleets = Fleet(minutes), Fleet(minutes, evaluation_interval="2m")
    end = minutes if end is None else end
    for name, row in table.items():
        add_row(fleets[_is_calm(row, end, usual)], name, row, end)
    return fleets


def _is_calm(row: Row, end: float, usual: Container[float]) -> bool:
    asked = (at.minute for at in timeline(row.told, end))
    return not row.unscraped and not row.gpu.gap and all(minute in usual for minute in asked)


def add_row(fleet: Fleet, name: str, row: Row, end: float) -> None:
    """The GPU on a node of its own, until the last minute that is asked for."""
    node = node_of(name)
    add_gpu(fleet, node, row.gpu)
    if row.unscraped:
        fleet.fail_scrapes(node, *row.unscraped)
    fleet.fail_scrapes(node, 0, row.unknown_until, up=None)
    fleet.end(node, expect(fleet, node, row.told, end))


def firing(node: str, told: str, **labels: str) -> str:
    """The alert "cause/severity" of the first GPU of `node` while it fires: all of its labels."""
    name, severity = alert(told).split("/")
    pairs = {
        "alertname": name,
        "alertstate": "firing",
        "cause": told.partition("/")[0],
        "gpu": "0",
        "instance": node,
        "job": JOB,
        "owner": "job",
        "severity": severity,
        "uuid": f"GPU-{node}-0",
        **labels,
    }
    return "ALERTS{" + ",".join(f'{label}="{text}"' for label, text in pairs.items()) + "}"
