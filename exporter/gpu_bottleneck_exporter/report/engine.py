"""Queries to a Prometheus, or to what has its API."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlencode

import click

from gpu_bottleneck_exporter.errors import ExporterError, printable
from gpu_bottleneck_exporter.fetch import Server
from gpu_bottleneck_exporter.nodeview.wire import parsed
from gpu_bottleneck_exporter.report.gather import gather

Answer = TypeVar("Answer")
MOST_BYTES = 64 * 2**20
_LONGEST_NAME = 253
_AT_ONCE = 2
"""Queries: as many as a small Prometheus has cores."""

Labels = Mapping[str, str]
Row = tuple[Labels, list[tuple[float, float]]]
"""A series: its labels, and Unix times with values; at least one."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A Prometheus, or what has its API."""

    server: Server
    deadline_seconds: float
    verbose: bool = False

    def ask(self, queries: Mapping[str, str], **parameters: float) -> dict[str, list[Row]]:
        """The result of each PromQL query, by name; with a `step`, over a range.

        Raises ExporterError if one fails.
        """
        call = "query_range" if "step" in parameters else "query"
        calls: Mapping[str, Callable[[], list[Row]]] = {
            name: partial(self._asked, call, _series, query=query, **parameters)
            for name, query in queries.items()
        }
        came = gather(calls, self.deadline_seconds, _AT_ONCE)
        for why in came.missing.values():
            raise ExporterError(
                f"{why}" if self.server.name in why else f"{self.server.name}: {why}"
            )
        return came.answers

    def names(self, label: str, series: str, since_seconds: float) -> list[str]:
        """Values of a label of these series since this Unix time."""
        match = {"match[]": series, "start": since_seconds}
        return self._asked(f"label/{label}/values", _texts, **match)

    def _asked(self, call: str, read: Callable[[Any], Answer], **parameters: object) -> Answer:
        if self.verbose:
            told = " ".join(f"{value}" for value in parameters.values())
            click.echo(f"{call} {told}", err=True)
        path = f"/api/v1/{call}"
        body = self.server.get(f"{path}?{urlencode(parameters)}", MOST_BYTES, (400, 422, 503))
        try:
            found = parsed(body)
            if found["status"] == "success":
                return read(found["data"])
            why = printable(f"{found['error']}", _LONGEST_NAME)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            url = self.server.address(path)
            raise ExporterError(f"{url} is not the API of a Prometheus") from error
        raise ExporterError(f"{self.server.name} refuses a query: {why}")


def quoted(text: str) -> str:
    """A string of PromQL."""
    return json.dumps(text)


def value(row: Row) -> float:
    """The last value of a series."""
    return row[1][-1][1]


def _texts(data: Any) -> list[str]:  # noqa: ANN401 - JSON
    return [printable(one, _LONGEST_NAME) for one in data]


def _series(data: Any) -> list[Row]:  # noqa: ANN401 - JSON
    """Series, without values that are no numbers. Raises LookupError, TypeError or ValueError."""
    found: list[Row] = []
    for one in data["result"]:
        labels = {
            printable(k, _LONGEST_NAME): printable(v, _LONGEST_NAME)
            for k, v in one["metric"].items()
        }
        points = one["values"] if "values" in one else [one["value"]]
        pairs = [(float(at), number) for at, text in points if math.isfinite(number := float(text))]
        if pairs:
            found.append((labels, pairs))
    return found
