"""A desktop and the driver's daemons are no job; a process that draws or computes in one is."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_bottleneck_exporter.driver.nvml.remedies import NVIDIA
from gpu_bottleneck_exporter.driver.readings import Process, Processes
from gpu_bottleneck_exporter.workload.owners import without_bystanders
from support.trees import lay

POD = "/kubepods/burstable/pod2c48913c-b29f-11e7-9350-020968147796/" + "c" * 64


def left(proc: Path, *, draws_only: bool, group: str | None) -> bool:
    """Whether a process of that control group counts; None: it cannot be read."""
    if group is not None:
        lay(proc, {"7/cgroup": f"0::{group}\n"})
    reading = Processes((Process(7, 2**30, draws_only),), others_hidden=True)
    result = without_bystanders(reading, proc, ())
    assert result.others_hidden
    return bool(result.processes)


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
def test_a_process_that_draws_in_a_job_holds_the_gpu(group: str | None, tmp_path: Path) -> None:
    assert left(tmp_path, draws_only=True, group=group)


SERVER = "nvidia-cuda-mps-server"
CONTROL = "nvidia-cuda-mps-control"


@pytest.mark.parametrize(
    ("parent", "server", "kept"),
    [
        ((CONTROL, 0), (SERVER, 0), 0),
        ((CONTROL, 0), (SERVER, 54321), 0),
        ((CONTROL, 54321), (SERVER, 54321), 1),
        (("control", 0), (SERVER, 54321), 1),
        ((CONTROL, 0), ("python", 0), 1),
    ],
    ids=["root's", "as its client", "a user's own", "of another program", "another program"],
)
def test_roots_daemons_of_the_driver_hold_nothing(
    parent: tuple[str, int], server: tuple[str, int], kept: int, tmp_path: Path
) -> None:
    """A daemon, and a server that it started; the kernel shows 15 characters of a name."""
    for pid, above, (name, user) in ((6, 1, parent), (7, 6, server)):
        status = f"Name:\t{name[:15]}\nState:\tS\nPPid:\t{above}\nUid:\t{user}\t7\t7\t7\n"
        lay(tmp_path, {f"{pid}/status": status})
    result = without_bystanders(Processes((Process(7),)), tmp_path, NVIDIA.daemons)
    assert len(result.processes) == kept


USUAL, PRIVILEGED = "00000000a80425fb", "000001ffffffffff"
"""The capabilities of a container's root, and all."""


@pytest.mark.parametrize(
    ("pids", "capabilities", "users", "kept"),
    [
        ("7", USUAL, "user", 0),
        ("7\t1", USUAL, "user", 1),
        ("7\t1", PRIVILEGED, "user", 0),
        ("7\t1", PRIVILEGED, "net", 1),
        ("7\t1", PRIVILEGED, "", 1),
    ],
    ids=["the host's", "a tenant's", "a daemon set's", "of its own users", "not to be checked"],
)
def test_the_root_of_a_container_makes_a_daemon_only_if_it_is_privileged(
    pids: str, capabilities: str, users: str, kept: int, tmp_path: Path
) -> None:
    """Processes of NVIDIA's daemon set for MPS, and its server for a client's user."""
    for pid, above, user in ((6, 1, 0), (7, 6, 54321)):
        head = f"Name:\t{SERVER[:15]}\nPPid:\t{above}\nUid:\t{user}\t0\t0\t0\nNSpid:\t{pids}\n"
        lay(tmp_path, {f"{pid}/status": f"{head}CapEff:\t{capabilities}\n", f"{pid}/ns/x": ""})
        if users:  # another namespace stands for those of other users
            (tmp_path / f"{pid}/ns/user").symlink_to(f"/proc/self/ns/{users}")
    for pid in (6, 7):
        result = without_bystanders(Processes((Process(pid),)), tmp_path, NVIDIA.daemons)
        assert len(result.processes) == kept
