"""The checks that run on a cluster, on data from a real Prometheus: they pass, and they can fail.

A rollout is staged: an exporter in a pod of another name on the same node replaces the first one.
The relabeling steps are those of the chart's PodMonitor, or of one without them.
"""

from __future__ import annotations

import copy
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster import checks, manifests
from cluster.checks import Series
from cluster.discovered import scraped, targets, tell
from cluster.monitored import relabelings
from gpu_bottleneck_exporter.demo.board.board import Board
from helm.chart import Object, rendered, rendered_for
from helm.schemas import VERSIONS, assert_valid
from support.board_exporter import over_board
from support.drivers import Libraries
from support.prometheus import Prometheus, prometheus
from support.rows import rows
from support.waiting import until

EVERY = 0.5
SOME = 3
"""Scrapes."""
NAMES = ("gpu_up", "gpu_busy_seconds_total", "gpu_exporter_build_info")
WATCHED = f'{{__name__=~"{"|".join(NAMES)}"}}'
IMAGE = "registry.example.org:5000/gpu:1"


def monitor() -> Object:
    return rendered(manifests.values(IMAGE)).one("PodMonitor")


def pod(name: str) -> Object:
    """A pod of the release as the API server has it."""
    template = rendered().one("DaemonSet")["spec"]["template"]
    metadata = {"namespace": manifests.NAMESPACE, "name": name, **template["metadata"]}
    spec = {**template["spec"], "nodeName": "node-1"}
    return {"metadata": metadata, "spec": spec, "status": {"podIP": "192.0.2.1"}}


class Cluster:
    """A Prometheus, and the pods that it knows."""

    def __init__(self, server: Prometheus, pods: Path) -> None:
        self._server = server
        self._pods = pods

    @contextmanager
    def running(self, board: Board, name: str) -> Iterator[float]:
        """An exporter in a pod of that name; yields since when Prometheus knows it."""
        with over_board(board.path) as exporter:
            tell(self._pods, targets([pod(name)], exporter.target))
            began = time.time()
            until(lambda: self._scrapes_since(began) >= SOME, f"scrapes of {name}")
            yield began

    def _scrapes_since(self, began: float) -> int:
        """The fewest samples of any watched series: not all exist from the first scrape on."""
        counts = Counter(dict.fromkeys(NAMES, 0))
        for labels, samples in self.series(WATCHED):
            counts[labels["__name__"]] += sum(at > began for at, _ in samples)
        return min(counts.values())

    def series(self, selector: str) -> list[Series]:
        return [*self._server.matrix(selector)]


Found = tuple[list[Series], list[str], list[str]]


def rolled_out(folder: Path, board: Board, monitor: Object) -> Found:
    """Stage a rollout; returns the series and what is wrong with their labels and their ends."""
    pods = folder / "pods.json"
    tell(pods, [])
    settings = scraped(pods, relabelings(monitor))
    with prometheus(folder, [("gpu", "", EVERY)], access={"gpu": settings}) as server:
        cluster = Cluster(server, pods)
        with cluster.running(board, "gpu-abc"):
            began = time.time()
        with cluster.running(board, "gpu-def") as ended:
            series = cluster.series(WATCHED)
    return series, [*checks.pods_labels(series)], [*checks.broken_off(series, began, ended)]


def test_series_of_the_charts_monitor_go_on_through_a_rollout(
    tmp_path: Path, make_board: Callable[..., Board]
) -> None:
    series, of_pods, broken = rolled_out(tmp_path, make_board(), monitor())
    assert [labels["job"] for labels, _ in series] == ["gpu-bottleneck-exporter"] * 3
    assert {labels["instance"] for labels, _ in series} == {"node-1"}
    assert [*of_pods, *broken] == []


def test_without_its_relabelings_they_do_not(
    tmp_path: Path, make_board: Callable[..., Board]
) -> None:
    plain = copy.deepcopy(monitor())
    plain["spec"]["podMetricsEndpoints"][0]["relabelings"] = []
    _, of_pods, broken = rolled_out(tmp_path, make_board(), plain)
    assert len(of_pods) == len(broken) == 2 * 3
    assert "gpu_up has the exporter's own container, endpoint, pod" in of_pods
    assert sum("began with the rollout" in said for said in broken) == 3
    assert sum("ended with the rollout" in said for said in broken) == 3


def of(name: str, values: list[tuple[float, float]], **labels: str) -> Series:
    return {"__name__": name, "instance": "node-1", "gpu": "0", **labels}, values


def test_a_pod_without_an_address_is_not_asked_yet() -> None:
    waiting = {**pod("gpu-abc"), "status": {}}
    assert [*targets([waiting], "x")] == []
    assert len([*targets([waiting, pod("gpu-def")], "x")]) == 1


def test_a_gpu_that_was_given_up_on_a_busy_node_is_told() -> None:
    container = copy.deepcopy(rendered().container)
    well = of("gpu_up", [(1, 1), (2, 1)])
    ill = of("gpu_up", [(1, 1), (2, 0), (3, 0)])
    container["resources"]["requests"]["cpu"] = checks.REQUESTED
    assert [*checks.starved(container, [well])] == []
    assert [*checks.starved(container, [well, ill])] == [
        "gpu_up (instance=node-1, gpu=0) was 0 in 2 of 3 scrapes"
    ]
    assert [*checks.starved(container, [])] == ["there is no gpu_up"]
    container["resources"]["requests"]["cpu"] = "50m"
    assert [*checks.starved(container, [well])] == ["it requests 50m of a CPU, not 200m"]


OWNER = {"workload_namespace": "vision", "workload_pod": "train-0", "workload_container": "main"}


def owned(*times: float, **labels: str) -> Series:
    return of("gpu_workload_info", [(at, 1) for at in times], **{**OWNER, **labels})


@rows(
    "after, times, missing",
    {
        "named": ([owned(4, 5, 6)], [4, 5, 6], None),
        "once unnamed": ([owned(4, 6)], [4, 5, 6], 1),
        "another name": ([owned(4, 5, 6, workload_pod="train-1")], [4, 5, 6], 3),
        "another GPU": ([owned(4, 5, 6, gpu="1")], [4, 5, 6], 3),
        "another pod of that name": ([owned(4, pod_uid="1"), owned(5, 6)], [4, 5, 6], None),
        "nothing": ([], [4, 5, 6], 3),
        "not scraped": ([owned(1)], [], 0),
    },
)
def test_a_name_that_is_lost_is_told(
    after: list[Series], times: list[float], missing: int | None
) -> None:
    told = f"vision/train-0/main on GPU node-1/0 is unnamed in {missing} of {len(times)} scrapes"
    found = [*checks.lost_names([owned(1)], after, {("node-1", "0"): times})]
    assert found == ([] if missing is None else [told])


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_what_is_installed(libraries: Libraries, version: str) -> None:
    release = rendered_for(version, manifests.values(IMAGE), namespace=manifests.NAMESPACE)
    image = manifests.job(IMAGE)["spec"]["template"]["spec"]["containers"][0]["image"]
    assert release.container["image"] == image == IMAGE
    others = (manifests.namespace(), manifests.driver(libraries.path(580)))
    objects = [*others, manifests.job(IMAGE), manifests.load(IMAGE), *release.objects]
    for found in objects:
        assert_valid(found, version)
        names = (found["metadata"].get("namespace"), found["metadata"]["name"])
        assert manifests.NAMESPACE in names
    largest = 2**20
    assert all(len(json.dumps(found)) < largest for found in objects)
