"""The program of `helm test`, against a real exporter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.create import H100
from helm import chart
from helm.chart import rendered
from support.beside import Reply, answering
from support.board_exporter import over_board
from support.command import serving
from support.daemon import free_port
from support.rights import with_mounts_of_its_own
from support.rows import rows
from support.waiting import until


def fetch(
    url: str, guard: str = "open", least: int = 1, way: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """The program as it is in the pod, with other arguments."""
    (container,) = rendered().one("Pod")["spec"]["containers"]
    assert container["command"] == ["python3", "-c"]
    return subprocess.run(
        [*way, sys.executable, "-c", container["args"][0], url, guard, f"{least}", "0"],
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_exporter_passes_with_the_gpus_that_are_promised(
    make_board: Callable[..., Board],
) -> None:
    board = make_board(gpus=[H100, H100])
    with over_board(board.path) as exporter:
        result = until(lambda: passed(fetch(f"http://{exporter.target}/metrics", least=2)), "GPUs")
        assert (result.stdout, result.stderr) == (f"{exporter.url}: 2 GPUs answer\n", "")
        short = fetch(f"http://{exporter.target}/metrics", least=3)
        assert (short.returncode, "2 GPUs answer, not 3" in short.stderr) == (1, True)
        assert fetch(f"http://{exporter.target}/").returncode == 1


def passed(
    result: subprocess.CompletedProcess[str],
) -> subprocess.CompletedProcess[str] | None:
    return None if result.returncode else result


def test_the_pod_of_each_node_is_asked(make_board: Callable[..., Board], tmp_path: Path) -> None:
    """One of the two has no driver: its node lacks the GPUs that labels promise."""
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 exporters\n127.0.0.2 exporters\n")
    bound = ("sh", "-c", f'mount --bind {hosts} /etc/hosts && exec "$@"', "sh")
    way = (*with_mounts_of_its_own(), *bound)
    with over_board(make_board().path) as first:
        other = f"127.0.0.2:{first.port}"
        until(lambda: passed(fetch(first.url)), "the first")
        with serving(tmp_path, "serve", "--web.listen-address", other) as second:
            assert second.target == other
            url = f"http://exporters:{first.port}/metrics"
            result = fetch(url, way=way)
            assert result.stdout == f"{first.url}: 1 GPUs answer\n"
            assert result.stderr.startswith(f"{second.url}: 0 GPUs answer, not 1 as the values")
            assert result.returncode == 1
            assert fetch(url, least=0, way=way).returncode == 0


def test_an_address_where_no_exporter_listens_fails() -> None:
    result = fetch(f"http://127.0.0.1:{free_port()}/metrics")
    assert (result.returncode, "refused" in result.stderr) == (1, True)
    assert "Traceback" not in result.stderr
    unknown = fetch("http://exporters.invalid:1/metrics")
    assert (unknown.returncode, "Traceback" in unknown.stderr) == (1, False)


def test_asking_for_a_password_is_enough_where_one_is_set() -> None:
    with answering(lambda asked: Reply(status=401 if asked.path == "/metrics" else 200)) as port:
        url = f"http://127.0.0.1:{port}"
        assert fetch(f"{url}/metrics", "guarded").returncode == 0
        assert fetch(f"{url}/metrics").returncode == 1
        assert fetch(f"{url}/other", "guarded").returncode == 1


def arguments(values: Mapping[str, Any]) -> list[str]:
    """Arguments of the program."""
    (container,) = rendered(values).one("Pod")["spec"]["containers"]
    return list(container["args"][1:])


@rows(
    "values, gpus",
    {
        "one on each node with a label": ({}, "1"),
        "those that are listed": ({"gpu": {"visibleDevices": "0,GPU-1,3"}}, "3"),
        "none are visible": ({"gpu": {"visibleDevices": "void"}}, "0"),
        "mounted devices": (chart.case("devices-as-mounts"), "1"),
        "not through the runtime": ({"gpu": {"access": "nri", "visibleDevices": "0,1"}}, "1"),
        "every node": ({**chart.case("every-node"), "tests": {"enabled": True}}, "0"),
        "nodes of another kind": (chart.case("everything-else"), "0"),
    },
)
def test_the_gpus_that_values_promise(values: Mapping[str, Any], gpus: str) -> None:
    assert arguments(values)[2] == gpus


@rows("service", {"": {}, "80": {"port": 80}, "IP": {"clusterIP": ""}, "none": {"enabled": False}})
def test_a_service_of_its_own_has_the_addresses_of_all_pods(service: Mapping[str, Any]) -> None:
    """Addresses include pods that are not ready; a port of the service means nothing there."""
    release = rendered(service=service)
    (own,) = [
        candidate
        for candidate in release.of("Service")
        if candidate["metadata"]["name"].endswith("-test")
    ]
    assert own["spec"]["clusterIP"] == "None"
    assert own["spec"]["publishNotReadyAddresses"] is True
    assert own["spec"]["selector"].items() <= release.labels.items()
    assert own["metadata"]["annotations"]["helm.sh/hook"] == "test"
    url = f"http://{own['metadata']['name']}.{chart.NAMESPACE}:10170/metrics"
    assert arguments({"service": service})[0] == url


@rows(
    "name, scheme, guard",
    {"no": ("default", "http", "open"), "yes": ("web-config", "https", "guarded")},
)
def test_the_pod_is_given_a_web_config(name: str, scheme: str, guard: str) -> None:
    url, argument, *_ = arguments(chart.case(name))
    assert (url.partition(":")[0], argument) == (scheme, guard)
