"""Options in Prometheus' style, also taken from the environment, and the settings they make."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.log import FORMATS, LEVELS, configure
from gpu_bottleneck_exporter.settings import Settings

PROGRAM = "gpu-bottleneck-exporter"
ENVIRONMENT_PREFIX = "GPU_EXPORTER_"
Function = Callable[..., None]
Decorator = Callable[[Function], Function]
_DEFAULTS = {field.name: field.default for field in fields(Settings)}
_PATH = click.Path(readable=False, path_type=Path)
"""What may not be read is for `Settings` or `check` to report."""


class Command(click.Command):
    """A command whose help groups options by the word before their dot."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Those without a dot first; all collectors in one entry."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for option in self.get_params(ctx):
            subject, dot, _ = option.opts[0].removeprefix("--").partition(".")
            if record := option.get_help_record(ctx):
                sections.setdefault(subject.title() if dot else "Options", []).append(record)
        if "Collector" in sections:
            sections["Collector"] = [_collectors()]
        for section, records in sections.items():
            with formatter.section(section):
                formatter.write_dl(records)


class Group(click.Group):
    """The program: its commands in the order of their definition, the most useful first."""

    command_class = Command

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """As defined, not by name."""
        return list(self.commands)


def _collectors() -> tuple[str, str]:
    names = ", ".join(sorted(collector.name for collector in ALL))
    set_by = f"[env var: {ENVIRONMENT_PREFIX}COLLECTOR_NAME; default: all on]"
    what = f"Switch a collector on or off: {names}.  {set_by}"
    return "--collector.NAME / --no-collector.NAME", what


def flag(name: str, *names: str, **attributes: Any) -> Decorator:
    """An option with its environment variable.

    `names`: its short form, and its parameter if that is not `name` with underscores.
    """
    variable = ENVIRONMENT_PREFIX + re.sub(r"[.-]", "_", name.partition("/")[0]).upper()
    attributes |= {"show_envvar": True, "show_default": True}
    return click.option(f"--{name}", *names, envvar=variable, **attributes)


def _setting(name: str, field: str, **attributes: Any) -> Decorator:
    """An option for a field of `Settings`, with its default and the type of that."""
    default = _DEFAULTS[field]
    kind = _PATH if isinstance(default, Path) else None
    return flag(name, field, **{"default": default, "type": kind, **attributes})


as_json = flag(
    "json",
    "as_json",
    is_flag=True,
    help="Print JSON, one document per line: seconds, bytes, ratios 0-1; null is unknown.",
)
"""The same option for all commands that report."""


def _words(value: str | frozenset[str]) -> frozenset[str]:
    """Words separated by commas."""
    return value if isinstance(value, frozenset) else frozenset(value.replace(",", " ").split())


SAMPLING = (
    _setting(
        "sampling.interval",
        "interval_seconds",
        metavar="SECONDS",
        help="Time between two readings of a GPU, 0.2 to 5.",
    ),
    _setting(
        "sampling.deadline",
        "deadline_seconds",
        metavar="SECONDS",
        help="Report a GPU as down if it does not answer within this time.",
    ),
    _setting(
        "stall.longest-answer",
        "longest_answer_seconds",
        metavar="SECONDS",
        help="A feeder that waits longer for another machine's answer is not slowed down by the "
        "network: it long-polls, or its peer is dead.",
    ),
    _setting(
        "driver.wake-suspended",
        "wake_suspended",
        is_flag=True,
        help="Also read GPUs suspended by runtime power management, which keeps them awake.",
    ),
    _setting(
        "without",
        "without",
        # One word, as environment variables have no lists.
        type=_words,
        default="",
        metavar="SIGNAL,...",
        help="Signals that you do not need, such as host_pids,kubelet. They are not reported as "
        "gaps and gpu_exporter_signal_available omits them.",
    ),
    _setting("path.procfs", "procfs", help="Where the host's procfs is mounted."),
    _setting("path.sysfs", "sysfs", help="Where the host's sysfs is mounted."),
    _setting(
        "kubelet.socket",
        "kubelet_socket",
        help="The kubelet's pod-resources socket. Without it, pods that have not opened their GPU "
        "are not seen.",
    ),
    _setting(
        "kubelet.container-logs",
        "container_logs",
        help="Where the host's /var/log/containers is mounted. Only the file names are read.",
    ),
    _setting(
        "kubelet.cdi",
        "cdi",
        help="Where the host's /var/run/cdi is mounted: which MIG instance a claim was given.",
    ),
    _setting(
        "slurm.job-mapping-dir",
        "job_mapping_dir",
        help="Folder in which a prolog writes which job was given which GPU, as for jobstats or "
        "dcgm-exporter: jobs that have not opened their GPU are seen.",
    ),
)


def _log(level: str) -> tuple[Decorator, ...]:
    levels, formats = click.Choice(LEVELS), click.Choice(FORMATS)
    return (
        flag("log.level", "log_level", type=levels, default=level, help="Lowest level to log."),
        flag(
            "log.format", "log_format", type=formats, default="logfmt", help="Format of log lines."
        ),
    )


SERVING = _log("info")
REPORTING = _log("error")
WEB_CONFIG = (
    _setting(
        "web.config.file",
        "web_config_file",
        metavar="FILE",
        help="TLS and users, in the format of Prometheus' exporter-toolkit.",
    ),
)
WEB = (
    _setting(
        "web.listen-address",
        "listen_address",
        metavar="ADDRESS",
        help="Address to listen on, such as :10170, 127.0.0.1:10170 or [::1]:10170.",
    ),
    _setting("web.telemetry-path", "telemetry_path", metavar="PATH", help="Path of the metrics."),
    _setting(
        "web.runbook-base",
        "runbook_base",
        metavar="URL",
        help="Base URL of the runbooks that the status page links to.",
    ),
)


COLLECTORS = tuple(
    flag(
        f"collector.{collector.name}/--no-collector.{collector.name}",
        f"collector_{collector.name}",
        default=True,
        help=f"The {collector.name} collector.",
    )
    for collector in ALL
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

        wrapped: Function = command
        for option in reversed([*itertools.chain(*groups), *COLLECTORS]):
            wrapped = option(wrapped)
        return wrapped

    return decorate
