"""The exporter on a node with a kubelet: a real gRPC server, real processes in real cgroups."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from gpu_bottleneck_exporter.demo.board.create import H100
from gpu_bottleneck_exporter.rulepack import Changes, adapted, files
from support.board import Board, create
from support.board_exporter import Exporter, over_nvml
from support.daemon import get
from support.drivers import Libraries
from support.kubelet import Kubelet, link_log, with_gpus
from support.leftovers import mark
from support.metrics import Metrics
from support.prometheus import prometheus
from support.quickrules import MODEST
from support.rights import AS_WE_ARE, as_nobody
from support.stage import ran, staged
from support.tools import missing, require
from support.trees import lay
from support.waiting import until

CGROUPS = Path("/sys/fs/cgroup")
CONTAINER = "a1" * 32
UID = "2c48913c-b29f-11e7-9350-020968147796"
OF_PROCESS = {"pod_uid": UID, "container_id": CONTAINER, "user": "root"}
GIB = 2**30
JOBS = {"2": "4242 0\n"}
Labels = dict[str, str]
Exporting = Callable[[], AbstractContextManager[Exporter]]


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    with create(tmp_path / "board", (H100, H100, H100)) as created:
        yield created


@pytest.fixture
def kubelet(tmp_path: Path, board: Board) -> Iterator[Kubelet]:
    """A kubelet that has given a GPU to each of two pods."""
    first, second, _ = (gpu.record.uuid.decode() for gpu in board.gpus)
    pods = (with_gpus("train-0", first), with_gpus("idle-0", second))
    with Kubelet(tmp_path / "kubelet.sock", *pods) as serving:
        yield serving


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of links to containers' logs, of which exporters are told."""
    folder = tmp_path / "containers"
    folder.mkdir()
    monkeypatch.setenv("GPU_EXPORTER_KUBELET_CONTAINER_LOGS", f"{folder}")
    return folder


@pytest.fixture
def exporting(
    libraries: Libraries, board: Board, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> Exporting:
    """Starts an exporter that asks the kubelet."""
    monkeypatch.setenv("GPU_EXPORTER_KUBELET_SOCKET", f"{kubelet.path}")
    library = libraries.path(int(board.header.driver_branch))
    return lambda: over_nvml(library, board.path)


def scraped(exporter: Exporter) -> Metrics:
    return Metrics(get(exporter.port, "/metrics")[1].decode())


def workloads(exporter: Exporter, gpu: int) -> list[Labels]:
    result = scraped(exporter).samples_of("gpu_workload_info", gpu=f"{gpu}")
    return [{k: v for k, v in item.labels.items() if k not in {"gpu", "uuid"}} for item in result]


def held(exporter: Exporter) -> dict[str, float]:
    return scraped(exporter).by("gpu", "gpu_processes")


def available(exporter: Exporter) -> float | None:
    return scraped(exporter).signals.get("kubelet")


def names(pod: str) -> Labels:
    return {"workload_namespace": "research", "workload_pod": pod, "workload_container": "main"}


@contextmanager
def in_pod(uid: str, container: str = CONTAINER) -> Iterator[subprocess.Popen[bytes]]:
    """A process in the cgroup that a container of pod `uid` has."""
    roots = [CGROUPS, CGROUPS / "unified", *sorted(CGROUPS.glob("*"))]
    root = next((root for root in roots if (root / "cgroup.procs").exists()), None)
    if root is None or not os.access(root, os.W_OK):
        missing(f"no control group can be made below {CGROUPS}")
    folders = [root / f"gpu-test-{mark()}-{uuid4().hex}"]
    for name in ("kubepods", f"pod{uid}", container):
        folders.append(folders[-1] / name)
    with ExitStack() as cleanup:
        for folder in folders:
            folder.mkdir()
            cleanup.callback(folder.rmdir)
        process = cleanup.enter_context(subprocess.Popen(["sleep", "600"]))
        cleanup.callback(process.kill)
        (folders[-1] / "cgroup.procs").write_text(f"{process.pid}")
        yield process


def test_owner_of_each_gpu(
    exporting: Exporting, board: Board, kubelet: Kubelet, logs: Path
) -> None:
    link_log(logs, "train-0", CONTAINER)
    with in_pod(UID) as process:
        board.gpus[0].hold(process.pid, 4 * GIB)
        with exporting() as exporter:
            expected = [{**names("train-0"), **OF_PROCESS}]
            # Each GPU is read by itself, and none of them at the moment the kubelet answers.
            until(lambda: workloads(exporter, 0) == expected, "pod and process as one")
            until(lambda: workloads(exporter, 1) == [names("idle-0")], "the pod without a process")
            until(lambda: held(exporter) == {"0": 1, "1": 0, "2": 0}, "who holds them")
            until(lambda: available(exporter) == 1, "the kubelet")
            kubelet.stop()
            until(lambda: available(exporter) == 0, "the end of the kubelet")
            until(lambda: workloads(exporter, 0) == expected, "what the kubelet said")
            kubelet.start()
            until(lambda: available(exporter) == 1, "the new kubelet")


def test_opencost_gets_the_use_of_pods_that_share_a_gpu(
    exporting: Exporting, board: Board, logs: Path, tmp_path: Path
) -> None:
    require("prometheus", "prometheus")
    other, gpu, stop = "b2" * 32, board.gpus[0], threading.Event()
    link_log(logs, "train-0", CONTAINER)
    link_log(logs, "serve-0", other)

    def work(pids: Sequence[int]) -> None:
        while not stop.is_set():
            for pid, seconds in zip(pids, (0.03, 0.07), strict=True):
                gpu.synchronize(gpu.launch(seconds, pid=pid))

    query = (
        "avg(avg_over_time(DCGM_FI_PROF_GR_ENGINE_ACTIVE{container!=''}[20s])) "
        "by (container, pod, namespace)"
    )
    with ExitStack() as ends:
        pods = [
            ends.enter_context(in_pod(f"{uuid4()}", container)) for container in (CONTAINER, other)
        ]
        for pod in pods:
            gpu.hold(pod.pid, GIB)
        worker = threading.Thread(target=work, args=([pod.pid for pod in pods],))
        ends.callback(worker.join)
        ends.callback(stop.set)
        worker.start()
        exporter = ends.enter_context(exporting())
        rules = []
        for name, text in adapted(files(), Changes(opencost=True, scale=60)).items():
            if name in {"thresholds.yml", "recording.yml", "opencost.yml"}:
                rules.append(tmp_path / name)
                rules[-1].write_text(re.sub(r"(?m)^( *interval: ).*$", r"\g<1>1s", text))
        jobs = [("node", exporter.target, 0.5)]
        server = ends.enter_context(prometheus(tmp_path, jobs, rules, MODEST))

        def shares() -> Mapping[str, float]:
            used = {labels["pod"]: value for labels, value in server.query(query)}
            used.pop("idle-0", None)  # the kubelet's, on another GPU
            return {pod: value / sum(used.values()) for pod, value in used.items() if value}

        expected = pytest.approx({"train-0": 0.3, "serve-0": 0.7}, abs=0.02)
        until(lambda: shares() == expected, shares)


def test_pods_of_a_moment_are_named_in_the_ledger(
    exporting: Exporting, board: Board, logs: Path
) -> None:
    def jobs() -> dict[str, str]:
        status, text = get(exporter.port, "/api/v1/jobs")
        assert status == 200
        return {job["id"]: job["owner"].get("pod", "") for job in json.loads(text)["jobs"]}

    with exporting() as exporter:
        for turn in range(3):
            uid, container = f"{UID[:-1]}{turn}", f"{turn}" * 64
            with in_pod(uid, container) as process:
                link_log(logs, f"short-{turn}", container)
                board.gpus[0].hold(process.pid, 4 * GIB)
                until(lambda: f"pod-{uid}" in jobs(), "its job")  # noqa: B023 - called now
                board.gpus[0].release(process.pid)
        expected = {f"pod-{UID[:-1]}{turn}": f"short-{turn}" for turn in range(3)}
        until(lambda: jobs() == expected, jobs)


def test_a_job_that_has_not_opened_its_gpu(
    exporting: Exporting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = lay(tmp_path / "jobs", JOBS)
    monkeypatch.setenv("GPU_EXPORTER_SLURM_JOB_MAPPING_DIR", f"{folder}")
    with exporting() as exporter:
        expected = [{"slurm_job_id": "4242", "user": "root"}]
        until(lambda: workloads(exporter, 2) == expected, "the job")
        (folder / "2").unlink()
        until(lambda: workloads(exporter, 2) == [], "the epilog")


GAPS: Mapping[str, tuple[str, ...]] = {
    "nothing": (),
    "socket": ("there is no socket {missing}", "folder /var/lib/kubelet/pod-resources"),
    "rights": ("{socket}: Permission denied", "run the exporter as user 0"),
}
"""Missing parts, and the words of `check` for each and its remedy."""


@pytest.mark.parametrize("what", GAPS)
def test_check_names_the_missing_parts_of_the_kubelet(libraries: Libraries, what: str) -> None:
    with staged(libraries, 1) as stage:
        socket, missing = stage.folder / "kubelet.sock", stage.folder / "missing"
        logs = {"GPU_EXPORTER_KUBELET_CONTAINER_LOGS": f"{stage.folder}"}
        way = as_nobody(files=[stage.board.path]) if what == "rights" else AS_WE_ARE
        result = missing if what == "socket" else socket
        with Kubelet(socket, with_gpus("train-0", stage.board.gpus[0].record.uuid.decode())):
            socket.chmod(0o600)
            words = ("check", "--sampling.interval", "0.2", "--kubelet.socket", f"{result}")
            _, outcome = ran(replace(stage, variables=logs), way, *words)
    text = "".join(re.findall(r"^gap +kubelet: .*\n  remedy +.*$", outcome, re.MULTILINE))
    expected = [gap.format(missing=missing, socket=socket) for gap in GAPS[what]]
    assert [item for item in expected if item not in text] == []
    assert bool(text) == bool(expected)
