"""The options of the commands."""

from __future__ import annotations

import click

from gpu_bottleneck_exporter.cli import commands


def options_of(name: str) -> list[click.Option]:
    """Options of command `name`, without --help and --help-all."""
    command = commands.commands[name]
    found = command.get_params(click.Context(command))
    options = [one for one in found if isinstance(one, click.Option)]
    return [one for one in options if not one.opts[-1].startswith("--help")]
