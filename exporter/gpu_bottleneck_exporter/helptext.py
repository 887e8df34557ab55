"""`--help` laid out as a manual page: options by subject, then environment, exit status, examples.

Click lists all options in one column and its commands by name; both are too long to find anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from gpu_bottleneck_exporter.collectors import ALL

PROGRAM = "gpu-bottleneck-exporter"
ENVIRONMENT_PREFIX = "GPU_EXPORTER_"
_REST = "Options"
COLLECTORS = "Collectors"
_ENVIRONMENT = (
    "Each option can also be set with the variable shown next to it. An option on the command line "
    "wins over its variable."
)


class Option(click.Option):
    """An option that belongs to a section of the help."""

    def __init__(self, *names: Any, section: str = _REST, **attributes: Any) -> None:
        self.section = section
        super().__init__(*names, **attributes)


class Command(click.Command):
    """A command with examples and the meaning of its exit statuses."""

    def __init__(
        self,
        *names: Any,
        examples: Mapping[str, str],
        exit_status: Mapping[int, str] | None = None,
        **attributes: Any,
    ) -> None:
        """`examples`: by arguments, what they do. `exit_status`: by number, what it means."""
        super().__init__(*names, **attributes)
        self._examples = examples
        self._exit_status = exit_status or {}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Options by section, in the order in which sections first occur; the others last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Argument):
                continue
            section = getattr(parameter, "section", _REST)
            record = parameter.get_help_record(ctx)
            if record is not None:
                sections.setdefault(section, []).append(record)
        rest = sections.pop(_REST, [])
        if COLLECTORS in sections:
            sections[COLLECTORS] = [_collectors()]
        for section, records in (*sections.items(), (_REST, rest)):
            _write(formatter, section, records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What a manual page says after the options."""
        super().format_epilog(ctx, formatter)
        with formatter.section("Environment"):
            formatter.write_text(_ENVIRONMENT)
        statuses = [(str(number), text) for number, text in self._exit_status.items()]
        _write(formatter, "Exit status", statuses)
        with formatter.section("Examples"):
            for number, (arguments, meaning) in enumerate(self._examples.items()):
                if number:
                    formatter.write_paragraph()
                formatter.write_text(meaning)
                # As it is typed: a line that is wrapped cannot be copied.
                formatter.write(f"{'':{formatter.current_indent + 2}}$ {PROGRAM} {arguments}\n")


class Group(Command, click.Group):
    """The program: its commands in the order of their definition, the most useful first."""

    command_class = Command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Its options, then its commands."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """As defined, not by name."""
        return list(self.commands)


def _collectors() -> tuple[str, str]:
    names = ", ".join(sorted(collector.name for collector in ALL))
    set_by = f"[env var: {ENVIRONMENT_PREFIX}COLLECTOR_NAME; default: all on]"
    what = f"Switch a collector on or off: {names}.  {set_by}"
    return "--collector.NAME / --no-collector.NAME", what


def _write(
    formatter: click.HelpFormatter, section: str, records: Sequence[tuple[str, str]]
) -> None:
    if records:
        with formatter.section(section):
            formatter.write_dl(records)
