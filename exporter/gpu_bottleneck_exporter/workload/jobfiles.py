"""GPUs allocated to Slurm jobs, from files that a prolog writes and an epilog removes.

Reads /run/gpustat of Princeton's jobstats, files named by a GPU with `JOB UID`; and dcgm-exporter's
job mapping directory, files `GPU` or `GPU.INSTANCE` with a job per line.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path

from gpu_bottleneck_exporter.driver.readings import Identity
from gpu_bottleneck_exporter.host.files import list_names, read_owned
from gpu_bottleneck_exporter.logthrottle import LogThrottle
from gpu_bottleneck_exporter.loop import Loop
from gpu_bottleneck_exporter.workload.identity import Owner

log = logging.getLogger(__name__)


class JobFiles(Loop):
    """Reads the folder every 10 s; an allocation ends with its file."""

    def __init__(self, folder: Path, user: Callable[[int], str], *, expected: bool = False) -> None:
        """`user`: the name of a user id; `expected`: log a missing `folder`."""
        super().__init__("jobfiles", self._scan, 10.0, log=log)
        self._throttle = LogThrottle(log)
        self._folder = folder
        self._user = user
        self._expected = expected
        self._jobs: Mapping[str, Sequence[Owner]] = {}

    def jobs(self, gpus: Sequence[Identity]) -> Mapping[str, tuple[Owner, ...]]:
        """Jobs of each of `gpus`, by uuid.

        Ignores a number that is one GPU's index and another's minor.
        """
        by_gpu: dict[str, set[Owner]] = {}
        for name, jobs in self._jobs.items():
            matching = [gpu.uuid for gpu in gpus if name in _names(gpu)]
            if len(matching) == 1:
                by_gpu.setdefault(matching[0], set()).update(jobs)
        return {gpu: tuple(sorted(jobs, key=lambda job: job.texts)) for gpu, jobs in by_gpu.items()}

    def _scan(self) -> None:
        try:
            names, _ = list_names(self._folder, 256)  # over twice the instances of 16 GPUs
        except OSError as error:
            names = []
            if self._expected and self._throttle.is_new("folder", error.strerror):
                values = {"folder": self._folder, "err": error.strerror}
                log.warning("cannot read a prolog's jobs", values)
        self._jobs = {name.lower(): jobs for name in names if (jobs := self._read(name))}

    def _read(self, name: str) -> Sequence[Owner]:
        text = read_owned(self._folder / name, 4096) or ""
        line = r"^[ \t]*([1-9][0-9]{0,9})(?:[ \t]+([0-9]{1,10}))?[ \t\r]*$"
        matches = islice(re.finditer(line, text, re.MULTILINE), 32)
        return tuple(
            Owner(slurm_job_id=job, user=uid and self._user(int(uid)), source="prolog")
            for job, uid in (match.groups() for match in matches)
        )


def _names(gpu: Identity) -> set[str]:
    part = "" if gpu.parent_uuid is None else f".{gpu.gpu_instance}"
    return {f"{number}{part}" for number in (gpu.index, gpu.minor)} | {gpu.uuid.lower()}
