"""Scenes: several GPUs together, and what queries answer. `situations.yml` holds them.

`nodes` are lists of GPUs, each `times` so many; where a name has `{n}`, each has a node of its own.
`all` are fields that all of them have; their owners and targets may name `{node}` and `{n}`.
`series` are others: name, signal and labels. `unscraped` are minutes by node, `gone` by UUID; from
the minute of `deleted` on, a node is no target; those of `no_up` are none of this Prometheus.
`ask` are minutes, a query, and its whole answer; `told` is, by node, as in the tables. The nodes
end at minute `until`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from rules.cases import expect, gpu_of, rows, signal
from rules.fleet import Fleet, add_gpu
from rules.series import FOREVER, STALE, Series

Row = Mapping[str, Any]
Add = Callable[[Fleet, str, Row, int], None]


ROLLOUT = 35
"""The minute at which the pods of GPUs with `replaced` are replaced; by then alerts have fired."""


def add_row(fleet: Fleet, node: str, row: Row, index: int) -> None:
    """A GPU that our exporter shows; if `replaced`, two pods, for so many minutes at once."""
    if "replaced" not in row:
        add_gpu(fleet, node, gpu_of(row), index)
        return
    for pod in ("old", "new"):
        first = len(fleet._series)
        target = rows("pods")[f"{pod}_pod"]
        add_gpu(fleet, node, gpu_of({**row, "target": target}, "replaced"), index)
        fleet.change(partial(_of_pod, pod, row["replaced"]), first=first)


def _of_pod(pod: str, overlap: int, one: Series) -> Iterator[float | None]:
    """The old pod's until it ends, `overlap` minutes after the new one has begun to count."""
    start = one.values[ROLLOUT] or 0.0 if one.is_counter else 0.0
    for minute, value in enumerate(one.values):
        since = minute - ROLLOUT
        if pod == "old":
            yield value if since < overlap else STALE if since == overlap else None
        else:
            yield None if since < 0 or value is None else value - start


def add_scenes(fleet: Fleet, section: str, add: Add = add_row) -> None:
    """The scenes of a section, and what is expected of them."""
    for scene in rows(section).values():
        placed = [*_placed(scene)]
        for node, index, row in placed:
            add(fleet, node, row, index)
        for name, text, labels in scene.get("series", ()):
            fleet.gauge(name, signal(f"{text}"), **labels)
        _interrupt(fleet, scene)
        for asked, query, answer in scene.get("ask", ()):
            for minute in asked if isinstance(asked, list) else [asked]:
                fleet.expect(minute, query, answer)
        for node, told in scene.get("told", {}).items():
            expect(fleet, node, f"{told}", fleet.minutes)
        for node, _, _ in placed if "until" in scene else ():
            fleet.end(node, scene["until"])


def _interrupt(fleet: Fleet, scene: Row) -> None:
    """End the series of what is away for a while, or for good."""
    for uuid, minutes in scene.get("gone", {}).items():
        fleet.remove(uuid, *minutes)
    for node, minutes in scene.get("unscraped", {}).items():
        fleet.fail_scrapes(node, *minutes)
    for node in scene.get("no_up", ()):
        fleet.leave_out("up", node)
    for node, minute in scene.get("deleted", {}).items():
        fleet.fail_scrapes(node, minute, FOREVER, up=STALE)


def _placed(scene: Row) -> Iterator[tuple[str, int, Row]]:
    for name, gpus in scene.get("nodes", {}).items():
        every = [row for row in gpus for _ in range(row.get("times", 1))]
        for n, row in enumerate(every):
            node = name.format(n=n)
            index = row.get("index", 0 if node != name else n)
            yield node, index, _filled({**scene.get("all", {}), **row}, node, n)


def _filled(row: Row, node: str, n: int) -> Row:
    labels = {name: row[name] for name in ("owner", "target", "labels") if row.get(name)}
    filled = {
        name: {key: text.format(node=node, n=n) for key, text in of.items()}
        for name, of in labels.items()
    }
    return {**row, **filled}
