"""Places in which exporters run in the field: none may end or silence the process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.flags import PROGRAM
from support.board import Board
from support.board_exporter import over_board
from support.command import ANY_PORT, run, serving
from support.daemon import HOST, free_port, get
from support.samplers import sampling
from support.waiting import until


def shell(script: str) -> tuple[str, ...]:
    """Words that run the command within a script of sh, as "$@"."""
    return "sh", "-c", script, "sh"


POSIX = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
DEAD_PROXY = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), f"http://{HOST}:9")
SURROUNDINGS = {
    "an empty environment": shell('exec env -i LD_LIBRARY_PATH="$LD_LIBRARY_PATH" "$@"'),
    "no standard input and output": shell('exec "$@" <&- >&-'),
    "a working directory that is gone": shell('mkdir gone; cd gone; rmdir ../gone; exec "$@"'),
    "a small stack": shell('ulimit -s 1024; exec "$@"'),
    "a parent that ignores signals": shell("trap '' HUP PIPE; exec \"$@\""),
}


@pytest.mark.parametrize("way", SURROUNDINGS.values(), ids=SURROUNDINGS)
def test_it_serves_and_ends_in(tmp_path: Path, way: tuple[str, ...]) -> None:
    with serving(tmp_path, "serve", *ANY_PORT, way=way) as server:
        status, text = server.get()
        assert status == 200
        assert "gpu_exporter_build_info{" in text
        assert server.terminate() == 0
        assert "Traceback" not in server.said


@pytest.mark.parametrize("variables", [POSIX, {"TZ": "No/Where"}, {"TZ": ":"}, DEAD_PROXY], ids=str)
@pytest.mark.parametrize("command", ["check", "once"])
def test_commands_print_the_same_with(
    tmp_path: Path, command: str, variables: dict[str, str]
) -> None:
    usual = run(tmp_path, command)
    result = run(tmp_path, command, **variables)
    assert result.returncode == usual.returncode
    assert "Traceback" not in result.stderr
    assert without_values(result.stdout) == without_values(usual.stdout) != []


def without_values(text: str) -> list[str]:
    return [line.rpartition(" ")[0] for line in text.splitlines()]


@pytest.mark.parametrize("command", ["once", "check", "rules"])
def test_output_onto_a_full_disk_is_one_line_of_errors(tmp_path: Path, command: str) -> None:
    result = run(tmp_path, command, way=shell('unset PYTHONUNBUFFERED; exec "$@" >/dev/full'))
    assert result.returncode == 1
    assert result.stderr == f"{PROGRAM}: No space left on device\n"


def test_a_log_on_a_full_disk_costs_the_log_only(tmp_path: Path) -> None:
    port = free_port()
    way = shell('exec "$@" 2>/dev/full')
    with serving(tmp_path, "serve", "--web.listen-address", f"{HOST}:{port}", way=way) as server:
        until(lambda: get(port, "/metrics")[0] == 200, "metrics", unless=lambda: server.ended)


def test_on_ipv6_alone(tmp_path: Path) -> None:
    with serving(tmp_path, "serve", "--web.listen-address", "[::1]:0") as server:
        assert server.url.startswith("http://[::1]:")
        assert server.get()[0] == 200


def test_two_serve_the_same_node(make_board: Callable[..., Board]) -> None:
    board = make_board()
    with over_board(board.path) as item, over_board(board.path) as other:

        def up(port: int) -> bool:
            return b"gpu_up{" in get(port, "/metrics")[1]

        until(lambda: up(item.port) and up(other.port), "the GPU in both")


def test_a_clock_that_is_put_back_an_hour_stops_nothing(
    make_board: Callable[..., Board], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time
    with sampling(lambda: VirtualDriver(make_board())) as sampler:
        until(lambda: sampler.state().gpus, "the GPU")
        before = sampler.state().gpus[0].totals
        monkeypatch.setattr(time, "time", lambda: now() - 3600)

        def later() -> int:
            return sampler.state().gpus[0].totals.observed_ns or 0

        until(lambda: later() > (before.observed_ns or 0) + 10**9, "what follows")
        after = sampler.state().gpus[0].totals
        assert after.unobserved_ns <= before.unobserved_ns + 10**9
