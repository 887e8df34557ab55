"""The suite's virtual environments: built on first use, and kept.

They lie in `.stacks/` at the top of the project, or in $STACKS_HOME.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

HOME = Path(os.environ.get("STACKS_HOME") or Path(__file__).parents[2] / ".stacks")
_TABLE = Path(__file__).with_name("venvs.yml")
VENVS: Mapping[str, Sequence[str]] = yaml.safe_load(_TABLE.read_text(encoding="utf-8"))
"""By name: the arguments of `pip install`, or `uninstall` and its own, one call each."""


class VenvError(Exception):
    """The build failed; the message is the command to try by hand."""


def python(name: str) -> Path:
    """The interpreter of venv `name`, which is built if missing or out of date.

    Raises VenvError.
    """
    folder = HOME / name
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = folder / ".built"
        wanted = "\n".join(VENVS[name])
        if not built.exists() or built.read_text() != wanted:
            sys.stderr.write(f"building {folder}\n")
            _run(f"{sys.executable} -m venv {folder}")
            for step in VENVS[name]:
                install = "" if step.startswith("uninstall ") else "install -q --prefer-binary "
                _run(f"nice -n 10 {folder / 'bin' / 'pip'} {install}{step}")
            built.write_text(wanted)
    return folder / "bin" / "python"


def _run(command: str) -> None:
    done = subprocess.run(
        command.split(),
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise VenvError(f"{done.stdout[-2000:]}\nit failed, try by hand: {command}")
