"""GPUs given to Slurm jobs, from files that a site's prolog writes and its epilog removes.

Two conventions: /run/gpustat of Princeton's jobstats, files named by a GPU's number or uuid that
hold `JOB UID`; and the job mapping directory of dcgm-exporter, files named `GPU` or `GPU.INSTANCE`
with a job in each line. Both are read alike.
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

_LOOK_SECONDS = 10.0
"""Between two looks at the folder: as often as owners of processes are read."""
_MOST_FILES = 256
"""More than twice as many as 16 GPUs have instances."""
_MOST_BYTES = 4096
"""A page: far more than `_MOST_JOBS` jobs."""
_MOST_JOBS = 32
"""Per file."""
_JOB = re.compile(r"^[ \t]*([1-9][0-9]{0,9})(?:[ \t]+([0-9]{1,10}))?[ \t\r]*$", re.MULTILINE)


class JobFiles(Loop):
    """Reads the folder every 10 s: a file that is gone takes the allocation with it."""

    def __init__(self, folder: Path, user: Callable[[int], str], *, expected: bool = False) -> None:
        """`user` returns a user's name; `expected`: a missing `folder` is logged."""
        super().__init__("jobfiles", self._look, _LOOK_SECONDS, log=log)
        self._throttle = LogThrottle(log)
        self._folder = folder
        self._user = user
        self._expected = expected
        self._jobs: Mapping[str, Sequence[Owner]] = {}

    def jobs(self, gpus: Sequence[Identity]) -> Mapping[str, tuple[Owner, ...]]:
        """The jobs that were given each of `gpus`, by uuid.

        A number that is one GPU's index and another's minor counts for none.
        """
        found: dict[str, set[Owner]] = {}
        for name, jobs in self._jobs.items():
            matching = [gpu.uuid for gpu in gpus if name in _names(gpu)]
            if len(matching) == 1:
                found.setdefault(matching[0], set()).update(jobs)
        return {gpu: tuple(sorted(jobs, key=lambda job: job.texts)) for gpu, jobs in found.items()}

    def _look(self) -> None:
        try:
            names, _ = list_names(self._folder, _MOST_FILES)
        except OSError as error:
            names = []
            if self._expected and self._throttle.is_new("folder", error.strerror):
                values = {"folder": self._folder, "err": error.strerror}
                log.warning("cannot read a prolog's jobs", values)
        self._jobs = {name.lower(): jobs for name in names if (jobs := self._read(name))}

    def _read(self, name: str) -> Sequence[Owner]:
        text = read_owned(self._folder / name, _MOST_BYTES) or ""
        return tuple(
            Owner(slurm_job_id=job, user=uid and self._user(int(uid)), source="prolog")
            for job, uid in (found.groups() for found in islice(_JOB.finditer(text), _MOST_JOBS))
        )


def _names(gpu: Identity) -> set[str]:
    """What a file about `gpu` may be called, in lower case."""
    part = "" if gpu.parent_uuid is None else f".{gpu.gpu_instance}"
    return {f"{number}{part}" for number in (gpu.index, gpu.minor)} | {gpu.uuid.lower()}
