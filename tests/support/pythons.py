"""Interpreters of Python's versions, as far as this machine has them.

`.ci/python 3.14 FOLDER` gets one more; PYTHONS=FOLDER/usr/bin has tests use it. A free-threaded one
is to be built: `apt-get source python3.13`, `./configure --disable-gil --prefix FOLDER/usr`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def _python(version: str) -> str | None:
    """The path of a Python: ours, in a folder of $PYTHONS, of pyenv, or of the system."""
    if version == OURS:
        return sys.executable
    name = f"python{version}"
    items = [Path(folder, name) for folder in os.environ.get("PYTHONS", "").split(":") if folder]
    pyenv = sorted(Path.home().glob(f".pyenv/versions/3.*/bin/{name}"))
    values = (path for path in (*items, *pyenv, Path("/usr/bin", name)) if path.exists())
    return next(map(str, values), None)


_free_threaded = not getattr(sys, "_is_gil_enabled", lambda: True)()
OURS = f"3.{sys.version_info[1]}{'t' if _free_threaded else ''}"
_VERSIONS = [f"3.{minor}{kind}" for minor in range(10, 16) for kind in ("", "t")]
PYTHONS = {version: path for version in _VERSIONS if (path := _python(version))}
"""Interpreters by version, as in `3.13`; the free-threaded build of that is `3.13t`."""
