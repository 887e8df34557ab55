"""Real cgroup v2: `make test-cgroup2`. Takes some seven minutes, all emulated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cgroup2 import machine

GUEST = Path(__file__).with_name("guest")
PASSED = re.compile(r"^=+ (\d+) passed in ", re.MULTILINE)


@pytest.mark.timeout(machine.PATIENCE_SECONDS + 300)
def test_what_is_tested_in_a_machine_of_its_own_passes() -> None:
    said = machine.run("-vv", "-rA", "--color=no", "-p", "no:cacheprovider", "tests/cgroup2/guest")
    print(said.console)  # noqa: T201 - figures and durations, for the log
    assert said.status == 0, said.console
    (passed,) = PASSED.findall(said.console)
    written = [
        re.findall(r"^def test_", path.read_text(), re.MULTILINE) for path in GUEST.glob("*.py")
    ]
    assert int(passed) >= sum(map(len, written)), "some were left out"
