"""Options in Prometheus' style, and the settings made from them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import Field, fields
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from gpu_bottleneck_exporter.log import LOG_FORMATS, LOG_LEVELS, configure
from gpu_bottleneck_exporter.settings import Settings

PROGRAM = "gpu-bottleneck-exporter"
ENVIRONMENT_PREFIX = "GPU_EXPORTER_"
Function = Callable[..., None]
Decorator = Callable[[Function], Function]
_SHOWN_SETTINGS = frozenset({"web.listen-address", "web.config.file", "log.level"})
"""The settings that --help shows; --help-all shows all."""
_HIDDEN_OPTIONS = frozenset(
    {"ca-file", "diagnose", "for-scale", "no-keep-firing-for", "no-prescriptions"}
)
"""The other options that only --help-all shows."""
_HELP_ALL_KEY = f"{__name__}.all"
"""Key of the context's metadata under --help-all."""
_DURATION_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION_PART = r"(\d+(?:\.\d+)?)(ms|[smhdw])"
# Not the variables that Kubernetes sets for a service, which may be called gpu-exporter.
_OWN_VARIABLE = re.compile(
    r"(?!\w*_(SERVICE_(HOST|PORT\w*)|PORT_\d+_\w+)=|\w*_PORT=\w+://)"
    rf"(?P<name>{ENVIRONMENT_PREFIX}.*?)="
)


class Amount(click.FloatRange):
    """A number from `min`, or 0, to `max`; errors quote the input."""

    name, example = "number", ""

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse a number and check its range."""
        amount = math.nan
        with suppress(ValueError):
            amount = self.parsed(value)
        if math.isnan(amount):
            self.fail(f"{value!r} is not a valid {self.name}{self.example}.", param, ctx)
        if not (self.min or 0) <= amount <= (math.inf if self.max is None else self.max):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return amount

    def parsed(self, value: str | float) -> float:
        """Parse a number. Raises ValueError."""
        return float(value) + 0.0  # not -0

    def written(self, amount: float) -> str:
        """Format a number as users type it."""
        return f"{amount:.12g}"

    def _describe_range(self) -> str:
        """The range for the help; empty where `Settings` checks it."""
        low, high = self.min or 0, self.max
        return "" if high is None else f"{self.written(low)} to {self.written(high)}"


class Seconds(Amount):
    """Seconds as a number, or as a Prometheus duration such as 500ms or 1m30s."""

    name, example = "duration", ", such as 90, 90s or 1m30s"

    def parsed(self, value: str | float) -> float:
        """Parse seconds or a duration. Raises ValueError."""
        if isinstance(value, str) and re.fullmatch(f"({_DURATION_PART})+", value):
            parts = re.findall(_DURATION_PART, value)
            return float(sum(float(count) * _DURATION_SECONDS[unit] for count, unit in parts))
        return super().parsed(value)

    def written(self, amount: float) -> str:
        """Format as an integer multiple of the largest unit: 3650d, 1m, 500ms."""
        units = ((name, round(amount / length, 6)) for name, length in _DURATION_SECONDS.items())
        return [
            f"{count:g}{name}"
            for name, count in units
            if count == int(count) and (count or name == "s")
        ][-1]


def url_of(value: str) -> str:
    """A URL, with the scheme http by default."""
    url = value if "://" in value else f"http://{value}"
    with suppress(ValueError):
        parts = urlsplit(url)
        well_formed = re.fullmatch(r"https?://[^\s\"'<>{}]+", url, re.IGNORECASE)
        if well_formed and parts.hostname and parts.port != 0:
            return url
    bare = value.rpartition("@")[2]  # no password on the terminal
    raise click.BadParameter(f"{bare!r} is not like http://node7:10170.")


def _words(value: str | frozenset[str]) -> frozenset[str]:
    return value if isinstance(value, frozenset) else frozenset(value.replace(",", " ").split())


_TYPES: Mapping[str, object] = {
    "SECONDS": Seconds(),
    "URL": url_of,
    "SIGNAL,...": _words,
    "VARIABLE,...": _words,
}
"""Type by metavar."""


def nearest(word: str, choices: Iterable[str], cutoff: float = 0.6) -> str:
    """Suggest similar choices in click's words; empty if there are none."""
    from difflib import get_close_matches  # noqa: PLC0415 - only for mistakes

    matches = get_close_matches(word, choices, 2, cutoff)
    return f" Did you mean {' or '.join(map(repr, matches))}?" if matches else ""


def _print_all(ctx: click.Context, _: click.Parameter, enabled: bool) -> None:  # noqa: FBT001
    if enabled:
        ctx.meta[_HELP_ALL_KEY] = True
        click.echo(ctx.get_help())
        for name, command in getattr(ctx.command, "commands", {}).items():
            click.echo(f"\n{command.get_help(click.Context(command, ctx, name))}")
        ctx.exit()


_HELP_ALL_OPTION = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_all,
    help="Show the rest of the options, too.",
)


class Command(click.Command):
    """A command with help sections by option prefix."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The command's options and those of its settings, created on use."""
        own = super().get_params(ctx)
        return [*own, _HELP_ALL_OPTION, *getattr(self.callback, "settings", list)()]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write options without a dot first, and collectors as one entry."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for option in (options := self.get_params(ctx)):
            subject, dot, _ = option.opts[0].removeprefix("--").partition(".")
            record = option.get_help_record(ctx)
            if record and (ctx.meta.get(_HELP_ALL_KEY) or not getattr(option, "seldom", False)):
                sections.setdefault(subject.title() if dot else "Options", []).append(record)
        if "Collector" in sections:
            sections["Collector"] = [_collectors(options)]
        for section, records in sections.items():
            with formatter.section(section):
                formatter.write_dl(records)


class Group(click.Group):
    """The program, with commands in order of definition."""

    command_class = Command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; `help COMMAND` is `COMMAND --help`."""
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The program's own options."""
        return [*super().get_params(ctx), _HELP_ALL_OPTION]

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; unknown variables are only reported."""
        matches = (_OWN_VARIABLE.match(f"{name}={value}") for name, value in os.environ.items())
        if variables := {match["name"] for match in matches if match}:
            options = (it for command in self.commands.values() for it in command.get_params(ctx))
            valid = {f"{option.envvar}" for option in options}
            for name in sorted(variables - valid):
                click.echo(f"{PROGRAM}: ignored {name!r}.{nearest(name, valid, 0.85)}", err=True)
        return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Commands in order of definition."""
        return list(self.commands)


def _collectors(options: Iterable[click.Parameter]) -> tuple[str, str]:
    switches = [option for option in options if option.opts[0].startswith("--collector.")]
    names = ", ".join(sorted(switch.opts[0].partition(".")[2] for switch in switches))
    off = ", ".join(s.opts[0].partition(".")[2] for s in switches if not s.default)
    set_by = f"[env var: {ENVIRONMENT_PREFIX}COLLECTOR_NAME; default: all on but {off}]"
    text = f"Switch a collector on or off: {names}.  {set_by}"
    return "--collector.NAME / --no-collector.NAME", text


class Option(click.Option):
    """An option that shows its default and environment variable."""

    def __init__(self, declared: Sequence[str], **attributes: Any) -> None:
        """`declared`: name and metavar, then optionally a short form and the parameter's name."""
        name, _, value = declared[0].partition(" ")
        self.seldom = name in _HIDDEN_OPTIONS or ("." in name and name not in _SHOWN_SETTINGS)
        attributes["type"] = attributes.get("type") or _TYPES.get(value)
        attributes |= {"show_envvar": True, "show_default": True}
        super().__init__([f"--{name}", *declared[1:]], metavar=value or None, **attributes)


flag = partial(click.option, cls=Option)
"""Decorator that adds an `Option`."""
as_json = flag(
    "json",
    "as_json",
    is_flag=True,
    help="Print JSON, one document per line: seconds, bytes, ratios 0-1; null is unknown.",
)
"""Decorator that adds --json."""


def _setting(declared: str, name: str, text: str, default: object, kind: object = None) -> Option:
    """An option with an environment variable; `text` is its help."""
    option = re.split("[ /]", declared)[0]
    variable = ENVIRONMENT_PREFIX + re.sub(r"[.-]", "_", option).upper()
    options = {"type": kind, "default": default, "is_flag": isinstance(default, bool), "help": text}
    return Option([declared, name], envvar=variable, **options)


def _setting_option(setting: Field[object]) -> Option:
    # A string, as environment variables have no lists.
    default = "" if isinstance(setting.default, frozenset) else setting.default
    # `Settings` or `check` report unreadable paths.
    path = click.Path(readable=False, path_type=Path)
    kind = path if isinstance(default, Path) else None
    return _setting(setting.metadata["flag"], setting.name, setting.metadata["help"], default, kind)


def _log_options(level: str) -> Iterator[Option]:
    levels, formats = click.Choice(LOG_LEVELS, case_sensitive=False), click.Choice(LOG_FORMATS)
    yield _setting("log.level", "log_level", "Lowest level to log.", level, levels)
    yield _setting("log.format", "log_format", "Format of log lines.", "logfmt", formats)


def _collector_options(collectors: Mapping[str, bool]) -> Iterator[Option]:
    for name, on in collectors.items():
        both = f"collector.{name}/--no-collector.{name}"
        yield _setting(both, f"collector_{name}", f"The {name} collector.", on)


def settings_flags(
    collectors: Mapping[str, bool], web: str | tuple[()] = (), log_level: str = "error"
) -> Decorator:
    """Options that become a `Settings`, passed to the command as its first argument.

    `collectors` are their defaults by name; `web` is the prefix of the included web flags.
    """
    selected = [
        setting
        for setting in fields(Settings)
        if (name := setting.metadata.get("flag"))
        and (not name.startswith("web.") or name.startswith(web))
    ]

    @cache
    def settings() -> list[click.Option]:
        return [
            *map(_setting_option, selected),
            *_log_options(log_level),
            *_collector_options(collectors),
        ]

    def decorate(function: Function) -> Function:
        @wraps(function)
        def command(**values: Any) -> None:
            configure(values.pop("log_level"), values.pop("log_format"))
            disabled = frozenset(name for name in collectors if not values.pop(f"collector_{name}"))
            chosen = {setting.name: values.pop(setting.name) for setting in selected}
            function(Settings(disabled_collectors=disabled, **chosen), **values)

        command.settings = settings  # type: ignore[attr-defined]
        return command

    return decorate
