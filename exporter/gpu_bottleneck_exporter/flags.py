"""Options in Prometheus' style, also taken from the environment, and the settings they make."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import Field, fields
from functools import cache, wraps
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
_PATH = click.Path(readable=False, path_type=Path)
"""What may not be read is for `Settings` or `check` to report."""


class Command(click.Command):
    """A command whose help groups options by the word before their dot."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Options of its own, and those of the settings that it takes: made when it runs."""
        return [*super().get_params(ctx), *getattr(self.callback, "settings", list)()]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write options without a dot first, and all collectors in one entry."""
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
        """Commands as they are defined, not by name."""
        return list(self.commands)


def _collectors() -> tuple[str, str]:
    names = ", ".join(sorted(collector.name for collector in ALL))
    set_by = f"[env var: {ENVIRONMENT_PREFIX}COLLECTOR_NAME; default: all on]"
    what = f"Switch a collector on or off: {names}.  {set_by}"
    return "--collector.NAME / --no-collector.NAME", what


class Option(click.Option):
    """An option with its environment variable."""

    def __init__(self, declared: Sequence[str], **attributes: Any) -> None:
        """`declared`: its name with a word for its value, its short form, and its parameter.

        The latter only if it is not the name with underscores.
        """
        name, _, value = declared[0].partition(" ")
        variable = ENVIRONMENT_PREFIX + re.sub(r"[.-]", "_", name.partition("/")[0]).upper()
        attributes |= {"envvar": variable, "show_envvar": True, "show_default": True}
        super().__init__([f"--{name}", *declared[1:]], metavar=value or None, **attributes)


def flag(*declared: str, **attributes: Any) -> Decorator:
    """An `Option` as a decorator."""
    return click.option(*declared, cls=Option, **attributes)


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


def _of_setting(setting: Field[Any]) -> click.Option:
    """The option for a field of `Settings`, with its default and the type of that."""
    default = setting.default
    kind: Any = _PATH if isinstance(default, Path) else None
    if setting.name == "without":  # one word, as environment variables have no lists
        default, kind = "", _words
    return Option(
        [setting.metadata["flag"], setting.name],
        default=default,
        type=kind,
        is_flag=isinstance(default, bool),
        help=setting.metadata["help"],
    )


def _of_log(level: str) -> Iterator[click.Option]:
    levels, formats = click.Choice(LEVELS), click.Choice(FORMATS)
    about = "Lowest level to log."
    yield Option(["log.level", "log_level"], type=levels, default=level, help=about)
    about = "Format of log lines."
    yield Option(["log.format", "log_format"], type=formats, default="logfmt", help=about)


def _of_collectors() -> Iterator[click.Option]:
    for name in (collector.name for collector in ALL):
        both = f"collector.{name}/--no-collector.{name}"
        yield Option([both, f"collector_{name}"], default=True, help=f"The {name} collector.")


def settings_flags(web: str | tuple[()] = (), log_level: str = "error") -> Decorator:
    """Options that become a `Settings`, which the command gets as its first argument.

    `web`: how those flags begin that are taken of the ones for the web server; none by default.
    """
    wanted = [
        setting
        for setting in fields(Settings)
        if (name := setting.metadata.get("flag"))
        and (not name.startswith("web.") or name.startswith(web))
    ]

    @cache
    def settings() -> list[click.Option]:
        return [*map(_of_setting, wanted), *_of_log(log_level), *_of_collectors()]

    def decorate(function: Function) -> Function:
        @wraps(function)
        def command(**values: Any) -> None:
            configure(values.pop("log_level"), values.pop("log_format"))
            disabled = frozenset(c.name for c in ALL if not values.pop(f"collector_{c.name}"))
            chosen = {setting.name: values.pop(setting.name) for setting in wanted}
            function(Settings(disabled_collectors=disabled, **chosen), **values)

        command.settings = settings  # type: ignore[attr-defined]
        return command

    return decorate
