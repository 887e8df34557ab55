"""`check --diagnose`: the answer for someone at a shell on the node."""

from __future__ import annotations

import math
import os
import pty
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.accounting.stall import WAITING_ON
from gpu_bottleneck_exporter.commands.diagnose import lines_of
from gpu_bottleneck_exporter.demo.run import Demo, running
from gpu_bottleneck_exporter.driver.about import DOWN
from gpu_bottleneck_exporter.driver.readings import Identity, Process, Processes, System
from gpu_bottleneck_exporter.nodeview.build import moment_of, node_of
from gpu_bottleneck_exporter.nodeview.history import History
from gpu_bottleneck_exporter.nodeview.model import Gpu
from gpu_bottleneck_exporter.prescription.model import Outlook, Refusal
from gpu_bottleneck_exporter.remedies import REMEDIES
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot, GpuTotals
from support.command import COMMAND, environment, run
from support.drivers import Libraries
from support.states import PRESCRIBED, SCORED, FixedSampler, feeding, mixed_state
from support.waiting import PATIENCE_SECONDS

SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    with running() as started:
        yield started


def on_demo(demo: Demo, libraries: Libraries) -> dict[str, str]:
    """The variables with which pynvml finds the demo's GPUs."""
    places = {"LD_LIBRARY_PATH": libraries.path(580).parent, "FAKE_NVML_BOARD": demo.board.path}
    return {name: f"{path}" for name, path in places.items()}


def test_it_names_the_cause_and_a_remedy_per_gpu(
    demo: Demo, libraries: Libraries, tmp_path: Path
) -> None:
    result = run(tmp_path, "check", "--diagnose", "8", **on_demo(demo, libraries))
    assert (result.returncode, result.stderr) == (0, "")
    healthy, cpu, loop, idle = result.stdout.split("\n\n")[:4]
    # On a crowded machine all of them wait for a CPU.
    assert "verdict       kept busy" in healthy or "likely cause  cpu_queue" in healthy
    assert "likely cause  worker_cpu" in cpu or "likely cause  cpu_queue" in cpu
    assert "likely cause  host_code" in loop or "likely cause  cpu_queue" in loop
    assert "likely cause  asleep" in idle or "likely cause  cpu_queue" in idle
    assert all("try first" in text for text in (cpu, loop, idle))
    assert all("held by process" in text for text in (healthy, cpu, loop, idle))


def test_a_terminal_sees_progress(demo: Demo, libraries: Libraries, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "check", "--diagnose", "1"],
        env=environment(tmp_path, **on_demo(demo, libraries)),
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


def snapshot(totals: GpuTotals, *, up: bool = True) -> GpuSnapshot:
    return GpuSnapshot(Identity(0, "GPU-0", "H100"), 0, totals, {}, {}, System(None, None), up=up)


def watched(*seen: GpuSnapshot) -> Gpu:
    """A GPU that was seen in these states, at intervals."""
    states = [replace(mixed_state(), gpus=(gpu,)) for gpu in seen]
    history = History(math.inf, math.inf)
    for at, now in enumerate(states):
        history.add(at, moment_of(now))
    now = states[-1]
    return node_of(FixedSampler(now), now, history.lately(len(states), moment_of(now))).gpus[0]


def test_shares_are_of_the_time_between() -> None:
    before = GpuTotals(observed_ns=10 * SECOND, busy_ns=10 * SECOND, stall_ns={"storage": 0})
    after = replace(
        before, observed_ns=20 * SECOND, busy_ns=12 * SECOND, stall_ns={"storage": 8 * SECOND}
    )
    found = watched(snapshot(before), snapshot(after))
    assert (found.observed_seconds, found.busy_ratio) == (10, 0.2)
    assert (found.stall_ratios, found.cause) == ({"storage": 0.8}, "storage")


def test_a_gpu_that_was_first_observed_while_watching_is_measured_from_there() -> None:
    first = GpuTotals(observed_ns=SECOND, stall_ns={"peer": SECOND})
    now = GpuTotals(observed_ns=5 * SECOND, busy_ns=SECOND, stall_ns={"peer": 4 * SECOND})
    found = watched(snapshot(GpuTotals()), snapshot(first), snapshot(now))
    assert (found.observed_seconds, found.busy_ratio, found.cause) == (4, 0.25, "peer")


def test_nothing_observed_is_no_verdict() -> None:
    second = snapshot(GpuTotals(observed_ns=SECOND))
    nothing = ["  verdict       nothing observed yet", ""]
    assert list(lines_of(watched(snapshot(GpuTotals()), snapshot(GpuTotals()))))[1:] == nothing
    assert list(lines_of(watched(second, second)))[1:] == nothing
    down, remedy, *_ = list(lines_of(watched(second, snapshot(GpuTotals(), up=False))))[1:]
    assert (down, remedy) == ("  verdict       down: see the log", f"  try first     {DOWN}")


def test_the_holders_that_can_be_seen_are_named_small_shares_are_not() -> None:
    before = GpuTotals(observed_ns=0, stall_ns={"storage": 0, "peer": 0})
    stalls = {"storage": 996 * SECOND, "peer": 4 * SECOND}
    now = snapshot(GpuTotals(observed_ns=1000 * SECOND, stall_ns=stalls))
    held = replace(now, readings={Processes: Processes((Process(7), Process(9)))})
    heading, *said = lines_of(watched(snapshot(before), held))
    assert heading == "GPU 0  H100  held by process 7, 9"
    assert [line.split()[0] for line in said[:3]] == ["busy", "storage", "likely"]
    assert next(lines_of(watched(snapshot(before), now))).endswith("(holders unknown)")


def lines_with(outlook: Outlook, *, busy: float = 0.44) -> list[str]:
    """What is said of a GPU that waits for its workers the rest of the time."""
    busy_ns = int(100 * busy) * SECOND
    stalls = {"worker_cpu": 100 * SECOND - busy_ns}
    before = snapshot(GpuTotals(observed_ns=0, stall_ns={"worker_cpu": 0}))
    now = snapshot(GpuTotals(observed_ns=100 * SECOND, busy_ns=busy_ns, stall_ns=stalls))
    return list(
        lines_of(watched(before, replace(now, feeding=replace(feeding(), outlook=outlook))))
    )


def test_the_prescription_and_the_last_change_come_after_what_to_try_first() -> None:
    *_, first, prescription, last, runbook, end = lines_with(Outlook(PRESCRIBED, SCORED))
    assert first.startswith("  try first     ")
    assert prescription == (
        "  prescription  num_workers 2 → 6: busy 44 % → 93 % (88–95); "  # noqa: RUF001
        "uses 4 of 7 free cores, 2.1 of 40 GiB; then host_code limits"
    )
    assert last == "  last change   num_workers 1 → 2: predicted 46 % (42–50), now 44 %"  # noqa: RUF001
    assert (runbook, end) == ("  runbook       GpuCpuPreprocessingBound.md", "")


def test_a_refusal_has_its_reason() -> None:
    *_, prescription, _, end = lines_with(Outlook(Refusal("shared")))
    assert prescription == "  prescription  none: several processes share this GPU"
    assert end == ""


def test_a_gpu_that_is_kept_busy_gets_no_prescription_but_its_last_change() -> None:
    *_, verdict, last, _ = lines_with(Outlook(PRESCRIBED, SCORED), busy=0.95)
    assert verdict == "  verdict       kept busy"
    assert last.startswith("  last change   num_workers 1 → 2")


def test_nothing_known_is_no_line() -> None:
    assert not [line for line in lines_with(Outlook()) if "prescription" in line or "last" in line]


def test_a_split_that_is_not_known_is_not_taken_for_busy() -> None:
    found = watched(
        snapshot(GpuTotals(observed_ns=0)), snapshot(GpuTotals(observed_ns=SECOND, busy_ns=0))
    )
    assert "  verdict       what it waits for is unknown" in lines_of(found)
