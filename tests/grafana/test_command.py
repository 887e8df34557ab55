"""The command `dashboards`, and what the packages hold."""

from __future__ import annotations

from pathlib import Path

from grafana.boards import FOLDER, NAMES
from support.command import run

FILES = {f"{name}.json": (FOLDER / f"{name}.json").read_text(encoding="utf-8") for name in NAMES}


def test_it_lists_them_and_prints_one(tmp_path: Path) -> None:
    for words, out in (((), "exporter\nfleet\ngpu\n"), (("fleet",), FILES["fleet.json"])):
        result = run(tmp_path, "dashboards", *words)
        assert (result.returncode, result.stderr, result.stdout) == (0, "", out)


def test_it_writes_all(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    result = run(tmp_path, "dashboards", "--output", f"{folder}")
    assert (result.returncode, result.stdout) == (0, "")
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()} == FILES
