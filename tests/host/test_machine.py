"""The machine: recorded network and disks, the real /proc, and what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from gpu_bottleneck_exporter.host.machine import (
    MOST_DEVICES,
    Machine,
    MachineReader,
    network_bytes,
    whole_disks,
)
from gpu_bottleneck_exporter.host.mounts import mount_points
from gpu_bottleneck_exporter.host.signals import in_hosts_pid_namespace
from support.rights import AS_WE_ARE, Way, _after, as_nobody, with_mounts_of_its_own
from support.tools import _missing
from support.trees import lay
from support.waiting import until

PROC = Path("/proc")
HEAD = (
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop\n"
)


def device(name: str, received: int, sent: int) -> str:
    return f"{name:>6}:{received:>8} 5 0 0 0 0 0 0 {sent:>8} 7 0 0 0 0 0 0\n"


def test_bytes_by_interface() -> None:
    devices = device("lo", 9, 9), device("eth0", 10**12, 20), device("ib0", 0, 0)
    assert network_bytes(HEAD + "".join(devices)) == {"eth0": (10**12, 20), "ib0": (0, 0)}


def test_a_wide_counter_that_touches_the_name() -> None:
    line = "eth0:1234567890123 5 0 0 0 0 0 0 20 7 0 0 0 0 0 0\n"
    assert network_bytes(HEAD + line) == {"eth0": (1234567890123, 20)}


@pytest.mark.parametrize(
    "name", ["veth1a2b", "cali77", "lxc00aa", "cni0", "flannel.1", "docker0", "br-5f", "ifb0", "lo"]
)
def test_interfaces_of_containers_are_left_out(name: str) -> None:
    devices = device(name, 1, 2), device("bond0", 3, 4), device("brand", 5, 6)
    assert network_bytes(HEAD + "".join(devices)) == {"bond0": (3, 4), "brand": (5, 6)}


@pytest.mark.parametrize("text", ["", HEAD, HEAD + "eth0: 1 2 3\n", "x"])
def test_a_strange_network_file_says_nothing(text: str) -> None:
    assert network_bytes(text) == {}


@pytest.mark.parametrize(
    ("names", "disks"),
    [
        (["sda", "sda1", "sda15", "sdaa", "sdaa1"], ["sda", "sdaa"]),
        (
            ["nvme0n1", "nvme0n1p1", "nvme0n10", "nvme1n1p1", "nvme1n1"],
            ["nvme0n1", "nvme0n10", "nvme1n1"],
        ),
        (["vda", "vda1", "zram0", "loop0", "ram1", "sr0", "fd0"], ["vda"]),
        (["dm-1", "dm-10", "md1", "md10", "md1p1", "sda"], ["sda", "dm-1", "dm-10", "md1", "md10"]),
        (["mmcblk0", "mmcblk0p1", "mmcblk0boot0"], ["mmcblk0", "mmcblk0boot0"]),
        (["sda1"], ["sda1"]),
        ([], []),
    ],
)
def test_whole_disks(names: list[str], disks: list[str]) -> None:
    assert whole_disks(names) == disks


def test_the_number_of_disks_is_bounded_and_real_ones_come_first() -> None:
    names = [f"dm-{number}" for number in range(50)] + [f"nvme{number}n1" for number in range(12)]
    found = whole_disks(names)
    assert len(found) == MOST_DEVICES
    assert {f"nvme{number}n1" for number in range(12)} < set(found)


def test_the_real_machine() -> None:
    found = MachineReader(PROC).read(0)
    assert found.cpus == os.cpu_count()
    assert found.memory_total_bytes == psutil.virtual_memory().total
    assert found.memory_available_bytes is not None
    assert 0 < found.memory_available_bytes < found.memory_total_bytes
    assert found.network_receive_bytes.keys() == found.network_transmit_bytes.keys()
    assert {kind for _, kind in found.pressure_ns} <= {"some", "full"}
    before = found.cpu_busy_seconds
    assert before
    until(lambda: (MachineReader(PROC).read(0).cpu_busy_seconds or 0) > before, "busy time")


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A procfs with little in it, put back afterwards for others that use psutil."""
    return lay(
        tmp_path,
        {
            "stat": "cpu  100 0 50 1000 25 5 5 0 0 0\ncpu0 100 0 50 1000 25 5 5 0 0 0\n",
            "1/net/dev": HEAD + device("eth0", 11, 12),
            "pressure/cpu": "some avg10=0 avg60=0 avg300=0 total=1000\n",
            "diskstats": " 259 0 nvme0n1 1 0 8 5 1 0 8 5 0 1500 10\n",
        },
    )


def test_recorded_files(recorded: Path) -> None:
    found = MachineReader(recorded).read(0)
    tick = os.sysconf("SC_CLK_TCK")
    assert found.cpu_busy_seconds == pytest.approx(160 / tick)
    assert found.iowait_seconds == pytest.approx(25 / tick)
    assert found.disk_io_seconds == {"nvme0n1": 1.5}
    assert (found.network_receive_bytes, found.network_transmit_bytes) == (
        {"eth0": 11},
        {"eth0": 12},
    )
    assert found.pressure_ns == {("cpu", "some"): 1_000_000}


def test_the_number_of_interfaces_is_bounded(recorded: Path) -> None:
    devices = [device(f"eth{number}", 1, 2) for number in range(100)]
    (recorded / "1/net/dev").write_text(HEAD + "".join(devices))
    found = MachineReader(recorded).read(0)
    assert len(found.network_receive_bytes) == len(found.network_transmit_bytes) == MOST_DEVICES


def test_a_part_that_is_missing_costs_itself_only(recorded: Path) -> None:
    found = MachineReader(recorded).read(0)
    assert (found.memory_total_bytes, found.memory_available_bytes) == (None, None)
    assert found.shared_memory is None  # that of another machine's process 1, not ours
    (recorded / "stat").unlink()
    (recorded / "diskstats").unlink()
    (recorded / "pressure/cpu").unlink()
    left = MachineReader(recorded).read(0)
    assert (left.cpu_busy_seconds, left.iowait_seconds) == (None, None)
    assert left.disk_io_seconds == {}
    assert left.pressure_ns == {}
    assert left.network_receive_bytes == {"eth0": 11}


def test_garbage_costs_itself_only(recorded: Path) -> None:
    for name in ("stat", "diskstats", "pressure/cpu", "meminfo"):
        (recorded / name).write_text("x y z\n")
    found = MachineReader(recorded).read(0)
    assert found.cpu_busy_seconds is None
    assert found.network_receive_bytes == {"eth0": 11}


def test_nothing_at_all(tmp_path: Path) -> None:
    assert MachineReader(tmp_path).read(0) == Machine(cpus=os.cpu_count())


LOOK = (
    "from pathlib import Path\n"
    "from gpu_bottleneck_exporter.host.machine import MachineReader\n"
    "found = MachineReader(Path('/proc')).read(0)\n"
    "assert found.memory_total_bytes\n"
    "print(found.shared_memory and found.shared_memory.size_bytes)\n"
)
OWN = "mount -t tmpfs -o size=8m shm /dev/shm"
"""As a runtime gives to containers."""
SHM = "/dev/shm"  # noqa: S108 - looked at only


def seen(way: Way, *before: str) -> int | None:
    """The size of the host's /dev/shm that somebody sees, after `before` in mounts of his own."""
    words = (*with_mounts_of_its_own(), *_after(*before), *way)
    told = subprocess.check_output([*words, sys.executable, "-c", LOOK], text=True)
    return None if told == "None\n" else int(told)


@pytest.fixture(scope="module")
def hosts() -> int:
    """The size of the host's."""
    mine, first = (mount_points(PROC / pid).get(SHM) for pid in ("self", "1"))
    if not in_hosts_pid_namespace(PROC) or mine is None or first is None:
        _missing("this is no host: it has another /dev/shm, or other pids, than process 1")
    assert mine.device == first.device
    found = os.statvfs(SHM)
    return found.f_blocks * found.f_frsize


@pytest.fixture
def nobody() -> Way:
    """Without the right to ptrace anybody."""
    return as_nobody(files=())


def test_a_service_with_mounts_of_its_own_sees_the_hosts_shared_memory(
    hosts: int, nobody: Way, tmp_path: Path
) -> None:
    """PrivateTmp=, ProtectSystem=."""
    assert seen(nobody, f"mount -t tmpfs none {tmp_path}") == hosts


def test_a_containers_own_shared_memory_is_not_the_hosts(hosts: int, nobody: Way) -> None:
    assert hosts
    assert seen(nobody, OWN) is None


def test_who_may_ptrace_process_1_sees_the_hosts_shared_memory_from_a_container(hosts: int) -> None:
    may = os.access(PROC / "1/root", os.F_OK)
    assert seen(AS_WE_ARE, OWN) == (hosts if may else None)


def test_what_the_host_has_mounted_for_a_pod_is_not_its_own(
    hosts: int, nobody: Way, tmp_path: Path
) -> None:
    """Containerd makes /dev/shm of a pod below /run, among the host's mounts."""
    assert hosts
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "shm", tmp_path], check=True)
    try:
        assert mount_points(PROC / "1").get(f"{tmp_path}"), "the host has it"
        assert seen(nobody, f"mount --bind {tmp_path} {SHM}") is None
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)
