"""The chart's capabilities on a real kernel: enough for what the exporter reads, and none spare."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from helm.chart import rendered
from helm.test_pod import CAPABILITIES
from support.rights import NOBODY, _usable
from support.tools import require
from support.waiting import until

READ = ("wchan", "io", "environ", "root/dev/shm/.")
"""Of a process of another user."""
BY_ONE = {"SYS_PTRACE": {"wchan", "root/dev/shm/."}, "DAC_READ_SEARCH": set[str]()}


@pytest.fixture(scope="module")
def other() -> Iterator[int]:
    """A process of a user of its own that sleeps."""
    program = (require("setpriv", "util-linux"), f"--reuid={NOBODY}", f"--regid={NOBODY}")
    way = _usable((*program, "--clear-groups"))
    with subprocess.Popen([*way, "sleep", "600"]) as process:
        try:
            until(lambda: _sleeps(process.pid), "its sleep")
            yield process.pid
        finally:
            process.kill()


def _sleeps(pid: int) -> bool:
    program = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    return b"sleep" in program and "\nState:\tS" in Path(f"/proc/{pid}/status").read_text()


def readable(pid: int, capabilities: Collection[str]) -> set[str]:
    """What uid 0 with `capabilities` and no others reads, as in a container that drops all."""
    kept = ",".join(["-all", *(f"+{name.lower()}" for name in sorted(capabilities))])
    way = _usable((require("setpriv", "util-linux"), f"--bounding-set={kept}", "--inh-caps=-all"))
    script = 'for file; do stat -f "$file" >/dev/null && cat "$file" 2>/dev/null | grep -q "" '
    script += '|| test -d "$file" || continue; echo "$file"; done'
    folder = f"/proc/{pid}/"
    tried = [f"{folder}{name}" for name in READ]
    said = subprocess.run(
        [*way, "sh", "-c", script, "sh", *tried], capture_output=True, text=True, check=True
    )
    found = {line.removeprefix(folder) for line in said.stdout.split()}
    channel = subprocess.run([*way, "cat", f"{folder}wchan"], capture_output=True, check=True)
    return found - ({"wchan"} if channel.stdout == b"0" else set())


def test_those_of_the_chart_are_enough(other: int) -> None:
    added = rendered().container["securityContext"]["capabilities"]["add"]
    assert readable(other, added) == set(READ)


@pytest.mark.parametrize("capability", sorted(CAPABILITIES))
def test_each_is_needed(other: int, capability: str) -> None:
    assert readable(other, {capability}) == BY_ONE[capability]


def test_root_without_any_reads_nothing_of_others(other: int) -> None:
    assert readable(other, ()) == set()
