"""`--help` as a manual page: true, in order, and examples that can be copied."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gpu_bottleneck_exporter.cli import commands
from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.flags import PROGRAM
from support.command import run
from support.options import options_of

NAMES = (
    *("serve", "check", "diagnose", "top", "once", "report", "capture", "demo"),
    *("rules", "dashboards", "runbook", "completion"),
)
LISTED = re.compile(r"^  (?:-\w, )?(--[\w.-]+)", re.MULTILINE)
SECTION = re.compile(r"^([A-Z][a-z]+):$", re.MULTILINE)


def help_of(name: str) -> str:
    return commands.commands[name].get_help(click.Context(commands.commands[name], info_name=name))


def whole_help_of(*name: str) -> str:
    result = CliRunner().invoke(commands, [*name, "--help-all"], prog_name=PROGRAM)
    assert result.exit_code == 0
    return result.stdout


def sections(text: str) -> dict[str, str]:
    """Options by subject."""
    _, *parts = SECTION.split(text)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_without_a_command_it_prints_the_help(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == run(tmp_path, "--help").stdout


def test_help_is_a_command_too(tmp_path: Path) -> None:
    assert run(tmp_path, "help").stdout == run(tmp_path, "--help").stdout
    assert run(tmp_path, "help", "top").stdout == run(tmp_path, "top", "--help").stdout
    assert run(tmp_path, "help", "tpo").stderr.startswith(
        "gpu-bottleneck-exporter: No such command"
    )


@pytest.mark.parametrize("name", NAMES)
def test_no_range_is_open(name: str) -> None:
    assert "None]" not in whole_help_of(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_explains_its_purpose_and_each_status(name: str) -> None:
    text = help_of(name)
    summary, description = text.split("\n\n")[1:3]
    assert summary.strip().endswith(".")
    assert "\n" not in summary
    assert description.startswith("  ")
    statuses = text.partition("  Exit status:\n")[2].partition("\n\n")[0]
    assert re.findall(r"^    (\d)  \S", statuses, re.MULTILINE) == ["0", "1", "2"]


@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_listed_once_and_collectors_take_one_entry(name: str) -> None:
    result = sections(whole_help_of(name))
    listed = LISTED.findall("".join(result.values()))
    values = {"--collector.NAME" if o.secondary_opts else o.opts[0] for o in options_of(name)}
    assert sorted(listed) == sorted(values | {"--help", "--help-all"})
    if "--collector.NAME" in values:
        assert {collector.name for collector in ALL} <= {*re.findall(r"\w+", result["Collector"])}
        assert "--sampling.interval" in result["Sampling"]


@pytest.mark.parametrize("name", NAMES)
def test_the_short_page_is_the_long_one_without_rare_options(name: str) -> None:
    short, whole = LISTED.findall(help_of(name)), LISTED.findall(whole_help_of(name))
    assert [option for option in whole if option in short] == short
    seldom = {option for option in whole if option not in short}
    assert bool(seldom) == (name not in {"dashboards", "runbook", "completion"})
    if "--log.level" in whole:
        assert {"--log.level", "--without"} <= {*short}
        assert {"--sampling.interval", "--log.format", "--collector.NAME"} <= seldom


def examples() -> Iterator[str]:
    group = commands.get_help(click.Context(commands, info_name=PROGRAM))
    for text in (group, *map(help_of, NAMES)):
        matches = re.findall(rf"^    \$ {PROGRAM} (.*)$", text, re.MULTILINE)
        assert matches
        yield from matches


@pytest.mark.parametrize("example", list(examples()))
def test_each_example_can_be_copied(example: str) -> None:
    lexer = shlex.shlex(example, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    end = next((at for at, word in enumerate(words) if word in {"|", ">>"}), len(words))
    name, *arguments = words[:end]
    with commands.commands[name].make_context(name, arguments) as context:
        assert context.params
