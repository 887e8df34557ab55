"""Control groups from recorded trees: v1, v2, hybrid, seen from inside and outside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.host.cgroup import (
    Cgroup,
    Cgroups,
    cgroup_of,
    hidden_controllers,
    stalled_ns,
)
from support.rows import rows
from support.trees import cgroup_v1, cgroup_v2, lay

POD = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1f.slice"
CONTAINER = f"{POD}/cri-containerd-ab.scope"
PAGE = os.sysconf("SC_PAGE_SIZE")
PSI = (
    "some avg10=1.00 avg60=0.50 avg300=0.10 total=1500000\nfull avg10=0 avg60=0 avg300=0 total=7\n"
)
V2_FILES = {
    f"{CONTAINER}/cpu.stat": "usage_usec 9\nnr_periods 5\nnr_throttled 2\nthrottled_usec 1500\n",
    f"{CONTAINER}/cpu.max": "200000 100000\n",
    f"{CONTAINER}/memory.current": "1000\n",
    f"{CONTAINER}/memory.max": "4096\n",
    f"{CONTAINER}/memory.stat": "anon 5\nworkingset_refault_anon 1\nworkingset_refault_file 2\n",
    **{f"{CONTAINER}/{resource}.pressure": PSI for resource in ("cpu", "io", "memory")},
}
V1_FILES = {
    "cpu/docker/ab/cpu.stat": "nr_periods 5\nnr_throttled 2\nthrottled_time 1500000\n",
    "cpu/docker/ab/cpu.cfs_quota_us": "150000\n",
    "cpu/docker/ab/cpu.cfs_period_us": "100000\n",
    "memory/docker/ab/memory.usage_in_bytes": "1000\n",
    "memory/docker/ab/memory.limit_in_bytes": "4096\n",
    "memory/docker/ab/memory.stat": "cache 5\nworkingset_refault 3\n",
}
V1_UNLIMITED = {
    "cpu/docker/ab/cpu.cfs_quota_us": "-1\n",
    "cpu/docker/ab/cpu.cfs_period_us": "100000\n",
    "memory/docker/ab/memory.usage_in_bytes": "1000\n",
    "memory/docker/ab/memory.limit_in_bytes": "9223372036854771712\n",
}
V1_PROCESS = "9:cpu,cpuacct:/docker/ab\n4:memory:/docker/ab\n1:name=systemd:/docker/ab\n"
ALL = {"cpu", "memory", "unified"}
Told = tuple[int | None, int | None, set[str]]
NOTHING: Told = (None, None, set())


def counted(group: Cgroup) -> Told:
    """Throttled time, refaults, and resources of which there is pressure."""
    result = group.read_counters()
    return (
        result.throttled_ns,
        result.refault_bytes,
        {resource for resource, _ in result.pressure_ns},
    )


def memory(group: Cgroup) -> tuple[int, int | None] | None:
    """Usage of the group, and its limit."""
    level = group.memory_level()
    return (level.used_bytes, level.limit_bytes) if level else None


def test_v2(tmp_path: Path) -> None:
    mount = cgroup_v2(tmp_path, V2_FILES)
    group = cgroup_of(f"0::/{CONTAINER}\n", tmp_path)
    assert group.unified == group.cpu == group.memory == mount / CONTAINER
    assert counted(group) == (1_500_000, 3 * PAGE, {"cpu", "io", "memory"})
    assert set(group.read_counters().pressure_ns.items()) >= {
        *((("cpu", "some"), 1_500_000_000), (("memory", "full"), 7000))
    }
    assert group.cpu_limit() == (mount / CONTAINER, 2.0)
    assert memory(group) == (1000, 4096)
    assert group == cgroup_of(f"0::/{CONTAINER}\n", tmp_path)


@rows(
    "high, limit",
    {"tighter": ("2048\n", 2048), "looser": ("8192\n", 4096), "none": ("max\n", 4096)},
)
def test_a_group_throttled_above_its_memory_limit(tmp_path: Path, high: str, limit: int) -> None:
    cgroup_v2(tmp_path, {**V2_FILES, f"{CONTAINER}/memory.high": high})
    assert memory(cgroup_of(f"0::/{CONTAINER}\n", tmp_path)) == (1000, limit)


def test_v1(tmp_path: Path) -> None:
    mount = cgroup_v1(tmp_path, V1_FILES)
    group = cgroup_of(V1_PROCESS, tmp_path)
    assert group.unified is None
    assert counted(group) == (1_500_000, 3 * PAGE, set())
    assert group.cpu_limit() == (mount / "cpu/docker/ab", 1.5)
    assert memory(group) == (1000, 4096)


def test_v1_with_cpu_and_cpuacct_mounted_as_one(tmp_path: Path) -> None:
    cgroup_v1(tmp_path, {"cpu,cpuacct/docker/ab/cpu.stat": "throttled_time 12\n"})
    assert counted(cgroup_of(V1_PROCESS, tmp_path)) == (12, None, set())


def test_v1_without_limits(tmp_path: Path) -> None:
    cgroup_v1(tmp_path, V1_UNLIMITED)
    group = cgroup_of(V1_PROCESS, tmp_path)
    assert (counted(group), group.cpu_limit(), memory(group)) == (NOTHING, None, (1000, None))


def test_v2_without_limits(tmp_path: Path) -> None:
    cgroup_v2(tmp_path, {"a/cpu.max": "max 100000\n", "a/memory.current": "0\n"})
    group = cgroup_of("0::/a\n", tmp_path)
    assert (counted(group), group.cpu_limit(), memory(group)) == (NOTHING, None, (0, None))


def test_hybrid(tmp_path: Path) -> None:
    mount = cgroup_v1(tmp_path, V1_FILES)
    lay(mount / "unified", {"cgroup.controllers": "", "cgroup.procs": ""})
    lay(mount / "unified/docker/ab", {"cgroup.procs": "", "io.pressure": PSI})
    group = cgroup_of(f"{V1_PROCESS}0::/docker/ab\n", tmp_path)
    assert group.unified == mount / "unified/docker/ab"
    assert group.cpu_limit() == (mount / "cpu/docker/ab", 1.5)
    assert counted(group) == (1_500_000, 3 * PAGE, {"io"})


@rows(
    "path",
    {
        "the machine's root": f"../../../{CONTAINER}",
        "above it": f"../../../../{CONTAINER}",
        "its slice": f"../../{CONTAINER.partition('/')[2]}",
        "its pod": "../kubepods-burstable-pod1f.slice/cri-containerd-ab.scope",
        "itself": "../cri-containerd-ab.scope",
    },
)
def test_a_private_namespace_names_others_relative_to_itself(tmp_path: Path, path: str) -> None:
    mount = cgroup_v2(tmp_path, V2_FILES)
    assert cgroup_of(f"0::/{path}\n", tmp_path).unified == mount / CONTAINER


def test_a_relative_path_that_fits_twice_is_nobodys(tmp_path: Path) -> None:
    cgroup_v2(tmp_path, {"a/x.scope/cpu.max": "max 100000\n", "b/x.scope/cpu.max": "max 100000\n"})
    assert cgroup_of("0::/../x.scope\n", tmp_path).unified is None


def test_the_machines_root_is_nobodys(tmp_path: Path) -> None:
    cgroup_v2(tmp_path, {"cpu.stat": "throttled_usec 9\n"})
    group = cgroup_of("0::/\n", tmp_path)
    assert (group.unified, counted(group), memory(group)) == (None, NOTHING, None)


def test_inside_a_container_the_root_that_is_seen_is_the_containers(tmp_path: Path) -> None:
    files = {"cgroup.type": "domain\n", "cpu.max": "50000 100000\n", "cpu.pressure": PSI}
    mount = cgroup_v2(tmp_path, files)
    group = cgroup_of("0::/\n", tmp_path)
    assert group.cpu_limit() == (mount, 0.5)
    assert counted(group) == (None, None, {"cpu"})


def test_limits_of_ancestors_hold_too(tmp_path: Path) -> None:
    files = {
        f"{CONTAINER}/cpu.max": "400000 100000\n",
        f"{CONTAINER}/memory.current": "1000\n",
        f"{CONTAINER}/memory.max": "9000\n",
        f"{POD}/cpu.max": "150000 50000\n",
        f"{POD}/memory.current": "3000\n",
        f"{POD}/memory.max": "8000\n",
        "kubepods.slice/memory.current": "70000\n",
        "kubepods.slice/memory.max": "max\n",
    }
    mount = cgroup_v2(tmp_path, files)
    group = cgroup_of(f"0::/{CONTAINER}\n", tmp_path)
    assert group.cpu_limit() == (mount / POD, 3.0)
    level = group.memory_level()
    assert level is not None
    assert (level.folder, level.used_bytes, level.limit_bytes) == (mount / POD, 3000, 8000)


def test_a_removed_group_has_no_figures(tmp_path: Path) -> None:
    mount = cgroup_v2(tmp_path, V2_FILES)
    group = cgroup_of(f"0::/{CONTAINER}\n", tmp_path)
    for path in (mount / CONTAINER).iterdir():
        path.unlink()
    (mount / CONTAINER).rmdir()
    assert (counted(group), group.cpu_limit(), memory(group)) == (NOTHING, None, None)
    assert cgroup_of(f"0::/{CONTAINER} (deleted)\n", tmp_path).unified is None


def test_pressure_that_is_refused_is_absent(tmp_path: Path) -> None:
    refused = cgroup_v2(tmp_path, V2_FILES) / CONTAINER / "io.pressure"
    refused.unlink()
    refused.mkdir()  # reading it fails, as where the kernel answers EOPNOTSUPP
    group = cgroup_of(f"0::/{CONTAINER}\n", tmp_path)
    assert counted(group)[2] == {"cpu", "memory"}


@pytest.mark.parametrize("text", ["", "0::\n", "0::/gone\n", "3:cpu:/gone\n"])
def test_a_machine_without_control_groups(tmp_path: Path, text: str) -> None:
    group = cgroup_of(text, tmp_path)
    assert (group.unified, group.cpu, group.memory) == (None, None, None)


def test_a_group_that_many_share_is_one_and_is_read_when_asked(tmp_path: Path) -> None:
    mount = cgroup_v2(tmp_path, V2_FILES)
    groups = Cgroups(tmp_path)
    text = f"0::/{CONTAINER}\n"
    group = groups.get(text)
    assert groups.get(text) is group
    assert group.counters.throttled_ns == 1_500_000, "a new one is read at once"
    lay(mount, {f"{CONTAINER}/cpu.stat": "nr_periods 6\nnr_throttled 3\nthrottled_usec 1600\n"})
    assert group.counters.throttled_ns == 1_500_000
    groups.read_counters()
    assert group.counters.throttled_ns == 1_600_000
    groups.retain({group})
    assert groups.get(text) is group
    groups.retain(set())
    assert groups.get(text) is not group


def test_a_long_file_is_read_whole(tmp_path: Path) -> None:
    filler = "".join(f"filler_{number} {number}\n" for number in range(1000))
    cgroup_v2(tmp_path, {"a/memory.stat": f"{filler}workingset_refault_file 5\n"})
    assert cgroup_of("0::/a\n", tmp_path).read_counters().refault_bytes == 5 * PAGE


def test_a_private_namespace_shows_nothing_of_those_outside(tmp_path: Path) -> None:
    mount = cgroup_v2(tmp_path, {"cpu.max": "100000 100000\n", "job/cpu.max": "1 1\n"})
    (mount / "cgroup.type").write_text("domain\n")  # ours: the machine's root has no type
    for path in ("/..", "/../..", "/../job"):
        group = cgroup_of(f"0::{path}\n", tmp_path)
        assert (group.unified, group.cpu, group.memory) == (None, None, None)
        assert hidden_controllers(f"0::{path}\n", tmp_path) == ALL


def test_groups_that_cannot_be_found_are_hidden(tmp_path: Path) -> None:
    cgroup_v2(tmp_path / "v2", V2_FILES)
    for path, parts in ((CONTAINER, set()), ("", set()), ("cri-containerd-ab.scope", ALL)):
        assert hidden_controllers(f"0::/{path}\n", tmp_path / "v2") == parts
    cgroup_v1(tmp_path / "v1", V1_FILES)
    assert hidden_controllers(V1_PROCESS, tmp_path / "v1") == set()
    assert hidden_controllers("9:cpu,cpuacct:/docker/ab\n4:memory:/gone\n", tmp_path / "v1") == {
        "memory"
    }


def test_of_groups_nested_without_end_both_ends_are_read(tmp_path: Path) -> None:
    path, middle = ("/".join(["job", *"x" * depth]) for depth in (200, 100))
    files = {
        "job/cpu.max": "50000 100000\n",
        "job/cpu.stat": "throttled_usec 7\n",
        f"{middle}/cpu.stat": "throttled_usec 1\n",
        f"{path}/cpu.max": "max 100000\n",
        f"{path}/cpu.stat": "throttled_usec 5\n",
    }
    root = cgroup_v2(tmp_path, files)
    group = cgroup_of(f"0::/{path}\n", tmp_path)
    assert group.read_counters().throttled_ns == 12_000
    assert group.cpu_limit() == (root / "job", 0.5)
    assert len(group.files) < 100


SOME = "some avg10=0.00 avg60=0.00 avg300=0.00 total=123\n"
FULL = "full avg10=0.00 avg60=0.00 avg300=0.00 total=4\n"


@rows(
    "text, found",
    {
        "both": (SOME + FULL, {"some": 123_000, "full": 4000}),
        "some": (SOME, {"some": 123_000}),
        "full": (FULL, {"full": 4000}),
        "nothing": ("", {}),
        "no number": ("some avg10=0.00 total=\n", {}),
        "wrong ones": ("some total=-1\nfull total=x\nother total=5\n", {}),
        "garbage": ("\0\0garbage", {}),
    },
)
def test_content_of_a_pressure_file(text: str, found: dict[str, int]) -> None:
    assert stalled_ns(text) == found
