"""Files of a prolog, in both conventions: whose word they are, and which GPU each means."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.driver.readings import Identity
from gpu_bottleneck_exporter.workload.identity import Owner
from gpu_bottleneck_exporter.workload.jobfiles import JobFiles
from gpu_bottleneck_exporter.workload.join import Assigned, joined
from support.logged import logged
from support.rows import rows
from support.trees import lay
from support.waiting import PATIENCE_SECONDS, until

GPU, OTHER = "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c", "GPU-5f3a9c11-1111-2222-3333-444444444444"
MIG = "MIG-aaaaaaaa-0d5e-5a5f-8c0f-000000000001"
PART = Identity(1, MIG, None, None, None, "1g.10gb", OTHER, 9, minor=1)
GPUS = (Identity(0, GPU, minor=0), Identity(1, OTHER, minor=1), PART)
PAUSE = 0.02
OF_SEVEN = Owner(slurm_job_id="7", user="user 1000", source="prolog")


class Site:
    """A folder that a prolog writes, and who reads it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = JobFiles(folder, "user {}".format, expected=True)
        self.files._pause_seconds = PAUSE

    def prolog(self, name: str, text: str) -> Path:
        lay(self.folder, {name: text})
        return self.folder / name

    def jobs(self, uuid: str = GPU) -> tuple[Owner, ...]:
        return self.files.jobs(GPUS).get(uuid, ())

    def shows(self, *jobs: Owner, uuid: str = GPU) -> None:
        until(lambda: self.jobs(uuid) == jobs, lambda: f"{jobs}, not {self.jobs(uuid)}")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    result = Site(tmp_path / "gpustat")
    result.files.start()
    yield result
    result.files.stop(PATIENCE_SECONDS)


@pytest.mark.parametrize(
    ("name", "uuid"),
    [("0", GPU), (GPU, GPU), (GPU.upper(), GPU), ("1", OTHER), ("1.9", MIG), (MIG, MIG)],
)
def test_a_file_names_its_gpu(name: str, uuid: str, site: Site) -> None:
    site.prolog(name, "7 1000\n")
    site.shows(OF_SEVEN, uuid=uuid)
    assert set(site.files.jobs(GPUS)) == {uuid}


def test_a_file_has_a_job_in_each_line(site: Site) -> None:
    site.prolog("0", "12\nno number\n7 1000\r\n0 0\n12345678901\n 8\t9 10\n")
    site.shows(Owner(slurm_job_id="12", source="prolog"), OF_SEVEN)


def test_an_allocation_ends_with_its_file(site: Site) -> None:
    file = site.prolog("0", "7 1000\n")
    site.shows(OF_SEVEN)
    file.write_text("8 1000\n")
    site.shows(replace(OF_SEVEN, slurm_job_id="8"))
    file.unlink()
    site.shows()


def test_files_that_a_user_can_have_written_are_not_read(site: Site, tmp_path: Path) -> None:
    written = lay(tmp_path, {"elsewhere": "9 1000\n"}) / "elsewhere"
    site.folder.mkdir()
    (site.folder / "0").symlink_to(written)
    (site.folder / GPU).mkdir()
    os.mkfifo(site.folder / OTHER)
    site.prolog("1.9", "9 1000\n" * 1000)
    site.prolog("1", "9 1000\n").chmod(0o666)
    if os.getuid() == 0:
        os.chown(site.prolog(MIG, "9 1000\n"), 54321, 54321)
    site.prolog(f"{GPU.lower()}", "7 1000\n")
    until(lambda: set(site.files.jobs(GPUS)) == {GPU}, "that only root's file counts")
    site.shows(OF_SEVEN)


def test_a_number_that_may_be_two_gpus_is_none() -> None:
    swapped = (Identity(0, GPU, minor=1), Identity(1, OTHER, minor=0))
    files = JobFiles(Path(), str)
    files._jobs = {"0": (OF_SEVEN,)}
    assert files.jobs(swapped) == {}


def test_a_missing_folder_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(tmp_path / "gpustat")
    site.files.start()
    folder = f"folder={site.folder} err=No such file or directory"
    text = f"cannot read a prolog's jobs {folder}"
    until(lambda: text in logged(caplog), "that it is logged")
    site.prolog("0", "7 1000\n")
    site.shows(OF_SEVEN)
    site.files.stop(PATIENCE_SECONDS)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def claim(job: str | None, user: str = "user 1000", source: str | None = "claim") -> Owner:
    return Owner(slurm_job_id=job, user=user, source=source)


OF_ANY = Owner(slurm_job_id="7", source="prolog")
OF_NINE = Owner(slurm_job_id="9", user="user 1000", source="prolog")


@rows(
    "owner, jobs, told",
    {
        "confirmed": (claim("7"), (OF_SEVEN,), (OF_SEVEN,)),
        "contradicted": (claim("8"), (OF_SEVEN,), (OF_SEVEN,)),
        "one of two": (claim("9"), (OF_SEVEN, OF_NINE), (OF_NINE, OF_SEVEN)),
        "none of two": (claim("8"), (OF_SEVEN, OF_NINE), (claim(None, source=None),)),
        "another user's": (
            claim("7", "eve"),
            (OF_SEVEN,),
            (claim(None, "eve", None), OF_SEVEN),
        ),
        "root's": (claim("7", "root"), (OF_SEVEN,), (claim(None, "root", None),)),
        "of a user not named": (claim("7"), (OF_ANY,), (OF_SEVEN,)),
        "not of a user not named": (claim("8"), (OF_ANY,), (claim(None, source=None),)),
        "no prolog": (claim("8"), (), (claim("8"),)),
        "root's group": (
            claim("8", source="cgroup"),
            (OF_SEVEN,),
            (claim("8", source="cgroup"), OF_SEVEN),
        ),
    },
)
def test_a_record_of_the_prolog_is_believed_before_a_claim(
    owner: Owner, jobs: tuple[Owner, ...], told: tuple[Owner, ...]
) -> None:
    assert joined((owner,), Assigned(jobs=jobs)) == told


def test_a_claim_in_a_container_that_is_dropped_leaves_the_container() -> None:
    proven = Owner(container_id="c" * 64, user="eve", source="cgroup")
    claimed = replace(proven, slurm_job_id="7", source="claim")
    assert joined((claimed,), Assigned(jobs=(OF_SEVEN,))) == (proven, OF_SEVEN)


@rows(
    "owners, told",
    {
        "no owner": ((), True),
        "itself": ((OF_SEVEN,), False),
        "another job": ((Owner(slurm_job_id="8"),), True),
        "perhaps itself": ((Owner(user="user 1000"),), False),
        "perhaps itself, by root": ((Owner(user="root"),), False),
        "another user": ((Owner(user="eve"),), True),
        "perhaps itself, by SLUID": ((Owner(slurm_job_id="sEKNKTV3WPV500"),), False),
    },
)
def test_a_job_is_named_beside_impossible_ones(
    owners: tuple[Owner, ...],
    told: bool,  # noqa: FBT001
) -> None:
    assert joined(owners, Assigned(jobs=(OF_SEVEN,))) == (*owners, *((OF_SEVEN,) if told else ()))
