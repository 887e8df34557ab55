"""The machine: recorded network and disks, the real /proc, and what is missing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psutil
import pytest

from gpu_bottleneck_exporter.host import machine
from gpu_bottleneck_exporter.host.machine import MAX_DEVICES, Machine, MachineReader
from gpu_bottleneck_exporter.host.mounts import mount_points
from gpu_bottleneck_exporter.host.signals import in_hosts_pid_namespace
from support.leftovers import mark
from support.programs import words
from support.rights import AS_WE_ARE, Way, _after, as_nobody, with_mounts_of_its_own
from support.rows import rows
from support.tools import missing
from support.trees import lay
from support.waiting import until

PROC = Path("/proc")
HEAD = (
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop\n"
)
BOND = {"bond0": (3, 4), "brand": (5, 6)}
OF_CONTAINERS = ("veth1a2b", "cali77", "lxc00aa", "cni0", "flannel.1", "docker0", "br-5f", "ifb0")


def device(name: str, received: int, sent: int) -> str:
    return f"{name:>6}:{received:>8} 5 0 0 0 0 0 0 {sent:>8} 7 0 0 0 0 0 0\n"


def devices(**counters: tuple[int, int]) -> str:
    return HEAD + "".join(device(name, *counts) for name, counts in counters.items())


@rows(
    "text, found",
    {
        "each": (devices(lo=(9, 9), eth0=(8, 20), ib0=(0, 0)), {"eth0": (8, 20), "ib0": (0, 0)}),
        "a counter that touches the name": (devices(e=(10**12, 20)), {"e": (10**12, 20)}),
        "empty": ("", {}),
        "none": (HEAD, {}),
        "a line too short": (HEAD + "eth0: 1 2 3\n", {}),
        "garbage": ("x", {}),
        **{n: (devices(**{n: (1, 2)}, **BOND), BOND) for n in OF_CONTAINERS},
    },
)
def test_bytes_by_interface(text: str, found: dict[str, tuple[int, int]]) -> None:
    assert machine.network_bytes(text) == found


@rows(
    "names, disks",
    {
        "SCSI": ("sda sda1 sda15 sdaa sdaa1", "sda sdaa"),
        "NVMe": ("nvme0n1 nvme0n1p1 nvme0n10 nvme1n1p1 nvme1n1", "nvme0n1 nvme0n10 nvme1n1"),
        "no disks": ("vda vda1 zram0 loop0 ram1 sr0 fd0", "vda"),
        "real ones first": ("dm-1 dm-10 md1 md10 md1p1 sda", "sda dm-1 dm-10 md1 md10"),
        "cards": ("mmcblk0 mmcblk0p1 mmcblk0boot0", "mmcblk0 mmcblk0boot0"),
        "a part alone": ("sda1", "sda1"),
        "none": ("", ""),
    },
)
def test_whole_disks(names: str, disks: str) -> None:
    assert machine.whole_disks(names.split()) == disks.split()


def test_the_number_of_disks_is_bounded_and_real_ones_come_first() -> None:
    names = [f"dm-{number}" for number in range(50)] + [f"nvme{number}n1" for number in range(12)]
    whole_disks = machine.whole_disks(names)
    assert len(whole_disks) == MAX_DEVICES
    assert {f"nvme{number}n1" for number in range(12)} < set(whole_disks)


def test_the_real_machine() -> None:
    result = MachineReader(PROC).read(0)
    assert result.cpus == os.cpu_count()
    assert result.memory_total_bytes == psutil.virtual_memory().total
    assert result.memory_available_bytes is not None
    assert 0 < result.memory_available_bytes < result.memory_total_bytes
    assert result.network_receive_bytes.keys() == result.network_transmit_bytes.keys()
    assert {kind for _, kind in result.pressure_ns} <= {"some", "full"}
    before = result.cpu_busy_seconds
    assert before
    until(lambda: (MachineReader(PROC).read(0).cpu_busy_seconds or 0) > before, "busy time")


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A procfs with little in it."""
    return lay(
        tmp_path,
        {
            "stat": "cpu  100 0 50 1000 25 5 5 0 0 0\ncpu0 100 0 50 1000 25 5 5 0 0 0\n",
            "1/net/dev": devices(eth0=(11, 12)),
            "pressure/cpu": "some avg10=0 avg60=0 avg300=0 total=1000\n",
            "diskstats": " 259 0 nvme0n1 1 0 8 5 1 0 8 5 0 1500 10\n",
        },
    )


RECORDED = Machine(
    cpus=os.cpu_count(),
    cpu_busy_seconds=160 / os.sysconf("SC_CLK_TCK"),
    iowait_seconds=25 / os.sysconf("SC_CLK_TCK"),
    disk_io_seconds={"nvme0n1": 1.5},
    network_receive_bytes={"eth0": 11},
    network_transmit_bytes={"eth0": 12},
    pressure_ns={("cpu", "some"): 1_000_000},
)
"""Options without shared memory: that of another machine's process 1 is not ours."""
LEFT = Machine(
    cpus=os.cpu_count(), network_receive_bytes={"eth0": 11}, network_transmit_bytes={"eth0": 12}
)


def test_recorded_files(recorded: Path) -> None:
    assert MachineReader(recorded).read(0) == RECORDED


def interface(sysfs: Path, name: str, index: int, *, on: int = 0, of: str = "") -> None:
    """An interface; `on`: its link's index, if not its own; `of`: entries such as `device`."""
    files = {"ifindex": f"{index}\n", "iflink": f"{on or index}\n"}
    files |= {f"{entry}/uevent": "" for entry in of.split()}
    lay(sysfs / "class/net" / name, files)


LAYERS = {
    "eth0": (1, 0, "device"),
    "eth1": (2, 0, "device"),
    "bond0": (3, 0, "lower_eth0 lower_eth1"),
    "bond0.7": (4, 3, "lower_bond0"),
    "br0": (5, 0, "lower_bond0.7 lower_eni1"),
    "eni1": (6, 2, ""),
    "wg0": (7, 0, ""),
    "cilium_vxlan": (8, 0, ""),
    "macvlan0": (9, 1, "lower_eth0"),
}


@rows(
    "names, counted",
    {
        "a bond with its members": ("eth0 eth1 bond0", {"eth0", "eth1"}),
        "a VLAN on a bond": ("eth0 eth1 bond0 bond0.7", {"eth0", "eth1"}),
        "a bridge, and one end of a veth": ("eth0 br0 eni1", {"eth0"}),
        "a macvlan": ("eth0 macvlan0", {"eth0"}),
        "with nothing below": ("eth0 wg0", {"eth0", "wg0"}),
        "a container, with one end of a veth": ("eni1", {"eni1"}),
        "absent from sysfs": ("", {"eth0", "eth1", "bond0", "bond0.7", "br0", "eni1"}),
    },
)
def test_traffic_is_counted_once(
    recorded: Path, tmp_path: Path, names: str, counted: set[str]
) -> None:
    for name in names.split():
        index, on, entries = LAYERS[name]
        interface(tmp_path / "sys", name, index, on=on, of=entries)
    there = names.split() or counted
    (recorded / "1/net/dev").write_text(devices(**dict.fromkeys(there, (1, 2))))
    result = MachineReader(recorded, tmp_path / "sys").read(0)
    assert result.network_receive_bytes == dict.fromkeys(counted, 1)
    assert result.network_transmit_bytes == dict.fromkeys(counted, 2)


WAYS = "rcv", "xmit"


def test_rdma_is_counted_in_words_of_four_bytes(recorded: Path, tmp_path: Path) -> None:
    ports = {("mlx5_0", 1): (10, 20), ("mlx5_0", 2): (1, 2), ("efa_0", 1): (None, 7)}
    for (card, port), counts in ports.items():
        names = {f"port_{way}_data": f"{n}\n" for way, n in zip(WAYS, counts, strict=True) if n}
        lay(tmp_path / f"sys/class/infiniband/{card}/ports/{port}/counters", {"x": "", **names})
    result = MachineReader(recorded, tmp_path / "sys").read(0)
    assert result.rdma_receive_bytes == {"mlx5_0:1": 40, "mlx5_0:2": 4}
    assert result.rdma_transmit_bytes == {"mlx5_0:1": 80, "mlx5_0:2": 8}


def test_the_number_of_interfaces_is_bounded(recorded: Path) -> None:
    (recorded / "1/net/dev").write_text(devices(**{f"eth{n}": (1, 2) for n in range(100)}))
    result = MachineReader(recorded).read(0)
    assert len(result.network_receive_bytes) == len(result.network_transmit_bytes) == MAX_DEVICES


@pytest.mark.parametrize("text", [None, "x y z\n"])
def test_a_part_that_is_missing_or_garbage_costs_itself_only(
    recorded: Path, text: str | None
) -> None:
    for name in ("stat", "diskstats", "pressure/cpu", "meminfo"):
        (recorded / name).unlink(missing_ok=True)
        if text:
            (recorded / name).write_text(text)
    assert MachineReader(recorded).read(0) == LEFT


def test_nothing_at_all(tmp_path: Path) -> None:
    assert MachineReader(tmp_path).read(0) == Machine(cpus=os.cpu_count())


LOOK = """
from pathlib import Path
from gpu_bottleneck_exporter.host.machine import MachineReader
found = MachineReader(Path('/proc')).read(0)
assert found.memory_total_bytes
ready(found.shared_memory and found.shared_memory.size_bytes)
"""
OWN = "mount -t tmpfs -o size=8m shm /dev/shm"
"""Mount of /dev/shm as a runtime makes it for containers."""
SHM = "/dev/shm"  # noqa: S108 - looked at only


def seen(way: Way, *before: str) -> int | None:
    """The size of the host's /dev/shm for a process, after `before` in its own mounts."""
    (result,) = words(LOOK, way=(*with_mounts_of_its_own(), *_after(*before), *way))
    return None if result == "None" else int(result)


@pytest.fixture(scope="module")
def hosts() -> int:
    """The size of the host's."""
    mine, first = (mount_points(PROC / pid).get(SHM) for pid in ("self", "1"))
    if not in_hosts_pid_namespace(PROC) or mine is None or first is None:
        missing("this is no host: it has another /dev/shm, or other pids, than process 1")
    assert mine.device == first.device
    result = os.statvfs(SHM)
    return result.f_blocks * result.f_frsize


@pytest.fixture
def nobody() -> Way:
    """Prefix without the right to ptrace other processes."""
    return as_nobody(files=())


def test_a_service_with_mounts_of_its_own_sees_the_hosts_shared_memory(
    hosts: int, nobody: Way, tmp_path: Path
) -> None:
    """PrivateTmp=, ProtectSystem=."""
    assert seen(nobody, f"mount -t tmpfs none {tmp_path}") == hosts


def test_a_containers_own_shared_memory_is_not_the_hosts(hosts: int, nobody: Way) -> None:
    assert seen(nobody, OWN) is None
    may = os.access(PROC / "1/root", os.F_OK)
    assert seen(AS_WE_ARE, OWN) == (hosts if may else None), "who may ptrace process 1 sees both"


@pytest.mark.usefixtures("hosts")
def test_a_mount_of_the_host_for_a_pod_is_not_the_pods(nobody: Way, tmp_path: Path) -> None:
    """Containerd makes /dev/shm of a pod below /run, among the host's mounts."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", mark(), tmp_path], check=True)
    try:
        assert mount_points(PROC / "1").get(f"{tmp_path}"), "the host has it"
        assert seen(nobody, f"mount --bind {tmp_path} {SHM}") is None
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)
