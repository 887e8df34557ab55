"""All situations at the same time: boards, processes, exporters, a kubelet, one Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from causes.cases import BLIND_FOR_JOBS, CLUSTERS, DAY, JUDGED_SECONDS, Case, Expected
from causes.crowd import Crowd, Member
from causes.heard import FREE, HELD, LOOKED_AT, SCRAPED, Told, Whose
from causes.nodes import Node, change, exporter, nodes_of, prepare
from fake_nvml.build import build
from scenarios.diagnoses import Heard
from support.prometheus import Prometheus, prometheus
from support.quickrules import MODEST, await_rules, quick_rules

_SCRAPED_EVERY_SECONDS = 0.5
_TICK_SECONDS = 0.5


def staged(cases: Sequence[Case], folder: Path) -> tuple[list[tuple[Whose, Heard]], float]:
    """Reports of Prometheus about each GPU of `cases`, then each node; missed evaluations."""
    with ExitStack() as cleanup:
        nodes = nodes_of(cases, folder)
        build(nodes[0].library)
        for each in nodes:
            prepare(each, cleanup)
        everybody = sorted(_everybody(nodes), key=lambda member: member[2].starts)
        first = [member for member in everybody if not member[2].starts]
        crowd = Crowd(first)
        cleanup.callback(crowd.end)
        for each in nodes:
            each.exporter = cleanup.enter_context(exporter(each))
        rules = cleanup.enter_context(quick_rules(folder, DAY))
        jobs = [(f"node{each.number}", each.target, _SCRAPED_EVERY_SECONDS) for each in nodes]
        server = cleanup.enter_context(prometheus(folder, jobs, rules, MODEST, _labels(nodes)))
        await_rules(server, len(nodes))
        began = time.time()
        crowd.begin()
        _play(nodes, crowd, everybody[len(first) :], cleanup)
        return _heard(nodes, server, began), server.missed()


def _labels(nodes: Iterable[Node]) -> dict[str, Mapping[str, object]]:
    """The cluster of each node that has one."""
    clusters = {each.number: each.places[0].case.cluster for each in nodes}
    return {
        f"node{number}": {"relabel_configs": [{"target_label": "cluster", "replacement": cluster}]}
        for number, cluster in clusters.items()
        if cluster
    }


def _everybody(nodes: Iterable[Node]) -> Iterator[Member]:
    for node in nodes:
        for place in node.places:
            for process in place.case.processes:
                yield node, place, process


def _play(nodes: Sequence[Node], crowd: Crowd, later: list[Member], cleanup: ExitStack) -> None:
    """Do everything at its time."""
    while crowd.elapsed < JUDGED_SECONDS:
        while later and later[0][2].starts <= crowd.elapsed:
            crowd.start(later.pop(0))
        for node in nodes:
            change(node, crowd.elapsed)
            _end_exporter(node, crowd.elapsed, cleanup)
        crowd.check()
        crowd.renew()
        time.sleep(_TICK_SECONDS)


def _end_exporter(one: Node, elapsed: float, cleanup: ExitStack) -> None:
    """Kill the exporter when it is due, and start another one if the case wants it."""
    case, process = one.places[0].case, one.exporter.process
    if case.exporter_ends is None or elapsed < case.exporter_ends or one.exporter_ended:
        return
    one.exporter_ended = True
    process.kill()
    process.wait()
    if case.exporter_returns:
        one.exporter = cleanup.enter_context(exporter(one, one.exporter.port))


def _heard(nodes: Sequence[Node], server: Prometheus, began: float) -> list[tuple[Whose, Heard]]:
    end = time.time()
    alerts = server.query_range("ALERTS", began, end, 1.0)
    primary = server.query_range("gpu:bottleneck:primary", began, end, 1.0)
    looked_at = server.query_range(LOOKED_AT, began, end, 1.0)
    record = Told(began, alerts, primary, looked_at)
    clusters = {node.places[0].case.cluster for node in nodes} - {""}
    of_clusters = {
        name: record.heard(CLUSTERS[name], SCRAPED, cluster=name, instance="", uuid="")
        for name in sorted(clusters)
    }
    return [heard for node in nodes for heard in _of_node(node, record)] + [
        (Whose(f"cluster {name}"), heard) for name, heard in of_clusters.items()
    ]


def _of_node(one: Node, told: Told) -> Iterator[tuple[Whose, Heard]]:
    for place in one.places:
        case, looked_at = place.case, HELD if place.case.processes else FREE
        for at, (gpu, what) in enumerate(zip(one.gpus_of(place), case.gpus, strict=True)):
            title = f"{case.name}, GPU {at}" if len(case.gpus) > 1 else case.name
            uuid = gpu.record.uuid.decode()
            yield Whose(title, case.name), told.heard(what.expected, looked_at, uuid=uuid)
    whose, expected = _of_all(one)
    yield whose, told.heard(expected, SCRAPED, instance=one.target, uuid="")


def _of_all(one: Node) -> tuple[Whose, Expected]:
    """Expectation for the node as a whole."""
    first = one.places[0].case
    if first.alone:
        return Whose(f"{first.name}, node", first.name), first.expected
    shared = any(place.case.of_several for place in one.places)
    besides = frozenset({BLIND_FOR_JOBS} if shared else set())
    return Whose(f"node {one.number}"), Expected(besides=besides)
