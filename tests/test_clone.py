"""The first commands of the README work as printed, in a clone of this repository."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.command import Server, background, environment
from support.tools import require
from support.waiting import PATIENCE_SECONDS, until

ROOT = Path(__file__).parents[1]
PUBLIC = "https://github.com/gpu-bottleneck-exporter/gpu-bottleneck-exporter"
NO_GPU = 1
"""Last line of `check` here."""


def blocks(heading: str) -> list[str]:
    """The consoles of a section of the README, each as a script."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    consoles = re.findall(r"^```console\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return ["\n".join(re.findall(r"^\$ (.+)$", console, re.MULTILINE)) for console in consoles]


def of_a_user(folder: Path) -> dict[str, str]:
    """No GPU, any port, this Python, and git takes this repository for the public one."""
    git = folder / "gitconfig"
    git.write_text(f'[url "file://{ROOT}"]\ninsteadOf = {PUBLIC}\n[safe]\ndirectory = *\n')
    result = environment(
        folder,
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        GIT_CONFIG_GLOBAL=f"{git}",
        GPU_EXPORTER_WEB_LISTEN_ADDRESS="127.0.0.1:0",
    )
    result.pop("PYTHONPATH", None)
    return result


@contextmanager
def typed(script: str, folder: Path, home: Path) -> Iterator[Server]:
    """`script` in `folder`, ended by Ctrl-C."""
    command = [require("bash", "bash"), "-c", script]
    with background(command, folder, of_a_user(home)) as server:
        try:
            yield server
        finally:
            os.killpg(server.process.pid, signal.SIGINT)
            server.process.wait(PATIENCE_SECONDS)


@pytest.mark.first
def test_the_first_commands_of_the_readme_work_as_printed(tmp_path: Path) -> None:
    require("make", "make")
    require("git", "git")
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    clone, by_hand, _ = blocks("Install")
    with typed(clone, tmp_path, tmp_path) as server:
        assert server.get()[0] == 200
        until(lambda: "gpu_stall_seconds_total" in server.get()[1], "the demo's idle GPUs")
    install, check, demo = by_hand.rpartition("\n.venv/bin/gpu-bottleneck-exporter check\n")
    script = f"set -e\n{install}\n{check.strip()} || test $? = {NO_GPU}\n{demo}"
    with typed(script, tmp_path / PUBLIC.rpartition("/")[2], tmp_path) as server:
        assert server.get()[0] == 200
