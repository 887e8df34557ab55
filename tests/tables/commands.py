"""Commands, and the options of `serve`, as they stand in the reference."""

from __future__ import annotations

import click

from gpu_bottleneck_exporter.cli import commands
from support.options import options_of


def table() -> str:
    """All commands as a Markdown list."""
    return "\n".join(
        f"- `{name}`: {command.get_short_help_str(limit=200)}"
        for name, command in commands.commands.items()
    )


def flags() -> str:
    """The options of `serve` as a Markdown list, without those that switch a collector."""
    return "\n".join(map(_line, (item for item in options_of("serve") if not item.secondary_opts)))


def _line(option: click.Option) -> str:
    record = option.get_help_record(click.Context(commands))
    assert record
    default = f" (`{option.default}`)" if option.default else ""
    return f"- `{record[0]}`{default}: {option.help}"
