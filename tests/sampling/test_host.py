"""The watching thread, alone and below the sampler."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from subprocess import Popen
from threading import Event

import pytest

from gpu_bottleneck_exporter.accounting.stall import ASLEEP, STORAGE, UNKNOWN
from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.create import H100
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.driver.protocol import Driver, DriverMissing
from gpu_bottleneck_exporter.exposition.render import Exposition
from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.feeders.snapshot import Feeding
from gpu_bottleneck_exporter.host.cgroup import Cgroups
from gpu_bottleneck_exporter.sampling import watching
from gpu_bottleneck_exporter.sampling.collector import Collector
from gpu_bottleneck_exporter.sampling.discovery import Connections, Discovery
from gpu_bottleneck_exporter.sampling.sampler import Sampler, SamplerState
from gpu_bottleneck_exporter.sampling.watching import HostSampler
from gpu_bottleneck_exporter.schedule import CADENCE, Every
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.workload.owners import Groups
from support.children import Parent
from support.programs import program
from support.samplers import sampling
from support.ticks import note_split
from support.trees import cgroup_v2, lay
from support.waiting import PATIENCE_SECONDS, until

Start = Callable[[], Parent]
PARENTS = {
    "board": None,
    "instance": "board",
    "sibling": "board",
    "other board": None,
    "its instance": "other board",
}
"""GPUs and the GPU each is an instance of."""


@pytest.fixture
def watch() -> Iterator[HostSampler]:
    sampler = HostSampler(Settings())
    sampler.start()
    yield sampler
    sampler.stop()


def all_but(*off: str) -> list[Collector]:
    return [collector for collector in ALL if collector.name not in off]


def no_driver() -> Driver:
    raise DriverMissing("none here")


def text(sampler: Sampler) -> str:
    return Exposition(sampler, ALL).render()[0].decode()


def text_with(sampler: Sampler, *words: str) -> str:
    """A text with all of these; what was read too long ago is left out."""

    def found() -> str | None:
        shown = text(sampler)
        return shown if all(word in shown for word in words) else None

    return until(found, f"{words}")


def peer_busy(watch: HostSampler, uuid: str) -> float | None:
    """How busy peers of GPU `uuid` were, 0-1; None before its feeders were looked at."""
    feeders = watch.explaining(uuid, 0, time.monotonic_ns())
    return feeders.peer if feeders else None


def held_by(watch: HostSampler, *pids: int, uuid: str = "a") -> FeederGroup:
    """The feeders of a GPU that these processes hold, once they were read."""
    watch.hold(uuid, frozenset(pids))
    until(lambda: watch.feeding(uuid), "a snapshot")
    return until(lambda: watch.feed(uuid), "its feeders")


def test_it_may_keep_many_files_open() -> None:
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    (watch := HostSampler(Settings())).start()
    watch.stop()
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 256
    resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


def test_it_rests_after_a_pass_that_cost_much(
    watch: HostSampler, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = []

    def costly(*_: object, **__: object) -> bool:
        passes.append(time.monotonic())
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass
        return True

    monkeypatch.setattr(FeederGroup, "sample", costly)
    watch.hold("a", frozenset({start().pid}))
    until(lambda: len(passes) > 4, "five passes")
    assert passes[4] - passes[0] > 4 * 8 * 0.05


def test_a_process_that_holds_a_gpu_feeds_it_as_long_as_it_is_seen(
    watch: HostSampler, start: Start
) -> None:
    main = start()
    worker = main.fork()
    feed = held_by(watch, main.pid)
    feeders = watch.feeding("a")
    assert feeders is not None
    assert feeders.processes == {"main": 1, "worker": 1}
    assert watch.feeding("b") is None
    # Those with one thread tell their children.
    assert feed.workers[worker].children() == []
    assert feed.mains[main.pid].children() == [worker]
    main.end_child(worker)
    until(lambda: worker not in feed.workers, "the end of the worker")
    main.end()
    until(lambda: watch.feeding("a") is None, "unknown holders")
    held_by(watch, uuid="b")
    feeders = watch.feeding("b")
    assert feeders is not None
    assert feeders.processes == {"main": 0}


def test_a_process_with_an_inherited_connection_feeds_its_own_holder_alone(
    watch: HostSampler,
) -> None:
    serve = "s = socket.create_server(('127.0.0.1', 0)); ready(s.getsockname()[1])\n"
    fork = "c, _ = s.accept(); ready(os.fork() or burn()); locked()"
    wait = "c = connect(int(sys.argv[1])); ready(); c.recv(1)"
    with program(serve + fork) as other, program(wait, other.words[0]) as main:
        worker = int(other.hear()[0])
        watch.hold("a", frozenset({main.pid}))
        watch.hold("b", frozenset({other.pid}))
        feed = until(lambda: watch.feed("a"), "its feeders")
        note_split(watch, "a", 0, {UNKNOWN: 1})
        strangers = watch._discovery.strangers
        until(
            lambda: any(worker in result.pids for result in strangers._results.values()), "a search"
        )
        before = watch._loop._ended_ns
        until(lambda: watch._loop._ended_ns != before, "the rest of that pass")
        assert not feed.family.related


def test_kin_of_a_gpu_are_found_once_it_idles(watch: HostSampler) -> None:
    with program("pipe = os.pipe()\nready(os.fork() or locked())\nlocked()") as process:
        feed = held_by(watch, int(process.words[0]))
        note_split(watch, "a", 0, {UNKNOWN: 1})
        until(lambda: feed.family.kin == {process.pid}, "its parent")


def test_connections_are_sampled_while_a_gpu_idles(
    watch: HostSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = []

    def inspect(*asked: object) -> Connections:
        looks.append(asked)
        return {}

    monkeypatch.setattr(watching, "inspect_connections", inspect)
    with program("ready()\nlocked()") as process:
        held_by(watch, process.pid)
        assert not looks
        note_split(watch, "a", 0, {UNKNOWN: 1})
        until(lambda: looks, "a look")


def test_without_feeders_no_strangers_are_searched(
    watch: HostSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    sought: list[object] = []
    monkeypatch.setattr(watch._discovery.strangers, "search", lambda *asked: sought.append(asked))
    watch._discovery.find_strangers({}, time.monotonic_ns())
    assert not sought


def test_a_group_made_anew_may_be_another_owners(tmp_path: Path) -> None:
    proc, sysfs, group = tmp_path / "proc", tmp_path / "sys", f"docker-{64 * 'c'}.scope"
    mount = cgroup_v2(sysfs, {f"a/{group}/cgroup.procs": ""})
    lay(proc, {"stat": "", "1/cgroup": f"0::/a/{group}\n"})
    units, settings = Groups(proc, sysfs), Settings(procfs=proc, sysfs=sysfs)
    discovery = Discovery(settings, Cgroups(sysfs), units, lambda _: nullcontext())
    assert units.unit(1)
    (mount / "a").chmod(0o777)
    discovery.discover({}, {})
    assert not units.unit(1), "only its name is a container's"


@pytest.mark.parametrize("step", [0.1, 0.15, 0.2, 0.7])
def test_work_of_every_second_is_done_once_a_second_at_any_pass(step: float) -> None:
    rhythm = Every(1.0)
    times = [number * step for number in range(round(1000 / step))]
    done = [at for at in times if rhythm.is_due(1e6 + at)]
    assert done[0] == 0
    assert len(done) == pytest.approx(1000, rel=0.01)
    assert max(later - before for before, later in pairwise(done)) <= 1 + step + 1e-6
    late = [rhythm.is_due(2e6 + at) for at in (0.0, 7.0, 7.1, 8.0)]
    assert late == [True, True, False, True], "what was missed is not made up for"


@pytest.mark.parametrize(
    ("busy", "waiting"),
    [
        ("board", {"other board", "its instance"}),
        ("instance", {"sibling", "other board", "its instance"}),
        ("other board", {"board", "instance", "sibling"}),
    ],
)
def test_a_gpu_is_no_peer_of_its_parent_nor_of_its_instances(
    watch: HostSampler, start: Start, busy: str, waiting: set[str]
) -> None:
    holders = frozenset({start().pid})
    for uuid, parent in PARENTS.items():
        watch.hold(uuid, holders, parent)
    until(lambda: all(peer_busy(watch, uuid) is not None for uuid in PARENTS), "feeders")
    note_split(watch, busy, 9, {ASLEEP: 1})
    fields = {uuid: peer_busy(watch, uuid) for uuid in PARENTS}
    assert fields == {uuid: 0.9 if uuid in waiting else 0.0 for uuid in PARENTS}


def test_no_gpu_waits_for_one_that_has_hung(
    watch: HostSampler, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    brief = replace(CADENCE, recent_ns=300_000_000)
    monkeypatch.setattr("gpu_bottleneck_exporter.sampling.discovery.CADENCE", brief)
    holders = frozenset({start().pid})
    for uuid in ("hung", "waiting"):
        watch.hold(uuid, holders)
    until(lambda: peer_busy(watch, "waiting") is not None, "feeders")
    note_split(watch, "hung", 9, {ASLEEP: 1})
    until(lambda: peer_busy(watch, "waiting") == 0.0, "its last tick is over")


def test_a_removed_gpu_is_forgotten(watch: HostSampler, start: Start) -> None:
    watch.hold("instance", frozenset({start().pid}), "board")
    watch.hold("board", frozenset())
    until(lambda: watch.feeding("instance"), "its feeders")
    watch.forget("instance")
    until(lambda: watch.feed("instance") is None, "it is gone")
    assert watch.feeding("instance") is None
    assert watch.feed("board") is not None


def test_feeders_of_a_steady_gpu_are_sampled_less_often(watch: HostSampler, start: Start) -> None:
    feeds = {name: held_by(watch, start().pid, uuid=name) for name in ("lasting", "new")}

    def between_looks(name: str) -> float:
        times = [item.at_ns for item in list(feeds[name].history._passes)[-9:]]
        spans = [later - before for before, later in pairwise(times)]
        return median(spans) if len(spans) == 8 else 0.0

    for _ in range(20):
        note_split(watch, "lasting", 0, {ASLEEP: 1_000_000_000})
    until(lambda: between_looks("lasting") > 2 * between_looks("new") > 0, "fewer looks")
    for _ in range(3):
        note_split(watch, "lasting", 0, {STORAGE: 4_000_000_000})
    until(lambda: between_looks("lasting") < 1.5 * between_looks("new"), "more looks")


def test_a_gpu_sampled_less_often_waits_for_no_second_pause_of_another(
    watch: HostSampler, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    feeds = [held_by(watch, start().pid, uuid=name) for name in "ab"]
    for feed, pause in zip(feeds, (0.4, 0.5), strict=True):
        monkeypatch.setattr(feed.pace, "pause", lambda *_, pause=pause: pause)
    passes = [feed.history._passes for feed in feeds]
    begin = time.monotonic_ns()

    def looks() -> list[int]:
        return [sum(item.at_ns > begin for item in list(result)) for result in passes]

    until(lambda: looks()[0] >= 12, "looks")
    assert looks()[1] >= 9, "else it would have half as many"


def test_counters_of_a_steady_gpu_are_read_less_often(watch: HostSampler, start: Start) -> None:
    feed = held_by(watch, start().pid)
    for _ in range(20):
        note_split(watch, "a", 1_000_000_000, {})
    until(
        lambda: feed.history._seconds and feed.history._seconds[-1].elapsed_ns > 1_500_000_000,
        "a longer tick",
    )

    def counted() -> int:
        now = time.monotonic_ns()
        bucket = watch.explaining("a", now - 1_000_000_000, now)
        return bucket.elapsed_ns if bucket else 0

    until(lambda: counted() > 1_500_000_000, "all of it in what was done lately")


def test_collectors_that_are_off_are_not_read() -> None:
    with sampling(no_driver, collectors=all_but("host")) as sampler:
        host = until(lambda: sampler.state().host, "the signals")
        assert host.machine is None
    none = all_but("host", "feeders", "stall", "prescription", "workload", "stacks")
    with sampling(no_driver, collectors=none) as sampler:
        until(lambda: sampler.ready, "a first try")
        assert sampler.state().host is None


def feedings(sampler: Sampler) -> list[Feeding]:
    state: SamplerState = sampler.state()
    return [gpu.feeding for gpu in state.gpus if gpu.feeding is not None]


def fed(sampler: Sampler) -> bool:
    return bool(feedings(sampler))


@pytest.fixture
def held(make_board: Callable[..., Board], start: Start) -> Board:
    """A board whose GPU a process holds."""
    board = make_board(gpus=[H100])
    board.gpus[0].record.processes[0].pid = start().pid
    return board


def test_feeders_are_exported_while_the_holders_are_known(held: Board) -> None:
    with sampling(lambda: VirtualDriver(held)) as sampler:
        text_with(sampler, 'role="main"', "\ngpu_workload_info{", "\ngpu_feeder_interactive{")
    with sampling(lambda: VirtualDriver(held), collectors=all_but("processes")) as sampler:
        until(lambda: sampler.state().gpus, "a GPU")
        until(lambda: sampler.state().host, "the watching")
        began_ns = sampler.state().gpus[0].at_ns
        until(lambda: sampler.state().gpus[0].at_ns - began_ns > 10**9, "what follows")
        assert not fed(sampler)
        assert "\ngpu_workload_info{" not in text(sampler)


def test_owners_are_exported_alone_and_not_where_they_are_off(held: Board) -> None:
    with sampling(
        lambda: VirtualDriver(held), collectors=all_but("host", "feeders", "stall")
    ) as sampler:
        until(lambda: fed(sampler), "feeders")
        assert all(feeding.owners for feeding in feedings(sampler))
    with sampling(lambda: VirtualDriver(held), collectors=all_but("workload")) as sampler:
        until(lambda: fed(sampler), "feeders")
        assert not any(feeding.owners for feeding in feedings(sampler))


def test_an_expired_sample_is_not_exported(held: Board) -> None:
    with sampling(lambda: VirtualDriver(held)) as sampler:
        gpu = until(lambda: next((gpu for gpu in sampler.state().gpus if gpu.feeding), None), "it")
        host = until(lambda: sampler.state().host, "the host")
        assert gpu.feeding is not None
        bare = replace(gpu, feeding=None)
        assert sampler._with_feeding(bare, gpu.feeding.at_ns).feeding is not None
        assert sampler._host(host.at_ns) is not None
        later = time.monotonic_ns() + 60_000_000_000
        assert sampler._with_feeding(bare, later).feeding is None
        assert sampler._host(later) is None


def test_a_scrape_shows_the_present_state(
    watch: HostSampler, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = replace(CADENCE, refresh_timeout_seconds=PATIENCE_SECONDS)
    monkeypatch.setattr(watching, "CADENCE", patient)
    held_by(watch, start().pid)
    result = until(lambda: watch.feeding("a"), "a snapshot")
    until(lambda: time.monotonic_ns() - result.at_ns > 1_100_000_000, "it is old")
    asked_ns = time.monotonic_ns()
    watch.refresh()
    feeders = watch.feeding("a")
    assert feeders is not None
    assert feeders.at_ns > asked_ns
    watch.refresh()
    assert watch.feeding("a") is feeders, "young enough"


def test_a_scrape_waits_briefly_where_a_pass_hangs(
    watch: HostSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Event()
    monkeypatch.setattr(watch, "_pass", lambda *_, **__: gate.wait())
    until(lambda: watch.silent_seconds(time.monotonic_ns()) > 1.5, "it hangs")
    began = time.monotonic()
    watch.refresh()
    assert time.monotonic() - began < PATIENCE_SECONDS
    gate.set()


def test_frequent_scrapes_do_not_shorten_the_seconds_of_counters(
    watch: HostSampler, start: Start
) -> None:
    feed = held_by(watch, start().pid)

    def seconds() -> list[int]:
        watch.refresh()
        return [second.elapsed_ns for second in list(feed.history._seconds)[1:]]

    until(lambda: len(seconds()) >= 4, "some of them")
    assert min(seconds()) > 400_000_000


def test_tenants_remain_while_their_gpus_processes_cannot_be_listed() -> None:
    sampler = HostSampler(Settings(), {"workload"})
    with ExitStack() as ends:
        pids = set()
        for job in ("1", "2"):
            loop = Popen(["/bin/sleep", "600"], env={"SLURM_JOB_ID": job})
            ends.callback(loop.wait)
            ends.callback(loop.kill)
            pids.add(loop.pid)
        sampler.start()
        ends.callback(sampler.stop)
        sampler.hold("board", frozenset(pids))
        until(lambda: sampler.tenants("board").keys() == pids, "both tenants")
        sampler.hold("board", None)
        until(lambda: sampler.feeding("board") is None, "the failure")
        assert sampler.tenants("board").keys() == pids
        sampler.hold("board", frozenset())
        until(lambda: not sampler.tenants("board"), "their end")
