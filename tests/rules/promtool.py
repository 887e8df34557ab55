"""promtool, as it judges rules."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from support.tools import require

# Collecting garbage is a quarter of its time otherwise, and other tests run beside it.
MODEST = {"GOGC": "800", "GOMAXPROCS": "1"}


def test_rules(file: Path) -> subprocess.CompletedProcess[str]:
    """Have a file of tests judged."""
    command = [require("promtool", "prometheus"), "test", "rules", f"{file}"]
    environment = os.environ | MODEST
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
