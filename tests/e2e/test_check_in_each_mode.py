"""`check` in each mode that the chart, the unit and the documents offer: what exactly is missing.

User, capabilities, namespaces and mounts are read from there, and staged on a real kernel. A
process of a user of its own that sleeps holds the first GPU, which a kubelet has given away; one
that burns CPU holds the second. `check` runs beside `serve`, as `kubectl exec` runs it.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import filter as matching
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import NamedTuple

import pytest

from deploy.machine import DOCKERFILE, README, UNIT
from gpu_bottleneck_exporter.settings import CONTAINER_LOGS, KUBELET_SOCKET
from helm.chart import CHART, rendered
from scenarios.cgroups import Limits
from support import stage as staging
from support.drivers import Libraries
from support.kubelet import Kubelet, with_gpus
from support.metrics import Metrics
from support.modes import Mode, inside, way
from support.rights import AS_WE_ARE, as_user, with_proc_hiding_others
from support.stage import PRIVATE, Stage, assert_told, caged, ran, scraped_when, serving, staged
from support.waiting import until

GPU, BURNING = "0", "1"
BURN = "renice -n 19 $$ >/dev/null; while :; do :; done"
"""Whenever no other test needs the core."""
BURNS = {"host_code", "cpu_queue"}
"""Causes of a process that burns CPU, alone or crowded out by others."""
JOBS_USER = 1000
DYNAMIC_USER = 64000
"""systemd takes one of 61184 to 65519."""
IN_A_POD = {"KUBERNETES_SERVICE_HOST": "192.0.2.1"}
"""Environment of every container of a pod."""
OFTEN = {"GPU_EXPORTER_SAMPLING_INTERVAL": "0.5"}
CONTAINERS = Limits(cpu_cores=64, memory_bytes=2**30)
READ_FROM = {
    "wait_channel": "wait channel",
    "process_io": "`/proc/PID/io`",
    "connections": "connections",
}
"""Names of signals in the chart's table of capabilities."""
CHARTS_README = (CHART / "README.md").read_text(encoding="utf-8")

Missing = Mapping[str, tuple[str, ...]]
"""Signals, and words that the remedy has."""


def of_chart(values: Mapping[str, object]) -> Mode:
    """The mode of the DaemonSet's container."""
    release = rendered(values)
    pod, context = release.pod, release.container["securityContext"]
    user = pod["securityContext"]["runAsUser"]
    folders = release.hosts_folders
    assert all(path == mounted for path, mounted in folders.items())
    mounts = release.container.get("volumeMounts", [])
    return Mode(
        user,
        given_to(user, context["capabilities"].get("add", [])),
        host_pids=pod.get("hostPID", False),
        read_only=context["readOnlyRootFilesystem"],
        lent=frozenset(map(Path, folders)),
        sealed=frozenset(Path(m["mountPath"]) for m in mounts if "recursiveReadOnly" in m),
        arguments=tuple(release.container["args"]),
        variables={**IN_A_POD, **release.environment},
    )


def given_to(user: int, added: list[str]) -> frozenset[str]:
    """The capabilities that a runtime gives, where it has dropped all others: to root only."""
    return frozenset(name.lower() for name in added) if user == 0 else frozenset()


def of_docker(*, as_documented: bool) -> Mode:
    """The mode of `docker run` in the document, or the same without its optional flags."""
    (command,) = re.findall(r"^\$ docker run ((?:.*\\\n)*.*)$", README, re.MULTILINE)
    words = shlex.split(command.replace("\\\n", ""))
    fields: dict[str, list[str]] = defaultdict(list)
    for flag, value in pairwise(words):
        fields[flag].append(value)
    assert fields["--cap-drop"] == ["ALL"]
    user, host_pids = int(fields["--user"][0]), fields["--pid"] == ["host"]
    if not as_documented:
        (user,) = map(int, re.findall(r"^USER (\d+):\1$", DOCKERFILE, re.MULTILINE))
        host_pids = False
    volumes = [volume.split(":") for volume in fields["-v"]]
    assert all(path == mounted and how == "ro" for path, mounted, how in volumes)
    return Mode(
        user,
        given_to(user, fields["--cap-add"]),
        host_pids=host_pids,
        read_only="--read-only" in words,
        lent=frozenset(Path(path) for path, *_ in volumes),
    )


def of_unit(drop_in: str = "") -> Mode:
    """The mode of the service."""
    text = f"{UNIT.read_text()}\n{drop_in}"
    settings = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
    assert settings["DynamicUser"] == settings["NoNewPrivileges"] == "yes"
    bounding, ambient = (
        {name.removeprefix("CAP_").lower() for name in settings[which].split()}
        for which in ("CapabilityBoundingSet", "AmbientCapabilities")
    )
    return Mode(
        DYNAMIC_USER,
        frozenset(bounding & ambient),
        container=False,
        host_pids=True,
        read_only=settings["ProtectSystem"] == "strict",
        hidepid=settings["ProtectProc"].replace("default", ""),
    )


def documented_drop_in() -> str:
    """Drop-in that takes the service's capabilities away."""
    (result,) = re.findall(r"```ini\n(\[Service\]\nAmbientCapabilities=.*?)```", README, re.DOTALL)
    return str(result)


OFF = ("power", "throttle", "stall", "feeders", "workload")
UNREAD: Mapping[str, frozenset[str]] = {
    "chart with collectors off": frozenset(PRIVATE)
    | {"energy", "throttle_counters", "kubelet", "schedstat"}
    | {"psi_cgroup", "cgroup_cpu", "cgroup_memory"}
}
"""Signals that only collectors which are off read: they are neither given nor missing."""

RENOUNCED: Mapping[str, frozenset[str]] = {
    "chart restricted": frozenset(PRIVATE)
    | {"host_pids", "kubelet", "cgroup_cpu", "cgroup_memory", "psi_cgroup"},
    "chart without capabilities": frozenset(PRIVATE),
    "chart with collectors off": frozenset(PRIVATE),
    "chart without the kubelet": frozenset({"kubelet"}),
}
"""Signals that the values do without: neither given nor missing, and named as such."""

MODES: Mapping[str, Callable[[], Mode]] = {
    "chart": lambda: of_chart({}),
    "chart without capabilities": lambda: of_chart(with_capabilities()),
    "chart restricted": lambda: of_chart({"privilege": {"level": "restricted"}}),
    "chart without the kubelet": lambda: of_chart({"kubelet": {"enabled": False}}),
    "chart with collectors off": lambda: of_chart(
        {**with_capabilities(), "exporter": {"disabledCollectors": [*OFF]}}
    ),
    "docker": lambda: of_docker(as_documented=True),
    "docker without the host's pids": lambda: of_docker(as_documented=False),
    "unit": of_unit,
    "unit without capabilities": lambda: of_unit(documented_drop_in()),
    "hidden pids": lambda: replace(of_unit(documented_drop_in()), hidepid="2"),
    "hidden data": lambda: replace(of_unit(documented_drop_in()), hidepid="1"),
}
PROTECTED = ("process_io", "connections")
MISSING: Mapping[str, Missing] = {
    "docker without the host's pids": {"host_pids": staging.NO_FEEDERS},
    "unit without capabilities": PRIVATE,
    "hidden pids": {"host_pids": staging.NO_FEEDERS},
    "hidden data": {"host_pids": staging.NO_FEEDERS, **dict.fromkeys(PROTECTED, ())},
}
"""Missing signals of the modes that lack some."""


@dataclass(frozen=True)
class Node:
    """The node that all modes are staged on."""

    stage: Stage
    hosts: Mapping[Path, Path]
    groups: tuple[Path, ...]
    """The exporter's container's."""


class Said(NamedTuple):
    """The exposition of `serve` once it has watched the GPU, and status and text of `check`."""

    metrics: Metrics
    report: tuple[int, str]


@pytest.fixture(scope="module")
def node(libraries: Libraries) -> Iterator[Node]:
    with (
        pytest.MonkeyPatch.context() as patch,
        staged(libraries, 2) as stage,
        caged(CONTAINERS, stage.folder) as jobs,
        caged(CONTAINERS, stage.folder) as own,
        job_on(stage, GPU, jobs, "sleep", "3600"),
        job_on(stage, BURNING, (), "sh", "-c", BURN),
        kubelet_on(stage) as hosts,
    ):
        # Where the tests themselves run in a pod.
        for name in IN_A_POD:
            patch.delenv(name, raising=False)
        yield Node(replace(stage, variables=OFTEN), hosts, own)


@contextmanager
def job_on(stage: Stage, gpu: str, groups: tuple[Path, ...], *command: str) -> Iterator[None]:
    """A process that holds the GPU."""
    with subprocess.Popen([*as_user(JOBS_USER), *command]) as job:
        try:
            for group in groups:
                (group / "cgroup.procs").write_text(f"{job.pid}")
            name = Path(f"/proc/{job.pid}/comm")
            until(lambda: name.read_text() == f"{command[0]}\n", "the job")
            stage.board.gpus[int(gpu)].hold(job.pid, 2**30)
            yield
        finally:
            job.kill()


@contextmanager
def kubelet_on(stage: Stage) -> Iterator[Mapping[Path, Path]]:
    """Its folders, root's as they are on a node, by where they would be."""
    hosts = {path: stage.folder / path.name for path in (KUBELET_SOCKET.parent, CONTAINER_LOGS)}
    for folder in hosts.values():
        folder.mkdir(0o750)
    uuid = stage.board.gpus[0].record.uuid.decode()
    with Kubelet(hosts[KUBELET_SOCKET.parent] / KUBELET_SOCKET.name, with_gpus("train-0", uuid)):
        yield hosts


@pytest.fixture(scope="module")
def own(node: Node) -> Callable[[Mode], Missing]:
    """Signals that this machine lacks for any user, even with all rights."""

    @cache
    def lacks(hidepid: str) -> Missing:
        way = with_proc_hiding_others(hidepid) if hidepid else AS_WE_ARE
        status, result = ran(node.stage, way, "once")
        assert status == 0
        return dict.fromkeys(Metrics(result).missing, ())

    return lambda mode: lacks(mode.hidepid)


@pytest.fixture(scope="module")
def said(node: Node) -> Callable[[str], Said]:
    return cache(lambda name: run(node, MODES[name]()))


def run(node: Node, mode: Mode) -> Said:
    stage = replace(node.stage, variables={**node.stage.variables, **mode.variables})
    cause = "asleep" if "sys_ptrace" in mode.capabilities else "unknown"
    sees = mode.host_pids and mode.hidepid not in {"1", "2"}

    def watches(metrics: Metrics) -> bool:
        """The cause, the feeder, the kubelet, the host and GPM are known if they can be."""
        fields = {
            "feeders": "gpu_feeder_wait_seconds_total" in metrics.names or not sees,
            "workload": bool(metrics.signals.get("kubelet"))
            or "kubelet" in mode.without
            or not IN_A_POD.keys() <= {*mode.variables},
            "stall": cause in metrics.waited_on(GPU)
            and bool(BURNS & metrics.waited_on(BURNING) or not sees),
            "host": "psi_host" in metrics.signals,
            "activity": bool(metrics.signals.get("gpm")),  # its first mean takes two readings
        }
        return all(result or not mode.collects(name) for name, result in fields.items())

    words = way(mode, stage.folder, node.hosts, node.groups)
    with serving(stage, words, *mode.arguments) as server:
        metrics = scraped_when(server, watches, "what it watches")
        return Said(metrics, ran(stage, inside(server, mode), "check", "-v"))


@pytest.mark.parametrize("name", MODES)
def test_exactly_the_missing_signals_are_named(
    said: Callable[[str], Said], own: Callable[[Mode], Missing], name: str
) -> None:
    metrics, report = said(name)
    renounced = RENOUNCED.get(name, frozenset())
    unread = UNREAD.get(name, frozenset()) | renounced
    fields = {**own(MODES[name]()), **MISSING.get(name, {})}
    missing = {signal: words for signal, words in fields.items() if signal not in unread}
    assert_told(report, missing)
    assert metrics.missing == missing.keys()
    matches = re.findall(r"^  (?:yes|no) +(\w+)$", report[1], re.MULTILINE)
    assert unread.isdisjoint({*matches, *metrics.signals})
    off = re.findall(r"^switched off +(.*) \(--without\)$", report[1], re.MULTILINE)
    assert off == ([", ".join(sorted(renounced))] if renounced else [])


def test_a_private_signal_removes_its_families_and_no_others(said: Callable[[str], Said]) -> None:
    gone = said("unit").metrics.names - said("unit without capabilities").metrics.names
    assert gone == {
        *(f"gpu_feeder_{way}_bytes_total" for way in ("read", "written")),
        *(f"gpu_feeder_shm_{what}_bytes" for what in ("size", "used")),
    }


@pytest.mark.parametrize("name", ["hidden pids", "hidden data"])
def test_of_hidden_processes_only_the_devices_are_exported(
    said: Callable[[str], Said], name: str
) -> None:
    metrics = said(name).metrics
    assert metrics.feeders == {f"gpu_workload_{s}starts_total" for s in ("", "productive_")}
    assert metrics.by("gpu", "gpu_processes") == {GPU: 1, BURNING: 1}
    assert metrics.waited_on(GPU) == metrics.waited_on(BURNING) == {"unknown"}


def test_the_pod_cannot_change_control_groups(node: Node) -> None:
    """Under cgroup v1 the controllers are mounts below the one that is lent."""
    mode = of_chart({})
    files = (group / name for group in node.groups for name in ("cpu.shares", "cpu.weight"))
    file = next(file for file in files if file.exists())
    before = file.read_text()
    with serving(node.stage, way(mode, node.stage.folder, node.hosts, node.groups)) as server:
        scraped_when(server, lambda _: True, "that it serves")
        tried = [*inside(server, mode), "sh", "-c", f"cat {file} >/dev/null && echo 77 >{file}"]
        done = subprocess.run(tried, check=False, capture_output=True, text=True)
    assert "Read-only file system" in done.stderr
    assert file.read_text() == before


@pytest.mark.parametrize("kept", ["SYS_PTRACE", "DAC_READ_SEARCH"])
def test_the_table_of_capabilities_names_the_loss_without_each(
    node: Node, own: Callable[[Mode], Missing], kept: str
) -> None:
    """The chart does without these signals: nothing else is missing."""
    needed, mode = capabilities_by_signal(), of_chart(with_capabilities(kept))
    missing = {signal: PRIVATE[signal] for signal in PRIVATE if not needed[signal] <= {kept}}
    assert mode.without == missing.keys()
    variables = {name: v for name, v in mode.variables.items() if name != "GPU_EXPORTER_WITHOUT"}
    report = run(node, replace(mode, variables=variables)).report
    assert_told(report, {**own(mode), **missing})


def with_capabilities(*names: str) -> Mapping[str, object]:
    return {"privilege": {"capabilities": [*names]}}


def capabilities_by_signal() -> Mapping[str, set[str]]:
    """Needs of a signal in the chart's table."""
    names = rendered().container["securityContext"]["capabilities"]["add"]
    rows = table("Capability")
    fields: dict[str, set[str]] = {signal: set() for signal in READ_FROM}
    for (what, read, _), name in product(rows, names):
        if what in (f"`{name}`", "both"):
            for signal, words in READ_FROM.items():
                fields[signal] |= {name} if words in read else set()
    return fields


def test_restricted_loses_the_signals_of_the_table(said: Callable[[str], Said]) -> None:
    full, restricted = said("chart").metrics, said("chart restricted").metrics
    rows = {what: of_restricted for what, _, of_restricted in table("")}
    lost = re.findall(r"`(gpu_.*?)`", " ".join(what for what in rows if rows[what] == "no"))
    gone = full.names - restricted.names
    assert gone == {name for pattern in lost for name in matching(full.names, pattern)}
    assert all(matching(gone, pattern) for pattern in lost)

    assert rows["`gpu_stall_seconds_total` by cause"] == "all idle time is `unknown`"
    assert "asleep" in full.waited_on(GPU)
    assert restricted.waited_on(GPU) == {"unknown"}
    assert full.of(GPU, "gpu_processes") == 1


def table(first: str) -> list[list[str]]:
    """Rows of the chart's table that has this first heading."""
    (_, rows) = re.findall(
        rf"^\| {first} ?\|(.*)\n\|[-|]+\|\n((?:\|.*\n)+)", CHARTS_README, re.MULTILINE
    )[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()]
