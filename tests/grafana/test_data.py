"""Every query gives something on a real Prometheus: for a made-up fleet, and for the demo."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence

import pytest

from grafana.boards import EVERYTHING, NAMES, Asked, asked, board, filled
from grafana.live import DEMO, filled_prometheus
from support.daemon import PATIENCE_SECONDS
from support.prometheus import Prometheus

EMPTY_IN_DEMO = {
    "gpu: Job: busy": "its loops are no job of a scheduler",
    "gpu: Job: power, of the limit": "the same",
    "gpu: Job: SM clock, of the highest": "the same",
    "exporter: GPUs that do not answer": "all of its GPUs do",
}
"""Panels that the demo leaves empty, and why. Some others are for a while: see the README."""
ON_DEMO = {**EVERYTHING, "job": DEMO}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with filled_prometheus(tmp_path_factory.mktemp("live")) as running:
        yield running


def await_data(server: Prometheus, queries: Sequence[tuple[str, str]], empty: set[str]) -> set[str]:
    """Names of (name, query) for which there is nothing, after a time in which there might be."""
    missing = list(queries)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while {name for name, _ in missing} - empty and time.monotonic() < deadline:
        missing = [(name, query) for name, query in missing if not server.query(query)]
        time.sleep(0.5)
    return {name for name, query in missing if not server.query(query)}


def named(queries: Sequence[Asked]) -> list[tuple[str, str]]:
    return [(f"{one}", one.text()) for one in queries]


def test_every_query_has_data(server: Prometheus) -> None:
    assert await_data(server, named(asked()), set()) == set()


def test_the_demo_fills_every_panel(server: Prometheus) -> None:
    """At least by one of its queries."""
    by_panel: dict[str, list[str]] = {}
    for one in asked():
        by_panel.setdefault(one.panel_name, []).append(one.text(ON_DEMO))
    queries = [
        (name, " or ".join(f"count({text})" for text in texts)) for name, texts in by_panel.items()
    ]
    assert await_data(server, queries, set(EMPTY_IN_DEMO)) == set(EMPTY_IN_DEMO)


@pytest.mark.parametrize("name", NAMES)
def test_variables_have_values(server: Prometheus, name: str) -> None:
    for one in board(name)["templating"]["list"]:
        query = filled(one["query"])
        if label := re.fullmatch(r"label_values\((.+), (\w+)\)", query):
            assert await_data(server, [(query, label[1])], set()) == set()
            assert any(label[2] in labels for labels, _ in server.query(label[1])), query
        elif result := re.fullmatch(r"query_result\((.+)\)", query):
            pattern = re.compile(one["regex"].strip("/").replace("?<", "?P<"))
            texts = [as_grafana_has_it(labels) for labels, _ in server.query(result[1])]
            found = [pattern.search(text) for text in texts]
            assert all(found)
            assert ("job GPU 0", "GPU-job-0") in {(m["text"], m["value"]) for m in found if m}


def as_grafana_has_it(labels: dict[str, str]) -> str:
    """A result of query_result: the name, the labels in order, the value and the time."""
    pairs = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    return f"{{{pairs}}} 1 1767225600000"
