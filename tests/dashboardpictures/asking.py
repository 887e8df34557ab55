"""The queries of panels, put to a Prometheus as Grafana would."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dashboardpictures.supported import UnsupportedError
from grafana.boards import filled

Json = dict[str, Any]
Labels = dict[str, str]
Points = list[tuple[float, float]]
"""Unix times and values."""

INTERVAL = 2
"""Seconds between two points at least, and a quarter of what rates are counted over: what Grafana
takes for the scrape interval."""
_LABEL = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_DURATION = re.compile(r"(\d+)([smh])")
_SECONDS = {"s": 1, "m": 60, "h": 3600}


class Source(Protocol):
    """What answers queries."""

    def query(self, promql: str, at: float | None = None) -> list[tuple[Labels, float]]:
        """An instant vector."""

    def query_range(
        self, promql: str, start: float, end: float, step: float
    ) -> list[tuple[Labels, Points]]:
        """A matrix."""


@dataclass(frozen=True, slots=True)
class Series:
    """A line over time; a gap is where two points are further apart than `step`."""

    name: str
    points: Points
    step: float


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time seen through a dashboard's variables; `scale`: rules go so much faster."""

    source: Source
    variables: Mapping[str, str]
    start: float
    end: float
    scale: float = 1

    def instant(self, target: Json) -> list[tuple[Labels, float]]:
        """The last values."""
        found = self.source.query(self._text(target["expr"], INTERVAL), self.end)
        return [(labels, value) for labels, value in found if not math.isnan(value)]

    def series(self, target: Json, pixels: float) -> list[Series]:
        """The values over time, with no more points than there are pixels."""
        step = self._step(target.get("interval", "0s"), pixels)
        # At multiples of the step, so that a picture does not depend on when it is taken.
        start, end = self.start // step * step, self.end // step * step
        found = self.source.query_range(self._text(target["expr"], step), start, end, step)
        return [
            Series(named(target, labels), [one for one in points if not math.isnan(one[1])], step)
            for labels, points in found
        ]

    def annotations(self, board: Json) -> list[tuple[str, list[tuple[float, float]]]]:
        """Colour, and when each mark of the time axis began and ended."""
        found = []
        for one in board["annotations"]["list"]:
            if one["enable"]:
                series = self.series({**one["target"], "legendFormat": ""}, self.end - self.start)
                spans = [(run[0][0], run[-1][0]) for line in series for run in runs(line)]
                found.append((one["iconColor"], spans))
        return found

    def _step(self, least: str, pixels: float) -> float:
        wanted = math.ceil((self.end - self.start) / pixels)
        return max(INTERVAL, wanted, round(_seconds(least) / self.scale))

    def _text(self, expr: str, step: float) -> str:
        values = {
            "__range": f"{round(self.end - self.start)}s",
            "__rate_interval": f"{max(step + INTERVAL, 4 * INTERVAL):g}s",
            **self.variables,
        }
        return filled(expr, values)


def named(target: Json, labels: Labels) -> str:
    """The name of a series by its target's legend."""
    legend = target["legendFormat"]
    if legend == "__auto":
        raise UnsupportedError(f"a series without a legend: {target['expr']}")
    return _LABEL.sub(lambda found: labels.get(found[1], ""), legend)


def runs(series: Series) -> list[Points]:
    """Its points from gap to gap."""
    found: list[Points] = []
    for point in series.points:
        if found and point[0] - found[-1][-1][0] < 1.5 * series.step:
            found[-1].append(point)
        else:
            found.append([point])
    return found


def variables(board: Json, chosen: Mapping[str, str]) -> dict[str, str]:
    """A value for each of the dashboard's variables: what is chosen, else all."""
    values = {}
    for one in board["templating"]["list"]:
        name = one["name"]
        if name in chosen:
            values[name] = chosen[name]
        elif one.get("allValue"):
            values[name] = one["allValue"]
        elif one["type"] in {"textbox", "constant", "datasource"}:
            values[name] = one["query"]
        else:
            raise UnsupportedError(f"variable {name}: nothing is chosen")
    return values


def _seconds(duration: str) -> float:
    found = _DURATION.fullmatch(duration)
    if found is None:
        raise UnsupportedError(f"a duration like {duration}")
    return int(found[1]) * _SECONDS[found[2]]
