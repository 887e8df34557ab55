"""Days of a healthy fleet: deploys, restarts, evaluations and checkpoints call nobody.

The budget is less than one warning in a day for ten GPUs. Work repeats every eight hours, and rules
judge it by two hours at most, so that ten hours show all that a day would.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rules.fleet import Fleet, Gpu, add_gpu

HOUR = 60
DEPLOYED_EVERY = 8 * HOUR
LOOKS_BACK = 2 * HOUR
"""The longest window in which rules judge work."""
END = LOOKS_BACK + DEPLOYED_EVERY
"""Every rule has judged each part of the work with its window filled."""
GPUS = 10
WARNINGS = 'max_over_time(ALERTS{alertstate="firing",severity=~"warning|critical"}[10h])'

Minutes = list[tuple[int, float]]


def each_minute(value: Callable[[int], float]) -> Minutes:
    return [(1, value(minute)) for minute in range(END + 1)]


def trained(shift: int) -> Gpu:
    """A job that is deployed anew every eight hours; `shift` minutes later than the first one."""

    def age(minute: int) -> int:
        return (minute + shift) % DEPLOYED_EVERY

    def starts(minute: int) -> bool:
        return age(minute) < 6

    def evaluates(minute: int) -> bool:
        return (minute + shift) % 120 < 8

    def saves(minute: int) -> bool:
        return (minute + shift) % 30 < 1

    def busy(minute: int) -> float:
        if starts(minute):
            return 0.0
        return 0.55 if evaluates(minute) else 0.5 if saves(minute) else 0.96

    def stalled(when: Callable[[int], bool]) -> Minutes:
        return each_minute(lambda minute: 1 - busy(minute) if when(minute) else 0.0)

    def otherwise(minute: int) -> bool:
        return not starts(minute) and not evaluates(minute) and not saves(minute)

    return Gpu(
        busy=each_minute(busy),
        stalls={
            "asleep": stalled(starts),
            "host_code": stalled(lambda m: not starts(m) and evaluates(m)),
            "storage": stalled(lambda m: not starts(m) and not evaluates(m) and saves(m)),
            "worker_cpu": stalled(otherwise),
        },
        sm=each_minute(lambda minute: 0.88 * busy(minute)),
        power_watts=each_minute(lambda minute: 90 + 500 * busy(minute)),
        main_written_bytes=each_minute(lambda minute: 5e8 if saves(minute) else 1e4),
        age_seconds=each_minute(lambda minute: 60.0 * age(minute)),
        worker_starts=each_minute(lambda minute: 0.1 if starts(minute) else 0.0),
        owner={"workload_namespace": "research", "workload_pod": f"train-{shift}"},
        reset_at=5 * HOUR + 3 * shift if shift % 2 else None,
        gap=(8 * HOUR + shift, 8 * HOUR + shift + 3) if shift % 3 == 0 else None,
    )


def test_a_healthy_fleet_calls_nobody(tmp_path: Path) -> None:
    fleet = Fleet(END, evaluation_interval="2m")
    for number in range(GPUS):
        add_gpu(fleet, f"node-{number}", trained(17 * number))
    fleet.expect(END, f"count by (alertname, instance) ({WARNINGS})", {})
    # It was looked at at all, and what is no call is told: the fleet has its evaluations.
    fleet.expect(END, "count(gpu:held:bool == 1)", {"{}": GPUS})
    fleet.check(tmp_path)
