"""Every query gives something on a real Prometheus: for a made-up fleet, and for the demo."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pytest

from grafana.boards import EVERYTHING, NAMES, Asked, Json, asked, board, filled
from grafana.live import DEMO, filled_prometheus
from support.prometheus import Prometheus
from support.waiting import PATIENCE_SECONDS, until

OF_ENGINES = [*("Requests of the engine", "KV cache", "Time in the queue")]
OF_ENGINES += ["Tokens per second", "Tokens per joule"]
OF_ALL_ENGINES = ("Replicas without demand", "GPU-hours without demand", "Cost per million tokens")
EMPTY_IN_DEMO = {
    "gpu: Errors A": "its GPUs report no XID",
    **dict.fromkeys((f"gpu: {panel} A" for panel in OF_ENGINES), "it serves no model"),
    **dict.fromkeys((f"fleet: {panel} A" for panel in OF_ALL_ENGINES), "it serves no model"),
    "gpu: Temperature B": "its GPUs state a margin, and no limits",
    **dict.fromkeys((f"gpu: {kind} time, by tenant A" for kind in ("Busy", "Idle")), "none shared"),
}
"""Queries for which the demo has nothing, and why."""
PRESCRIBED = [f"gpu: Recommendation {letter}" for letter in "ABCDEFGHIJ"]
PRESCRIBED += [f"fleet: What recommendations would return {letter}" for letter in "AB"]
PRESCRIBED += [
    "fleet: Changes followed A",
    "fleet: Outcomes as predicted A",
    "fleet: Median error of predictions A",
]
OF_THE_MACHINE = {
    **dict.fromkeys(PRESCRIBED, "while nothing is recommended and nobody has changed a setting"),
    "gpu: CPU of the job, and its limit B": "without a CPU limit",
    "gpu: Throttled by the limit A": "without a CPU limit",
    "gpu: Host memory of the job B": "without a memory limit",
    "gpu: Pressure of the job A": "without PSI of control groups",
    "gpu: Network and RDMA of the node C": "without InfiniBand, RoCE or EFA",
    "gpu: Network and RDMA of the node D": "without InfiniBand, RoCE or EFA",
    "exporter: Where signals are missing A": "with all signals",
    "exporter: GPUs that do not answer A": "unless it stands still",
}
"""Queries for which the demo has something or not, and when not: its processes are real."""
ZEROS = {
    "fleet: Lost GPUs, by cause B": "with more than ten causes",
    "fleet: Lost GPUs, by cause C": "while nothing is lost",
    "fleet: Blind GPUs B": "while no GPU is blind",
}
"""Queries that have something only instead of their panel's first one; test_values has them."""
AFTER_HOURS = dict.fromkeys(
    (f"fleet: Could be free now {letter}" for letter in "AB"), "rules/test_reclaimable.py"
)
"""Queries that have something after hours without use, and the test of their series."""
ON_DEMO = {**EVERYTHING, "job": DEMO}
OFFERED = {"gpu": {("job GPU 0", "GPU-job-0")}, "workload": {("slurm-4711", "slurm-4711")}}
"""Texts and values of variables, among others."""
SHOWN_SECONDS = 10


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with filled_prometheus(tmp_path_factory.mktemp("live")) as running:
        yield running


def await_data(
    server: Prometheus, queries: Sequence[Asked], values: Mapping[str, str], empty: set[str]
) -> set[str]:
    """Names of queries for which there is nothing, after a time in which there might be."""
    missing = list(queries)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while {f"{one}" for one in missing} - empty and time.monotonic() < deadline:
        missing = [one for one in missing if not has_data(server, one, values)]
        time.sleep(0.5)
    return {f"{one}" for one in missing if not has_data(server, one, values)}


def has_data(server: Prometheus, one: Asked, values: Mapping[str, str]) -> bool:
    """At a moment of the last seconds: on a busy machine half of the scrapes come too late."""
    now = time.time()
    return bool(server.query_range(one.text(values), now - SHOWN_SECONDS, now, 1))


def queries() -> list[Asked]:
    return [one for one in asked() if f"{one}" not in ZEROS.keys() | AFTER_HOURS.keys()]


def test_every_query_has_data(server: Prometheus) -> None:
    assert await_data(server, queries(), EVERYTHING, set()) == set()


def test_the_demo_fills_every_query(server: Prometheus) -> None:
    missing = await_data(server, queries(), ON_DEMO, {*EMPTY_IN_DEMO, *OF_THE_MACHINE})
    assert missing - set(OF_THE_MACHINE) == set(EMPTY_IN_DEMO)


@pytest.mark.parametrize("name", NAMES)
def test_variables_have_values(server: Prometheus, name: str) -> None:
    for one in board(name)["templating"]["list"]:
        if one["type"] == "query":
            wanted = OFFERED.get(one["name"], set())
            until(partial(offers, server, one, wanted), one["name"])


def offers(server: Prometheus, variable: Json, wanted: set[tuple[str, str]]) -> bool:
    """Something, and of the fleet this."""
    found = offered(server, variable)
    return bool(found) and wanted <= found


def offered(server: Prometheus, variable: Json) -> set[tuple[str, str]]:
    """Texts and values."""
    query = filled(variable["query"])
    if label := re.fullmatch(r"label_values\((.+), (\w+)\)", query):
        values = {labels[label[2]] for labels, _ in server.query(label[1]) if label[2] in labels}
        return {(value, value) for value in values}
    result = re.fullmatch(r"query_result\((.+)\)", query)
    assert result is not None, query
    pattern = re.compile(variable["regex"].strip("/").replace("?<", "?P<"))
    found = [pattern.search(as_grafana_has_it(labels)) for labels, _ in server.query(result[1])]
    assert all(found), query
    return {(one[1], one[pattern.groups]) for one in found if one}


def as_grafana_has_it(labels: dict[str, str]) -> str:
    """A result of query_result: the name, the labels in order, the value and the time."""
    pairs = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    return f"{{{pairs}}} 1 1767225600000"
