"""The command `dashboards`, and what the packages hold."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from grafana.boards import FOLDER, NAMES, ROOT
from support.command import run

FILES = {f"{name}.json": (FOLDER / f"{name}.json").read_text(encoding="utf-8") for name in NAMES}


def test_it_lists_them_and_prints_one(tmp_path: Path) -> None:
    for words, out in (((), "exporter\nfleet\ngpu\n"), (("fleet",), FILES["fleet.json"])):
        result = run(tmp_path, "dashboards", *words)
        assert (result.returncode, result.stderr, result.stdout) == (0, "", out)


def test_it_writes_all_and_overwrites_nothing_silently(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    result = run(tmp_path, "dashboards", "--output", f"{folder}")
    assert (result.returncode, result.stdout) == (0, "")
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()} == FILES
    (folder / "gpu.json").write_text("{}")
    result = run(tmp_path, "dashboards", "--output", f"{folder}")
    assert result.returncode == 1
    assert "gpu.json in" in result.stderr
    result = run(tmp_path, "dashboards", "--output", f"{folder}", "--force")
    assert result.stderr.splitlines() == [f"wrote {folder / 'gpu.json'}"]


def test_the_wheel_has_the_dashboards_and_not_what_builds_them(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("exporter", "grafana", "rules"):
        shutil.copytree(ROOT / name, source / name, symlinks=True)
    command = [sys.executable, "-m", "build", "-q", "--no-isolation", "--skip-dependency-check"]
    subprocess.run([*command, "--wheel", "-o", tmp_path, source], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    prefix = "gpu_bottleneck_exporter/dashboards/"
    with zipfile.ZipFile(wheel) as packed:
        there = [name for name in packed.namelist() if "dashboards/" in name]
        texts = {name.removeprefix(prefix): packed.read(name).decode() for name in there}
    assert texts == FILES


def test_the_packages_dashboards_are_a_link_not_a_copy() -> None:
    link = ROOT / "exporter/gpu_bottleneck_exporter/dashboards"
    assert (link.parent / link.readlink()).resolve() == FOLDER
