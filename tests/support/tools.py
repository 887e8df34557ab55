"""Programs that some tests need and that do not come from the package index."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def require(command: str, package: str) -> str:
    """The path of program `command`, from Debian's `package`.

    Without it, the test is skipped, or fails under CI=true, where nothing may be missing.
    """
    return shutil.which(command) or _missing(f"{command} is missing: apt-get install {package}")


def _missing(sentence: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(sentence)
    pytest.skip(sentence)
