"""Options in Prometheus' style, their values, and the settings they make."""

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

from gpu_bottleneck_exporter.log import FORMATS, LEVELS, configure
from gpu_bottleneck_exporter.settings import Settings

PROGRAM = "gpu-bottleneck-exporter"
ENVIRONMENT_PREFIX = "GPU_EXPORTER_"
Function = Callable[..., None]
Decorator = Callable[[Function], Function]
_PATH = click.Path(readable=False, path_type=Path)
"""What may not be read is for `Settings` or `check` to report."""
_USUAL = frozenset({"web.listen-address", "web.config.file", "log.level"})
"""The only ones with a dot that --help shows."""
_SELDOM = frozenset({"ca-file", "diagnose", "for-scale", "no-keep-firing-for", "no-prescriptions"})
"""Those without a dot that it does not show; --help-all does."""
_ALL = f"{__name__}.all"
"""Whether --help-all was given."""
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PART = r"(\d+(?:\.\d+)?)(ms|[smhdw])"
_URL = re.compile(r"https?://[^\s\"'<>{}]+", re.IGNORECASE)
# Kubernetes sets variables for services in each pod: a service may be called gpu-exporter.
_OF_A_SERVICE = r"\w*_(SERVICE_(HOST|PORT\w*)|PORT_\d+_\w+)=|\w*_PORT=\w+://"
_OURS = re.compile(rf"(?!{_OF_A_SERVICE})(?P<name>{ENVIRONMENT_PREFIX}.*?)=")


class Amount(click.FloatRange):
    """A number from 0, or `min`, to `max`; errors repeat what was typed."""

    name, example = "number", ""

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number within the range."""
        amount = math.nan
        with suppress(ValueError):
            amount = self.parsed(value)
        if math.isnan(amount):
            self.fail(f"{value!r} is not a valid {self.name}{self.example}.", param, ctx)
        if not (self.min or 0) <= amount <= (math.inf if self.max is None else self.max):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return amount

    def parsed(self, value: str | float) -> float:
        """The number that `value` means. Raises ValueError if it is none."""
        return float(value) + 0.0  # not -0

    def written(self, amount: float) -> str:
        """`amount` as users type it."""
        return f"{amount:.12g}"

    def _describe_range(self) -> str:
        """The range in the help; empty where `Settings` checks it."""
        low, high = self.min or 0, self.max
        return "" if high is None else f"{self.written(low)} to {self.written(high)}"


class Seconds(Amount):
    """Seconds: a plain number, or a duration as Prometheus writes it, such as 500ms or 1m30s."""

    name, example = "duration", ", such as 90, 90s or 1m30s"

    def parsed(self, value: str | float) -> float:
        """Seconds."""
        if isinstance(value, str) and re.fullmatch(f"({_PART})+", value):
            parts = re.findall(_PART, value)
            return float(sum(float(count) * _UNITS[unit] for count, unit in parts))
        return super().parsed(value)

    def written(self, amount: float) -> str:
        """In the largest unit of which it is a whole number: 3650d, 1m, 500ms."""
        units = ((name, round(amount / length, 6)) for name, length in _UNITS.items())
        return [
            f"{count:g}{name}"
            for name, count in units
            if count == int(count) and (count or name == "s")
        ][-1]


def url_of(value: str) -> str:
    """An address for HTTP; what has no scheme gets http."""
    url = value if "://" in value else f"http://{value}"
    with suppress(ValueError):
        parts = urlsplit(url)
        if _URL.fullmatch(url) and parts.hostname and parts.port != 0:
            return url
    bare = value.rpartition("@")[2]  # without its password, for the terminal
    raise click.BadParameter(f"{bare!r} is not like http://node7:10170.")


def _words(value: str | frozenset[str]) -> frozenset[str]:
    """Words separated by commas."""
    return value if isinstance(value, frozenset) else frozenset(value.replace(",", " ").split())


_LISTS = dict.fromkeys(("SIGNAL,...", "VARIABLE,..."), _words)
_TYPES: Mapping[str, object] = {"SECONDS": Seconds(), "URL": url_of, **_LISTS}
"""By the word for a value."""


def nearest(word: str, known: Iterable[str], alike: float = 0.6) -> str:
    """The question, as click asks it, which of `known` was meant; empty if none is like `word`."""
    from difflib import get_close_matches  # noqa: PLC0415 - only for mistakes

    found = get_close_matches(word, known, 2, alike)
    return f" Did you mean {' or '.join(map(repr, found))}?" if found else ""


def _print_all(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:  # noqa: FBT001
    if wanted:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help())
        for name, command in getattr(ctx.command, "commands", {}).items():
            click.echo(f"\n{command.get_help(click.Context(command, ctx, name))}")
        ctx.exit()


_HELP_ALL = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_all,
    help="Show the rest of the options, too.",
)


class Command(click.Command):
    """A command whose help groups options by the word before their dot."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Options of its own, and those of the settings that it takes: made when it runs."""
        own = super().get_params(ctx)
        return [*own, _HELP_ALL, *getattr(self.callback, "settings", list)()]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write options without a dot first, and all collectors in one entry."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for option in (options := self.get_params(ctx)):
            subject, dot, _ = option.opts[0].removeprefix("--").partition(".")
            record = option.get_help_record(ctx)
            if record and (ctx.meta.get(_ALL) or not getattr(option, "seldom", False)):
                sections.setdefault(subject.title() if dot else "Options", []).append(record)
        if "Collector" in sections:
            sections["Collector"] = [_collectors(options)]
        for section, records in sections.items():
            with formatter.section(section):
                formatter.write_dl(records)


class Group(click.Group):
    """The program: its commands in the order of their definition, the most useful first."""

    command_class = Command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; `help COMMAND` is `COMMAND --help`."""
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Options of its own."""
        return [*super().get_params(ctx), _HELP_ALL]

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; say which variables are none of ours, as other software may use them."""
        found = (_OURS.match(f"{name}={value}") for name, value in os.environ.items())
        if taken := {one["name"] for one in found if one}:
            options = (one for it in self.commands.values() for one in it.get_params(ctx))
            known = {f"{one.envvar}" for one in options}
            for name in sorted(taken - known):
                click.echo(f"{PROGRAM}: ignored {name!r}.{nearest(name, known, 0.85)}", err=True)
        return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Commands as they are defined, not by name."""
        return list(self.commands)


def _collectors(options: Iterable[click.Parameter]) -> tuple[str, str]:
    """The entry of the help for all collectors among `options`."""
    switches = [one for one in options if one.opts[0].startswith("--collector.")]
    names = ", ".join(sorted(one.opts[0].partition(".")[2] for one in switches))
    off = ", ".join(one.opts[0].partition(".")[2] for one in switches if not one.default)
    set_by = f"[env var: {ENVIRONMENT_PREFIX}COLLECTOR_NAME; default: all on but {off}]"
    what = f"Switch a collector on or off: {names}.  {set_by}"
    return "--collector.NAME / --no-collector.NAME", what


class Option(click.Option):
    """An option, maybe with an environment variable."""

    def __init__(self, declared: Sequence[str], **attributes: Any) -> None:
        """`declared`: its name with a word for its value, its short form, and its parameter.

        The latter only if it is not the name with underscores.
        """
        name, _, value = declared[0].partition(" ")
        self.seldom = name in _SELDOM or ("." in name and name not in _USUAL)
        attributes["type"] = attributes.get("type") or _TYPES.get(value)
        attributes |= {"show_envvar": True, "show_default": True}
        super().__init__([f"--{name}", *declared[1:]], metavar=value or None, **attributes)


flag = partial(click.option, cls=Option)
"""An `Option` as a decorator."""
as_json = flag(
    "json",
    "as_json",
    is_flag=True,
    help="Print JSON, one document per line: seconds, bytes, ratios 0-1; null is unknown.",
)
"""The same option for all commands that report."""


def _setting(declared: str, name: str, text: str, default: object, kind: object = None) -> Option:
    """An option that the environment may set, too; `text`: its help."""
    option = re.split("[ /]", declared)[0]
    variable = ENVIRONMENT_PREFIX + re.sub(r"[.-]", "_", option).upper()
    options = {"type": kind, "default": default, "is_flag": isinstance(default, bool), "help": text}
    return Option([declared, name], envvar=variable, **options)


def _of_setting(setting: Field[object]) -> Option:
    """The option for a field of `Settings`, with its default and the type of that."""
    # One word, as environment variables have no lists.
    default = "" if isinstance(setting.default, frozenset) else setting.default
    kind = _PATH if isinstance(default, Path) else None
    return _setting(setting.metadata["flag"], setting.name, setting.metadata["help"], default, kind)


def _of_log(level: str) -> Iterator[Option]:
    levels, formats = click.Choice(LEVELS, case_sensitive=False), click.Choice(FORMATS)
    yield _setting("log.level", "log_level", "Lowest level to log.", level, levels)
    yield _setting("log.format", "log_format", "Format of log lines.", "logfmt", formats)


def _of_collectors(collectors: Mapping[str, bool]) -> Iterator[Option]:
    for name, on in collectors.items():
        both = f"collector.{name}/--no-collector.{name}"
        yield _setting(both, f"collector_{name}", f"The {name} collector.", on)


def settings_flags(
    collectors: Mapping[str, bool], web: str | tuple[()] = (), log_level: str = "error"
) -> Decorator:
    """Options that become a `Settings`, which the command gets as its first argument.

    `collectors`: their names, and whether each is on by default.
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
        return [*map(_of_setting, wanted), *_of_log(log_level), *_of_collectors(collectors)]

    def decorate(function: Function) -> Function:
        @wraps(function)
        def command(**values: Any) -> None:
            configure(values.pop("log_level"), values.pop("log_format"))
            disabled = frozenset(name for name in collectors if not values.pop(f"collector_{name}"))
            chosen = {setting.name: values.pop(setting.name) for setting in wanted}
            function(Settings(disabled_collectors=disabled, **chosen), **values)

        command.settings = settings  # type: ignore[attr-defined]
        return command

    return decorate
