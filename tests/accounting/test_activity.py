"""What a thread waits for makes the activity of its process, without a deep probe."""

from __future__ import annotations

from gpu_bottleneck_exporter.accounting.activity import ACTIVITY_OF, Activity
from gpu_bottleneck_exporter.host.waits import Wait


def test_each_wait_is_an_activity() -> None:
    assert ACTIVITY_OF.keys() == set(Wait)
    assert set(ACTIVITY_OF.values()) == set(Activity) - {Activity.REQUESTS, Activity.TIMER}
    for activity, waits in {
        Activity.NETWORK: {Wait.SOCKET},
        Activity.QUEUE: {Wait.LOCK, Wait.PIPE},
        Activity.SLEEP: {Wait.POLL, Wait.ACCEPT, Wait.TIMER, Wait.CHILD, Wait.STOPPED, Wait.OTHER},
    }.items():
        assert {wait for wait, found in ACTIVITY_OF.items() if found is activity} == waits
