"""Which of the host's signals there are, from recorded trees and on this machine."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.host.signals import host_signals
from gpu_bottleneck_exporter.remedies import SIGNAL_REMEDIES
from gpu_bottleneck_exporter.sampling.hostreader import HostReader
from support.logged import logged
from support.programs import ended, program
from support.rows import rows
from support.trees import cgroup_v1, cgroup_v2, lay

PROC, SYS = Path("/proc"), Path("/sys")
PSI = "some avg10=0 avg60=0 avg300=0 total=1\n"
ZEROS = " ".join(["0"] * 40)
COMPLETE = {
    "proc/pressure/cpu": PSI,
    "proc/self/schedstat": "1 2 3\n",
    "proc/1/io": "read_bytes: 1\n",
    "proc/1/wchan": "ep_poll",
    "proc/1/stat": f"1 (systemd) S 0 {ZEROS}\n",
    "proc/1/root/no-link": "",
    "proc/7/wchan": "0",
    "proc/7/stat": f"7 (a) S 1 {ZEROS}\n",
    "proc/7/root/no-link": "",
}
"""Reads of process 7 are forbidden."""
SEEN = {"psi_host", "psi_cgroup", "schedstat", "process_io", "wait_channel", "cgroup_cpu"}
OF_RIGHTS = {"process_io", "wait_channel"}
V1_FILES = {"cpu/cpu.stat": "throttled_time 0\n", "memory/memory.stat": "x 1\n"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine that gives all, below `proc` and `sys`."""
    cgroup_v2(tmp_path / "sys", {"a.slice/cpu.pressure": PSI, "a.slice/memory.stat": "anon 1\n"})
    return lay(tmp_path, COMPLETE)


@pytest.fixture
def reader(root: Path) -> HostReader:
    return HostReader(root / "proc", root / "sys", machine=False)


def signals(root: Path, *feeding: int) -> dict[str, bool]:
    """But connections, which no recorded process has."""
    fields = dict(host_signals(root / "proc", root / "sys", feeding))
    assert fields.pop("connections", False) is False
    return fields


def missing(root: Path, *feeding: int) -> set[str]:
    return {name for name, result in signals(root, *feeding).items() if not result}


def allow(proc: Path) -> None:
    """Give the permission to ptrace process 1."""
    shutil.rmtree(proc / "1/root")
    (proc / "1/root").symlink_to("/")


def drop(name: str) -> Callable[[Path], object]:
    return lambda root: (root / name).unlink()


def refuse_pressure(root: Path) -> None:
    drop("proc/pressure/cpu")(root)
    (root / "proc/pressure/cpu").mkdir()


def v1(root: Path, **more: str) -> None:
    shutil.rmtree(root / "sys")
    cgroup_v1(root / "sys", V1_FILES | more)


def hybrid(root: Path) -> None:
    v1(root)
    files = {"cgroup.controllers": "", "a.slice/cpu.pressure": PSI}
    lay(root / "sys/fs/cgroup/unified", files)


def pids_only(root: Path) -> None:
    (root / "sys/fs/cgroup/cgroup.controllers").write_text("cpuset pids\n")


def test_a_machine_that_gives_all(root: Path) -> None:
    assert signals(root) == dict.fromkeys({*SEEN, "cgroup_memory"}, True)


@rows(
    "change, gone",
    {
        "no pressure": (drop("proc/pressure/cpu"), {"psi_host"}),
        "pressure that is refused": (refuse_pressure, {"psi_host"}),
        "no schedstat": (drop("proc/self/schedstat"), {"schedstat"}),
        "no bytes": (drop("proc/1/io"), {"process_io"}),
        "no wait channels": (drop("proc/1/wchan"), {"wait_channel"}),
        "v1 has no pressure of groups": (v1, {"psi_cgroup"}),
        "hybrid has it in the unified part": (hybrid, set()),
        "no control groups": (
            lambda root: shutil.rmtree(root / "sys"),
            {"psi_cgroup", "cgroup_cpu", "cgroup_memory"},
        ),
        "no such controllers": (pids_only, {"cgroup_cpu", "cgroup_memory"}),
    },
)
def test_missing_signals(root: Path, change: Callable[[Path], object], gone: set[str]) -> None:
    change(root)
    assert missing(root) == gone


def test_a_wait_channel_without_permission(root: Path) -> None:
    (root / "proc/1/wchan").write_text("0")
    assert missing(root) == {"wait_channel"}
    allow(root / "proc")
    assert "wait_channel" not in signals(root)
    drop("proc/1/wchan")(root)
    assert missing(root) == {"wait_channel"}


def test_a_process_that_has_only_just_fallen_asleep_is_no_secret(root: Path) -> None:
    with program("ready()\nwhile True: time.sleep(0.0002)") as process:
        looks = [host_signals(PROC, root / "sys", (process.pid,)) for _ in range(2000)]
    assert {look.get("wait_channel", True) for look in looks} == {True}


def test_process_1_shows_nothing_of_our_rights_where_it_is_us(root: Path) -> None:
    proc = root / "proc"
    (proc / "self/schedstat").rename(proc / "1/schedstat")
    (proc / "self").rmdir()
    (proc / "self").symlink_to("1")
    assert OF_RIGHTS.isdisjoint(signals(root))
    assert missing(root, 1) == set()


def test_processes_that_are_hidden(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inode = lay(root, {"proc/self/ns/pid": ""}).joinpath("proc/self/ns/pid").stat().st_ino
    monkeypatch.setattr("gpu_bottleneck_exporter.host.signals._HOST_PID_NAMESPACE_INODE", inode)
    assert signals(root)["host_pids"]
    drop("proc/1/stat")(root)
    assert not signals(root)["host_pids"]


def test_rights_are_tried_on_the_processes_that_feed_gpus(root: Path) -> None:
    assert missing(root, 7) == missing(root, 1, 7) == OF_RIGHTS
    assert missing(root, 1) == set()
    assert OF_RIGHTS.isdisjoint(signals(root, 99)), "it is gone"


def test_connections_can_be_seen_of_processes_that_we_may_trace(root: Path) -> None:
    with program("ready(); told()") as process:
        for feeding in ((process.pid,), (process.pid, os.getpid())):
            assert host_signals(PROC, SYS, feeding)["connections"] is True
    assert "connections" not in host_signals(PROC, SYS, (ended(),))
    assert host_signals(root / "proc", SYS, (1,))["connections"] is False, "other numbers"


def test_each_of_this_machine_has_a_remedy() -> None:
    result = host_signals(PROC, SYS, (os.getpid(),))
    assert result["host_pids"] == (Path("/proc/self/ns/pid").stat().st_ino == 0xEFFFFFFC)
    assert result["process_io"]
    looks = {"wait_channel", "host_pids", "all_threads", "all_sockets"}
    assert result.keys() | looks <= SIGNAL_REMEDIES.keys()


def test_each_change_is_logged_once(
    root: Path, reader: HostReader, caplog: pytest.LogCaptureFixture
) -> None:
    proc = root / "proc"

    def said() -> list[str]:
        caplog.clear()
        reader._signals_schedule.due_ns = 0  # as if ten seconds had passed
        with caplog.at_level(logging.INFO):
            reader.read()
        return [line for line in logged(caplog) if "connections" not in line]

    assert said() == []
    (proc / "1/wchan").write_text("0")
    assert said() == ["signal is not available signal=wait_channel"]
    assert said() == []
    allow(proc)
    assert said() == [], "it may run"
    assert reader.snapshot is not None
    assert reader.snapshot.signals["wait_channel"] is False
    (proc / "1/wchan").write_text("ep_poll")
    assert said() == ["signal is available signal=wait_channel"]


def test_signals_are_probed_again_when_others_feed(reader: HostReader) -> None:
    for feeding, result in (((), True), ((7,), False), ((1,), True)):
        reader.read(feeding, {"all_threads": result, "all_sockets": True})
        assert reader.snapshot is not None
        values = [reader.snapshot.signals[name] for name in ("wait_channel", "all_threads")]
        assert values == [result, result]
        assert reader.snapshot.signals["all_sockets"]
        assert reader.snapshot.machine is None
