"""Settings that make no sense end the command with one line that says which."""

from __future__ import annotations

import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gpu_bottleneck_exporter.cli import commands
from gpu_bottleneck_exporter.errors import SettingsError
from support.command import ANY_PORT, run


def refusal(result: subprocess.CompletedProcess[str], status: int = 2) -> str:
    """Refusal of the command, in one line."""
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (status, "", 1)
    start, _, outcome = result.stderr.partition(": ")
    assert start == "gpu-bottleneck-exporter"
    return outcome


def mistake(*typed: str) -> str:
    """Mistake in one line: the last one of the command."""
    result = CliRunner().invoke(commands, typed, standalone_mode=False)
    error = result.exception
    if isinstance(error, click.UsageError):
        status, outcome = error.exit_code, error.format_message()
    else:
        assert isinstance(error, SettingsError), error
        status, outcome = error.status, f"{error}"
    assert (status, result.output, outcome.count("\n")) == (2, "", 0)
    return outcome


MISTAKES = {
    "servce": "No such command 'servce'.",
    "serve --log.level loud": "Invalid value for '--log.level'",
    "serve --sampling.interval 10ms": "--sampling.interval must be 0.2 s to 5 s, not 0.01",
    "serve --sampling.deadline 2h": "--sampling.deadline must be 2 s (twice",
    "serve --sampling.interval=4 --sampling.deadline=7": "--sampling.deadline must be 8 s (twice",
    "serve --node.name node7/3": "--node.name: 'node7/3' is not the name of a host",
    "check --node.name node7:": "--node.name: 'node7:' is not the name of a host",
    "serve --without kubelet,gpu_up": "--without: 'gpu_up' is not a signal that can be omitted",
    "check --without gpu_up": "--without: 'gpu_up' is not a signal that can be omitted",
    "top --without gpu_up": "--without: 'gpu_up' is not a signal that can be omitted",
    "serve --web.config.file missing.yml": "--web.config.file missing.yml: it cannot be read",
    "check --web.listen-address :0": "No such option",
    "check --diagnose 0": "Invalid value for '--diagnose': 0 is not in the range",
    "diagnose 2h": "Invalid value for '[SECONDS]': 2h is not in the range 1s to 1h",
    "diagnose 30sec": "Invalid value for '[SECONDS]': '30sec' is not a valid duration",
    "top --interval 0": "Invalid value for '--interval': 0 is not in the range",
    "top --url http://": "Invalid value for '--url' (env var: 'GPU_EXPORTER_URL'): 'http://'",
    "top --url node7:99999": "Invalid value for '--url'",
    "top --url https://x --ca-file /no/such/file": "Invalid value for '--ca-file'",
    "top --url https://x --ca-file /proc/self/stat": "--ca-file: cannot use /proc/self/stat",
    "rules --for-scale 0": "--for-scale must be 0.01 to 10000, not 0",
    "rules --name gpu": "--name: only with --prometheusrule",
    "dashboards flet": "There is no dashboard 'flet'. Did you mean 'fleet'?",
    "dashboards fleet --output .": "--output writes all dashboards: omit the name",
    "runbook gpustragler": "There is no runbook 'gpustragler'. Did you mean 'GpuStraggler'",
    "runbook ../alerts": "There is no runbook '../alerts'.",
}
"""Arguments of users, and the beginning of the line that rejects them."""


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_reported_in_one_line(typed: str) -> None:
    assert mistake(*typed.split(" ")).startswith(MISTAKES[typed])


def test_so_it_is_by_the_command(tmp_path: Path) -> None:
    for typed in ("servce", "serve --sampling.interval 10ms"):
        assert refusal(run(tmp_path, *typed.split(" "))).startswith(MISTAKES[typed])


FAILURES = {
    "top --once --interval 500ms --url 127.0.0.1:1": "cannot read http://127.0.0.1:1/api/v1/node: ",
    "rules --output /proc/gpu": "--output: cannot write /proc/gpu: No such file",
    "serve --web.listen-address no.invalid:1": "Cannot listen on 'no.invalid:1'",
}
"""Correct arguments whose command fails."""


@pytest.mark.parametrize("typed", FAILURES)
def test_a_failure_has_another_status(tmp_path: Path, typed: str) -> None:
    assert refusal(run(tmp_path, *typed.split(" ")), status=1).startswith(FAILURES[typed])


def test_a_password_is_not_repeated(tmp_path: Path) -> None:
    assert "secret" not in refusal(run(tmp_path, "top", "--url", "http://alice:secret@node:x"))


@pytest.mark.parametrize(
    ("typed", "name", "value"),
    [
        ("serve --log.level DEBUG", "log_level", "debug"),
        ("serve --sampling.interval 500ms", "interval_seconds", 0.5),
        ("serve --stall.longest-answer 1m", "longest_answer_seconds", 60.0),
        ("serve --web.runbook-base wiki/gpu", "runbook_base", "http://wiki/gpu"),
        ("check --diagnose 30s", "seconds", 30.0),
        ("diagnose 1m30s", "seconds", 90.0),
        ("top --url node:10170", "url", "http://node:10170"),
        ("top --url alice:pw@[::1]:10170/gpu", "url", "http://alice:pw@[::1]:10170/gpu"),
        ("top --url HTTPS://node", "url", "HTTPS://node"),
        ("rules --grafana-url grafana:3000", "grafana_url", "http://grafana:3000"),
    ],
)
def test_values_are_taken_as_people_write_them(typed: str, name: str, value: object) -> None:
    command, *arguments = typed.split(" ")
    with commands.commands[command].make_context(command, arguments) as context:
        assert context.params[name] == value


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("LOG_LEVL", "ignored 'GPU_EXPORTER_LOG_LEVL'. Did you mean 'GPU_EXPORTER_LOG_LEVEL'"),
        ("JSON", "ignored 'GPU_EXPORTER_JSON'.\n"),
        ("COLLECTOR_POWR", "ignored 'GPU_EXPORTER_COLLECTOR_POWR'. Did you mean"),
    ],
)
def test_a_variable_that_is_none_is_named(tmp_path: Path, name: str, said: str) -> None:
    result = run(tmp_path, "dashboards", **{f"GPU_EXPORTER_{name}": "1"})
    assert (result.returncode, result.stderr.count("\n")) == (0, 1)
    assert result.stderr.startswith(f"gpu-bottleneck-exporter: {said}")


def test_variables_of_any_command_and_of_a_kubernetes_service_are_in_order(tmp_path: Path) -> None:
    service = {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT_METRICS": "80",
        "PORT": "tcp://10.0.0.1:80",
    }
    others = {"PORT_80_TCP_ADDR": "10.0.0.1", "WEB_SERVICE_HOST": "10.0.0.2"}
    values = {"LOG_LEVEL": "info", "URL": "node7", "WEB_TELEMETRY_PATH": "/x", "WITHOUT": "kubelet"}
    fields = {f"GPU_EXPORTER_{name}": value for name, value in (service | others | values).items()}
    assert run(tmp_path, "dashboards", **fields).stderr == ""


BAD = {
    "--sampling.interval": ("0", "-1", "0.19", "5.01", "abc", "nan", "inf", ""),
    "--sampling.deadline": ("0", "-1", "1.99", "abc", "nan", "inf", "-inf"),
    "--stall.longest-answer": ("0.9", "3601", "nan"),
    "--web.telemetry-path": (
        *("/", "", "metrics", "/-/metrics", "/-/ready", "/api/v1/node"),
        *("/a b", "/a?b", "/a#b", "/a%20b", "/a\nb", "/größe"),
    ),
    "--web.runbook-base": ("", "javascript:alert(1)", "https://a b", "http://<", "https://"),
    "--web.listen-address": (
        *("", "nonsense", "10170", ":", ":abc", ":99999", ":-1", "::1:10170", "[::1]", "a b:1"),
    ),
}


@pytest.mark.parametrize(("flag", "value"), [(flag, v) for flag in BAD for v in BAD[flag]])
def test_bad_values(flag: str, value: str) -> None:
    result = mistake("serve", *ANY_PORT, f"{flag}={value}")
    assert flag in result or (flag == "--web.listen-address" and repr(value) in result)


@pytest.mark.parametrize("flag", ["--path.procfs", "--path.sysfs"])
@pytest.mark.parametrize("command", ["serve", "demo", "check"])
def test_folders_that_cannot_be_read(tmp_path: Path, command: str, flag: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "stat").mkdir()  # root reads whatever its mode says; not this
    others = [tmp_path / "missing", tmp_path / "file"]
    for path in [*others, *([tmp_path] if flag == "--path.procfs" else [])]:
        assert f"{flag}: cannot read {path}" in refusal(run(tmp_path, command, flag, f"{path}"))


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("SAMPLING_INTERVAL", "abc", "GPU_EXPORTER_SAMPLING_INTERVAL"),
        ("LOG_LEVEL", "loud", "GPU_EXPORTER_LOG_LEVEL"),
        ("COLLECTOR_POWER", "maybe", "--collector.power"),
        ("DRIVER_WAKE_SUSPENDED", "maybe", "GPU_EXPORTER_DRIVER_WAKE_SUSPENDED"),
    ],
)
def test_bad_environment(tmp_path: Path, variable: str, value: str, named: str) -> None:
    assert named in refusal(run(tmp_path, "serve", **{f"GPU_EXPORTER_{variable}": value}))
