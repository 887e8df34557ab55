"""What `helm test` runs, against a real exporter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.create import H100
from helm import chart
from helm.chart import rendered
from support.beside import Reply, answering
from support.board_exporter import over_board
from support.daemon import free_port
from support.rows import rows


def fetch(url: str, guard: str = "open") -> subprocess.CompletedProcess[str]:
    """The program as it is in the pod, with other arguments."""
    (container,) = rendered().one("Pod")["spec"]["containers"]
    assert container["command"] == ["python3", "-c"]
    return subprocess.run(
        [sys.executable, "-c", container["args"][0], url, guard],
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_exporter_passes(make_board: Callable[..., Board]) -> None:
    board = make_board(gpus=[H100, H100])
    with over_board(board.path) as exporter:
        result = fetch(f"http://{exporter.target}/metrics")
        assert (result.returncode, result.stderr) == (0, "")
        assert "GPUs answer" in result.stdout
        assert fetch(f"http://{exporter.target}/").returncode == 1


def test_nobody_there_fails() -> None:
    result = fetch(f"http://127.0.0.1:{free_port()}/metrics")
    assert (result.returncode, "refused" in result.stderr) == (1, True)
    assert "Traceback" not in result.stderr


def test_asking_for_a_password_is_enough_where_one_is_set() -> None:
    with answering(lambda asked: Reply(status=401 if asked.path == "/metrics" else 200)) as port:
        url = f"http://127.0.0.1:{port}"
        assert fetch(f"{url}/metrics", "guarded").returncode == 0
        assert fetch(f"{url}/metrics").returncode == 1
        assert fetch(f"{url}/other", "guarded").returncode == 1


@rows(
    "name, scheme, guard",
    {"no": ("default", "http", "open"), "yes": ("web-config", "https", "guarded")},
)
def test_the_pod_is_told_of_a_web_config(name: str, scheme: str, guard: str) -> None:
    (container,) = rendered(chart.case(name)).one("Pod")["spec"]["containers"]
    _, url, told = container["args"]
    assert (url.partition(":")[0], told) == (scheme, guard)
