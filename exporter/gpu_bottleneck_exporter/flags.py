"""The options that commands share, with their environment variables, and the settings they make."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.helptext import COLLECTORS, ENVIRONMENT_PREFIX, Option
from gpu_bottleneck_exporter.log import FORMATS, LEVELS, configure
from gpu_bottleneck_exporter.settings import Settings

Function = Callable[..., None]
Decorator = Callable[[Function], Function]
_DEFAULTS = {field.name: field.default for field in fields(Settings)}


def flag(name: str, *names: str, **attributes: Any) -> Decorator:
    """An option in Prometheus' style, also taken from the environment.

    `names`: its short form, and its parameter if that is not `name` with underscores.
    """
    variable = ENVIRONMENT_PREFIX + name.replace(".", "_").replace("-", "_").upper()
    shown = {"show_envvar": True, "show_default": True}
    return click.option(f"--{name}", *names, cls=Option, envvar=variable, **shown, **attributes)


def _setting(name: str, field: str, **attributes: Any) -> Decorator:
    """An option for a field of `Settings`, with its default."""
    return flag(name, field, **{"default": _DEFAULTS[field], **attributes})


_MOUNT = click.Path(path_type=Path)
_sampling = functools.partial(_setting, section="Sampling")
_kubernetes = functools.partial(_setting, section="Kubernetes")
_web = functools.partial(_setting, section="Web")


def _logging(what: str, choices: Sequence[str], **attributes: Any) -> Decorator:
    kind = click.Choice(choices)
    return flag(f"log.{what}", f"log_{what}", section="Logging", type=kind, **attributes)


as_json = flag(
    "json",
    "as_json",
    section="Output",
    is_flag=True,
    help="Print JSON, one document per line: seconds, bytes, ratios 0-1; null is unknown.",
)
"""The same option for all commands that report."""


def _words(value: str | frozenset[str]) -> frozenset[str]:
    """Words separated by commas."""
    return value if isinstance(value, frozenset) else frozenset(value.replace(",", " ").split())


SAMPLING = (
    _sampling(
        "sampling.interval",
        "interval_seconds",
        metavar="SECONDS",
        help="Time between two readings of a GPU, 0.2 to 5.",
    ),
    _sampling(
        "sampling.deadline",
        "deadline_seconds",
        metavar="SECONDS",
        help="Report a GPU as down if it does not answer within this time.",
    ),
    _sampling(
        "stall.longest-answer",
        "longest_answer_seconds",
        metavar="SECONDS",
        help="A feeder that waits longer for another machine's answer is not slowed down by the "
        "network: it long-polls, or its peer is dead.",
    ),
    _sampling(
        "driver.wake-suspended",
        "wake_suspended",
        is_flag=True,
        help="Also read GPUs suspended by runtime power management, which keeps them awake.",
    ),
    _sampling(
        "without",
        "without",
        # One word, as environment variables have no lists.
        type=_words,
        default="",
        metavar="SIGNAL,...",
        help="Signals that you do not need, such as host_pids,kubelet. They are not reported as "
        "gaps and gpu_exporter_signal_available omits them.",
    ),
    _sampling("path.procfs", "procfs", type=_MOUNT, help="Where the host's procfs is mounted."),
    _sampling("path.sysfs", "sysfs", type=_MOUNT, help="Where the host's sysfs is mounted."),
    _kubernetes(
        "kubelet.socket",
        "kubelet_socket",
        # Where it may not be read, `check` is to report that and everything else is to work.
        type=click.Path(readable=False, path_type=Path),
        help="The kubelet's pod-resources socket. Without it, pods that have not opened their GPU "
        "are not seen.",
    ),
    _kubernetes(
        "kubelet.container-logs",
        "container_logs",
        type=click.Path(readable=False, path_type=Path),
        help="Where the host's /var/log/containers is mounted. Only the file names are read.",
    ),
    _kubernetes(
        "kubelet.cdi",
        "cdi",
        type=click.Path(readable=False, path_type=Path),
        help="Where the host's /var/run/cdi is mounted: which MIG instance a claim was given.",
    ),
    _setting(
        "slurm.job-mapping-dir",
        "job_mapping_dir",
        section="Slurm",
        type=click.Path(readable=False, path_type=Path),
        help="Folder in which a prolog writes which job was given which GPU, as for jobstats or "
        "dcgm-exporter: jobs that have not opened their GPU are seen.",
    ),
)


def _log(level: str) -> tuple[Decorator, ...]:
    return (
        _logging("level", LEVELS, default=level, help="Lowest level to log."),
        _logging("format", FORMATS, default="logfmt", help="Format of log lines."),
    )


SERVING = _log("info")
REPORTING = _log("error")
WEB_CONFIG = (
    _web(
        "web.config.file",
        "web_config_file",
        metavar="FILE",
        help="TLS and users, in the format of Prometheus' exporter-toolkit.",
    ),
)
WEB = (
    _web(
        "web.listen-address",
        "listen_address",
        metavar="ADDRESS",
        help="Address to listen on, such as :10170, 127.0.0.1:10170 or [::1]:10170.",
    ),
    _web("web.telemetry-path", "telemetry_path", metavar="PATH", help="Path of the metrics."),
    _web(
        "web.runbook-base",
        "runbook_base",
        metavar="URL",
        help="Base URL of the runbooks that the status page links to.",
    ),
)


def settings_flags(*groups: Sequence[Decorator]) -> Decorator:
    """Options that become a `Settings`, which the command gets as its first argument."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def command(**values: Any) -> None:
            configure(values.pop("log_level"), values.pop("log_format"))
            disabled = frozenset(c.name for c in ALL if not values.pop(f"collector_{c.name}"))
            chosen = {name: values.pop(name) for name in _DEFAULTS.keys() & values.keys()}
            function(Settings(disabled_collectors=disabled, **chosen), **values)

        wrapped = _collector_flags(command)
        for option in reversed([option for group in groups for option in group]):
            wrapped = option(wrapped)
        return wrapped

    return decorate


def _collector_flags(command: Function) -> Function:
    """`--collector.X/--no-collector.X` for each collector."""
    for collector in reversed(ALL):
        command = click.option(
            f"--collector.{collector.name}/--no-collector.{collector.name}",
            f"collector_{collector.name}",
            envvar=f"{ENVIRONMENT_PREFIX}COLLECTOR_{collector.name.upper()}",
            default=True,
            help=f"The {collector.name} collector.",
            cls=Option,
            section=COLLECTORS,
        )(command)
    return command
