"""Interpreters of other versions, where this machine has them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

MINORS = range(9, 16)


def python(minor: int) -> str:
    """The path of a Python 3.`minor`: ours, of pyenv, in a folder of $PYTHONS, or of the system.

    Without one, the test is skipped.
    """
    if sys.version_info[:2] == (3, minor):
        return sys.executable
    name = f"python3.{minor}"
    named = [Path(folder, name) for folder in os.environ.get("PYTHONS", "").split(":") if folder]
    pyenv = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/{name}"))
    for path in (*named, *pyenv, Path("/usr/bin", name)):
        if path.exists():
            return f"{path}"
    pytest.skip(f"no {name}: `.ci/python 3.{minor} FOLDER`, and PYTHONS=FOLDER/usr/bin")
