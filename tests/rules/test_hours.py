"""What shows over hours: faults that last, work in phases, restarts, days of a healthy fleet.

All of it is one run of promtool: six hours of rules take it more than the GPUs in them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rules.cases import Row, add_row, gpu_of, rows, table
from rules.fleet import JOB, Fleet, Gpu, add_gpu, changed
from rules.scenes import add_scenes
from rules.series import mapped

HOUR = 60
DEPLOYED_EVERY = 4 * HOUR
LOOKS_BACK = 2 * HOUR
"""The longest window in which rules judge work."""
END = LOOKS_BACK + DEPLOYED_EVERY
"""Every rule has judged each part of the work with its window filled."""


@pytest.mark.first
def test_over_hours(tmp_path: Path) -> None:
    fleet = Fleet(END, evaluation_interval="4m")
    for name, row in table("hours", "lost").items():
        add_row(fleet, name, row, LOOKS_BACK)
    bursts = [(60, 0.0), *[(5, 0.0), (1, 0.33)] * 22]
    notebook = changed(gpu_of(rows("bases")["idle"]), interactive=1, busy=bursts)
    told = "59 allocated_idle; 190 interactive_session/info"
    add_row(fleet, "a notebook in the morning", Row(notebook, told), LOOKS_BACK)
    add_scenes(fleet, "work")
    add_scenes(fleet, "gone")
    restart_loop(fleet)
    healthy(fleet)
    fleet.check(tmp_path)


# --- A healthy fleet -------------------------------------------------------------------------
GPUS = 10
WARNINGS = 'ALERTS{alertstate="firing",severity=~"warning|critical",instance=~"healthy-.*"}'
BUSY = {"starts": 0.0, "evaluates": 0.55, "saves": 0.5, "works": 0.96}
WAITS_ON = {"starts": "asleep", "evaluates": "host_code", "saves": "storage", "works": "worker_cpu"}


def trained(shift: int) -> Gpu:
    """A job that is deployed anew every four hours; `shift` minutes later than the first one."""
    minutes = range(shift, END + 1 + shift)
    does = [
        "starts" if minute % DEPLOYED_EVERY < 6
        else "evaluates" if minute % 120 < 8
        else "saves" if minute % 30 < 1
        else "works"
        for minute in minutes
    ]  # fmt: skip
    busy = [(1, BUSY[what]) for what in does]
    return Gpu(
        busy=busy,
        stalls={
            waiting_on: [(1, 1 - BUSY[what] if what == when else 0.0) for what in does]
            for when, waiting_on in WAITS_ON.items()
        },
        sm=mapped(busy, lambda value: 0.88 * value),
        power_watts=mapped(busy, lambda value: 90 + 500 * value),
        # Whatever else it does at the time.
        main_written_bytes=[(1, 1e4 if minute % 30 else 5e8) for minute in minutes],
        age_seconds=[(1, 60.0 * (minute % DEPLOYED_EVERY)) for minute in minutes],
        worker_starts=[(1, 0.1 if what == "starts" else 0.0) for what in does],
        owner={"workload_namespace": "research", "workload_pod": f"train-{shift}"},
        reset_at=3 * HOUR + shift if shift % 2 else None,
        gap=(200 + shift, 203 + shift) if shift % 3 == 0 else None,
    )


def healthy(fleet: Fleet) -> None:
    """Deploys, restarts, evaluations and checkpoints call nobody.

    The budget is less than one warning in a day for ten GPUs. Work repeats every four hours, and
    rules judge it by two hours at most, so that six hours show all that a day would.
    """
    for number in range(GPUS):
        add_gpu(fleet, f"healthy-{number}", trained(17 * number))
    ever = f"max_over_time({WARNINGS}[{END}m])"
    fleet.expect(END, f"count by (alertname, instance) ({ever})", {})
    # It was looked at at all, and what is no call is told: the fleet has its evaluations.
    fleet.expect(END, 'count(gpu:held:bool{instance=~"healthy-.*"} == 1)', {"{}": GPUS})


# --- Repeated starts -------------------------------------------------------------------------
HOURS = 190
EVERY, UP = 6, 4


def restart_loop(fleet: Fleet) -> None:
    """Each run is another pod, and there is none in between: one alert, one name, one owner."""
    row = {"busy": 0.02, "sm": 0.01, "processes": "1 @4 0 @6 again"}
    looping = gpu_of({**row, "age_seconds": "0 @1 60 @2 120 @3 180 @4 none @6 again"})
    add_gpu(fleet, "loop", looping)
    target = {"job": JOB, "instance": "loop", "gpu": "0", "uuid": "GPU-loop-0"}
    for run in range(HOURS // EVERY):
        at = [(EVERY * run, None), (UP, 1.0), (HOURS, None)]
        pod = {"workload_namespace": "nlp", "workload_pod": f"train-{run}", "user": "ada"}
        fleet.gauge("gpu_workload_info", at, **target, **pod)
    loop = 'ALERTS{alertstate="firing",instance="loop",alertname="GpuRestartLoop"}'
    series = f"count by (workload, workload_namespace, user) (count_over_time({loop}[100m]))"
    owner = '{user="ada",workload="namespace nlp",workload_namespace="nlp"}'
    fleet.expect(HOURS, series, {owner: 1.0})
    fleet.expect(HOURS, f"max(count_over_time({loop}[100m:2m]))", {"{}": 51.0})
    fleet.end("loop", HOURS)
