"""Settings that make no sense end the command with one line that says which."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.settings import Settings
from support.command import ANY_PORT, run


def refuse(folder: Path, *arguments: str, **variables: str) -> str:
    """The one line with which the command refuses."""
    result = run(folder, *arguments, **variables)
    assert result.returncode != 0
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("gpu-bottleneck-exporter: ")
    return result.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "command"),
        (["nonsense"], "nonsense"),
        (["--nonsense"], "--nonsense"),
        (["serve", "--nonsense"], "--nonsense"),
        (["serve", "nonsense"], "nonsense"),
        (["serve", "--no-collector.nonsense"], "--no-collector.nonsense"),
        (["check", "--web.listen-address", ":0"], "--web.listen-address"),
        (["serve", "--sampling.interval"], "--sampling.interval"),
        (["serve", "--log.level", "loud"], "--log.level"),
        (["serve", "--log.format", "xml"], "--log.format"),
    ],
)
def test_unknown_words_are_refused(tmp_path: Path, arguments: list[str], named: str) -> None:
    assert named in refuse(tmp_path, *arguments)


BAD = {
    "--sampling.interval": ("0", "-1", "0.19", "5.01", "abc", "nan", "inf", ""),
    "--sampling.deadline": ("0", "-1", "1.99", "abc", "nan", "inf", "-inf"),
    "--stall.longest-answer": ("0.9", "3601", "nan"),
    "--web.telemetry-path": (
        *("/", "", "metrics", "/-/metrics", "/-/ready", "/api/v1/node"),
        *("/a b", "/a?b", "/a#b", "/a%20b", "/a\nb", "/größe"),
    ),
    "--web.runbook-base": ("", "runbooks", "javascript:alert(1)", "https://a b", "http://<"),
    "--web.listen-address": (
        *("", "nonsense", "10170", ":", ":abc", ":99999", ":-1"),
        *("::1:10170", "[::1]", "a b:1", "no.invalid:1"),
    ),
}


@pytest.mark.parametrize(("flag", "value"), [(flag, v) for flag in BAD for v in BAD[flag]])
def test_bad_values(tmp_path: Path, flag: str, value: str) -> None:
    said = refuse(tmp_path, "serve", *ANY_PORT, f"{flag}={value}")
    assert flag in said or (flag == "--web.listen-address" and repr(value) in said)


def test_the_deadline_must_fit_the_interval(tmp_path: Path) -> None:
    said = refuse(tmp_path, "serve", "--sampling.interval=4", "--sampling.deadline=7")
    assert "--sampling.deadline" in said
    assert "8 s" in said


@pytest.mark.parametrize(
    "arguments",
    [
        ["top", "--url", "node7"],
        ["top", "--url", "https://x", "--ca-file", "/no/such/file"],
        ["top", "--url", "https://x", "--ca-file", "/proc/self/stat"],
        ["top", "--interval", "0"],
        ["top", "--count", "0"],
        ["top", "--sort", "name"],
        *(["check", "--diagnose", value] for value in ("0", "-1", "x", "99999")),
    ],
    ids=lambda arguments: " ".join(arguments[-2:]),
)
def test_bad_options_of_a_command(tmp_path: Path, arguments: list[str]) -> None:
    assert arguments[-2] in refuse(tmp_path, *arguments)


@pytest.fixture
def occupied() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("command", ["serve", "demo"])
def test_a_port_in_use(tmp_path: Path, occupied: str, command: str) -> None:
    said = refuse(tmp_path, command, "--web.listen-address", occupied)
    assert occupied in said
    assert "already" in said


@pytest.mark.parametrize("flag", ["--path.procfs", "--path.sysfs"])
@pytest.mark.parametrize("command", ["serve", "demo", "check"])
def test_folders_that_cannot_be_read(tmp_path: Path, command: str, flag: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "stat").mkdir()  # root reads whatever its mode says; not this
    others = [tmp_path / "missing", tmp_path / "file"]
    for path in [*others, *([tmp_path] if flag == "--path.procfs" else [])]:
        assert f"{flag}: cannot read {path}" in refuse(tmp_path, command, flag, f"{path}")


@pytest.mark.parametrize("command", ["serve", "check", "top"])
def test_one_cannot_do_without_what_is_no_signal(tmp_path: Path, command: str) -> None:
    said = refuse(tmp_path, command, "--without", "kubelet,gpu_up")
    assert "--without: 'gpu_up' is not a signal that can be omitted" in said
    assert "host_pids, kubelet" in said


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("SAMPLING_INTERVAL", "abc", "GPU_EXPORTER_SAMPLING_INTERVAL"),
        ("SAMPLING_INTERVAL", "99", "--sampling.interval"),
        ("SAMPLING_INTERVAL", "nan", "--sampling.interval"),
        ("SAMPLING_DEADLINE", "abc", "GPU_EXPORTER_SAMPLING_DEADLINE"),
        ("LOG_LEVEL", "loud", "GPU_EXPORTER_LOG_LEVEL"),
        ("WEB_TELEMETRY_PATH", "/", "--web.telemetry-path"),
        ("WEB_LISTEN_ADDRESS", "nonsense", "nonsense"),
        ("PATH_PROCFS", "/nonexistent", "--path.procfs"),
        ("COLLECTOR_POWER", "maybe", "--collector.power"),
        ("DRIVER_WAKE_SUSPENDED", "maybe", "GPU_EXPORTER_DRIVER_WAKE_SUSPENDED"),
    ],
)
def test_bad_environment(tmp_path: Path, variable: str, value: str, named: str) -> None:
    assert named in refuse(tmp_path, "serve", **{f"GPU_EXPORTER_{variable}": value})


@pytest.mark.parametrize(("interval", "deadline"), [(0.2, 0.4), (1.0, 5.0), (5.0, 10.0)])
def test_sensible_settings(interval: float, deadline: float) -> None:
    settings = Settings(interval_seconds=interval, deadline_seconds=deadline)
    assert (settings.interval_seconds, settings.deadline_seconds) == (interval, deadline)
