"""One GPU's processes hold up those who read them: the other GPUs are sampled as before."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_bottleneck_exporter.accounting.bucket import Role
from gpu_bottleneck_exporter.accounting.stall import UNKNOWN
from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.host import aside
from gpu_bottleneck_exporter.sampling import watching
from gpu_bottleneck_exporter.sampling.watching import HostSampler
from gpu_bottleneck_exporter.schedule import CADENCE
from gpu_bottleneck_exporter.settings import Settings
from support.hangs import ANSWERS_LATE, EXECUTES, FLUSH, unanswering
from support.programs import program
from support.ticks import note_split
from support.tools import missing
from support.waiting import until

LIVES = "ready(); told()"
SERVES = (
    """
server = socket.socket(socket.AF_UNIX)
server.bind(f"\\0test-{os.getpid()}")
server.listen()
server.set_inheritable(True)
"""
    + EXECUTES
)
ASKS = """
client = socket.socket(socket.AF_UNIX)
client.connect(f"\\0test-{sys.argv[1]}")
ready()
client.recv(1)
"""
PARENT = """
child = subprocess.Popen(["sleep", "600"])
ready(child.pid); told(); child.kill()
"""
LOOKS = 20
BRIEF = replace(CADENCE, hang_timeout_ns=1_000_000_000)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostSampler]:
    monkeypatch.setattr(watching, "CADENCE", BRIEF)
    for item in (aside.memory_reads, aside.socket_queries, aside.proc_reads):
        monkeypatch.setattr(item, "_timeout", aside.CALL_TIMEOUT_SECONDS)
    sampler = HostSampler(Settings(), {"workload"})
    sampler.start()
    yield sampler
    sampler.stop()


def idle(watch: HostSampler) -> None:
    """Both GPUs idle, which makes their processes be looked at deeply."""
    for uuid in ("bad", "good"):
        note_split(watch, uuid, 0, {UNKNOWN: 1})


def looks(watch: HostSampler, uuid: str, since_ns: int) -> int:
    feed = watch.feed(uuid)
    return feed.history.passes_since(since_ns).of(Role.MAIN).rounds if feed else 0


def test_an_execve_that_does_not_end_costs_its_own_gpu(watch: HostSampler, tmp_path: Path) -> None:
    """It closes a file of a file system that does not answer, and holds a lock meanwhile.

    Until it ends, a reader of its stat, wchan, syscall or io waits with it.
    """
    with (
        unanswering(tmp_path, FLUSH) as server,
        program(EXECUTES, tmp_path / "file") as bad,
        program(LIVES) as good,
    ):
        watch.hold("bad", frozenset({bad.pid}))
        watch.hold("good", frozenset({good.pid}))
        idle(watch)
        until(lambda: looks(watch, "bad", 0) and looks(watch, "good", 0), "looks at both")
        bad.tell()
        until(lambda: server.ask("?"), "that it closes the file")
        try:

            def goes_on() -> bool:
                """Whether others go on; checks as the sampler's thread does each second."""
                watch.replace_if_hung(time.monotonic_ns())
                idle(watch)
                return bool(watch._hung) and looks(watch, "good", began_ns) >= LOOKS

            began_ns = time.monotonic_ns()
            until(goes_on, "looks at the other GPU")
            assert len(watch._hung) == 1
            until(lambda: watch.feeding("bad") is None, "that nothing old is shown of it")
            newcomer = frozenset({good.pid})
            watch.hold("new", newcomer)
            until(lambda: looks(watch, "new", 0), "looks at a GPU that is new")
        finally:
            server.tell("answer")
        until(lambda: not watch._hangs("bad"), "the end of the thread that hung")
        assert watch.silent_seconds(time.monotonic_ns()) < BRIEF.hang_timeout_ns


def test_a_server_that_hangs_in_an_execve_is_not_watched(
    watch: HostSampler, tmp_path: Path
) -> None:
    """The kernel names the peer of a UNIX socket, which may be any user's, without asking it."""
    with (
        unanswering(tmp_path, FLUSH) as server,
        program(SERVES, tmp_path / "file") as peer,
        program(ASKS, peer.pid) as bad,
        program(LIVES) as good,
    ):
        peer.tell()
        until(lambda: server.ask("?"), "that it closes the file")
        watch.hold("bad", frozenset({bad.pid}))
        watch.hold("good", frozenset({good.pid}))
        finder = watch._discovery.strangers

        def is_found() -> bool:
            idle(watch)
            return any(peer.pid in result.pids for result in finder._results.values())

        try:
            until(is_found, "that it is found")
            began_ns = time.monotonic_ns()
            until(lambda: looks(watch, "good", began_ns) >= LOOKS, "looks at the other GPU")
            feed = watch.feed("bad")
            assert feed is not None
            assert peer.pid not in feed.family.related
        finally:
            server.tell("answer")


def test_feeders_that_block_a_pass_are_sampled_less_often(
    watch: HostSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is that they block in."""
    sample = FeederGroup.sample

    def late(feed: FeederGroup, *asked: Any, **how: Any) -> bool:  # noqa: ANN401
        if feed is watch.feed("bad"):
            time.sleep(0.3)
        return sample(feed, *asked, **how)

    monkeypatch.setattr(FeederGroup, "sample", late)
    with program(LIVES) as bad, program(LIVES) as good:
        watch.hold("bad", frozenset({bad.pid}))
        watch.hold("good", frozenset({good.pid}))
        idle(watch)
        until(lambda: looks(watch, "bad", 0), "a look at the slow one")
        began_ns = time.monotonic_ns()
        until(lambda: looks(watch, "good", began_ns) >= LOOKS, "looks at the other")
        assert 4 * looks(watch, "bad", began_ns) <= LOOKS


def test_feeders_that_rest_are_not_discovered_either(watch: HostSampler) -> None:
    with program(LIVES) as bad, program(LIVES) as good:
        watch.hold("bad", frozenset({bad.pid}))
        until(lambda: looks(watch, "bad", 0), "a look")
        feed = watch.feed("bad")
        assert feed is not None
        watch._gpus["bad"].rests_until = time.monotonic() + 10_000
        watch.hold("bad", frozenset({bad.pid, good.pid}))
        watch.hold("good", frozenset({good.pid}))
        until(lambda: looks(watch, "good", 0), "a look at the other GPU")
        assert feed.mains.keys() == {bad.pid}
        watch._gpus["bad"].rests_until = 0.0
        watch.hold("good", frozenset())
        until(lambda: feed.mains.keys() == {bad.pid, good.pid}, "its new main")


def test_a_main_of_a_gpu_that_rests_is_no_worker_of_another(watch: HostSampler) -> None:
    with program(PARENT) as parent, program(LIVES) as new:
        child = int(parent.words[0])
        watch.hold("bad", frozenset({child}))
        watch.hold("good", frozenset({parent.pid}))
        until(lambda: looks(watch, "bad", 0) and looks(watch, "good", 0), "looks at both")
        bad, good = watch.feed("bad"), watch.feed("good")
        assert bad is not None
        assert good is not None
        watch._gpus["bad"].rests_until = time.monotonic() + 10_000
        watch.hold("good", frozenset({parent.pid, new.pid}))
        until(lambda: new.pid in good.mains and looks(watch, "good", 0), "its new main")
        assert child in bad.mains
        assert child not in good.workers
        parent.tell()


def test_pages_that_answer_late_take_a_small_share_of_the_time(watch: HostSampler) -> None:
    """Each answers in time; read at each pass, they would hold up the other GPUs for ever."""
    with program(ANSWERS_LATE) as bad, program(LIVES) as good:
        if bad.words == ["denied"]:
            missing("userfaultfd is not allowed")
        watch.hold("bad", frozenset({bad.pid}))
        watch.hold("good", frozenset({good.pid}))

        def looked_at() -> bool:
            idle(watch)
            return int(bad.ask("?")[0]) > 0

        until(looked_at, "a look at the page")
        began_ns = time.monotonic_ns()

        def goes_on() -> bool:
            idle(watch)
            return looks(watch, "good", began_ns) >= 3 * LOOKS

        until(goes_on, "looks at the other GPU")
        assert int(bad.ask("?")[0]) <= LOOKS
