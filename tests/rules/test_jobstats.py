"""What jobstats asks Prometheus for, answered from this exporter's metrics."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from rules.fleet import RULES, Fleet, Gpu, add_gpu, group_names, job
from rules.series import STALE, Series

FILE = RULES / "jobstats.yml"
SECONDS = 600
TARGET = {"cluster": "della"}
MIG = "MIG-11111111-aaaa-1111-1111-111111111111"


def asked(function: str, what: str, number: str) -> str:
    """Its query for a job of `SECONDS`."""
    found = f"nvidia_gpu_{what}{{cluster='della'}} and nvidia_gpu_jobId == {number}"
    return f"round(1000 * {function}_over_time(({found})[{SECONDS}s:])) / 1000"


def series(node: str, number: str, minor: str = "0", uuid: str | None = None) -> str:
    """The labels that it finds the node and the GPU by."""
    labels = {"cluster": "della", "gpu": minor[0], "instance": node, "job": "gpu"}
    labels |= {"jobid": number, "minor_number": minor, "uuid": uuid or f"GPU-{node}-0"}
    return "{" + ",".join(f'{name}="{text}"' for name, text in labels.items()) + "}"


@pytest.mark.parametrize("number", ["7", "1090", "123456", "4294967295"])
def test_the_queries_of_jobstats_are_answered(tmp_path: Path, number: str) -> None:
    fleet = Fleet(20, [FILE], group_names(FILE), "30s")
    half = Gpu(busy=0.42, memory=[(15, 0.5), (100, 0.25)], owner=job(number), target=TARGET)
    add_gpu(fleet, "a1:10170", half)
    add_gpu(fleet, "b1:10170", Gpu(busy=0.9, owner=job("99"), target=TARGET))
    add_gpu(fleet, "c1:10170", Gpu(busy=0.9, owner={"workload_pod": "p"}, target=TARGET))
    of = series("a1:10170", number)
    fleet.expect(20, asked("avg", "duty_cycle", number), {of: 42})
    fleet.expect(20, asked("max", "memory_used_bytes", number), {of: 4e10})
    fleet.expect(20, asked("max", "memory_total_bytes", number), {of: 8e10})
    fleet.expect(20, asked("max", "power_usage_milliwatts", number), {of: 560_000})
    fleet.expect(20, asked("max", "duty_cycle", f"{number}0"), {})
    fleet.check(tmp_path)


def test_two_jobs_of_one_gpu_and_parts_of_one(tmp_path: Path) -> None:
    fleet = Fleet(20, [FILE], group_names(FILE), "30s")
    shared = Gpu(busy=0.42, owners=[job("11"), job("12")], target=TARGET)
    add_gpu(fleet, "a1:10170", shared)
    add_gpu(fleet, "b1:10170", Gpu(busy=0.6, uuid=MIG, owner=job("13"), target=TARGET))
    # From Slurm 26.05 on, a control group may name the job otherwise.
    add_gpu(fleet, "c1:10170", Gpu(owner=job("s0123456789ABC"), target=TARGET))
    for number in ("11", "12"):
        of = series("a1:10170", number)
        fleet.expect(20, asked("avg", "duty_cycle", number), {of: 42})
    part = series("b1:10170", "13", "0:MIG-11111111", MIG)
    fleet.expect(20, asked("avg", "duty_cycle", "13"), {part: 60})
    fleet.expect(20, "count(nvidia_gpu_jobId)", {"{}": 3})
    fleet.check(tmp_path)


def absent(name: str, minutes: int, of: Series) -> list[float | None]:
    """The values of a series; without the first ones if it has this name."""
    first = minutes if of.name == name else 0
    return [STALE if minute < first else value for minute, value in enumerate(of.values)]


def test_what_was_before_a_job_does_not_count(tmp_path: Path) -> None:
    fleet = Fleet(20, [FILE], group_names(FILE), "30s")
    add_gpu(fleet, "a1:10170", Gpu(busy=[(11, 0.2), (100, 0.9)], owner=job("7"), target=TARGET))
    add_gpu(fleet, "b1:10170", Gpu(owner=job("8"), target=TARGET))
    for node, name, minutes in (
        ("a1:10170", "gpu_workload_info", 11),
        ("b1:10170", "gpu_memory_used_bytes", 100),
    ):
        fleet.change(partial(absent, name, minutes), instance=node)
    fleet.expect(20, asked("avg", "duty_cycle", "7"), {series("a1:10170", "7"): 90})
    # jobstats fails on the total of a memory of which it is unknown how much is used.
    fleet.expect(20, asked("max", "memory_total_bytes", "8"), {})
    fleet.check(tmp_path)
