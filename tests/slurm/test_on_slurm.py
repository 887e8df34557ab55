"""Real jobs of a real Slurm: what the ledger has of them, and what their comments tell reportseff.

`python tests/slurm/test_on_slurm.py 50` runs more and longer jobs than the test.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

if __name__ == "__main__":  # pytest has the folder of all tests in its path
    sys.path.insert(0, str(Path(__file__).parents[1]))

import pytest

from fake_nvml.build import build
from gpu_bottleneck_exporter.demo.board.create import H100, create
from slurm import loop
from slurm.cluster import GPUS, HERE, NODES, Cluster, cluster, debian
from slurm.script import EPILOG, decoded
from support.board_exporter import started
from support.daemon import free_port
from support.judging import settled
from support.tools import missing
from support.waiting import until

SECONDS = (4, 12, 3, 7, 20, 5, 3, 9, 6, 15, 4, 8)
WITHIN = 0.01
TICKS_SECONDS = 0.03
"""A process starts at a tick of 10 ms, and ends a while after it has written its record."""
_SHELL = f"""#!/bin/sh
export SLURM_CONF={HERE}/slurm.conf
exec python3 {HERE}/epilog.py --url=http://{{node}}:PORT >>{HERE}/epilog.log 2>&1
"""
Reportseff = Callable[..., list[list[str]]]
"""The rows of its table, for a job and options."""


@dataclass(frozen=True)
class Site:
    """A cluster whose nodes have an exporter each."""

    slurm: Cluster
    port: int

    def submit(self, seconds: float, *options: str, before: str = "") -> str:
        """The number of a job that loops on each of its nodes."""
        return self.slurm.submit(f"{before}srun {_shell(seconds)}", *options)

    def records(self, job: str) -> list[dict[str, Any]]:
        """Records of a job's loops, one for each node."""
        text = (self.slurm.folder / f"out-{job}").read_text()
        try:
            return [json.loads(line + "}") for line in text.split("}") if line.strip()]
        except ValueError as error:
            raise AssertionError(text) from error

    def ledgers(self) -> dict[tuple[str, str], dict[str, Any]]:
        """All jobs that the exporters have, by node and id."""
        fields: dict[tuple[str, str], dict[str, Any]] = {}
        for node, address in NODES.items():
            with urlopen(f"http://{address}:{self.port}/api/v1/jobs") as answer:
                fields |= {(node, job["id"]): job for job in json.load(answer)["jobs"]}
        return fields

    def comment(self, job: str) -> str:
        """Comment stored by the epilog, once it is there."""
        self.slurm.finish(job)
        return until(
            lambda: self.slurm.accounted(job, "AdminComment"),
            lambda: (self.slurm.folder / "epilog.log").read_text() + self.slurm.log,
        )


def _shell(seconds: float) -> str:
    return f"sh -c 'PYTHONPATH=/opt/ours exec python3 {HERE}/loop.py {seconds} {HERE}'"


@contextmanager
def running(folder: Path, root: Path) -> Iterator[Site]:
    port = free_port()
    library = build(folder / "library")
    for source in (EPILOG, Path(loop.__file__)):
        (folder / source.name).write_bytes(source.read_bytes())
    with ExitStack() as stack:
        for name, address in NODES.items():
            board = stack.enter_context(create(folder / name, [H100] * GPUS))
            command = [sys.executable, "-m", "gpu_bottleneck_exporter", "serve"]
            command += ["--web.listen-address", f"{address}:{port}"]
            places = {"LD_LIBRARY_PATH": f"{library.parent}", "FAKE_NVML_BOARD": f"{board.path}"}
            stack.enter_context(started(command, places))
        epilog = _SHELL.replace("PORT", f"{port}")
        yield Site(stack.enter_context(cluster(folder, root, epilog)), port)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = debian(tmp_path_factory.mktemp("debian") / "root")
    with running(tmp_path_factory.mktemp("site"), root) as result:
        yield result


@pytest.fixture
def reportseff(site: Site, tmp_path: Path) -> Reportseff:
    """reportseff, with the cluster's own programs."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    program = shutil.which("reportseff", path=path) or missing("pip install reportseff")
    for name in ("sacct", "scontrol"):
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {" ".join(site.slurm.enter)} {name} "$@"\n')
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{path}"

    def told(job: str, *options: str) -> list[list[str]]:
        command = [program, "--parsable", *options, job]
        done = subprocess.run(
            command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return [[word.strip() for word in line.split("|")] for line in done.stdout.splitlines()]

    return told


def test_reportseff_shows_the_use_of_the_gpus(site: Site, reportseff: Reportseff) -> None:
    job = site.submit(6, "--nodes=2", "--gres=gpu:1", before="sleep 4; ")
    summary = decoded(site.comment(job))
    elapsed = float(site.slurm.accounted(job, "ElapsedRaw"))
    records = site.records(job)
    truth = 100 * sum(record["busy"] for record in records) / len(records) / elapsed
    assert summary["gpus"] == 2
    assert summary["total_time"] == elapsed
    assert set(summary["nodes"]) == set(NODES)
    # What it waits for itself depends on who else uses the machine.
    assert summary["gpu_bottleneck"]["causes"]["unallocated"] == pytest.approx(0.4, abs=0.1)
    (row,) = (row for row in reportseff(job, "--format=JobID,State,GPUEff,GPUMem") if row[0] == job)
    assert row[1] == "COMPLETED"
    assert float(row[2].rstrip("%")) == pytest.approx(truth, abs=1)
    memory = 100 * loop.HELD / H100.memory_total
    assert float(row[3].rstrip("%")) == pytest.approx(memory, abs=0.1)


def test_tasks_of_an_array_have_a_comment_each(site: Site) -> None:
    job = site.submit(3, "--array=0-1", "--gres=gpu:1")
    comments = [site.comment(f"{job}_{task}") for task in range(2)]
    assert len({*comments}) == 2
    assert all(decoded(comment)["gpus"] == 1 for comment in comments)


def test_jobs_without_a_gpu_and_without_use_of_one(site: Site) -> None:
    idle = site.slurm.submit("sleep 1", "--gres=gpu:1")
    plain = site.slurm.submit("sleep 1")
    assert site.comment(idle) == "JS1:Short"
    site.slurm.finish(plain)
    assert site.slurm.accounted(plain, "AdminComment") == ""


def test_each_of_twelve_short_jobs_is_charged_its_own_record(site: Site) -> None:
    def none_missing() -> list[Pair]:
        """However busy the machine is, who holds a GPU for seconds is noticed."""
        pairs = measured(site, SECONDS)
        assert [ledger["id"] for _, ledger in pairs if "gpus" not in ledger] == []
        return pairs

    assert off(settled(none_missing, off)) == []


Pair = tuple[dict[str, Any], dict[str, Any]]


def measured(site: Site, seconds: Sequence[float]) -> list[Pair]:
    """Jobs of this length back to back: their records, and those of the ledgers."""
    time.sleep(3)  # the driver's clock is known well after some ticks
    jobs = [site.submit(length, "--gres=gpu:1", "--ntasks=1") for length in seconds]
    for job in jobs:
        site.slurm.finish(job)
    ledgers, result = site.ledgers(), []
    for job in jobs:
        (record,) = site.records(job)
        key = site.slurm.accounted(job, "NodeList"), f"slurm-{job}"
        result.append((record, ledgers.get(key, {"id": f"{key} is missing in {[*ledgers]}"})))
    return result


def off(pairs: Sequence[Pair]) -> list[str]:
    """Jobs with wrong busy or idle seconds."""
    return [line for own, ledger in pairs for line in _wrong(own, ledger)]


def _wrong(own: dict[str, Any], ledger: dict[str, Any]) -> Iterator[str]:
    if "gpus" not in ledger:
        yield f"{own} {ledger}"
        return
    (gpu,) = ledger["gpus"]
    stalls = sum(gpu["stall_seconds"].values())
    busy = gpu["busy_seconds"] - own["busy"]
    idle = stalls - (own["lasted"] - own["busy"])
    parts = {name: seconds for name, seconds in gpu.items() if name.endswith("_seconds")}
    line = f"{ledger['id']}: {own} busy {busy:+.3f} idle {idle:+.3f} {parts}"
    print(line)  # noqa: T201 - for `pytest -s` and for failures
    allowed = WITHIN * own["lasted"] + TICKS_SECONDS
    same_gpu = gpu["gpu"] == f"{own['gpus'][0]}"
    if not same_gpu or max(abs(busy), abs(idle)) > allowed:
        yield line


def main(count: str) -> None:
    chance = random.Random(20)  # noqa: S311 - no secret
    lengths = [chance.uniform(5, 90) for _ in range(int(count))]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "site"
        place.mkdir()
        with running(place, debian(Path(folder) / "root")) as site:
            wrong = off(measured(site, lengths))
    sys.exit("\n".join([f"{len(wrong)} of {count} are wrong", *wrong]) if wrong else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
