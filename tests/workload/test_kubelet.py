"""The thread that asks the kubelet, against a real gRPC server that comes, goes and misbehaves."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from gpu_bottleneck_exporter.driver.nvml import kubernetes
from gpu_bottleneck_exporter.driver.nvml.kubernetes import gpus_of_device
from gpu_bottleneck_exporter.driver.readings import Identity
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.workload.identity import Owner
from gpu_bottleneck_exporter.workload.join import Assigned, joined
from gpu_bottleneck_exporter.workload.kubelet import KubeletState, KubeletTiming, KubeletWatch
from gpu_bottleneck_exporter.workload.podresources import ContainerName
from support.beside import repeated
from support.kubelet import Claim, Container, Kubelet, Pod, link_log, with_gpus
from support.logged import logged
from support.rows import rows
from support.trees import lay
from support.waiting import PATIENCE_SECONDS, until

GPU = "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"
MIG = "MIG-aaaaaaaa-0d5e-5a5f-8c0f-000000000001"
WHOLE = Identity(0, GPU, minor=0)
PART = Identity(1, MIG, None, None, None, "1g.10gb", "GPU-1", 9, minor=1)
UID, OTHER = "2c48913c-b29f-11e7-9350-020968147796", "96dd7de3-0783-4613-a707-e0effc077ef5"
ID, OTHER_ID = "a1" * 32, "b2" * 32
TRAIN = ContainerName("research", "train-0", "main")
SERVE = ContainerName("research", "serve-0", "main")
QUICK = KubeletTiming(
    0.02, 0.02, 0.02, 0.1, PATIENCE_SECONDS, first_retry=0.02, lifetime=PATIENCE_SECONDS
)
SLOW = replace(QUICK, query=3600.0)
"""Asks again for a reason only."""


class Node:
    """A node's kubelet, GPUs and processes, and who watches them."""

    def __init__(self, root: Path) -> None:
        self.socket = root / "kubelet.sock"
        self.logs = root / "containers"
        self.logs.mkdir()
        self.cdi = root / "cdi"
        self.kubelet = Kubelet(self.socket)
        self.gpus: tuple[Identity, ...] = (WHOLE, PART)
        self.owners: frozenset[Owner] = frozenset()
        self.watch: KubeletWatch | None = None

    def look(self, timing: KubeletTiming = QUICK, *, expected: bool = False) -> KubeletWatch:
        """Begin to watch."""
        places = Settings(kubelet_socket=self.socket, container_logs=self.logs, cdi=self.cdi)
        self.watch = KubeletWatch(places, lambda: self.owners, timing, expected=expected)
        self.watch.start()
        return self.watch

    def on_the_gpu(self, *owners: Owner) -> None:
        self.owners = frozenset(owners)

    def assigned(self, uuid: str = GPU) -> Assigned:
        assert self.watch is not None
        return self.watch.assigned(self.gpus, gpus_of_device)[uuid]

    def holders(self, uuid: str = GPU) -> tuple[ContainerName, ...]:
        return self.assigned(uuid).holders

    def told(self) -> set[Owner]:
        return set(joined(self.owners, self.assigned()))

    def shows(self, *holders: ContainerName, uuid: str = GPU) -> None:
        until(lambda: self.holders(uuid) == holders, f"{holders}, not {self.holders(uuid)}")

    def tells(self, *owners: Owner) -> None:
        until(lambda: self.told() == {*owners}, f"{owners}, not {self.told()}")

    def works(self) -> None:
        self.is_told(given=True)

    def fails(self, said: str) -> None:
        self.is_told(given=False, said=said)

    def is_told(self, *, given: bool, said: str = "") -> None:
        def told() -> bool:
            return condition().given is given and said in f"{condition().trouble}"

        def condition() -> KubeletState:
            assert self.watch is not None
            return self.watch.condition

        until(told, lambda: f"{given} {said!r}, not {condition()}")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    result = Node(tmp_path)
    try:
        yield result
    finally:
        if result.watch is not None:
            result.kubelet.answers.set()
            result.watch.stop(PATIENCE_SECONDS)
        result.kubelet.stop()


@pytest.fixture
def running(node: Node) -> Node:
    """A node with a kubelet that has given a GPU to a pod."""
    node.kubelet.pods = [with_gpus("train-0", GPU)]
    node.kubelet.start()
    return node


def test_a_claim_that_one_of_two_instances_may_be_is_known_by_its_file(
    running: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "_instances", {"219": ("1", "9")})
    running.gpus = (WHOLE, PART, replace(PART, uuid="MIG-other", gpu_instance=10))
    device, claim = "gpu-1-mig-1g10gb-19-2", "dab5ab50-d59a-42a6-af16-cfd4628c0f7a"
    cdi = f"k8s.gpu.nvidia.com/claim={claim}-{device}"
    claiming = Container(claims=[Claim(device, cdi=[cdi])])
    running.kubelet.pods = [Pod("train-0", containers=[claiming])]
    running.look()
    running.works()
    assert running.holders(PART.uuid) == ()
    node = '{"deviceNodes": [{"path": "/dev/nvidia-caps/nvidia-cap219"}]}'
    text = f'{{"devices": [{{"name": "{claim}-{device}", "containerEdits": {node}}}]}}'
    lay(running.cdi, {f"k8s.gpu.nvidia.com-claim_{claim}.json": text})
    running.shows(TRAIN, uuid=PART.uuid)


def test_a_pod_has_no_name_until_there_is_a_link(running: Node) -> None:
    """Though it is alone on a GPU that was given to one pod: it may be another one."""
    owner = Owner(pod_uid=UID, container_id=ID)
    running.on_the_gpu(owner)
    running.look()
    running.shows(TRAIN)
    result = running.kubelet.asked
    until(lambda: running.kubelet.asked > result + 1, "answers that name it no better")
    assert running.told() == {owner}
    link_log(running.logs, "intruder", ID)
    outcome = Owner("research", "intruder", "main", UID, ID)
    running.tells(outcome, Owner(*TRAIN, source="kubelet"))
    (link,) = running.logs.iterdir()
    link.unlink()
    result = running.kubelet.asked
    until(lambda: running.kubelet.asked > result + 1, "answers, after which an id has its name")
    assert running.told() == {outcome, Owner(*TRAIN, source="kubelet")}


def test_a_pod_that_took_its_predecessors_gpu_never_gets_its_name(running: Node) -> None:
    running.on_the_gpu(Owner(pod_uid=UID, container_id=ID))
    link_log(running.logs, "train-0", ID)
    running.look(SLOW)
    running.tells(Owner(*TRAIN, UID, ID))
    running.kubelet.pods = [with_gpus("serve-0", GPU)]
    running.on_the_gpu(Owner(pod_uid=OTHER, container_id=OTHER_ID))
    running.shows(SERVE)
    assert running.told() == {Owner(pod_uid=OTHER, container_id=OTHER_ID)}
    link_log(running.logs, "serve-0", OTHER_ID)
    running.tells(Owner(*SERVE, OTHER, OTHER_ID))


def test_a_pod_with_the_gpu_in_its_init_container_is_one_tenant(node: Node) -> None:
    slice_of = {"nvidia.com/gpu.shared": (f"{GPU}::0",)}
    two = [Container(name, slice_of) for name in ("prepare", "main")]
    node.kubelet.pods = [Pod("train-0", containers=two), with_gpus("serve-0", GPU)]
    node.kubelet.start()
    node.on_the_gpu(Owner(pod_uid=UID, container_id=ID, user="ada"))
    (node.logs / f"train-0_research_prepare-{ID}.log").symlink_to("/var/log/pods/gone/0.log")
    node.look()
    running = Owner("research", "train-0", "prepare", UID, ID, user="ada")
    waits = Owner(*TRAIN, pod_uid=UID, source="kubelet")
    node.tells(running, waits, Owner(*SERVE, source="kubelet"))


def test_a_new_container_is_named_at_once_though_others_were_just_searched_for(
    running: Node,
) -> None:
    link_log(running.logs, "train-0", ID)
    running.on_the_gpu(Owner(pod_uid=UID, container_id=ID))
    running.look(replace(SLOW, naming=3600.0))
    running.tells(Owner(*TRAIN, UID, ID))
    running.on_the_gpu(Owner(pod_uid=OTHER, container_id=OTHER_ID))
    running.tells(Owner(pod_uid=OTHER, container_id=OTHER_ID))
    link_log(running.logs, "serve-0", OTHER_ID)  # the kubelet creates it a moment later
    running.tells(Owner(*SERVE, OTHER, OTHER_ID), Owner(*TRAIN, source="kubelet"))


def test_a_container_that_no_sample_has_met_is_named(running: Node) -> None:
    watch = running.look(replace(SLOW, naming=3600.0))
    running.works()
    watch.seek(ID)
    link_log(running.logs, "train-0", ID)
    until(lambda: running.assigned().names == {ID: TRAIN}, "its name")
    (link,) = running.logs.iterdir()
    link.unlink()
    watch.seek(OTHER_ID)
    link_log(running.logs, "serve-0", OTHER_ID)
    until(lambda: running.assigned().names == {ID: TRAIN, OTHER_ID: SERVE}, "both names")


def test_containers_without_names_are_searched_for_now_and_then_and_forgotten(
    running: Node,
) -> None:
    watch = running.look(replace(SLOW, naming=0.2, lifetime=0.5))
    running.on_the_gpu(Owner(pod_uid=UID, container_id=ID))
    for number in range(5000):
        watch.seek(f"{number:064x}")
    assert len(watch._sought) <= 1024
    until(lambda: watch._sought.keys() == {ID}, "that the others are forgotten")
    link_log(running.logs, "train-0", ID)
    until(lambda: running.assigned().names == {ID: TRAIN}, "its name")


def test_a_folder_of_links_that_is_not_mounted(
    running: Node, caplog: pytest.LogCaptureFixture
) -> None:
    running.logs.rmdir()
    watch = running.look()
    running.works()
    assert f"{running.logs}: No such file or directory" in f"{watch.condition.trouble}"
    text = "signal is available in part signal=kubelet err=pods have uids only"
    until(lambda: text in "".join(logged(caplog)), "that it is logged")
    assert running.holders() == (TRAIN,)
    running.logs.mkdir()
    until(lambda: watch.condition.trouble is None, "the folder")
    assert watch.condition.given is True


def test_without_a_kubelet_no_pod_is_named(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    watch = node.look()
    time.sleep(10 * QUICK.check)
    assert watch.condition.given is None
    assert not watch.condition.pending
    assert node.holders() == ()
    assert caplog.text == ""


@rows(
    "expected, owners, is_file, said",
    {
        "expected": (True, (), False, "there is no socket {}"),
        "a pod holds a GPU": (False, (Owner(pod_uid=UID),), False, "there is no socket {}"),
        "no socket": (False, (), True, "{} is not a socket"),
    },
)
def test_a_kubelet_that_is_missed(
    node: Node, *, expected: bool, owners: tuple[Owner, ...], is_file: bool, said: str
) -> None:
    if is_file:
        node.socket.touch()
    node.look(expected=expected)
    node.on_the_gpu(Owner(user="root"), *owners)
    node.fails(said.format(node.socket))


def test_a_kubelet_that_restarts_is_reported_once_and_its_response_kept(
    running: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    running.look(SLOW)
    running.works()
    running.kubelet.stop()
    running.fails("there is no socket")
    time.sleep(5 * QUICK.check)
    assert running.holders() == (TRAIN,)
    running.kubelet.pods = [with_gpus("serve-0", GPU)]
    running.kubelet.start()
    running.shows(SERVE)
    running.works()
    until(lambda: len(caplog.records) > 2, "that it is logged")
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "INFO"]


@rows(
    "early",
    {
        "no pods": [],
        "no devices": [Pod("train-0"), Pod("serve-0")],
        "those of files only": [with_gpus("serve-0", MIG)],
    },
)
def test_a_response_of_a_starting_kubelet_is_not_believed(running: Node, early: list[Pod]) -> None:
    running.kubelet.pods = [with_gpus("train-0", GPU), with_gpus("serve-0", MIG)]
    running.look(SLOW)
    running.shows(TRAIN)
    running.kubelet.stop()
    running.fails("there is no socket")
    running.kubelet.early = early
    result = running.kubelet.asked

    def both_hold() -> None:
        assert (running.holders(), running.holders(MIG)) == ((TRAIN,), (SERVE,))

    with repeated(both_hold, 0.001):
        running.kubelet.start()
        until(lambda: running.kubelet.asked > result + 1, "the second question")
        running.works()
        running.on_the_gpu(Owner(pod_uid=UID))
        until(lambda: running.kubelet.asked > result + 2, "what comes after it")


def test_the_second_answer_of_a_kubelet_that_started_counts(running: Node) -> None:
    running.look(SLOW)
    running.shows(TRAIN)
    running.kubelet.stop()
    running.fails("there is no socket")
    running.kubelet.pods = []
    result = running.kubelet.asked
    running.kubelet.start()
    running.shows()
    assert running.kubelet.asked >= result + 2


def test_an_early_response_is_not_used_for_new_pods(running: Node) -> None:
    """Lest the second answer is as early as the first."""
    running.look(replace(SLOW, first_retry=3600.0))
    running.shows(TRAIN)
    result = running.kubelet.asked + 1
    running.kubelet.pods = []
    running.kubelet.stop()
    running.kubelet.start()
    until(lambda: running.kubelet.asked == result, "the empty answer")
    running.on_the_gpu(Owner(pod_uid=UID))
    time.sleep(10 * QUICK.check)
    assert running.kubelet.asked == result
    assert running.holders() == (TRAIN,)


def test_a_kubelet_with_an_empty_first_response_is_asked_again_soon(node: Node) -> None:
    node.kubelet.start()
    node.look(SLOW)
    node.works()
    node.kubelet.pods = [with_gpus("train-0", GPU)]
    node.shows(TRAIN)


@rows(
    "attribute, answer, said",
    {
        "refuses": ("refusal", grpc.StatusCode.RESOURCE_EXHAUSTED, "8"),
        "garbage": ("raw", b"<html>", "an invalid answer"),
        "huge": ("raw", bytes(17 * 2**20), "exceeds 16777216 bytes"),
    },
)
def test_a_kubelet_that_misbehaves_and_recovers(
    running: Node, attribute: str, answer: object, said: str
) -> None:
    setattr(running.kubelet, attribute, answer)
    running.look()
    running.fails(said)
    assert running.holders() == ()
    setattr(running.kubelet, attribute, None)
    running.shows(TRAIN)
    running.works()


def test_a_kubelet_that_fails_is_asked_ever_less_often(running: Node) -> None:
    running.kubelet.refusal = grpc.StatusCode.INTERNAL
    watch = running.look(replace(QUICK, first_retry=0.01, query=0.08))
    until(lambda: watch._retry == 0.08, "the longest pause")
    assert running.kubelet.asked >= 3


def test_a_kubelet_that_has_just_failed_is_not_asked_about_new_pods(running: Node) -> None:
    running.kubelet.refusal = grpc.StatusCode.INTERNAL
    running.look(replace(SLOW, first_retry=3600.0))
    running.fails("gRPC status 13")
    running.on_the_gpu(Owner(pod_uid=UID))
    time.sleep(10 * QUICK.check)
    assert running.kubelet.asked == 1


def test_an_old_response_is_not_shown_any_more(running: Node) -> None:
    running.look(replace(QUICK, lifetime=0.5))
    running.shows(TRAIN)
    running.kubelet.refusal = grpc.StatusCode.UNAVAILABLE
    running.shows()


def test_a_kubelet_that_takes_its_time_does_not_keep_the_watch_from_ending(running: Node) -> None:
    running.kubelet.answers.clear()
    watch = running.look()
    until(lambda: watch.condition.pending and running.kubelet.asked == 1, "the call")
    assert "has not answered yet" in f"{watch.condition.trouble}"
    watch.stop(0.0)
    running.kubelet.answers.set()
    watch.stop(PATIENCE_SECONDS)
    assert watch.condition.given is True, "it was waited for"
