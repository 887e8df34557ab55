"""Real cgroup v2: `make test-cgroup2`. Takes some seven minutes, all emulated."""

from __future__ import annotations

import pytest

from cgroup2 import machine


@pytest.mark.timeout(machine.PATIENCE_SECONDS + 300)
def test_tests_inside_the_machine_pass() -> None:
    result = machine.run(
        "-vv", "-rA", "--color=no", "-p", "no:cacheprovider", "tests/cgroup2/guest"
    )
    print(result)  # noqa: T201 - figures and durations, for the log
    assert "\nended with 0\n" in result
    assert " skipped" not in result
