"""Whether a loop is fed by datagrams: by recorded counters, and by real sockets."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.feeders.probe import DeepProbe, ProbeContext
from gpu_bottleneck_exporter.feeders.tcp import AnswerTimeouts, Arrivals, TcpTracker, Verdict
from gpu_bottleneck_exporter.host.process import ProcessReader
from gpu_bottleneck_exporter.host.sockets import Connection, Endpoint, Sockets, TcpState
from gpu_bottleneck_exporter.schedule import CADENCE
from support.programs import Program, program
from support.rows import rows
from support.trees import lay
from support.waiting import until

PROC = Path("/proc")
LONGEST_MS = 30_000
SECOND_MS = 1_000
OURS, STORE = Endpoint(bytes([10, 0, 0, 1]), 50_000), Endpoint(bytes([10, 0, 0, 2]), 443)
UDP = Connection(3, 0, OURS, STORE, TcpState.DATAGRAMS, 0, 0, 0, 4096, 0, 0)
IDLE, FED, STEPS = Verdict.IDLE, Verdict.DATAGRAMS, Verdict.DATAGRAM_STEPS
SNMP = "Udp: InDatagrams NoPorts\nUdp: {} 9\nUdpLite: InDatagrams\nUdpLite: 5\n"


class Loop(Sockets):
    """A process with one UDP socket, on a simulated clock and with recorded counters."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, now: Connection = UDP) -> None:
        super().__init__(root, 7)
        self._root = root
        self._at_ms = 1_000_000
        patch.setattr(time, "monotonic_ns", lambda: self._at_ms * 1_000_000)
        self.now = now
        self.taken, self.taken6, self.ran = 100, 0, 1
        self.others_run = False
        self.timeouts = AnswerTimeouts(LONGEST_MS)
        self._lay()
        self.tcp = TcpTracker(root, 7, self.timeouts)
        self.tcp.sockets = self

    def _lay(self) -> None:
        files = {
            "net/snmp": SNMP.format(self.taken),
            "net/snmp6": f"Ip6InReceives \t3\nUdp6InDatagrams \t{self.taken6}\nUdp6InErrors \t0\n",
            "schedstat": f"5 6 {self.ran}\n",
        }
        lay(self._root, {f"7/{name}": text for name, text in files.items()})

    def query(self, _required: Collection[int] = ()) -> list[Connection]:
        return [self.now]

    def look(self) -> Verdict:
        self._lay()
        return self.tcp.inspect((), whole=True, others_run=self.others_run)[3]

    def second(self, *, taken: int = 0, ran: int = 1, works: bool = True) -> Verdict:
        """The look after a second in which that happened."""
        self._at_ms += SECOND_MS
        self.taken += taken
        self.ran += ran
        if works:
            self.timeouts.worked_ns = time.monotonic_ns()
        return self.look()


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    made = Loop(tmp_path, monkeypatch)
    made.look()
    yield made
    made.tcp.arrivals.close()


@rows("remote", {"connected": STORE, "from any sender": Endpoint(b"", 0)})
def test_datagrams_before_each_step_feed_the_gpu(loop: Loop, remote: Endpoint) -> None:
    loop.now = loop.now._replace(remote=remote)
    values = [loop.second(taken=3) for _ in range(5)]
    assert values[0] is IDLE
    assert values[-1] is STEPS
    assert loop.second(works=False) is STEPS, "the next ones are waited for"
    assert loop.tcp.datagram_source == (time.monotonic_ns(), remote if remote.address else OURS)
    for _ in range(CADENCE.recent_ns // 1_000_000 // SECOND_MS):
        loop.second(works=False)
    assert loop.second(works=False) is IDLE


def test_those_of_ip_version_6_count(loop: Loop) -> None:
    for _ in range(5):
        loop.taken6 += 1
        loop.second()
    assert loop.look() is STEPS


def test_a_loop_driven_by_its_timer_is_fed_by_no_datagrams(loop: Loop) -> None:
    assert {loop.second() for _ in range(9)} == {IDLE}


def test_datagrams_before_few_steps_do_not_hold_an_event_loop_up(loop: Loop) -> None:
    values = [loop.second(taken=at % 3 == 0) for at in range(30)]
    assert STEPS not in values[3:]
    assert FED in values, "a process that waits on this socket alone waits for more"


def test_queued_datagrams_are_not_waited_for(loop: Loop) -> None:
    for _ in range(5):
        loop.second(taken=1)
    loop.now = loop.now._replace(unread_bytes=2304)
    assert loop.look() is IDLE


def test_a_socket_that_only_sends_waits_for_nothing(loop: Loop) -> None:
    loop.now = loop.now._replace(received_bytes=0)
    assert {loop.second(taken=5) for _ in range(9)} == {IDLE}


def test_datagrams_received_while_the_process_sleeps_belong_to_others(loop: Loop) -> None:
    values = [loop.second(taken=5, ran=at % 2) for at in range(30)]
    assert set(values[10:]) == {IDLE}


def test_among_others_it_takes_most_while_it_runs(loop: Loop) -> None:
    """Others take some at a third of the looks at which it rests."""
    values = [loop.second(taken=at % 4 > 0 or at % 12 == 0, ran=at % 4) for at in range(80)]
    assert set(values[60:]) == {STEPS}


def test_threads_may_take_them(loop: Loop) -> None:
    loop.others_run = True
    assert [loop.second(taken=5, ran=0) for _ in range(5)][-1] is STEPS


def test_counters_that_cannot_be_read_show_nothing(tmp_path: Path) -> None:
    arrivals = Arrivals(tmp_path, 7)
    for at in range(9):
        arrivals.sample(at * 10**9, others_run=False)
    assert not arrivals.received(UDP)
    assert arrivals.idle_ms(UDP) is None
    arrivals.close()


SENDS = """
server = socket.socket(type=socket.SOCK_DGRAM); server.bind(("127.0.0.1", 0))
ready(server.getsockname()[1])
_, client = server.recvfrom(1)
while True:
    time.sleep(0.2)
    for _ in range(9): server.sendto(bytes(1200), client)
"""
LOOP = """
import asyncio
class Protocol(asyncio.DatagramProtocol):
    def datagram_received(self, data, address): pass
async def main():
    loop = asyncio.get_running_loop()
    end, _ = await loop.create_datagram_endpoint(Protocol, local_addr=("127.0.0.1", 0))
    {}
    ready()
    while True: await asyncio.sleep({})
asyncio.run(main())
"""
FED_LOOP = LOOP.format('end.sendto(b"?", ("127.0.0.1", int(sys.argv[1])))', 60)
TIMED = LOOP.format("", 0.15)


@contextmanager
def probed(one: Program, known: AnswerTimeouts) -> Iterator[DeepProbe]:
    deep = DeepProbe(PROC, one.pid, known)
    try:
        yield deep
    finally:
        deep.close()


@rows("code, waits", {"fed": (FED_LOOP, Activity.NETWORK), "a timer": (TIMED, Activity.SLEEP)})
def test_wait_of_an_event_loop_with_a_udp_socket(code: str, waits: Activity) -> None:
    """The other loop runs beside it, in the same network namespace."""
    timeouts = AnswerTimeouts(LONGEST_MS)
    with (
        program(SENDS) as server,
        program(SENDS) as noise,
        program(FED_LOOP, *noise.words),
        program(code, *server.words) as process,
        probed(process, timeouts) as deep,
    ):
        reader = ProcessReader(PROC, process.pid)

        def share() -> float:
            values: list[Activity] = []
            for _ in range(40):
                time.sleep(0.05)
                timeouts.worked_ns = now_ns = time.monotonic_ns()
                values.append(deep.probe(now_ns, reader.wait(), ProbeContext(holds=True)).whole)
            return values.count(waits) / max(len(values) - values.count(Activity.RUN), 1)

        share()  # until it is known how the program behaves
        until(lambda: share() >= 0.8, f"{waits}")
        reader.close()
