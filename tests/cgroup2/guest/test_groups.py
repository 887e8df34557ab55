"""Reports of the readers about groups that the kernel really throttles, and by the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.host.cgroup import Cgroup, cgroup_of, hidden_controllers
from scenarios.cgroups import Limits, limited
from support.waiting import until

SYSFS = Path("/sys")
ROOT = SYSFS / "fs/cgroup"
MEBIBYTE = 2**20
QUOTA = 0.2
BURN = "while True: pass"
READ = """
import sys
while True:
    with open(sys.argv[1], "rb", buffering=0) as file:
        while file.read(65536): pass
"""


@contextmanager
def running(groups: tuple[Path, ...], code: str, *arguments: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", code, *arguments]) as process:
        try:
            for group in groups:
                (group / "cgroup.procs").write_text(f"{process.pid}")
            yield process.pid
        finally:
            process.kill()


@contextmanager
def child_of(group: Path, controllers: str) -> Iterator[Path]:
    (group / "cgroup.subtree_control").write_text(controllers)
    child = group / "child"
    child.mkdir()
    try:
        yield child
    finally:
        until(lambda: not (child / "cgroup.procs").read_text(), "an empty group")
        child.rmdir()


def read_by_us(pid: int) -> Cgroup:
    return cgroup_of(Path(f"/proc/{pid}/cgroup").read_text(), SYSFS)


def of_kernel(file: Path) -> Mapping[str, int]:
    return {
        name: int(value) for name, value in (line.split() for line in file.read_text().splitlines())
    }


def test_the_machine_has_nothing_but_v2() -> None:
    assert {"cpu", "memory", "io"} <= {*(ROOT / "cgroup.controllers").read_text().split()}
    assert "cgroup2" in Path("/proc/self/mounts").read_text()
    assert read_by_us(os.getpid()) == Cgroup(None, None, None)
    assert hidden_controllers("0::/\n", SYSFS) == set()


def test_a_quota_throttles_for_the_reported_time(tmp_path: Path) -> None:
    with limited(Limits(cpu_cores=QUOTA), tmp_path) as (group,), running((group,), BURN) as pid:
        ours = read_by_us(pid)
        assert (ours.unified, ours.cpu, ours.memory) == (group, group, group)
        assert ours.cpu_limit() == (group, QUOTA)
        before, began = ours.read_counters(), of_kernel(group / "cpu.stat")
        until(lambda: of_kernel(group / "cpu.stat")["nr_periods"] > began["nr_periods"] + 50, "50")
        after, ended = ours.read_counters(), of_kernel(group / "cpu.stat")

    used = (ended["usage_usec"] - began["usage_usec"]) * 1000
    held = (after.throttled_ns or 0) - (before.throttled_ns or 0)
    periods = (after.periods or 0) - (before.periods or 0)
    ran_out = (after.throttled_periods or 0) - (before.throttled_periods or 0)
    # One task that always wants to run: it is throttled for all the time that it lacks.
    assert held / (held + used) == pytest.approx(1 - QUOTA, abs=0.1)
    assert periods >= 50
    assert ran_out / periods > 0.8
    stalled = {kind: ns - before.pressure_ns[kind] for kind, ns in after.pressure_ns.items()}
    # Throttled means waiting for a CPU, while nothing else in the group runs.
    assert stalled["cpu", "some"] / held > 0.7
    assert stalled["cpu", "full"] / held > 0.7
    assert max(ns for (what, _), ns in stalled.items() if what != "cpu") / held < 0.1


def test_the_quota_of_the_group_above_is_found(tmp_path: Path) -> None:
    limits = Limits(cpu_cores=QUOTA)
    with limited(limits, tmp_path) as (group,), child_of(group, "+cpu") as child:
        (child / "cpu.max").write_text("400000 100000")
        with running((child,), BURN) as pid:
            ours = read_by_us(pid)
            assert ours.cpu == child
            assert ours.cpu_limit() == (group, QUOTA)
            until(lambda: of_kernel(group / "cpu.stat")["nr_throttled"] > 10, "throttling")
            held = [of_kernel(level / "cpu.stat")["throttled_usec"] for level in (child, group)]
            result = ours.read_counters()
    # The kernel counts only at the level that has the quota.
    assert held[0] == 0
    assert (result.throttled_ns or 0) >= held[1] * 1000 > 0
    assert (result.throttled_periods or 0) > 10


def test_data_larger_than_the_limit_is_read_again(tmp_path: Path) -> None:
    limit, size = 48 * MEBIBYTE, 128 * MEBIBYTE
    data = tmp_path / "data"
    data.write_bytes(os.urandom(MEBIBYTE) * (size // MEBIBYTE))
    with (
        open(data, "rb") as file,
        limited(Limits(memory_bytes=limit), tmp_path) as (group,),
        running((group,), READ, f"{data}") as pid,
    ):
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        ours = read_by_us(pid)
        before = ours.read_counters()
        until(lambda: (ours.read_counters().refault_bytes or 0) > size, "as much as there is")
        after, level = ours.read_counters(), ours.memory_level()
        pages = of_kernel(group / "memory.stat")["workingset_refault_file"]
    assert after.refault_bytes is not None
    assert size < after.refault_bytes <= pages * os.sysconf("SC_PAGE_SIZE")
    assert (before.refault_bytes or 0) < after.refault_bytes
    assert level is not None
    assert (level.folder, level.limit_bytes) == (group, limit)
    assert 0.5 * limit < level.used_bytes <= limit
    stalled = {kind: ns - before.pressure_ns[kind] for kind, ns in after.pressure_ns.items()}
    # Rereading evicted pages is a wait for memory and for the disk.
    assert stalled["memory", "some"] > 0
    assert stalled["io", "some"] > 0


def test_the_limit_of_the_group_above_counts_with_its_own_use(tmp_path: Path) -> None:
    limit = 64 * MEBIBYTE
    filled = "import sys, time; kept = b'x' * (16 << 20); time.sleep(600)"
    with (
        limited(Limits(memory_bytes=limit), tmp_path) as (group,),
        child_of(group, "+memory") as child,
        running((child,), filled) as pid,
    ):
        ours = read_by_us(pid)

        def shown() -> int:
            level = ours.memory_level()
            assert level is not None
            assert (level.folder, level.limit_bytes) == (group, limit)
            return level.used_bytes

        until(lambda: shown() > 16 * MEBIBYTE, "16 MiB in use")
    assert hidden_controllers("0::/nowhere\n", SYSFS) == {"cpu", "memory", "unified"}


IN_A_NAMESPACE = """
import ctypes, sys
from pathlib import Path
group, other = sys.argv[1:]
(Path(group) / "cgroup.procs").write_text("0")
assert ctypes.CDLL(None, use_errno=True).unshare(0x02000000) == 0, "no namespace"
from gpu_bottleneck_exporter.host.cgroup import cgroup_of
text = Path(f"/proc/{other}/cgroup").read_text()
print(text.strip(), cgroup_of(text, Path("/sys")).unified)
"""


def test_in_a_namespace_of_our_own_groups_of_others_are_found(tmp_path: Path) -> None:
    """A container that sees the machine's /sys/fs/cgroup, as the chart's."""
    limits = Limits(cpu_cores=4)
    with (
        limited(limits, tmp_path) as (own,),
        limited(limits, tmp_path) as (others,),
        running((others,), BURN) as pid,
    ):
        command = [sys.executable, "-c", IN_A_NAMESPACE, f"{own}", f"{pid}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.split() == [f"0::/../{others.name}", f"{others}"]
