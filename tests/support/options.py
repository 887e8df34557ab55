"""The options of the commands."""

from __future__ import annotations

import click

from gpu_bottleneck_exporter.cli import commands


def options_of(name: str) -> list[click.Option]:
    """Options of command `name`, without --help and --help-all."""
    command = commands.commands[name]
    result = command.get_params(click.Context(command))
    options = [item for item in result if isinstance(item, click.Option)]
    return [option for option in options if not option.opts[-1].startswith("--help")]
