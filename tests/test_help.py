"""`--help` as a manual page: true, in order, and examples that can be copied."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gpu_bottleneck_exporter.cli import commands
from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.flags import PROGRAM
from support.command import run
from support.options import options_of

NAMES = ("serve", "check", "top", "once", "demo", "rules", "dashboards")
SECTION = re.compile(r"^([A-Z][a-z]+):$", re.MULTILINE)


def help_of(name: str) -> str:
    return commands.commands[name].get_help(click.Context(commands.commands[name], info_name=name))


def sections(text: str) -> dict[str, str]:
    """Options by subject."""
    _, *parts = SECTION.split(text)
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_commands_come_in_the_order_in_which_they_are_needed(tmp_path: Path, flag: str) -> None:
    listed = sections(run(tmp_path, flag, COLUMNS="80").stdout)["Commands"].strip()
    assert re.findall(r"^ *(\w+) ", listed, re.MULTILINE) == list(NAMES)
    assert "..." not in listed, "a summary is cut off"


@pytest.mark.parametrize("name", NAMES)
def test_a_page_says_what_it_does_and_what_each_status_means(name: str) -> None:
    text = help_of(name)
    summary, description = text.split("\n\n")[1:3]
    assert summary.strip().endswith(".")
    assert "\n" not in summary
    assert description.startswith("  ")
    statuses = text.partition("  Exit status:\n")[2].partition("\n\n")[0]
    assert re.findall(r"^    (\d)  \S", statuses, re.MULTILINE) == ["0", "1", "2"]


@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_listed_once_and_collectors_take_one_entry(name: str) -> None:
    found = sections(help_of(name))
    listed = re.findall(r"^  (?:-\w, )?(--[\w.-]+)", "".join(found.values()), re.MULTILINE)
    known = {"--collector.NAME" if o.secondary_opts else o.opts[0] for o in options_of(name)}
    assert sorted(listed) == sorted(known | {"--help"})
    if "--collector.NAME" in known:
        assert {collector.name for collector in ALL} <= {*re.findall(r"\w+", found["Collector"])}
        assert "--sampling.interval" in found["Sampling"]


def examples() -> Iterator[str]:
    group = commands.get_help(click.Context(commands, info_name=PROGRAM))
    for text in (group, *map(help_of, NAMES)):
        found = re.findall(rf"^    \$ {PROGRAM} (.*)$", text, re.MULTILINE)
        assert found
        yield from found


@pytest.mark.parametrize("example", list(examples()))
def test_each_example_can_be_copied(example: str) -> None:
    lexer = shlex.shlex(example, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    (name, *arguments) = words[: words.index("|")] if "|" in words else words
    with commands.commands[name].make_context(name, arguments) as context:
        assert context.params
