"""What shows over hours: faults that last, work in phases, restarts, days of a healthy fleet.

All of it is one run of promtool: ten hours of rules take it more than the GPUs in them.
"""

from __future__ import annotations

from pathlib import Path

from rules.cases import Row, add_row, gpu_of, gpus, node_of, rows, signal, table
from rules.fleet import JOB, Fleet, Gpu, add_gpu, changed, fired
from rules.series import STALE, Signal, mapped

HOUR = 60
DEPLOYED_EVERY = 8 * HOUR
LOOKS_BACK = 2 * HOUR
"""The longest window in which rules judge work."""
END = LOOKS_BACK + DEPLOYED_EVERY
"""Every rule has judged each part of the work with its window filled."""
LEAN = gpu_of(rows("bases")["lean"])
EXPORTER_DOWN, LOST = "GpuExporterDown/warning", "GpuTelemetryLost/warning"

BY = "alertname, gpu, cause"


def test_over_hours(tmp_path: Path) -> None:
    fleet = Fleet(END, evaluation_interval="2m")
    for add in PARTS:
        add(fleet)
    fleet.check(tmp_path)


def situations(fleet: Fleet) -> None:
    for name, row in table("hours", "lost").items():
        add_row(fleet, name, row, LOOKS_BACK)
    bursts = [(60, 0.0), *[(5, 0.0), (1, 0.33)] * 22]
    notebook = changed(gpu_of(rows("bases")["idle"]), interactive=1, busy=bursts)
    told = "59 allocated_idle/info; 190 interactive_session/info"
    add_row(fleet, "a notebook in the morning", Row(notebook, told), LOOKS_BACK)


# --- A healthy fleet -------------------------------------------------------------------------

GPUS = 10
WARNINGS = 'ALERTS{alertstate="firing",severity=~"warning|critical",instance=~"healthy-.*"}'


BUSY = {"starts": 0.0, "evaluates": 0.55, "saves": 0.5, "works": 0.96}
WAITS_ON = {"starts": "asleep", "evaluates": "host_code", "saves": "storage", "works": "worker_cpu"}


def trained(shift: int) -> Gpu:
    """A job that is deployed anew every eight hours; `shift` minutes later than the first one."""
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
        reset_at=5 * HOUR + 3 * shift if shift % 2 else None,
        gap=(8 * HOUR + shift, 8 * HOUR + shift + 3) if shift % 3 == 0 else None,
    )


def healthy(fleet: Fleet) -> None:
    """Deploys, restarts, evaluations and checkpoints call nobody.

    The budget is less than one warning in a day for ten GPUs. Work repeats every eight hours, and
    rules judge it by two hours at most, so that ten hours show all that a day would.
    """
    for number in range(GPUS):
        add_gpu(fleet, f"healthy-{number}", trained(17 * number))
    ever = f"max_over_time({WARNINGS}[{END}m])"
    fleet.expect(END, f"count by (alertname, instance) ({ever})", {})
    # It was looked at at all, and what is no call is told: the fleet has its evaluations.
    fleet.expect(END, 'count(gpu:held:bool{instance=~"healthy-.*"} == 1)', {"{}": GPUS})


# --- Phases, turns, starts -------------------------------------------------------------------

HOURS = 190


def work_in_phases(fleet: Fleet) -> None:
    """Told once."""
    for name, gpu in gpus("phases").items():
        node = node_of(name)
        add_gpu(fleet, node, gpu)
        anything = "max({})".format(fired(node, more=',severity="warning"'))
        # From when it fires first it fires always, and it fires within an hour and a half.
        fleet.expect(HOURS, f"count_over_time({anything}[90m:2m])", {"{}": 46.0})
        fleet.end(node, HOURS)


def turns(fleet: Fleet) -> None:
    """Causes that take turns end in the name of the largest."""
    for node, gpu in gpus("turns").items():
        add_gpu(fleet, node, gpu)
    ever = 'last_over_time(ALERTS{alertstate="firing",instance="turns",cause!=""}[2h])'
    fleet.expect(HOURS, f"count by (alertname) ({ever})", {'{alertname="GpuUnderused"}': 1.0})
    told = '{alertname="GpuUnderused",cause="host_loop_bound",gpu="0"}'
    fleet.expect(85, fired("more", BY), {told: 1.0})
    fleet.expect(HOURS, fired("more", BY), {told: 1.0})
    fleet.expect(HOURS, fired("well", BY), {})
    for node in ("turns", "more", "well"):
        fleet.end(node, HOURS)


def next_job(fleet: Fleet) -> None:
    """Who has just begun is not told of the hour before."""
    before = (90, 0.05)
    gpu = Gpu(busy=[before, (HOURS, 0.95)], stalls={"host_code": [(90, 0.95), (HOURS, 0.05)]})
    add_gpu(fleet, "next", gpu)
    for minute in (130, 145, 160):
        fleet.expect(minute, fired("next", BY, ',alertname="GpuUnderused"'), {})
    fleet.end("next", 160)


def restarts(every: int, up: int) -> Signal:
    """The age of a job that runs for `up` of so many minutes."""
    return [
        (1, 60.0 * (minute % every) if minute % every < up else None) for minute in range(HOURS)
    ]


def restart_loop(fleet: Fleet) -> None:
    """It keeps one name and one owner.

    Each run is another pod, and there is none in between; for all of the time one alert.
    """
    every, up = 6, 4
    there = [(1, float(minute % every < up)) for minute in range(HOURS)]
    looping = Gpu(busy=0.02, sm=0.01, age_seconds=restarts(every, up), processes=there)
    add_gpu(fleet, "loop", looping)
    target = {"job": JOB, "instance": "loop", "gpu": "0", "uuid": "GPU-loop-0"}
    for run in range(HOURS // every):
        at = [(every * run, None), (up, 1.0), (HOURS, None)]
        pod = {"workload_namespace": "nlp", "workload_pod": f"train-{run}", "user": "ada"}
        fleet.gauge("gpu_workload_info", at, **target, **pod)
    loop = 'ALERTS{alertstate="firing",instance="loop",alertname="GpuRestartLoop"}'
    series = f"count by (workload, workload_namespace, user) (count_over_time({loop}[100m]))"
    owner = '{user="ada",workload="namespace nlp",workload_namespace="nlp"}'
    fleet.expect(HOURS, series, {owner: 1.0})
    fleet.expect(HOURS, f"max(count_over_time({loop}[100m:2m]))", {"{}": 51.0})
    fleet.end("loop", HOURS)


def endless_start(fleet: Fleet) -> None:
    """A start-up that never ends has a name at any time."""
    stalls = {"asleep": 1.0}
    age = signal("0 ~200 12000")
    add_gpu(fleet, "endless-start", Gpu(busy=0.0, sm=0.0, stalls=stalls, age_seconds=age))
    named = (
        'count(ALERTS{alertstate="firing",severity="warning",instance="endless-start"}) > bool 0'
    )
    for minute in range(24, 100, 2):
        fleet.expect(minute, named, {"{}": 1.0})
    fleet.end("endless-start", 100)


# --- Tickets of a day ------------------------------------------------------------------------

DAY = DEPLOYED_EVERY


def openings(node: str) -> str:
    """How often warnings of `node` began within the day, by name."""
    firing = f'ALERTS{{alertstate="firing",severity!="info",instance="{node}"}}'
    began = f"{firing} unless {firing} offset 2m"
    return f"sum by (alertname) (count_over_time(({began})[{DAY}m:2m]))"


def what_comes_and_goes(fleet: Fleet) -> None:
    """All day, and opens hardly more than once."""
    for node, row in table("comes_and_goes").items():
        add_gpu(fleet, node, row.gpu)
        once = {f'{{alertname="{name}"}}': 1.0 for name in row.told.split()}
        fleet.expect(DAY, openings(node), once)
        fleet.end(node, DAY)


# --- GPUs and exporters that are gone ----------------------------------------------------------

REBOOT = (HOUR, 2 * HOUR + 30)


def pair(fleet: Fleet, node: str, uuid: str | None = None) -> None:
    """A node with two GPUs."""
    add_gpu(fleet, node, LEAN)
    add_gpu(fleet, node, changed(LEAN, uuid=uuid), index=1)


def told_of_no_more(fleet: Fleet) -> None:
    """Lost, and what only looks like it: their targets answer all the time."""
    uuids = {"moved": "GPU-moved", "mig": "MIG-of-before"}
    nodes = ("lost", "all-lost", "back", "moved", "mig", "other-machine")
    for node in nodes:
        pair(fleet, node, uuids.get(node))
    for gone in ("lost-1", "all-lost-0", "all-lost-1", "moved", "other-machine-0"):
        fleet.remove(f"GPU-{gone}", 90)
    fleet.remove("GPU-other-machine-1", 90)
    fleet.remove("MIG-of-before", 90)
    fleet.remove("GPU-back-1", 90, 94)
    fleet.gauge("up", 1, job=JOB, instance="moved-to")
    add_gpu(fleet, "moved-to", changed(LEAN, uuid="GPU-moved"), index=1)
    new = changed(LEAN, uuid="GPU-new", up=[(90, STALE), (END, 1)])
    add_gpu(fleet, "other-machine", new, index=2)
    fleet.remove("GPU-new", 0, 90)
    for minute in (88, 110, 140, 170):
        for node in ("moved", "moved-to", "mig", "other-machine"):
            fleet.expect_firing(node, minute)
    for minute in (110, 140):
        fleet.expect_firing("lost", minute, LOST)
        fleet.expect(minute, fired("lost", BY), lost(1))
        fleet.expect(minute, fired("all-lost", BY), lost(0, 1))
    fleet.expect_cause("lost", 88, None)
    fleet.expect(96, fired("back", BY), {})
    fleet.expect_firing("back", 110)
    fleet.expect_firing("lost", 170, LOST)
    for node in (*nodes, "moved-to"):
        fleet.end(node, 170)


def lost(*indices: int) -> dict[str, float]:
    name = 'alertname="GpuTelemetryLost",cause="telemetry_lost"'
    return {f'{{{name},gpu="{index}"}}': 1.0 for index in indices}


def replaced(fleet: Fleet) -> None:
    """A board that was replaced is not lost."""
    nodes = ("replaced", "not-replaced")
    for node in nodes:
        add_gpu(fleet, node, Gpu(uuid=f"GPU-old-{node}"), 0)
        add_gpu(fleet, node, Gpu(), 1)
        fleet.remove(f"GPU-old-{node}", 60)
    first = len(fleet._series)
    add_gpu(fleet, "replaced", Gpu(uuid="GPU-new-board"), 0)
    fleet.silence(first, (0, 62))
    found = 'gpu:bottleneck:primary{cause="telemetry_lost",instance=~"(not-)?replaced"}'
    answer = {'{instance="not-replaced",uuid="GPU-old-not-replaced"}': 1.0}
    fleet.expect(110, f"count by (instance, uuid) ({found})", answer)
    for node in nodes:
        fleet.end(node, 110)


def exporter_removed(fleet: Fleet) -> None:
    """One that is no target any more is not down."""
    add_gpu(fleet, "gone", LEAN)
    fleet.fail_scrapes("gone", HOUR, END + 1)
    fleet.end("gone", 5 * HOUR)
    fleet.expect_firing("gone", 4 * HOUR, EXPORTER_DOWN)
    fleet.expect_firing("gone", 6 * HOUR)


def rebooted(fleet: Fleet) -> None:
    """A GPU that is missing after a reboot is missed."""
    for node in ("rebooted", "exchanged", "unharmed"):
        pair(fleet, node)
        fleet.fail_scrapes(node, *REBOOT)
    for gone in ("rebooted-1", "exchanged-0", "exchanged-1"):
        fleet.remove(f"GPU-{gone}", REBOOT[0])
    add_gpu(fleet, "exchanged", changed(LEAN, uuid="GPU-another"), index=2)
    fleet.remove("GPU-another", 0, REBOOT[1])
    for minutes in (HOUR - 2, 3 * HOUR, 6 * HOUR, 9 * HOUR):
        fleet.expect_firing("rebooted", minutes, *([LOST] if minutes > HOUR else []))
        fleet.expect_firing("exchanged", minutes)
        fleet.expect_firing("unharmed", minutes)


PARTS = (
    *(situations, healthy, work_in_phases, turns, next_job, restart_loop, endless_start),
    *(what_comes_and_goes, told_of_no_more, replaced, exporter_removed, rebooted),
)
