"""What only a cluster shows, on the one that KUBECONFIG names: `make test-cluster`.

Helm's engine renders the chart for the cluster's version; it is applied with a virtual GPU on each
node. A Prometheus on this machine scrapes the pods through the API server, with the relabeling
steps that the operator generates from the chart's PodMonitor.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from cluster import checks, manifests
from cluster.checks import Series
from cluster.cluster import THROUGH_THE_API_SERVER, Cluster, kept_told, restart_kubelet
from cluster.discovered import scraped
from cluster.monitored import relabelings
from helm.chart import Rendered, rendered_for
from support.daemon import HOST
from support.drivers import Libraries
from support.prometheus import Prometheus, prometheus
from support.waiting import until

SCRAPED_EVERY = 2.0
JOBS = [("gpu", "", SCRAPED_EVERY)]
SCRAPES = 15
"""How many of them are checked."""
IMAGE = os.environ.get("CLUSTER_IMAGE", manifests.IMAGE)
pytestmark = pytest.mark.timeout(1200)


@dataclass(frozen=True)
class Installed:
    """The release, and the Prometheus that scrapes it."""

    cluster: Cluster
    release: Rendered
    server: Prometheus

    @property
    def name(self) -> str:
        return str(self.release.one("DaemonSet")["metadata"]["name"])

    def await_scrapes(self, count: int = SCRAPES) -> tuple[float, float]:
        """Wait until every GPU was scraped this often from now on; returns begin and end."""
        began = time.time()

        def enough() -> bool:
            most: dict[checks.Gpu, int] = {}
            for labels, samples in self.series("gpu_up", began):
                gpu = checks.gpu_of(labels)
                most[gpu] = max(most.get(gpu, 0), len(samples))
            return min(most.values(), default=0) >= count

        until(enough, "scrapes of every GPU")
        return began, time.time()

    def series(self, selector: str, began: float = 0.0) -> list[Series]:
        """Series with their samples since `began`."""
        found = self.server.matrix(selector)
        since = [(labels, [s for s in samples if s[0] >= began]) for labels, samples in found]
        return [(labels, samples) for labels, samples in since if samples]


@pytest.fixture(scope="module")
def installed(
    libraries: Libraries, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installed]:
    cluster, folder = Cluster.named(), tmp_path_factory.mktemp("cluster")
    release = rendered_for(cluster.version, manifests.values(IMAGE), namespace=manifests.NAMESPACE)
    steps = [*relabelings(release.one("PodMonitor")), THROUGH_THE_API_SERVER]
    pods = folder / "pods.json"
    with (
        cluster.namespace(),
        cluster.applied([manifests.driver(libraries.path(580)), manifests.job(IMAGE)]),
        cluster.applied(release.objects),
        cluster.proxy(folder / "proxy") as port,
        kept_told(cluster, f"{HOST}:{port}", pods),
        prometheus(folder, JOBS, access={"gpu": scraped(pods, steps)}) as server,
    ):
        yield Installed(cluster, release, server)


def test_series_go_on_through_a_rollout(installed: Installed) -> None:
    installed.await_scrapes()
    began = time.time()
    space = f"--namespace={manifests.NAMESPACE}"
    installed.cluster("rollout", "restart", f"daemonset/{installed.name}", space)
    installed.cluster.await_rollout(installed.name)
    ended = time.time()
    installed.await_scrapes()
    series = installed.series('{__name__=~"gpu_(up|busy_seconds_total|exporter_build_info)"}')
    assert [*checks.pods_labels(series), *checks.broken_off(series, began, ended)] == []


def test_a_busy_node_does_not_starve_it(installed: Installed) -> None:
    with installed.cluster.applied([manifests.load(IMAGE)]):
        began, _ = installed.await_scrapes()
        up = installed.series("gpu_up", began)
    daemonset = installed.cluster.get("daemonset", installed.name)
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    assert [*checks.starved(container, up)] == []


def test_names_survive_a_restart_of_the_kubelet(installed: Installed) -> None:
    began, _ = installed.await_scrapes()
    before = installed.series('gpu_workload_info{workload_pod!=""}', began)
    assert before, "no GPU has an owner's name"
    nodes: Any = installed.cluster.get("nodes")["items"]
    restarted = time.time()
    for node in nodes:
        restart_kubelet(node)
    installed.await_scrapes()
    after = installed.series('gpu_workload_info{workload_pod!=""}', restarted)
    up = installed.series("gpu_up", restarted)
    times = {checks.gpu_of(labels): [at for at, _ in samples] for labels, samples in up}
    assert [*checks.lost_names(before, after, times)] == []
