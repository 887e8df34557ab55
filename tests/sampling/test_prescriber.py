"""What is concluded from a stretch: a bucket and the machine's counters in, what was seen out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.bucket import Bucket, CgroupCounters, Counters, Part, Role
from gpu_bottleneck_exporter.accounting.stall import HOST_CODE, NETWORK, WORKER_CPU
from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.feeders.job import Job, JobLimits
from gpu_bottleneck_exporter.host.cgroup import Cgroups
from gpu_bottleneck_exporter.host.machine import Machine
from gpu_bottleneck_exporter.prescription.observed import Observed
from gpu_bottleneck_exporter.sampling import prescriber
from gpu_bottleneck_exporter.sampling.hostreader import HostSnapshot
from gpu_bottleneck_exporter.sampling.prescriber import Mark, Prescriber, Time
from gpu_bottleneck_exporter.schedule import LONG_NS
from support.states import feeding
from support.trees import lay

SECOND = 1_000_000_000
STRETCH = 4 * SECOND
BEFORE = Machine(
    cpus=8,
    cpu_busy_seconds=100.0,
    memory_available_bytes=6000,
    disk_io_seconds={"sda": 10.0},
    network_receive_bytes={"eth0": 0},
)


@pytest.fixture
def feed(tmp_path: Path) -> FeederGroup:
    return FeederGroup(tmp_path / "proc", Cgroups(tmp_path / "sys"))


def mark(
    at_ns: int, machine: Machine | None = None, time: Time | None = None, received: int | None = 0
) -> Mark:
    host = None if machine is None else HostSnapshot(at_ns, machine)
    return Mark(at_ns, time or Time(), frozenset({1}), 0, host, received)


def later(**changed: object) -> tuple[Mark, Mark]:
    """Two marks, between which the machine changed."""
    return mark(0, BEFORE), mark(STRETCH, replace(BEFORE, **changed))  # type: ignore[arg-type]


def test_a_stretch_is_what_was_added_since_its_beginning(feed: FeederGroup) -> None:
    time = Time()
    time.add(5 * SECOND, {WORKER_CPU: 7 * SECOND})
    began = mark(0, time=time.copy())
    time.add(3 * SECOND, {HOST_CODE: SECOND})
    assert prescriber._plain(began, mark(STRETCH, time=time), feed) == Observed(
        seconds=4.0, busy=0.75, stalls={HOST_CODE: 0.25}, mains=0, workers=0
    )
    assert prescriber._plain(began, began, feed) is None


def test_what_feeders_did_is_seen_by_role(feed: FeederGroup, tmp_path: Path) -> None:
    crew = Part(
        {Activity.RUN: 20, Activity.DISK: 10, Activity.TIMER: 10, Activity.QUEUE: 60},
        *(200, 100),
        Counters(cpu_ns=2 * SECOND, queue_ns=SECOND, read_bytes=40_000),
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
    did = Bucket(
        elapsed_ns=STRETCH,
        parts={
            Role.MAIN: main,
            Role.WORKER: crew,
            Role.THREAD: Part({Activity.RUN: 5}, 50, 100),
        },
        held=CgroupCounters(periods=40, throttled_periods=10),
    )
    began, now = later(cpu_busy_seconds=112.0, disk_io_seconds={"sda": 13.9})
    began, now = replace(began, starts=2), replace(now, starts=10)
    plain = Observed(4.0, 0.75, {HOST_CODE: 0.25}, mains=1, workers=3)
    one = Prescriber(tmp_path, tmp_path)
    one._rivals = 2
    assert one._explained(plain, did, began, now, feed, None) == replace(
        plain,
        active=0.8,
        running=0.4,
        reading=0.2,
        threads=0.5,
        worker_cores=0.5,
        worker_queue=0.25,
        main_cores=1.5,
        main_queue=0.5,
        main_disk=0.3,
        main_network=0.1,
        main_writes=True,
        main_reads=True,
        worker_starts=2.0,
        throttled=0.25,
        free_cores=2.5,  # of eight, three are busy, and there are two rivals
        free_bytes=3000.0,
        data_bytes=11_000.0,
        saturated=True,
    )


@pytest.mark.parametrize(
    ("busy", "allowed", "used", "free"),
    [
        pytest.param(8.0, None, 0.0, 6.0, id="idle ones"),
        pytest.param(40.0, None, 0.0, 0.0, id="none is"),
        pytest.param(8.0, 4, 1.5, 2.5, id="at most those that it may use"),
        pytest.param(8.0, 1, 1.5, 0.0, id="it uses all of these"),
        pytest.param(8.0, 64, 1.5, 6.0, id="it may use all"),
    ],
)
def test_free_cores_are_idle_and_ones_that_the_job_may_use(
    busy: float, allowed: int | None, used: float, free: float
) -> None:
    found = prescriber._machines(*later(cpu_busy_seconds=100.0 + busy))
    seen = replace(feeding(), job=Job(limits=JobLimits(cpus_allowed=allowed)))
    assert prescriber._free_cores(found, seen, used) == free


@pytest.mark.parametrize("unknown", ["cpus", "cpu_busy_seconds"])
def test_free_cores_of_a_machine_that_does_not_tell_are_unknown(unknown: str) -> None:
    assert prescriber._free_cores(prescriber._machines(*later(**{unknown: None})), None, 0) is None
    assert prescriber._free_cores(None, None, 0) is None


def test_a_machine_that_was_not_read_in_between_tells_nothing() -> None:
    began, now = later()
    assert prescriber._machines(began, replace(now, host=began.host)) is None
    assert prescriber._machines(mark(0), now) is None
    assert prescriber._machines(began, mark(STRETCH)) is None


@pytest.mark.parametrize(
    ("io_seconds", "received", "saturated"),
    [
        pytest.param(3.5, 0, False, id="not quite"),
        pytest.param(3.7, 0, True, id="a disk"),
        pytest.param(0.0, 440_000_000, False, id="nearly a link of 1 Gbit/s"),
        pytest.param(0.0, 460_000_000, True, id="a link"),
    ],
)
def test_a_disk_or_a_link_that_is_busy_nearly_all_the_time_is_saturated(
    tmp_path: Path, io_seconds: float, received: int, *, saturated: bool
) -> None:
    lay(tmp_path, {"class/net/eth0/speed": "1000\n"})
    found = prescriber._machines(
        *later(
            disk_io_seconds={"sda": 10.0 + io_seconds, "new": 99.0},
            network_receive_bytes={"eth0": received},
        )
    )
    assert found is not None
    assert prescriber._saturated(found, tmp_path) is saturated


@pytest.mark.parametrize("speed", ["-1\n", "", "unknown\n"])
def test_a_link_of_unknown_speed_is_never_saturated(tmp_path: Path, speed: str) -> None:
    lay(tmp_path, {"class/net/eth0/speed": speed})
    assert prescriber._speed(tmp_path, "eth0") == prescriber._speed(tmp_path, "lo") == float("inf")


@pytest.mark.parametrize(
    ("stalls", "received", "rate"),
    [
        pytest.param({NETWORK: 0.3, HOST_CODE: 0.2}, 8000, 2000.0, id="received"),
        pytest.param({NETWORK: 0.3, HOST_CODE: 0.2}, -8, 0.0, id="never negative"),
        pytest.param({NETWORK: 0.3, HOST_CODE: 0.2}, None, None, id="unknown"),
        pytest.param({NETWORK: 0.2, HOST_CODE: 0.3}, 8000, 750.0, id="read"),
    ],
)
def test_data_is_what_is_received_only_where_the_network_is_waited_for(
    stalls: dict[str, float], received: int | None, rate: float | None
) -> None:
    did = Bucket(
        elapsed_ns=STRETCH,
        parts={
            Role.MAIN: Part(used=Counters(read_bytes=1000)),
            Role.WORKER: Part(used=Counters(read_bytes=2000)),
            Role.RELATED: Part(used=Counters(read_bytes=4000)),
        },
    )
    seen = Observed(4.0, 0.5, stalls)
    assert prescriber._data(did, mark(0), mark(STRETCH, received=received), seen) == rate


def test_stretches_are_added_up_unless_one_was_missed(feed: FeederGroup, tmp_path: Path) -> None:
    one = Prescriber(tmp_path, tmp_path)

    def stretch(until_s: int, busy_s: int) -> Observed | None:
        one.note_split(busy_s * SECOND, {HOST_CODE: SECOND})
        one._close(feed, None, None, until_s * SECOND)
        return one._keeper.outlook.seen

    assert stretch(100, 9) is None, "nobody knows since when"
    assert [stretch(at, 3) for at in (104, 108, 112)] == [None] * 3, "too little is known"
    assert stretch(116, 7) == Observed(20.0, 0.8, {HOST_CODE: 0.2}, mains=0)
    missed = one._keeper.outlook.seen
    assert stretch(133, 100) == missed, "what was counted is no longer known"


def test_the_limit_of_a_gpu_that_idled_lately_is_read_now(
    feed: FeederGroup, tmp_path: Path
) -> None:
    one = Prescriber(tmp_path, tmp_path)
    known = replace(feeding(), job=Job(limits=JobLimits(cpu_cores=2.0)))

    def limit(at_ns: int, *, wanted: bool) -> float | None:
        return one._limit(feed, known, at_ns, wanted=wanted)

    assert limit(SECOND, wanted=False) == 2.0, "as the metrics have it"
    assert limit(2 * SECOND, wanted=True) is None, "of its groups, of which there is none"
    assert limit(2 * SECOND + LONG_NS - 1, wanted=False) is None
    assert limit(2 * SECOND + LONG_NS, wanted=False) == 2.0
    assert one._limit(feed, None, 3 * SECOND + LONG_NS, wanted=False) is None
