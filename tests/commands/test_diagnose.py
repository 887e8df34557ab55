"""`diagnose`: the answer for someone at a shell on the node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.commands.check import Blamed, _blamed, lines_of
from gpu_bottleneck_exporter.nodeview.model import GpuStatus
from gpu_bottleneck_exporter.prescription.model import Outlook
from support.nodes import changed, node, sharing, waiting
from support.states import PRESCRIBED, SCORED, feeding, hopper, state

SECOND = 10**9


def lines_with(outlook: Outlook) -> list[str]:
    """The lines of a GPU that waits for its workers."""
    gpu = waiting({"worker_cpu": 996 * SECOND, "peer": 4 * SECOND}, busy_ns=0)
    shown = replace(gpu, feeding=replace(feeding(), outlook=outlook))
    blamed = [Blamed(4713, "python train.py"), Blamed(4714, "")]
    return list(lines_of(node(state(shown)).gpus[0], blamed))


def test_the_verdict_names_processes_recommendation_prediction_and_shares() -> None:
    heading, cause, blamed, other, first, last, runbook, busy, share, end = lines_with(
        Outlook(PRESCRIBED, SCORED)
    )
    assert (blamed, other) == ("  most to blame 4713    python train.py", "                4714")
    assert heading == "GPU 0  NVIDIA H100 80GB HBM3  held by process 4711, 4712"
    assert busy.split() == ["busy", "0.0%"]
    assert share.split() == ["worker_cpu", "█" * 30, "99.6%"]
    assert cause.startswith("  likely cause  Waiting for loader workers (worker_cpu) for 4 min: ")
    assert first.startswith("  try           Use 6 loader workers (now 2): the GPU would be 93 %")
    assert last.startswith("  last change   Loader workers changed from 1 to 2. The GPU is")
    assert (runbook, end) == (
        "  runbook       gpu-bottleneck-exporter runbook GpuStarved-cpu_preprocessing_bound",
        "",
    )


@pytest.mark.parametrize(
    ("cause", "mains", "others", "pids"),
    [
        ("worker_cpu", (1,), (3, 2, 4), [3, 2]),
        ("network", (1,), (3,), [3]),
        ("storage", (1,), (), [1]),
        ("host_code", (1, 2, 4), (3,), [1, 2]),
        ("asleep", (1,), (3,), [1]),
        (None, (1,), (3,), []),
    ],
)
def test_processes_blamed_by_a_verdict(
    tmp_path: Path,
    cause: str | None,
    mains: Sequence[int],
    others: Sequence[int],
    pids: list[int],
) -> None:
    busiest = tuple((pid, 1) for pid in mains), tuple((pid, 1) for pid in others)
    shown = replace(hopper(), feeding=replace(feeding(), busiest=busiest))
    gpu = GpuStatus(gpu="0", uuid=shown.identity.uuid, up=True, cause=cause)
    ended = [(pid, "") for pid in pids]
    assert list(_blamed(gpu, state(shown), tmp_path)) == ended


def test_commands_are_bounded_and_move_no_cursor(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1/cmdline").write_bytes(b"python\0tr\x1b[2Jain\n.py\0" + 500 * b"x" + b"\0")
    shown = replace(hopper(), feeding=replace(feeding(), busiest=(((1, 1),), ())))
    gpu = GpuStatus(gpu="0", uuid=shown.identity.uuid, up=True, cause="asleep")
    ((pid, command),) = _blamed(gpu, state(shown), tmp_path)
    assert pid == 1
    assert command.startswith("python tr?[2Jain?.py xxx")
    assert len(command) == 100


@pytest.mark.parametrize(
    ("pids", "unknown", "held"),
    [
        ((7, 9), 0.0, "held by process 7, 9"),
        ((), 0.5, "held by no visible process"),
        ((), 0.0, "held by no process"),
        (None, 0.0, "(holders unknown)"),
    ],
)
def test_the_holders_that_can_be_seen(
    pids: tuple[int, ...] | None, unknown: float, held: str
) -> None:
    stalls = {"unknown": unknown}
    gpu = GpuStatus(gpu="0", uuid="", up=True, name="H100", holder_pids=pids, stall_ratios=stalls)
    assert next(lines_of(gpu)) == f"GPU 0  H100  {held}"


def test_the_tenants_of_a_shared_gpu_are_on_one_line() -> None:
    shown = node(state(sharing())).gpus[0]
    (line,) = (line for line in lines_of(shown) if line.startswith("  shared by     "))
    assert "  shared by     55 % of 91 s busy: research/infer-0, user bob; 33 %: research" in line
    (part, *_) = shown.tenants or ()
    evil = changed(shown, tenants=(replace(part, owner={"user": "\x1b[2J\nevil"}),))
    assert all(line.isprintable() for line in lines_of(evil))
