"""Shell completion as a shell does it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.flags import PROGRAM
from support.command import environment
from support.waiting import PATIENCE_SECONDS

INSTALLED = Path(sys.executable).parent / PROGRAM


def completed(folder: Path, *words: str) -> list[str]:
    """Completions of a real bash for the last of `words`."""
    script = f"""
        source <({PROGRAM} completion bash) || exit 3
        COMP_WORDS=({PROGRAM} "$@") COMP_CWORD=$#
        how=$(complete -p {PROGRAM}) || exit 4
        "$(sed -E 's/.* -F ([^ ]+) .*/\\1/' <<<"$how")" {PROGRAM}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    result = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", *words],
        cwd=folder,
        env=environment(folder, PATH=f"{INSTALLED.parent}:/usr/bin:/bin"),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.split()


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash here")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("d",), ["diagnose", "demo", "dashboards"]),
        (("check", "--dia"), ["--diagnose"]),
        (("top", "--sort", "te"), ["temperature"]),
        (("report", "--format", "m"), ["markdown"]),
        (("serve", "--log.level", "w"), ["warning"]),
        (("serve", "--no-collector.po"), ["--no-collector.power"]),
        (("dashboards", "fl"), ["fleet"]),
        (("runbook", "GpuStarved-cpu_t"), ["GpuStarved-cpu_throttled"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
        (("nonsense", "--x"), []),
    ],
)
def test_bash_completes(tmp_path: Path, words: tuple[str, ...], offered: list[str]) -> None:
    assert completed(tmp_path, *words) == offered
