"""A desktop on a GPU is nobody's job; who draws in a container or a job is."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_bottleneck_exporter.driver.readings import Process, Processes
from gpu_bottleneck_exporter.workload.desktop import without_desktop
from support.trees import lay

POD = "/kubepods/burstable/pod2c48913c-b29f-11e7-9350-020968147796/" + "c" * 64


def left(proc: Path, *, draws_only: bool, group: str | None) -> bool:
    """Whether a process of that control group counts; None: it cannot be read."""
    if group is not None:
        lay(proc, {"7/cgroup": f"0::{group}\n"})
    reading = Processes((Process(7, 2**30, draws_only),), others_hidden=True)
    found = without_desktop(reading, proc)
    assert found.others_hidden
    return bool(found.processes)


@pytest.mark.parametrize(
    "group",
    [
        "/user.slice/user-1000.slice/session-2.scope",
        "/user.slice/user-1000.slice/user@1000.service/app.slice/app-browser.scope",
        "/system.slice/gdm.service",
        "/",
    ],
)
def test_a_desktop_holds_nothing(group: str, tmp_path: Path) -> None:
    assert not left(tmp_path, draws_only=True, group=group)
    assert left(tmp_path, draws_only=False, group=group), "it computes"


@pytest.mark.parametrize(
    "group", [POD, f"/docker/{'d' * 64}", "/system.slice/slurmstepd.scope/job_7/step_0", None]
)
def test_who_draws_in_a_job_holds_it(group: str | None, tmp_path: Path) -> None:
    assert left(tmp_path, draws_only=True, group=group)
