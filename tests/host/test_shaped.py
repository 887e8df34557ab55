"""Files that a job can make large are read in part, and a part is not taken for the whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.feeders.job import GROUP, Networks, job_keys
from gpu_bottleneck_exporter.feeders.process import FeederProcess
from gpu_bottleneck_exporter.feeders.snapshot import FeedingReader
from gpu_bottleneck_exporter.feeders.tree import ProcessTree
from gpu_bottleneck_exporter.host import mounts
from gpu_bottleneck_exporter.host.cgroup import Cgroups
from gpu_bottleneck_exporter.host.environment import variables
from gpu_bottleneck_exporter.host.files import MAX_TEXT_BYTES
from gpu_bottleneck_exporter.host.mounts import mount_points, mounts_of_open_files
from gpu_bottleneck_exporter.host.process import command_line, environment, trees
from gpu_bottleneck_exporter.workload.owners import Groups, claims_of
from support.programs import program
from support.rights import Way
from support.rows import rows
from support.trees import lay, links
from support.waiting import until

PROC = Path("/proc")
STAT = "{0} (python) S 1 1 1 0 -1 0 0 0 7 0 5 6 0 0 20 0 1 0 99 0 0"


def test_a_variable_that_is_cut_is_none() -> None:
    variables = {"FIRST": "a b", "LONG": "c d " * 30_000, "MASTER_ADDR": "here"}
    way = ("env", "-i", *(f"{name}={value}" for name, value in variables.items()))
    with program("ready(); told()", way=way) as process:
        assert environment(PROC, process.pid, MAX_TEXT_BYTES) == ("FIRST=a b\0", False)


CROWDED = {
    f"SVC_{service}_{name}": "tcp://10.96.11.12:8080"
    for service in range(220)
    for name in (
        "SERVICE_HOST",
        "SERVICE_PORT",
        "PORT",
        "PORT_8080_TCP",
        "PORT_8080_TCP_PROTO",
        "PORT_8080_TCP_PORT",
        "PORT_8080_TCP_ADDR",
    )
}
"""Kubernetes sets seven variables for each Service of a namespace."""
LAST = {"SLURM_JOB_ID": "7", "MASTER_ADDR": "here", "MASTER_PORT": "1", "WORLD_SIZE": "8"}


def crowded(last: Mapping[str, str]) -> Way:
    variables = {**CROWDED, "PADDING": "x" * (MAX_TEXT_BYTES // 2), **last}
    return "env", "-i", *(f"{name}={value}" for name, value in variables.items())


def test_the_last_variables_of_many_are_read() -> None:
    groups = Groups(PROC)
    with program("ready(); told()", way=crowded(LAST)) as process:
        assert len(Path(f"/proc/{process.pid}/environ").read_bytes()) > MAX_TEXT_BYTES
        assert variables(PROC, process.pid, tuple(LAST)) == LAST
        assert claims_of(PROC, process.pid, ["WORLD_SIZE"]) == {"WORLD_SIZE": "8"}
        assert groups.claims(process.pid)["MASTER_ADDR"] == "here"
        keys = job_keys(PROC, process.pid, command_line(PROC, process.pid), groups)
    assert GROUP in {key[0] for key in keys}


def test_many_variables_are_read_in_full_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with program("ready(); told()", way=crowded(LAST)) as process:
        first = variables(PROC, process.pid, tuple(LAST))
        monkeypatch.setattr("gpu_bottleneck_exporter.host.environment.MAX_TABLE_BYTES", 0)
        assert variables(PROC, process.pid, tuple(LAST)) == first


def test_after_an_execve_many_variables_are_read_again() -> None:
    """A launcher's shell that becomes the program keeps its pid and its start."""
    code = f"os.environ.update({next(iter(CROWDED))}='other', MASTER_ADDR='there')"
    code = f"ready(); told(); {code}; os.execv('/bin/cat', ['cat'])"
    with program(code, way=crowded(LAST)) as process:
        assert variables(PROC, process.pid, ("MASTER_ADDR",)) == {"MASTER_ADDR": "here"}
        process.tell()
        until(
            lambda: variables(PROC, process.pid, ("MASTER_ADDR",)) == {"MASTER_ADDR": "there"},
            "the new environment",
        )


def test_two_command_lines_that_begin_alike_are_not_the_same(tmp_path: Path) -> None:
    """Siblings of a fork have one command line; of long ones only the beginnings are known."""
    long = "x" * (2 * MAX_TEXT_BYTES)
    for pid, end in ((1, "1"), (2, "2"), (3, "1")):
        files = {"status": "PPid:\t1\n", "cmdline": f"python\0{long}{end}\0", "environ": ""}
        lay(tmp_path, {f"{pid}/{name}": text for name, text in files.items()})

    def keys(pid: int) -> set[str]:
        command = command_line(tmp_path, pid)
        return {key[0] for key in job_keys(tmp_path, pid, command, Groups(tmp_path))}

    assert [keys(pid) for pid in (2, 3)] == [{"process"}, {"process"}]
    for pid in (1, 2):
        (tmp_path / f"{pid}/cmdline").write_text("python\0train.py\0")
    assert keys(2) == {"process", "siblings"}


def test_a_truncated_table_of_mounts_names_no_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The missing half may have the mount on which a file is."""
    lines = "".join(f"{n} 35 98:0 / /{n} rw - ext4 x rw\n" for n in range(36, 5000))
    lay(tmp_path, {"7/mountinfo": f"35 1 98:0 / / rw - ext4 x rw\n{lines}"})
    links(tmp_path / "7/fd", "/data/x")
    assert mounts_of_open_files(tmp_path, 7) == {"/": "ext4"}
    assert mount_points(tmp_path / "7").get("/")
    monkeypatch.setattr(mounts, "MAX_TABLE_BYTES", 4096)
    assert mounts_of_open_files(tmp_path, 7) == {}
    assert mount_points(tmp_path / "7").get("/") is None


@rows("number, whole", {"many": (1_000, True), "too many": (200_000, False)})
def test_a_truncated_tree_reports_so(number: int, whole: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """The children of this main have left no file."""
    children = "".join(f"{pid} " for pid in range(10**6, 10**6 + number))
    main = {"stat": STAT.format(7), "task/7/children": children, "wchan": "0"}
    lay(tmp_path, {f"7/{name}": text for name, text in main.items()})
    forest = trees(tmp_path, [7], frozenset())
    member = FeederProcess(tmp_path, 7)
    values = (not forest.cut, len(forest.of[7]) == number, member.children() is not None)
    assert values == (whole,) * 3
    member.close()


def test_of_a_tree_that_is_cut_the_workers_are_unknown(tmp_path: Path) -> None:
    lay(tmp_path, {"7/stat": STAT.format(7), "8/stat": STAT.format(8)})
    feed = FeederGroup(tmp_path, Cgroups(tmp_path))
    reader = FeedingReader(Networks(tmp_path))
    for whole in (True, False, True):
        feed.adopt(ProcessTree({7}, {8}, {7}, whole=whole))
        result = reader.read(feed, 1, queue_known=True)
        assert (result.processes.get("worker") == 1) is whole
        assert ("worker" in result.counters) is whole
        assert (result.worker_starts is not None) is whole
        assert feed.family.follows_all is whole
    feed.close()


@rows("interfaces, told", {"some": (40, (4000, 4000)), "too many": (30_000, None)})
def test_a_sum_is_of_all_interfaces_or_unknown(
    interfaces: int, told: tuple[int, int] | None, tmp_path: Path
) -> None:
    lines = "".join(f"eth{n}: 100 {'1 ' * 7}100 {'1 ' * 7}\n" for n in range(interfaces))
    lay(tmp_path, {"7/net/dev": f"Inter-|\n face |\n{lines}"})
    assert Networks(tmp_path).traffic(1, 7, 1) == told
