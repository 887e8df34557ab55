"""What a thread waits for makes the state of its process, as long as nobody looks closer."""

from __future__ import annotations

from gpu_bottleneck_exporter.accounting.state import STATE_OF, State
from gpu_bottleneck_exporter.host.waits import Wait


def test_each_wait_is_a_state() -> None:
    assert STATE_OF.keys() == set(Wait)
    assert set(STATE_OF.values()) == set(State) - {State.REQUESTS, State.TIMER}
    for state, waits in {
        State.NETWORK: {Wait.SOCKET},
        State.QUEUE: {Wait.LOCK, Wait.PIPE},
        State.SLEEP: {Wait.POLL, Wait.ACCEPT, Wait.TIMER, Wait.CHILD, Wait.STOPPED, Wait.OTHER},
    }.items():
        assert {wait for wait, found in STATE_OF.items() if found is state} == waits
