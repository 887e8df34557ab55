"""The command end to end, on a machine without a driver."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gpu_bottleneck_exporter import __version__
from gpu_bottleneck_exporter.cli import commands
from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.demo.jobs import GPUS, JOBS
from support.command import ANY_PORT, Server, run, serving
from support.metrics import Metrics
from support.options import options_of
from support.waiting import PATIENCE_SECONDS, until

SAMPLING_COMMANDS = ("check", "demo", "diagnose", "once", "serve", "top")


def options() -> Iterator[tuple[str, click.Option]]:
    """Every option of every command."""
    for name in commands.commands:
        yield from ((name, option) for option in options_of(name))


def test_the_version(tmp_path: Path) -> None:
    result = run(tmp_path, "--version")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0].endswith(f" {__version__}")
    assert run(tmp_path, "-V").stdout == result.stdout


@pytest.mark.parametrize(
    ("command", "option"), list(options()), ids=lambda value: getattr(value, "name", value)
)
def test_every_option_has_help_and_settings_have_an_environment_variable(
    command: str, option: click.Option
) -> None:
    assert option.help is not None, command
    assert option.help.endswith(".")
    flag = option.opts[0].removeprefix("--")
    variable = f"GPU_EXPORTER_{flag.replace('.', '_').replace('-', '_').upper()}"
    # What only one command has, and another may call the same, has none, but for a password.
    assert option.envvar == (variable if "." in flag or flag in {"without", "url"} else None)


@pytest.mark.parametrize("name", SAMPLING_COMMANDS)
def test_every_collector_can_be_switched_off(name: str) -> None:
    flags = {flag for option in options_of(name) for flag in option.secondary_opts}
    assert flags == {f"--no-collector.{collector.name}" for collector in ALL}


@pytest.mark.parametrize(
    ("flags", "printed"), [((), "gpu_exporter_build_info{"), (("--json",), '"gpus": []')]
)
def test_once_without_a_driver_prints_the_host_and_fails(
    tmp_path: Path, flags: tuple[str, ...], printed: str
) -> None:
    result = run(tmp_path, "once", *flags)
    assert result.returncode == 1
    assert printed in result.stdout
    (error,) = [line for line in result.stderr.splitlines() if not line.startswith("time=")]
    assert error.startswith("gpu-bottleneck-exporter: no GPU metrics: ")
    assert error.endswith("/libnvidia-ml.so.1: file too short")


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path, "serve", *ANY_PORT) as server:
        yield server


def test_serve_without_a_driver_serves_the_host_and_names_the_missing_driver(
    serve: Server,
) -> None:
    status, text = serve.get()
    assert status == 200
    names = Metrics(text).names
    assert {"gpu_exporter_build_info", "process_resident_memory_bytes"} <= names
    assert "gpu_up" not in names
    assert "gpu_exporter_simulated 0.0\n" in text
    until(lambda: serve.get("/-/ready")[0] == 200, "readiness")
    assert "LIBRARY_NOT_FOUND" in serve.get("/-/ready")[1]
    assert serve.get("/-/healthy")[0] == 200
    assert "reinstall the driver&#x27;s libraries" in serve.get("/")[1]
    assert 'level=warning source=sampler msg="no GPU metrics; trying again" err="' in serve.said


def test_an_unusable_state_file_is_reported_at_the_start(tmp_path: Path) -> None:
    def refused(file: str, status: int = 2) -> str:
        result = run(tmp_path, "serve", *ANY_PORT, "--jobs.state-file", file)
        assert (result.returncode, result.stdout) == (status, "")
        return result.stderr

    (tmp_path / "folder").mkdir()
    start = "gpu-bottleneck-exporter: --jobs.state-file: "
    assert refused("folder") == f"{start}cannot write folder: Is a directory\n"
    sealed = refused("/proc/self/jobs")
    assert sealed == f"{start}cannot write /proc/self/jobs: No such file or directory\n"
    with serving(tmp_path, "serve", *ANY_PORT, "--jobs.state-file", "jobs") as first:
        until(lambda: "serving on " in first.said, "the first exporter")
        (tmp_path / "alias").symlink_to("jobs")
        for name in ("jobs", "alias"):  # a service manager tries again
            assert refused(name, 1) == f"{start}{name} is in use by another exporter\n"
        assert run(tmp_path, "check", "--jobs.state-file", "jobs").returncode == 1, "not locked"
    with serving(tmp_path, "serve", *ANY_PORT, "--jobs.state-file", "jobs") as next_one:
        until(lambda: "serving on " in next_one.said, "the next exporter")


@pytest.mark.parametrize(
    ("variables", "host"),
    [({}, "localhost"), ({"KUBERNETES_SERVICE_HOST": "192.0.2.1"}, socket.gethostname())],
    ids=["a machine", "a pod"],
)
def test_the_log_names_a_host_that_its_reader_knows(
    tmp_path: Path, variables: dict[str, str], host: str
) -> None:
    """Readers of a pod's log are elsewhere."""
    with serving(tmp_path, "serve", "--web.listen-address", ":0", **variables) as server:
        assert server.url.startswith(f"http://{host}:")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_serve(serve: Server, number: signal.Signals) -> None:
    assert serve.get("/-/healthy")[0] == 200
    serve.process.send_signal(number)
    assert serve.process.wait(PATIENCE_SECONDS) == 0
    assert serve.session() == {}
    assert "Traceback" not in serve.said


def test_the_environment_sets_values_without_a_flag(tmp_path: Path) -> None:
    variables = {
        "GPU_EXPORTER_WEB_LISTEN_ADDRESS": "127.0.0.1:0",
        "GPU_EXPORTER_WEB_TELEMETRY_PATH": "/elsewhere",
        "GPU_EXPORTER_LOG_FORMAT": "json",
    }
    with serving(tmp_path, "serve", "--log.format", "logfmt", **variables) as server:
        assert server.url.endswith("/elsewhere")
        assert server.get()[0] == 200
        assert server.get("/metrics")[0] == 404
        until(lambda: "no GPU metrics" in server.said, "the log line")
        assert " level=warning " in server.said


def test_sigterm_at_once_ends_the_demo_cleanly(tmp_path: Path) -> None:
    with serving(tmp_path, "demo", *ANY_PORT) as server:
        assert server.url
        boards = server.boards()
        assert server.terminate() == 0
        until(lambda: not server.session(), "the end of its processes")
        assert not any(board.exists() for board in boards)


SHOWN = {"gpu_busy_seconds_total", "gpu_sm_active_seconds_total", "gpu_processes", "gpu_info"}
OFF = {"power", "thermal"}


def test_a_demo_shows_simulated_gpus_fed_by_processes_of_which_nothing_is_left(
    tmp_path: Path,
) -> None:
    flags = (*ANY_PORT, "--no-collector.power", "--sampling.interval", "0.5")
    off = {"GPU_EXPORTER_COLLECTOR_THERMAL": "false"}
    with serving(tmp_path, "demo", *flags, **off) as server:

        def shown() -> Metrics | None:
            """The metrics, once they show all GPUs."""
            metrics = Metrics(server.get()[1])
            return metrics if metrics.names >= SHOWN and metrics.total("gpu_up") == GPUS else None

        metrics = until(shown, "the GPUs")
        page = server.get("/")[1]
        processes, boards = server.session(), server.boards()
        assert server.terminate() == 0
        until(lambda: not server.session(), "the end of its processes")
    assert metrics.total("gpu_exporter_simulated") == 1
    assert "SIMULATED" in server.said
    assert "Traceback" not in server.said
    assert "simulated" in page
    assert metrics.names.isdisjoint({f.name for c in ALL if c.name in OFF for f in c.families})
    assert "gpu_clock_hertz" in metrics.names
    collectors = metrics.by("collector", "gpu_exporter_collector_success")
    assert {"clocks", *OFF} & collectors.keys() == {"clocks"}
    loops = [words for words in processes.values() if "gpu_bottleneck_exporter.demo" in words]
    assert {words[4] for words in loops} == {job.name for job in JOBS}
    (board,) = boards
    assert not board.exists()


def test_a_demo_that_is_killed_takes_its_processes_along(tmp_path: Path) -> None:
    with serving(tmp_path, "demo", *ANY_PORT) as server:
        assert server.url
        until(server.boards, "its processes")
        server.process.kill()
        server.process.wait(PATIENCE_SECONDS)
        until(lambda: not server.session(), "the end of its processes")
