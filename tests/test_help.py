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
from gpu_bottleneck_exporter.helptext import PROGRAM
from support.command import run

NAMES = ("serve", "check", "top", "once", "demo", "rules", "dashboards")
HEADING = re.compile(r"^([A-Z][A-Za-z ]+):$", re.MULTILINE)


def help_of(name: str) -> str:
    return commands.commands[name].get_help(click.Context(commands.commands[name], info_name=name))


def sections(text: str) -> dict[str, str]:
    _, *parts = HEADING.split(text)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_commands_come_in_the_order_in_which_they_are_needed(tmp_path: Path) -> None:
    listed = sections(run(tmp_path, "--help").stdout)["Commands"]
    assert re.findall(r"^  (\w+) ", listed, re.MULTILINE) == list(NAMES)


def test_no_summary_of_a_command_is_cut_off(tmp_path: Path) -> None:
    listed = sections(run(tmp_path, "--help", COLUMNS="80").stdout)["Commands"].strip()
    assert len(listed.splitlines()) == len(NAMES)
    assert "..." not in listed


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_all_its_sections(name: str) -> None:
    text = help_of(name)
    *options, environment, status, examples = sections(text)
    assert (environment, status, examples) == ("Environment", "Exit status", "Examples")
    assert options[-1] == "Options"
    summary, description = text.split("\n\n")[1:3]
    assert summary.strip().endswith(".")
    assert "\n" not in summary
    assert description.startswith("  ")
    assert not HEADING.match(description)


@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_listed_once(name: str) -> None:
    options = "".join(sections(help_of(name)).values())
    listed = re.findall(r"^  (?:-\w, )?(--[\w.-]+)", options, re.MULTILINE)
    known = [
        option.opts[0]
        for option in commands.commands[name].params
        if isinstance(option, click.Option) and not option.secondary_opts
    ]
    assert sorted(listed) == sorted([*known, "--help", *_collectors(name)])


def _collectors(name: str) -> list[str]:
    switches = any(option.secondary_opts for option in commands.commands[name].params)
    return ["--collector.NAME"] if switches else []


@pytest.mark.parametrize("name", ["serve", "check", "top", "once", "demo"])
def test_options_are_grouped_and_collectors_take_one_entry(name: str) -> None:
    found = sections(help_of(name))
    assert {"Sampling", "Kubernetes", "Logging", "Collectors"} <= found.keys()
    assert "--sampling.interval" in found["Sampling"]
    assert "--log.level" in found["Logging"]
    words = set(re.findall(r"\w+", found["Collectors"]))
    assert {collector.name for collector in ALL} <= words


@pytest.mark.parametrize("name", ["check", "top", "once"])
def test_the_output_comes_first(name: str) -> None:
    first = next(section for section in sections(help_of(name)) if section != "Node")
    assert first == "Output"


def examples() -> Iterator[str]:
    texts = (help_of(name) for name in NAMES)
    group = commands.get_help(click.Context(commands, info_name=PROGRAM))
    for text in (group, *texts):
        yield from re.findall(rf"^    \$ {PROGRAM} (.*)$", sections(text)["Examples"], re.MULTILINE)


@pytest.mark.parametrize("example", list(examples()))
def test_each_example_can_be_copied(example: str) -> None:
    lexer = shlex.shlex(example, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    (name, *arguments) = words[: words.index("|")] if "|" in words else words
    with commands.commands[name].make_context(name, arguments) as context:
        assert context.params


@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_a_command_says_what_its_status_means(name: str) -> None:
    meanings = re.findall(r"^  (\d)  \S", sections(help_of(name))["Exit status"], re.MULTILINE)
    assert meanings == ["0", "1", "2"]
