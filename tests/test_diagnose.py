"""`check --diagnose`: the answer for someone at a shell on the node."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.demo.run import Demo, running
from gpu_bottleneck_exporter.diagnose import share
from gpu_bottleneck_exporter.driver.readings import Identity, System
from gpu_bottleneck_exporter.ledger import GpuSnapshot, Totals
from gpu_bottleneck_exporter.remedies import REMEDIES
from gpu_bottleneck_exporter.stall import WAITING_ON
from support.command import COMMAND, PATIENCE_SECONDS, environment, run
from support.drivers import Libraries

SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    with running() as started:
        yield started


def on_demo(demo: Demo, libraries: Libraries, folder: Path) -> dict[str, str]:
    """The environment in which pynvml finds the demo's GPUs."""
    library = libraries.path(580)
    return {
        **environment(folder),
        "LD_LIBRARY_PATH": str(library.parent),
        "FAKE_NVML_BOARD": str(demo.board.path),
    }


def test_it_names_the_cause_and_a_remedy_per_gpu(
    demo: Demo, libraries: Libraries, tmp_path: Path
) -> None:
    result = subprocess.run(
        [*COMMAND, "check", "--diagnose", "8"],
        env=on_demo(demo, libraries, tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    healthy, cpu, loop, idle = result.stdout.split("\n\n")[:4]
    # On a crowded machine all of them wait for a CPU.
    assert "verdict       kept busy" in healthy or "likely cause  cpu_queue" in healthy
    assert "likely cause  worker_cpu" in cpu or "likely cause  cpu_queue" in cpu
    assert "likely cause  host_code" in loop or "likely cause  cpu_queue" in loop
    assert "likely cause  asleep" in idle
    assert all("try first" in text for text in (cpu, loop, idle))
    assert all("held by process" in text for text in (healthy, cpu, loop, idle))


def test_a_terminal_sees_progress(demo: Demo, libraries: Libraries, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "check", "--diagnose", "1"],
        env=on_demo(demo, libraries, tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        shown = os.read(ours, 100).decode()
        process.wait(PATIENCE_SECONDS)
    os.close(ours)
    assert shown.startswith("\rwatching, ")


def test_without_a_driver_it_says_what_is_missing(tmp_path: Path) -> None:
    result = run(tmp_path, "check", "--diagnose", "1")
    assert result.returncode == 2
    assert result.stdout.count("remedy ") == 1


@pytest.mark.parametrize("seconds", ["0", "-1", "x", "99999"])
def test_nonsense_is_refused_in_one_line(tmp_path: Path, seconds: str) -> None:
    result = run(tmp_path, "check", "--diagnose", seconds)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_every_cause_has_a_remedy() -> None:
    assert set(REMEDIES) == set(WAITING_ON)
    assert all(meaning and remedy for meaning, remedy in REMEDIES.values())


def snapshot(totals: Totals) -> GpuSnapshot:
    return GpuSnapshot(Identity(0, "GPU-0"), 0, totals, {}, {}, System(None, None))


def test_shares_are_of_the_time_between() -> None:
    before = Totals(observed_ns=10 * SECOND, busy_ns=10 * SECOND, stall_ns={"storage": 0})
    after = replace(
        before, observed_ns=20 * SECOND, busy_ns=12 * SECOND, stall_ns={"storage": 8 * SECOND}
    )
    found = share(snapshot(after), before)
    assert found is not None
    assert (found.observed_seconds, found.busy, found.stalls) == (10, 0.2, {"storage": 0.8})
    assert found.cause == "storage"


def test_nothing_observed_is_no_verdict() -> None:
    assert share(snapshot(Totals()), Totals()) is None
    assert share(snapshot(Totals(observed_ns=SECOND)), Totals(observed_ns=SECOND)) is None
    assert share(snapshot(Totals(observed_ns=SECOND)), None) is None
