"""Processes with crowds of threads and sockets: judged by some, and it is said that not by all."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.bucket import Bucket, Role
from gpu_bottleneck_exporter.accounting.stall import UNKNOWN
from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.host.sockets import MOST_SOCKETS
from gpu_bottleneck_exporter.host.threads import MOST_ASKED, MOST_THREADS
from gpu_bottleneck_exporter.sampling.watching import HostSampler
from gpu_bottleneck_exporter.settings import Settings
from support.judging import decide
from support.programs import Program, program
from support.waiting import until

THREADS = 2_000
SOCKETS = 500
UUID = "a"
CROWD = f"""
threading.stack_size(65536)
for _ in range({THREADS}):
    named("pool", locked)
"""
ASKING = f"""
import resource
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
silent = socket.create_server(("127.0.0.1", 0), backlog=4096)
if os.fork() == 0:
    kept = [connect(silent.getsockname()[1]) for _ in range({SOCKETS})]
    ready()
    while True:
        kept[-1].send(b"?")
        select.select([kept[-1]], [], [], 0.5)
locked()
"""


@contextmanager
def starved(one: Program) -> Iterator[HostSampler]:
    """Watch a GPU that `one` holds, and that has no work."""
    watch = HostSampler(Settings())
    watch.hold(UUID, frozenset({one.pid}))
    watch.start()
    try:
        until(lambda: watch.feed(UUID), "its feeders")
        yield watch
    finally:
        watch.stop()


def feed(watch: HostSampler) -> FeederGroup:
    found = watch.feed(UUID)
    assert found is not None
    return found


def feeders(watch: HostSampler, since_ns: int) -> Bucket:
    """What they did while the GPU had no work."""
    watch.note_split(UUID, 0, {UNKNOWN: 1})
    return watch.explaining(UUID, since_ns, time.monotonic_ns()) or Bucket()


def seen(watch: HostSampler, since_ns: int, role: str) -> Mapping[Activity, int]:
    return feeders(watch, since_ns).of(role).seen


def signal(watch: HostSampler, name: str) -> bool | None:
    """One of what the host tells, while the GPU has no work."""
    watch.note_split(UUID, 0, {UNKNOWN: 1})
    snapshot = watch.host.snapshot
    return snapshot.signals.get(name) if snapshot else None


def test_of_a_main_with_thousands_of_threads_those_that_move_are_seen() -> None:
    with program(CROWD + "named('one', burn); ready(); locked()") as one, starved(one) as watch:
        until(lambda: signal(watch, "all_threads") is False, "that not all are watched")

        def once_a_look() -> list[float]:
            since = time.monotonic_ns()
            until(
                lambda: seen(watch, since, Role.THREAD).get(Activity.RUN, 0) > MOST_ASKED,
                "the one",
            )
            found = feeders(watch, since).of(Role.THREAD)
            # Where all of a process was held up, all of its threads move.
            return [
                found.looks - found.seen[Activity.RUN],
                found.seen[Activity.RUN] / sum(found.seen.values()) - 0.9,
            ]

        decide(once_a_look, "only the one that moves is seen, once at each look")
        deep = feed(watch).mains[one.pid].deep
        assert deep is not None
        assert len(deep.threads.look(time.monotonic_ns())) <= MOST_THREADS


def test_of_a_worker_with_hundreds_of_sockets_the_one_it_waits_for_is_seen() -> None:
    with program(ASKING) as one, starved(one) as watch:
        until(lambda: signal(watch, "all_sockets") is False, "that not all are looked at")

        def asking() -> list[float]:
            since = time.monotonic_ns()
            until(
                lambda: seen(watch, since, Role.WORKER).get(Activity.NETWORK, 0) > 10,
                "its question",
            )
            found = seen(watch, since, Role.WORKER)
            # Now and then it is about to ask, for long where there is no CPU for it.
            waits = sum(found.values()) - found.get(Activity.RUN, 0)
            return [found[Activity.NETWORK] / waits - 0.8]

        decide(asking, "it mostly waits for an answer")
        (worker,) = feed(watch).workers.values()
        assert worker.deep is not None
        assert worker.deep.tcp is not None
        assert len(worker.deep.tcp.sockets.all()) <= MOST_SOCKETS
