"""`top` as it is used: in a terminal, in a pipe, near and far."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.demo.run import running
from gpu_bottleneck_exporter.driver.nvml.remedies import OF_ERRORS
from gpu_bottleneck_exporter.nodeview.model import MEASURING
from gpu_bottleneck_exporter.remedies import MEANINGS
from support.beside import Reply, answering
from support.command import ANY_PORT, COMMAND, Server, environment, run, serving
from support.drivers import Libraries
from support.talking import CHUNKED, OK, Line, saying, talking
from support.terminal import Terminal, terminal
from support.waiting import until

ROW = re.compile(r"^(\d) .*\d%")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("demo"), "demo", *ANY_PORT) as server:
        until(lambda: server.get("/")[1].count('<svg class="trend"') == 8, "trends")
        yield server


@pytest.fixture
def local(libraries: Libraries) -> Iterator[dict[str, str]]:
    """Variables with which this machine has the demo's GPUs."""
    with running() as board:
        yield libraries.variables(board)


@pytest.fixture(scope="module")
def many() -> Iterator[str]:
    """An exporter with thirty GPUs."""
    gpus = [{"gpu": f"{index}", "uuid": f"u{index}", "up": True} for index in range(30)]
    fields = {"time_seconds": 0, "window_seconds": 60, "version": "9", "gpus": gpus}
    body = json.dumps(fields).encode()
    with answering(lambda _: Reply(body)) as port:
        yield f"http://127.0.0.1:{port}"


def watching(server: Server, *arguments: str) -> list[str]:
    return [*COMMAND, "top", "--url", server.url, "--interval", "0.5", *arguments]


def rows(lines: list[str]) -> list[str]:
    return [line for line in lines if ROW.match(line)]


def shown(lines: list[str]) -> bool:
    """Whether it is there to its end: what is drawn at once need not come at once."""
    drawn = len(rows(lines)) == 8 and all("█" in row for row in rows(lines))
    return drawn and lines[-1].startswith(" q quit")


def falling(numbers: list[int]) -> bool:
    return len(numbers) == 8 and numbers == sorted(numbers, reverse=True)


def watts(lines: list[str]) -> list[int]:
    return [int(result[1]) for row in rows(lines) if (result := re.search(r"(\d+)/700", row))]


def assert_restored(screen: Terminal) -> None:
    """The other screen and the hidden cursor are left."""
    assert screen.written.rindex(b"\x1b[?1049l") > screen.written.rindex(b"\x1b[?1049h")
    assert screen.written.rindex(b"\x1b[?25h") > screen.written.rindex(b"\x1b[?25l")


def test_keys_and_other_sizes(demo: Server) -> None:
    with terminal(watching(demo), LINES="24", COLUMNS="80") as screen:
        lines = screen.wait_for(shown, "the bars")
        assert re.search(r" of 8 GPUs starved|No GPU starved", lines[0])
        assert "SIMULATED" in lines[0]
        assert len(screen.colours(4)) > 1
        screen.press("w")
        screen.wait_for(lambda lines: "WATTS*" in lines[3] and falling(watts(lines)), "the order")
        screen.press("r")
        screen.wait_for(lambda lines: falling(watts(lines)[::-1]), "the reverse order")
        screen.press("rgj")
        screen.wait_for(lambda lines: any(x.startswith("GPU 1 ") for x in lines), "details")
        details = {"likely cause", "try", "history", "processes"}
        screen.wait_for(
            lambda lines: details <= {line[:15].strip() for line in lines[9:-1]}, f"{details}"
        )
        screen.press("?")
        screen.wait_for(lambda lines: any("reverse the order" in x for x in lines), "help")
        screen.press("?")
        screen.resize(120, 30)
        screen.wait_for(lambda lines: shown(lines) and "OWNER" in lines[3], "the wider table")
        screen.resize(60, 12)
        screen.wait_for(lambda lines: lines[-1].startswith(" q quit") and "GPU" in lines[3], "less")
        screen.press("q")
        assert screen.end() == 0
        assert_restored(screen)


KEYS = {"Home": "\x1b[1~", "End": "\x1b[4~", "PgUp": "\x1b[5~", "PgDn": "\x1b[6~"}
"""Bytes of a terminal."""


def test_more_gpus_than_lines(many: str) -> None:
    def selected(index: int) -> Callable[[list[str]], bool]:
        return lambda lines: any(line.startswith(f"GPU {index} ") for line in lines)

    with terminal([*COMMAND, "top", "--url", many, "--interval", "0.5"]) as screen:
        screen.wait_for(selected(0), "the first GPU")
        screen.press(KEYS["PgDn"])
        screen.wait_for(selected(10), "the next page")
        screen.press(KEYS["End"])
        screen.wait_for(selected(29), "the last GPU")
        screen.press(KEYS["PgUp"])
        screen.wait_for(selected(19), "the page before")
        screen.press(KEYS["Home"])
        screen.wait_for(selected(0), "the first GPU")


def test_this_machine_is_measured_before_it_is_judged(local: dict[str, str]) -> None:
    causes: list[set[str]] = []

    def judged(lines: list[str]) -> bool:
        causes.append({*" ".join(rows(lines)).split()} & {*MEANINGS, MEASURING})
        return "unallocated" in causes[-1]

    with terminal([*COMMAND, "top", "--interval", "0.5"], 80, 24, **local) as screen:
        screen.wait_for(judged, "a verdict")
        assert next(cause for cause in causes if cause) == {MEASURING}
        screen.press("q")
        assert screen.end() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_leave_the_terminal_in_order(demo: Server, number: signal.Signals) -> None:
    with terminal(watching(demo)) as screen:
        screen.wait_for(shown, "the bars")
        screen.child.kill(number)
        assert screen.end() == 0
        assert_restored(screen)


POSIX = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize(("variables", "glyphs"), [({"NO_COLOR": "1"}, "█▒"), (POSIX, "#=")])
def test_without_colours_or_unicode_bars_have_other_characters(
    demo: Server, variables: dict[str, str], glyphs: str
) -> None:
    with terminal(watching(demo), 80, 24, **variables) as screen:
        screen.wait_for(
            lambda lines: len(rows(lines)) == 8 and {*glyphs} <= {*"".join(rows(lines))}, "bars"
        )
        assert (screen.colours(4) == {"default"}) == ("NO_COLOR" in variables)
        screen.press("q")
        assert screen.end() == 0


def test_a_terminal_that_cannot_be_drawn_on(demo: Server) -> None:
    with terminal(watching(demo), TERM="no-such-terminal") as screen:
        assert screen.end() == 1
        assert "cannot draw on the terminal 'no-such-terminal'" in screen.text


def test_plain_lines_where_there_is_no_terminal(demo: Server, tmp_path: Path) -> None:
    result = run(tmp_path, *watching(demo, "--count", "2")[len(COMMAND) :])
    assert (result.returncode, result.stderr) == (0, "")
    header, *lines = result.stdout.splitlines()
    assert header.split()[:3] == ["TIME", "GPU", "BUSY"]
    assert [line.split()[1] for line in lines] == [*"01234567"] * 2
    assert "\x1b" not in result.stdout


def test_a_reader_that_has_had_enough(demo: Server, tmp_path: Path) -> None:
    command = " ".join(watching(demo)) + " | head -n 3"
    result = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert len(result.stdout.splitlines()) == 3


def test_once_on_a_machine_without_a_gpu(tmp_path: Path) -> None:
    result = run(tmp_path, "top", "--once", "--interval", "0.5")
    assert (result.returncode, result.stdout) == (1, "")
    assert "no GPU to show: nvmlInit: LIBRARY_NOT_FOUND" in result.stderr
    assert result.stderr.count("\n") == 1
    remedies = (run(tmp_path, "check").stdout.splitlines()[1], OF_ERRORS["library_broken"])
    assert all(remedy.removeprefix("  remedy").strip() in result.stderr for remedy in remedies)


def test_odd_answers_are_a_line_and_it_goes_on(tmp_path: Path) -> None:
    odd = (CHUNKED + b"zz\r\n", b"\x16\x03", OK + b"\r\n{", OK + b"\r\n" + b"[" * 100_000)
    fields = {"time_seconds": 0, "window_seconds": 60, "version": "9"}
    gpus = [{"gpu": "0", "uuid": "u0", "up": True, "name": "H100"}]
    good = OK + b"\r\n" + json.dumps({**fields, "gpus": gpus}).encode()

    def talk(line: Line) -> None:
        saying(next(answers, good))(line)

    answers = iter(odd)
    with talking(talk) as (port, _):
        url = f"http://127.0.0.1:{port}"
        watch = [*COMMAND, "top", "--url", url, "--interval", "0.5"]
        with terminal(watch, LINES="24", COLUMNS="160") as screen:
            screen.wait_for(lambda lines: "trying again" in lines[2], "the trouble")
            screen.wait_for(lambda lines: any("H100" in line for line in lines), "the GPU")
            screen.press("q")
        answers = iter(odd[:1] * 100)
        done = run(tmp_path, "top", "--url", url, "--once", "--interval", "0.5")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
