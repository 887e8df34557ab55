"""Which of the host's signals there are, from recorded trees and on this machine."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.commands.check import missing_signals
from gpu_bottleneck_exporter.host.signals import host_signals
from gpu_bottleneck_exporter.remedies import OF_SIGNALS
from gpu_bottleneck_exporter.sampling.hostreader import HostReader, HostSnapshot
from support.programs import descriptors, program
from support.rights import as_nobody
from support.states import NO_DRIVER
from support.trees import cgroup_v1, cgroup_v2, lay

PROC = Path("/proc")
PSI = "some avg10=0 avg60=0 avg300=0 total=1\n"
ZEROS = " ".join(["0"] * 40)
COMPLETE = {
    "pressure/cpu": PSI,
    "self/schedstat": "1 2 3\n",
    "1/io": "read_bytes: 1\n",
    "1/wchan": "ep_poll",
    "1/stat": f"1 (systemd) S 0 {ZEROS}\n",
    "1/root/no-link": "",
}


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    return lay(tmp_path / "proc", COMPLETE)


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    cgroup_v2(tmp_path / "sys", {"a.slice/cpu.pressure": PSI, "a.slice/memory.stat": "anon 1\n"})
    return tmp_path / "sys"


def allow(proc: Path) -> None:
    """As with the permission to ptrace process 1."""
    shutil.rmtree(proc / "1/root")
    (proc / "1/root").symlink_to("/")


def missing(proc: Path, sysfs: Path, *feeding: int) -> set[str]:
    """But connections, which no recorded process has."""
    signals = host_signals(proc, sysfs, feeding)
    return {name for name, given in signals.items() if not given and name != "connections"}


def test_a_machine_that_gives_all(proc: Path, sysfs: Path) -> None:
    found = dict(host_signals(proc, sysfs, ()))
    assert not found.pop("connections"), "recorded processes lend nothing"
    assert found == dict.fromkeys(
        (
            "psi_host",
            "psi_cgroup",
            "schedstat",
            "process_io",
            "wait_channel",
            "cgroup_cpu",
            "cgroup_memory",
        ),
        True,
    )


@pytest.mark.parametrize(
    ("name", "signal"),
    [("pressure/cpu", "psi_host"), ("self/schedstat", "schedstat"), ("1/io", "process_io")],
)
def test_a_file_that_is_missing(proc: Path, sysfs: Path, name: str, signal: str) -> None:
    (proc / name).unlink()
    assert missing(proc, sysfs) == {signal}


def test_pressure_that_is_refused(proc: Path, sysfs: Path) -> None:
    (proc / "pressure/cpu").unlink()
    (proc / "pressure/cpu").mkdir()
    assert missing(proc, sysfs) == {"psi_host"}


def test_a_wait_channel_without_permission(proc: Path, sysfs: Path) -> None:
    (proc / "1/wchan").write_text("0")
    assert missing(proc, sysfs) == {"wait_channel"}
    allow(proc)
    assert "wait_channel" not in host_signals(proc, sysfs, ())
    (proc / "1/wchan").unlink()
    assert missing(proc, sysfs) == {"wait_channel"}


def test_a_process_that_has_only_just_fallen_asleep_is_no_secret(sysfs: Path) -> None:
    code = "import time\nprint(flush=True)\nwhile True: time.sleep(0.0002)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            looks = [host_signals(Path("/proc"), sysfs, (process.pid,)) for _ in range(2000)]
        finally:
            process.kill()
    assert {found.get("wait_channel", True) for found in looks} == {True}


def test_process_1_says_nothing_of_our_rights_where_it_is_us(proc: Path, sysfs: Path) -> None:
    (proc / "self/schedstat").rename(proc / "1/schedstat")
    (proc / "self").rmdir()
    (proc / "self").symlink_to("1")
    assert {"process_io", "wait_channel"}.isdisjoint(host_signals(proc, sysfs, ()))
    assert missing(proc, sysfs, 1) == set()


def test_processes_that_are_hidden(
    proc: Path, sysfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inode = lay(proc, {"self/ns/pid": ""}).joinpath("self/ns/pid").stat().st_ino
    monkeypatch.setattr("gpu_bottleneck_exporter.host.signals._FIRST_PID_NAMESPACE", inode)
    assert host_signals(proc, sysfs, ())["host_pids"]
    (proc / "1/stat").unlink()
    assert not host_signals(proc, sysfs, ())["host_pids"]


def test_rights_are_tried_on_the_processes_that_feed_gpus(proc: Path, sysfs: Path) -> None:
    lay(proc, {"7/stat": f"7 (a) S 1 {ZEROS}\n", "7/wchan": "0", "7/root/no-link": ""})
    assert missing(proc, sysfs, 7) == {"process_io", "wait_channel"}
    assert missing(proc, sysfs, 1) == set()
    assert missing(proc, sysfs, 1, 7) == {"process_io", "wait_channel"}


def test_a_process_that_is_gone_says_nothing_of_our_rights(proc: Path, sysfs: Path) -> None:
    assert {"process_io", "wait_channel"}.isdisjoint(host_signals(proc, sysfs, (99,)))


def test_v1_has_no_pressure_of_groups(proc: Path, tmp_path: Path) -> None:
    sysfs = tmp_path / "v1"
    cgroup_v1(sysfs, {"cpu,cpuacct/cpu.stat": "throttled_time 0\n", "memory/memory.stat": "x 1\n"})
    assert missing(proc, sysfs) == {"psi_cgroup"}


def test_hybrid_has_it_in_the_unified_part(proc: Path, tmp_path: Path) -> None:
    sysfs = tmp_path / "hybrid"
    files = {"cpu/cpu.stat": "throttled_time 0\n", "memory/memory.stat": "x 1\n"}
    mount = cgroup_v1(sysfs, files)
    lay(mount, {"unified/cgroup.controllers": "", "unified/a.slice/cpu.pressure": PSI})
    assert missing(proc, sysfs) == set()


def test_no_control_groups_at_all(proc: Path, tmp_path: Path) -> None:
    expected = {"psi_cgroup", "cgroup_cpu", "cgroup_memory"}
    assert missing(proc, tmp_path / "nothing") == expected


def test_a_unified_machine_without_the_controllers(proc: Path, sysfs: Path) -> None:
    (sysfs / "fs/cgroup/cgroup.controllers").write_text("cpuset pids\n")
    assert missing(proc, sysfs) == {"cgroup_cpu", "cgroup_memory"}


def test_the_pid_namespace_of_this_machine() -> None:
    inode = Path("/proc/self/ns/pid").stat().st_ino
    found = host_signals(Path("/proc"), Path("/sys"), (os.getpid(),))
    assert found["host_pids"] == (inode == 0xEFFFFFFC)
    assert found["process_io"]


def test_connections_of_a_process_that_we_may_trace(sysfs: Path) -> None:
    with program("ready(); told()") as one:
        before = descriptors()
        assert host_signals(PROC, sysfs, (one.pid,))["connections"] is True
        assert host_signals(PROC, sysfs, (one.pid, os.getpid()))["connections"] is True
        assert descriptors() <= before


def test_connections_of_a_process_that_is_gone_say_nothing(sysfs: Path) -> None:
    with program("") as one:
        pass
    assert "connections" not in host_signals(PROC, sysfs, (one.pid,))


def test_connections_of_processes_with_other_numbers_cannot_be_seen(
    proc: Path, sysfs: Path
) -> None:
    assert host_signals(proc, sysfs, (1,))["connections"] is False


@pytest.mark.parametrize(
    ("capabilities", "given"),
    [((), False), (("dac_read_search",), False), (("dac_read_search", "sys_ptrace"), True)],
)
def test_some_take_the_right_to_ptrace(capabilities: tuple[str, ...], given: bool) -> None:  # noqa: FBT001
    way = as_nobody(*capabilities, files=[])
    code = "import sys; from pathlib import Path\n"
    code += "from gpu_bottleneck_exporter.host.signals import host_signals\n"
    code += "found = host_signals(Path('/proc'), Path('/sys'), (int(sys.argv[1]),))\n"
    code += "print(found['connections'], found.get('wait_channel'))"
    with program("ready(); told()") as one:
        command = [*way, sys.executable, "-c", code, str(one.pid)]
        assert subprocess.check_output(command, text=True).split() == [str(given)] * 2


def test_what_was_not_looked_at_in_full_is_a_signal(proc: Path, sysfs: Path) -> None:
    watch = HostReader(proc, sysfs, machine=False)
    for given in (True, False, True):
        watch.read((), {"all_threads": given, "all_sockets": True})
        assert watch.snapshot is not None
        assert watch.snapshot.signals["all_threads"] is given
        assert watch.snapshot.signals["all_sockets"] is True


def test_each_has_a_remedy() -> None:
    found = host_signals(Path("/proc"), Path("/sys"), (os.getpid(),))
    looks = {"wait_channel", "host_pids", "all_threads", "all_sockets"}
    assert found.keys() | looks <= OF_SIGNALS.keys()


def test_a_gap_of_the_host_is_told_with_its_remedy() -> None:
    signals = {"psi_host": False, "schedstat": True}
    (gap,) = missing_signals(replace(NO_DRIVER, host=HostSnapshot(0, None, signals)), {})
    assert (gap.subject, gap.where) == ("psi_host", ("host",))
    told, remedy = gap.lines
    assert told == "gap             psi_host: not given by the host"
    assert remedy.startswith("  remedy        ")
    assert "psi=1" in remedy


def test_each_change_is_logged_once(
    proc: Path, sysfs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch = HostReader(proc, sysfs, machine=False)

    def said() -> list[str]:
        caplog.clear()
        watch._refreshing.due_ns = 0  # as if ten seconds had passed
        with caplog.at_level(logging.INFO):
            watch.read()
        return [record.message for record in caplog.records if "connections" not in record.message]

    assert said() == []
    (proc / "1/wchan").write_text("0")
    assert said() == ["signal wait_channel is not available"]
    assert said() == []
    allow(proc)
    assert said() == [], "it may run"
    assert watch.snapshot is not None
    assert watch.snapshot.signals["wait_channel"] is False
    (proc / "1/wchan").write_text("ep_poll")
    assert said() == ["signal wait_channel is available"]


def test_signals_are_looked_for_again_when_others_feed(proc: Path, sysfs: Path) -> None:
    lay(proc, {"7/stat": f"7 (a) S 1 {ZEROS}\n", "7/wchan": "0", "7/root/no-link": ""})
    watch = HostReader(proc, sysfs, machine=False)
    for feeding, given in (((), True), ((7,), False), ((1,), True)):
        watch.read(feeding)
        assert watch.snapshot is not None
        assert watch.snapshot.signals["wait_channel"] is given
        assert watch.snapshot.machine is None
