"""Interpreters of Python's versions, as far as this machine has them.

`.ci/python 3.14 FOLDER` gets one more; PYTHONS=FOLDER/usr/bin has tests use it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def _python(minor: int) -> str | None:
    """The path of a Python 3.`minor`: ours, in a folder of $PYTHONS, of pyenv, or of the system."""
    if sys.version_info[:2] == (3, minor):
        return sys.executable
    name = f"python3.{minor}"
    named = [Path(folder, name) for folder in os.environ.get("PYTHONS", "").split(":") if folder]
    pyenv = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/{name}"))
    known = (path for path in (*named, *pyenv, Path("/usr/bin", name)) if path.exists())
    return next(map(str, known), None)


PYTHONS = {minor: path for minor in range(9, 16) if (path := _python(minor))}
"""By minor version."""
