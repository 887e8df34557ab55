"""Observations of a stretch: a bucket and the machine's counters in, facts out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.bucket import Bucket, CgroupCounters, Counters, Part, Role
from gpu_bottleneck_exporter.accounting.stall import HOST_CODE, NETWORK
from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.feeders.job import JobFacts, JobLimits, JobReading
from gpu_bottleneck_exporter.feeders.process import FeederProcess
from gpu_bottleneck_exporter.host.cgroup import Cgroups
from gpu_bottleneck_exporter.host.machine import Machine
from gpu_bottleneck_exporter.prescription.batchtimes import SpreadMeter
from gpu_bottleneck_exporter.prescription.model import NOTHING_KNOWN, Outlook
from gpu_bottleneck_exporter.prescription.observed import Observed
from gpu_bottleneck_exporter.sampling.hostreader import HostSnapshot
from gpu_bottleneck_exporter.sampling.prescriber import Prescriber, Prescribers, _setting
from gpu_bottleneck_exporter.schedule import CADENCE
from support.rows import beside
from support.states import feeding
from support.ticks import tick
from support.trees import lay
from support.waiting import eventually

SECOND = 1_000_000_000
STRETCH = 4
MACHINE = Machine(
    cpus=8,
    cpu_busy_seconds=100.0,
    memory_available_bytes=6000,
    disk_io_seconds={"sda": 10.0},
    network_receive_bytes={"eth0": 0},
)
SITUATIONS = beside(__file__, "stretches.yml")
READING = Bucket(
    elapsed_ns=STRETCH * SECOND,
    parts={
        Role.MAIN: Part(used=Counters(cpu_ns=4 * SECOND, read_bytes=1000, read_chars=1000)),
        Role.WORKER: Part(used=Counters(cpu_ns=2 * SECOND, read_bytes=2000)),
        Role.RELATED: Part(used=Counters(read_bytes=4000)),
    },
)


class Gpu:
    """One that is watched, stretch by stretch; `folder` is the host's /proc and /sys."""

    def __init__(self, folder: Path) -> None:
        self.feed = FeederGroup(folder, Cgroups(folder))
        self.prescriber = Prescriber(folder, folder)
        self.at_ns = SECOND
        self.read_ns: int | None = None
        """When the machine was read, if not at the end of each stretch."""

    def look(
        self, machine: Machine | None = None, job: JobReading | None = None, rivals: int = 1
    ) -> Observed | None:
        """The last stretch, which ends now."""
        self.feed.last_count_ns = self.at_ns
        about = replace(feeding(), job=job) if job else None
        host = HostSnapshot(self.read_ns or self.at_ns, machine) if machine else None
        self.prescriber.advise(self.feed, about, host, rivals, ())
        return self.prescriber.last

    def work(
        self,
        busy: float,
        stalls: Mapping[str, float],
        *,
        seconds: int = STRETCH,
        did: Bucket | None = None,
    ) -> None:
        """Go on for this time; `did`: its feeders, if it idles so that these are watched."""
        self.at_ns += seconds * SECOND
        split = round(busy * SECOND), {cause: round(s * SECOND) for cause, s in stalls.items()}
        done = tick(*split, self.at_ns)
        self.prescriber.note(done)
        if did:
            self.feed.note(done)
            self.feed.history.add_second(replace(did, at_ns=self.at_ns))


def test_a_stretch_is_the_difference_since_its_beginning(tmp_path: Path) -> None:
    gpu = Gpu(tmp_path)
    gpu.work(5, {NETWORK: 7})
    assert gpu.look() is None, "nobody knows since when"
    gpu.work(3, {HOST_CODE: 1})
    observation = Observed(4.0, 0.75, {HOST_CODE: 0.25}, mains=0, owners=0)
    assert gpu.look() == observation
    gpu.work(0, {})
    assert gpu.look() == observation, "nothing was added"
    gpu.work(1, {HOST_CODE: 1}, seconds=1)
    assert gpu.look() == observation, "it has only begun"


def test_activity_of_feeders_is_kept_by_role(tmp_path: Path) -> None:
    lay(tmp_path, {"7/statm": f"0 {2**20} {2**19} 0 0 0 0"})
    crew = Part(
        {Activity.RUN: 20, Activity.DISK: 10, Activity.TIMER: 10, Activity.QUEUE: 60},
        *(200, 100),
        Counters(cpu_ns=2 * SECOND, queue_ns=SECOND, read_bytes=40_000, write_calls=8),
    )
    used = Counters(
        cpu_ns=6 * SECOND,
        queue_ns=SECOND,
        launch_queue_ns=SECOND,
        read_bytes=4_000,
        written_bytes=8_000_000,
        read_chars=5_000_000,
    )
    main = Part({Activity.DISK: 3, Activity.NETWORK: 1, Activity.SLEEP: 6}, 10, 10, used)
    thread = Part({Activity.RUN: 5}, 50, 100)
    parts = {Role.MAIN: main, Role.WORKER: crew, Role.THREAD: thread}
    gpu = Gpu(tmp_path)
    gpu.feed.mains.update({pid: FeederProcess(tmp_path, pid) for pid in (5, 6)})
    gpu.feed.worker_starts = 5
    gpu.look(MACHINE)
    gpu.feed.workers[7] = FeederProcess(tmp_path, 7)
    gpu.feed.family.unfollowed = frozenset({1, 2, 3})
    gpu.feed.worker_starts = 13
    gpu.feed.counters.handovers.idlers = lambda: 1  # type: ignore[method-assign]
    held = CgroupCounters(periods=40, throttled_periods=10)
    gpu.work(2, {HOST_CODE: 2}, did=Bucket(0, STRETCH * SECOND, parts, held))
    now = replace(MACHINE, cpu_busy_seconds=112.0, disk_io_seconds={"sda": 13.9})
    assert gpu.look(now, rivals=2) == Observed(
        *(4.0, 0.5, {HOST_CODE: 0.5}),
        mains=2,
        owners=0,
        workers=3,
        idlers=1,
        active=0.8,
        running=0.4,
        reading=0.2,
        threads=0.5,
        worker_cores=0.5,
        worker_queue=0.25,
        main_cores=1.5,
        main_queue=0.25,
        main_disk=0.3,
        main_network=0.1,
        main_writes=True,
        main_reads=True,
        worker_starts=2.0,
        throttled=0.25,
        free_cores=2.5,  # of eight, three are busy, and there are two rivals
        worker_bytes=2.0 * 2**30,
        free_bytes=3000.0,
        data_bytes=11_000.0,
        handovers=2.0,
        saturated=True,
    )


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_facts_of_the_machine_and_the_job(tmp_path: Path, situation: Mapping[str, Any]) -> None:
    lay(tmp_path, {"class/net/eth0/speed": situation.get("speed", "1000\n")})
    changed, result = situation.get("machine", {}), situation["seen"]
    gpu = Gpu(tmp_path)
    gpu.read_ns = None if situation.get("reread", True) else gpu.at_ns
    gpu.look(MACHINE if situation.get("began", True) else None, JobReading(received_bytes=4000))
    gpu.work(2, situation.get("stalls", {HOST_CODE: 2}), did=READING)
    job = JobReading(
        JobLimits(**situation.get("limits", {})), received_bytes=situation.get("received")
    )
    sample = gpu.look(None if changed is None else replace(MACHINE, **changed), job)
    assert sample is not None
    assert {name: asdict(sample)[name] for name in result} == result


def test_stretches_are_added_up_unless_one_was_missed(tmp_path: Path) -> None:
    gpu = Gpu(tmp_path)
    gpu.feed.mains[1], gpu.feed.facts = FeederProcess(tmp_path, 1), JobFacts(command="train")

    def stretch(busy: float, seconds: int = STRETCH) -> Observed | None:
        gpu.work(busy, {HOST_CODE: 1}, seconds=seconds)
        gpu.feed.last_count_ns = gpu.at_ns
        return gpu.prescriber.advise(gpu.feed, None, None, 1, ()).seen

    assert [stretch(busy) for busy in (9, 3, 3, 3)] == [None] * 4, "too little is known"
    result = stretch(7)
    assert result == Observed(20.0, 0.8, {HOST_CODE: 0.2}, mains=1, owners=0)
    assert stretch(100, seconds=17) == result, "what was counted is no longer known"
    assert gpu.prescriber.last is None
    gpu.feed.family.unfollowed = frozenset({2})
    assert [stretch(7), stretch(7)] == [result, result], "of so many workers too little is known"
    assert gpu.prescriber.last_change_at == gpu.at_ns / SECOND


def test_findings_belong_to_the_present_processes(tmp_path: Path) -> None:
    gpu = Gpu(tmp_path)
    gpu.feed.facts = JobFacts(command="train")

    def stretch(pid: int) -> Outlook:
        gpu.feed.mains.clear()
        gpu.feed.mains[pid] = FeederProcess(tmp_path, pid)
        gpu.work(3, {HOST_CODE: 1})
        gpu.feed.last_count_ns = gpu.at_ns
        return gpu.prescriber.advise(gpu.feed, None, None, 1, ())

    result = [stretch(1) for _ in range(6)][-1]
    assert result.seen is not None
    assert result.mains == gpu.feed.started == {(1, None)}
    assert stretch(2) == NOTHING_KNOWN
    assert stretch(2) == Outlook(mains=frozenset({(2, None)}))


@pytest.mark.parametrize(
    ("facts", "again", "same"),
    [
        ({"owners": {("1", "job 7")}, "lasting": {("1", "")}}, {"owners": {("1", "job 8")}}, True),
        ({"owners": {("1", "pod")}, "lasting": {("1", "pod")}}, {"lasting": {("1", "p")}}, False),
        ({"owners": {("1", "")}, "lasting": {("1", "")}}, {"lasting": {("2", "")}}, False),
    ],
    ids=["its next Slurm job", "another pod", "another user"],
)
def test_the_key_of_a_job_survives_its_restart(
    tmp_path: Path, facts: dict[str, Any], again: dict[str, Any], *, same: bool
) -> None:
    feed = FeederGroup(tmp_path, Cgroups(tmp_path))
    feed.mains[1] = FeederProcess(tmp_path, 1)
    keys = []
    for step, fields in enumerate((facts, {**facts, **again})):
        result: Any = {name: frozenset(value) for name, value in fields.items()}
        feed.facts = JobFacts(command=f"train --run {step}", **result)
        keys.append(_setting(feed, Observed(4.0, 0.5, {})).job)
    assert (keys[0] == keys[1]) is same
    assert all(keys)
    feed.facts = JobFacts(command="train", owners=frozenset({("1", ""), ("2", "")}))
    assert not _setting(feed, Observed(4.0, 0.5, {})).job


def test_how_much_batches_vary_is_measured_of_a_lone_worker_while_the_gpu_idles(
    tmp_path: Path,
) -> None:
    gpu, meter = Gpu(tmp_path), SpreadMeter(tmp_path)
    gpu.prescriber, gpu.at_ns = Prescriber(tmp_path, tmp_path, meter), time.monotonic_ns()
    gpu.feed.mains[5] = FeederProcess(tmp_path, 5)
    gpu.feed.workers[7] = FeederProcess(tmp_path, 7)
    batches = count(1000)
    lay(tmp_path, {f"{pid}/io": "syscr: 1000\nsyscw: 1000\n" for pid in (5, 7)})

    def spread(busy: float = 0.5) -> float | None:
        """Spread found after one more batch; no file is empty meanwhile, as in /proc."""
        number = next(batches)
        for pid in (7, 5):
            with open(tmp_path / f"{pid}/io", "r+", encoding="ascii") as file:
                file.write(f"syscr: {number}\nsyscw: {number}\n")
        gpu.work(STRETCH * busy, {NETWORK: STRETCH * (1 - busy)}, did=READING)
        sample = gpu.look()
        return sample.spread if sample else None

    eventually(lambda: spread() is not None)
    assert spread(busy=0.9) is None, "it is well fed"
    gpu.feed.workers[8] = FeederProcess(tmp_path, 8)
    assert spread() is None, "they show it by how often they rest"
    del gpu.feed.workers[8]
    assert spread() is not None
    meter.stop()


def test_each_gpu_has_its_own_ticks(tmp_path: Path) -> None:
    gpu, gpus, result = Gpu(tmp_path), Prescribers(tmp_path, tmp_path), None
    for _ in range(5):
        gpu.work(0, {})
        gpu.feed.last_count_ns = gpu.at_ns
        result = gpus.advise("a", {"a": gpu.feed}, {}, None, None).seen
        for uuid in "ab":
            gpus.note(tick(3 * SECOND, {HOST_CODE: SECOND}, uuid=uuid))
    assert result == Observed(16.0, 0.75, {HOST_CODE: 0.25}, mains=0, owners=0)


def test_ranks_of_a_job_share_the_free_resources(tmp_path: Path) -> None:
    ranks, gpus = {uuid: Gpu(tmp_path) for uuid in "ab"}, Prescribers(tmp_path, tmp_path)
    for pid, rank in enumerate(ranks.values(), 1):
        rank.feed.mains[pid] = FeederProcess(tmp_path, pid)
        rank.feed.facts = JobFacts(jobs=frozenset({("group", "here")}))
    for here, expected in (("ab", (2, 0.5, 4.0)), ("b", (1, None, 8.0))):
        feeds, outcome = {uuid: ranks[uuid].feed for uuid in here}, {}
        for uuid in 30 * here:
            (rank := ranks[uuid]).work(2, {NETWORK: 2}, did=READING)
            gpus.note(tick(2 * SECOND, {NETWORK: 2 * SECOND}, uuid=uuid))
            rank.feed.last_count_ns = rank.at_ns
            result = gpus.advise(uuid, feeds, {}, None, HostSnapshot(rank.at_ns, MACHINE)).seen
            outcome[uuid] = result and (result.job_gpus, result.job_busy, result.free_cores)
        assert outcome == dict.fromkeys(here, expected)
        gpus.forget("a")


def test_the_limit_of_a_gpu_that_idled_lately_is_read_now(tmp_path: Path) -> None:
    """Else it is what the metrics have; by the groups of the mains, of which there is none."""
    gpu, result = Gpu(tmp_path), JobReading(JobLimits(cpu_cores=2.0))

    def limit(*, idles: bool = False, job: JobReading | None = result) -> float | None:
        gpu.work(2, {HOST_CODE: 2}, did=READING if idles else None)
        sample = gpu.look(job=job)
        return sample.limit_cores if sample else None

    limit()
    assert limit() == 2.0
    assert limit(job=None) is None
    assert limit(idles=True) is None
    # It idled until the last stretch before `recent_ns`, and counts as idle for `cache_ttl_ns`.
    recent, retained = CADENCE.recent_ns // SECOND, CADENCE.cache_ttl_ns // SECOND
    stretches = (recent - 1) // STRETCH + retained // STRETCH
    assert {limit() for _ in range(stretches - 1)} == {None}
    assert limit() == 2.0
