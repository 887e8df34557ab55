"""Programs that some tests need and that do not come from the package index."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest

_setpriv = shutil.which("setpriv")
WITH_US = (_setpriv, "--pdeathsig", "KILL") if _setpriv else ()
"""Before a command: the kernel kills it when the thread that started it ends, also if that is
killed."""

INSTALL = "apt-get install "


def require(command: str, package: str) -> str:
    """The path of program `command`, from Debian's `package`.

    Without it, the test is skipped, or fails under CI=true, where nothing may be missing.
    """
    return shutil.which(command) or missing(f"{command} is missing: {INSTALL}{package}")


def missing(sentence: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(sentence)
    pytest.skip(sentence)
