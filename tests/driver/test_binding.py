"""nvidia-ml-py: the oldest that is admitted and the newest give the same; older ones are told."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.create import H100
from gpu_bottleneck_exporter.driver import nvml
from gpu_bottleneck_exporter.driver.nvml.loader import LIBRARY
from gpu_bottleneck_exporter.driver.nvml.open import OLDEST_BINDING
from gpu_bottleneck_exporter.driver.nvml.remedies import OF_ERRORS
from support import fetched
from support.command import run
from support.drivers import Libraries
from support.models import A100

REPOSITORY = Path(__file__).parents[2]
ADMITTED = {"oldest": f"nvidia-ml-py=={OLDEST_BINDING}", "newest": "nvidia-ml-py"}
TOO_OLD = ("12.535.77", "12.555.43", "12.560.30")
QUICK = ("--sampling.interval", "0.2")
VERSION = (
    "import importlib.metadata as m, pynvml; print(m.version('nvidia-ml-py'), pynvml.__file__)"
)
UNKNOWN = "import sys, pynvml; print(*(n for n in sys.argv[1:] if not hasattr(pynvml, n)))"

Command = Callable[[str, Path], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def on_the_stand_in(
    tmp_path: Path, libraries: Libraries, make_board: Callable[..., Board]
) -> Command:
    """Runs a command with the binding in a folder, on two GPUs and a MIG instance."""
    shutil.copy(libraries.path(580), tmp_path / LIBRARY)
    board = make_board(gpus=[H100, A100, H100], mig=[(2, 3)])

    def answer(command: str, binding: Path) -> subprocess.CompletedProcess[str]:
        places = {"PYTHONPATH": f"{binding}", "FAKE_NVML_BOARD": f"{board.path}"}
        return run(tmp_path, *command.split(), *QUICK, **places)

    return answer


def with_binding(folder: Path, code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={"PYTHONPATH": f"{folder}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def series(exposition: str) -> set[str]:
    """Names and labels of all series of GPUs."""
    lines = (line.rpartition(" ")[0] for line in exposition.splitlines() if line[:1] != "#")
    return {line for line in lines if 'gpu="' in line and "feeder" not in line}


def test_the_project_asks_for_the_oldest_that_works() -> None:
    matches = re.findall(r'"nvidia-ml-py([^"]*)"', (REPOSITORY / "pyproject.toml").read_text())
    assert matches == [f">={OLDEST_BINDING}"]
    assert f"nvidia-ml-py>={OLDEST_BINDING}" in OF_ERRORS["binding"]
    assert OLDEST_BINDING in (REPOSITORY / "README.md").read_text()


@pytest.mark.parametrize("which", ADMITTED)
def test_it_has_every_name_that_we_use(which: str) -> None:
    code = "".join(path.read_text() for path in Path(nvml.__file__).parent.glob("*.py"))
    names = sorted(set(re.findall(r"\bpynvml\.(\w+)", code)))
    assert len(names) > 80
    assert not with_binding(fetched.package(ADMITTED[which]), UNKNOWN, *names)


def test_oldest_and_newest_give_the_same_series(on_the_stand_in: Command) -> None:
    values: list[set[str]] = []
    for which, requirement in ADMITTED.items():
        folder = fetched.package(requirement)
        version, path = with_binding(folder, VERSION).split()
        assert (version == OLDEST_BINDING) == (which == "oldest")
        assert path.startswith(f"{folder}")
        done = on_the_stand_in("once", folder)
        assert (done.returncode, done.stderr) == (0, "")
        values.append(series(done.stdout))
        checked = on_the_stand_in("check -v", folder)
        assert checked.returncode < 2
        assert "collector" not in checked.stdout
        assert "up   NVIDIA A100" in checked.stdout
    assert values[0] == values[1]
    families = {line.partition("{")[0] for line in values[0]}
    assert {"gpu_busy_seconds_total", "gpu_temperature_celsius", "gpu_sm_active_seconds_total"} < (
        families
    )


@pytest.mark.parametrize("version", TOO_OLD)
def test_an_older_binding_is_reported_with_its_remedy(
    on_the_stand_in: Command, version: str
) -> None:
    folder = fetched.package(f"nvidia-ml-py=={version}")
    sentence = f"{folder}/pynvml.py is not of nvidia-ml-py {OLDEST_BINDING} or later"
    done = on_the_stand_in("check", folder)
    assert (done.returncode, done.stderr) == (1, "")
    none, remedy = done.stdout.splitlines()
    assert none == f"GPU metrics     none: {sentence}"
    assert "pip install" in remedy
