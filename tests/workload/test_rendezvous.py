"""That the ranks of one job have one name, and that nobody else has it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.workload.owners import OwnerReader, named, rendezvous
from support.programs import shell
from support.trees import lay

PROC = Path("/proc")
JOB = {"MASTER_ADDR": "train-master-0", "MASTER_PORT": "29500", "WORLD_SIZE": "8"}
HERE = {**JOB, "MASTER_ADDR": "127.0.0.1"}


def environment(variables: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\0" for name, value in variables.items())


def name(proc: Path, variables: Mapping[str, str], pid: int = 1) -> str | None:
    """Of a process of ours, on a machine with files of its own below `proc`."""
    lay(proc, {f"{pid}/net/dev": "", "sys/kernel/random/boot_id": f"{proc.name}\n"})
    place = rendezvous(proc, pid, environment(variables))
    return named(place) if place else None


def test_ranks_on_two_machines_have_one_name(tmp_path: Path) -> None:
    first = name(tmp_path / "a", {**JOB, "RANK": "0"})
    assert first == name(tmp_path / "b", {**JOB, "RANK": "7", "LOCAL_RANK": "3"})
    assert first is not None
    assert len(first) == 12
    assert "train-master-0" not in first


@pytest.mark.parametrize("other", [{"MASTER_ADDR": "train-master-1"}, {"MASTER_PORT": "29501"}])
def test_other_places_have_other_names(other: Mapping[str, str], tmp_path: Path) -> None:
    assert name(tmp_path, JOB) != name(tmp_path, {**JOB, **other})


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "::1"])
def test_an_address_of_the_machine_itself_is_one_job_on_it_only(
    address: str, tmp_path: Path
) -> None:
    job = {**JOB, "MASTER_ADDR": address}
    here = name(tmp_path / "a", job)
    assert here is not None
    assert here != name(tmp_path / "b", job)
    assert here != name(tmp_path / "a", job, pid=2), "another network namespace"


@pytest.mark.parametrize("missing", ["MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"])
def test_who_is_alone_meets_nobody(missing: str, tmp_path: Path) -> None:
    assert name(tmp_path, {key: value for key, value in JOB.items() if key != missing}) is None
    assert name(tmp_path, {**JOB, missing: "1" if missing == "WORLD_SIZE" else ""}) is None


def test_a_name_that_is_no_text_has_a_hash_all_the_same() -> None:
    assert len(named(("\udcff", "1"))) == 12


def test_whose_processes_are_of_several_jobs_meets_nowhere() -> None:
    others = {**HERE, "MASTER_PORT": "29501"}
    with shell(HERE) as first, shell(others) as second, shell({}) as helper:
        reader = OwnerReader(PROC)
        (one,) = reader.of([(first, 1), (helper, 1)], 0)
        (several,) = reader.of([(first, 1), (second, 1)], 0)
    assert one.rendezvous is not None
    assert several.rendezvous is None
