"""Links of all documents lead somewhere, commands exist and are run, the worked example holds."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from gpu_bottleneck_exporter import cli
from gpu_bottleneck_exporter.flags import PROGRAM
from support.offenders import each

ROOT = Path(__file__).parents[1]
FOLDERS = ("exporter", "grafana", "helm", "rules", "tests")
PAGES = sorted(
    page
    for place in ("*.md", *(f"{folder}/**/*.md" for folder in FOLDERS))
    for page in ROOT.glob(place)
    if "node_modules" not in page.parts
)
HELD = {
    "git clone ": ("test_clone.py", 'blocks("Install")'),
    "cd ": ("test_clone.py", 'blocks("Install")'),
    "make test": ("../.ci/run", "make test"),
    "make run": ("test_clone.py", 'blocks("Install")'),
    "python3 -m venv .venv": ("test_clone.py", 'blocks("Install")'),
    ".venv/bin/": ("test_clone.py", 'blocks("Install")'),
    "gpu-bottleneck-exporter diagnose": ("commands/test_json.py", '"diagnose"'),
    "gpu-bottleneck-exporter report ": ("report/test_command.py", '"report"'),
    "gpu-bottleneck-exporter dashboards ": ("grafana/test_command.py", '"--output"'),
    "gpu-bottleneck-exporter rules ": ("rules/test_command.py", '"--prometheusrule"'),
    "curl -s localhost:10170/api/v1/node ": ("web/test_pages.py", "/api/v1/node"),
    "python3 -m venv /opt/": ("deploy/machine.py", "-m venv"),
    "/opt/gpu-bottleneck-exporter/bin/": ("deploy/test_unit.py", "PREFIX"),
    "cp exporter/deploy/systemd/": ("deploy/test_unit.py", "cp exporter/deploy/systemd/"),
    "systemctl ": ("deploy/test_service.py", '"systemctl"'),
    "docker compose ": ("deploy/test_compose.py", '"--profile"'),
    "make image": ("deploy/test_image.py", '"make", "image"'),
    "docker run ": ("e2e/test_check_in_each_mode.py", "docker run"),
    "install -m 755 exporter/deploy/slurm/epilog.py ": ("slurm/test_on_slurm.py", "EPILOG"),
    "echo 'EpilogSlurmctld=": ("slurm/cluster.py", "EpilogSlurmctld="),
    "reportseff ": ("slurm/test_on_slurm.py", '"reportseff"'),
    "helm install ": ("helm/test_package.py", "--set"),
    "helm test ": ("helm/test_helm_test.py", "helm test"),
}
"""Tests by beginning of a command, or its needs, and its placeholders."""
UNTESTED = {
    "rm ": "undoes what was installed",
    "docker push ": "needs a registry",
    "kubectl ": "needs a cluster",
}


LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
"""Target and anchor."""
OURS = re.compile(rf"\b{PROGRAM} ((?:{'|'.join(cli.commands.commands)})\b[^|;#\n]*)")
TARGET = re.compile(r"^(?:[$#] )?make ((?:[a-z][\w-]*(?: |$))*)", re.MULTILINE)
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def code(text: str) -> list[str]:
    """Fences of a document, and what stands between backticks."""
    fences = re.findall(r"^ *```\w+\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return [*fences, *(" ".join(item.split()) for item in re.findall(r"`([^`]+)`", prose))]


def commands(text: str) -> list[str]:
    """Commands after a prompt in the consoles of a document."""
    consoles = re.findall(r"^ *```console\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    return [item for text in consoles for item in re.findall(r"^ *[$#] (.+)$", text, re.MULTILINE)]


def anchors(page: Path) -> set[str]:
    """Anchors that GitHub makes of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@each(PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        if not target.startswith(("https://", "http://")):
            to = (page.parent / target).resolve() if target else page
            assert to.exists(), target
            assert not anchor or anchor in anchors(to), f"{target}#{anchor}"


def test_every_command_is_run_by_a_test_or_listed_as_exempt() -> None:
    values = {command for page in PAGES for command in commands(page.read_text(encoding="utf-8"))}
    fields = {**HELD, **UNTESTED}
    assert [item for item in values if not item.startswith(tuple(fields))] == []
    assert [item for item in fields if not any(line.startswith(item) for line in values)] == []


@pytest.mark.parametrize("beginning", HELD)
def test_the_test_of_a_command_is_there(beginning: str) -> None:
    name, words = HELD[beginning]
    assert words in (ROOT / "tests" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.relative_to(ROOT)}")
def test_commands_of_ours_have_these_options_and_make_these_targets(page: Path) -> None:
    for text in code(page.read_text(encoding="utf-8")):
        for typed in OURS.findall(text):
            name, *words = shlex.split(typed)
            command = cli.commands.commands[name]
            command.make_parser(click.Context(command)).parse_args(words)
        for words in TARGET.findall(text):
            assert set(words.split()) <= TARGETS, text


def test_the_worked_example_of_a_cause_is_in_the_files() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    files = re.split(r"^--- (\S+).*\n", diff, flags=re.MULTILINE)[1:]
    assert len(files) == 14
    for name, lines in zip(files[::2], files[1::2], strict=True):
        there = (ROOT / name).read_text(encoding="utf-8").splitlines()
        assert [line for line in lines.splitlines() if line[1:] not in there] == [], name
