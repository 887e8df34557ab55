#!/usr/bin/python3
"""Write what a job's GPUs did, and why they idled, into its AdminComment, as jobstats does.

For `EpilogSlurmctld` of Slurm 23.02 or later. Asks the exporters of the job's nodes for its ledger
(/api/v1/jobs) and stores `JS1:` and the summary as gzipped JSON in base64, which jobstats and
reportseff read; `JS1:None` if no exporter knows the job, `JS1:Short` if such a job was short.
Reports to syslog. It is complete in itself: copy it, any Python from 3.9 on will do.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import http.client
import json
import os
import re
import ssl
import subprocess
import sys
import syslog
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, Request

MOST_CHARACTERS = 5000
"""Of a comment."""
SHORT_SECONDS = 60
"""jobstats summarizes no shorter ones."""
_MOST_BYTES = 2**20
"""Of a node's answer; one about 16 GPUs has 100 kB."""
_TIMEOUT_SECONDS = 5.0
_PAUSE_SECONDS = 0.5
_SETTLE_SECONDS = 3.0
"""After so long the exporter has read the last of what a job did."""
_LARGEST = 2.0**60
NONSENSE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What JSON that is not as expected raises."""
_FIELDS = "JobIDRaw,JobID,Cluster,ElapsedRaw,End,AllocTRES,NodeList,AdminComment"
_GPUS = re.compile(r"(?:^|,)gres/gpu=([0-9]+)(?:,|$)")
_WORD = r"[a-z_]{1,32}"
_PLACE = r"[0-9]{1,5}(:MIG-[0-9a-f]{8})?"
"""A GPU's number, and the beginning of the UUID of a part of it."""


class Job(NamedTuple):
    """What Slurm's accounting says of it."""

    name: str
    """Of the only one that is to be changed: of an array, with the task."""
    cluster: str
    seconds: float
    gpus: int
    nodes: str
    """Slurm's short form of their names."""
    comment: str


class Gpu(NamedTuple):
    """What the job did on one GPU of a node, in seconds and bytes."""

    seconds: float
    busy: float
    lost: Mapping[str, float]
    """By cause; `unallocated` while the job held no GPU yet, or no more."""
    memory: tuple[float, float] | None
    """Used at most, and in total."""
    change: Mapping[str, Any] | None
    """What to do first."""


Gpus = Mapping[str, Gpu]
"""Of a node, by number, and the instance where it is a part of one."""


def main() -> None:
    """Do it; exits with one line if that fails."""
    parser = argparse.ArgumentParser(description=__doc__, fromfile_prefix_chars="@")
    add = parser.add_argument
    add("--url", default="http://{node}:10170", help="exporter of a node; may hold user:password")
    add("--ca-file", help="certificates to trust instead of the system's")
    add("--wait", type=float, default=15.0, help="seconds for the job's end to be recorded")
    add("--job", default=os.environ.get("SLURM_JOB_ID", ""), help="its number, if not the epilog's")
    options = parser.parse_args()
    if not re.fullmatch(r"[0-9]+", options.job):
        parser.error("--job: give the number of a job")
    syslog.openlog(f"gpu-bottleneck-epilog[{options.job}]")
    try:
        syslog.syslog(run(options.job, options.url, options.ca_file, options.wait))
    except SystemExit as failure:
        syslog.syslog(syslog.LOG_ERR, f"{failure}")
        raise


def run(number: str, url: str, ca_file: str | None, wait_seconds: float) -> str:
    """What was done about job `number`."""
    deadline = time.monotonic() + wait_seconds
    job = ended(number, deadline)
    if not job.gpus:
        return "no GPUs"
    if job.comment and not job.comment.startswith("JS1:"):
        sys.exit("has another AdminComment, which is left alone")
    names = said("scontrol", "show", "hostnames", job.nodes).split()
    ask = partial(asked, url, number, job.seconds, ca_file, deadline)
    with ThreadPoolExecutor(32) as pool:
        answers = dict(zip(names, pool.map(ask, names)))  # noqa: B905 - Python 3.9
    nodes = {node: gpus for node, gpus in answers.items() if gpus}
    comment = summarized(job, nodes)
    if comment == job.comment:
        return "nothing new"
    where = ("where", f"jobid={job.name}", f"cluster={job.cluster}")
    said("sacctmgr", "-i", "update", "job", *where, "set", f"AdminComment={comment}")
    return f"{comment[:9]}, {len(comment)} characters, {len(nodes)} of {len(names)} nodes"


def said(*command: str) -> str:
    """What a program of Slurm's says; exits if it fails."""
    try:
        done = subprocess.run(  # noqa: S603 - Slurm's own programs, no shell
            command, capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        told = getattr(error, "stderr", None) or getattr(error, "stdout", None) or error
        sys.exit(f"{command[0]}: {told}".splitlines()[0])
    return done.stdout


def ended(number: str, deadline: float) -> Job:
    """The job once its end is in the accounting; exits if it never is."""
    while True:
        for row in said("sacct", "-X", "-P", "-n", "-o", _FIELDS, "-j", number).splitlines():
            raw, name, cluster, seconds, end, given, nodes, comment = row.split("|", 7)
            if raw == number and end != "Unknown":
                gpus, task = _GPUS.search(given), name if "_" in name else raw
                count = int(gpus[1]) if gpus else 0
                return Job(task, cluster, float(seconds), count, nodes, comment)
        if time.monotonic() > deadline:
            sys.exit("its end is not in the accounting")
        time.sleep(_PAUSE_SECONDS)


def asked(  # noqa: PLR0913, PLR0917 - the node last, as `map` has it
    url: str, number: str, seconds: float, ca_file: str | None, deadline: float, node: str
) -> Gpus:
    """What the job did on a node, as far as known, at best some seconds after it ended there, too.

    What makes no sense costs that node, and is a line in the log.
    """
    try:
        while True:
            found = _get(url.replace("{node}", node), f"/api/v1/jobs/slurm-{number}", ca_file)
            over = time.monotonic() > deadline
            if found:
                job, now = found["job"], _amount(found["time_seconds"])
                end = job["end_seconds"]
                if over or (end is not None and now - _amount(end) >= _SETTLE_SECONDS):
                    return dict(gpu_of(row, seconds, now) for row in job["gpus"])
            elif over:
                return {}
            time.sleep(_PAUSE_SECONDS)
    except (OSError, http.client.HTTPException, *NONSENSE) as error:
        syslog.syslog(syslog.LOG_WARNING, f"{node}: {error!r:.200}")
        return {}


def _get(url: str, path: str, ca_file: str | None) -> Any:  # noqa: ANN401 - JSON
    """The document at `path`; None if there is nothing. No proxy, no redirect."""
    parts = urlsplit(url)
    request = Request(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}{path}")  # noqa: S310
    if parts.username:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        request.add_header("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")
    opener = OpenerDirector()
    opener.add_handler(HTTPHandler())
    opener.add_handler(HTTPSHandler(context=ssl.create_default_context(cafile=ca_file)))
    with opener.open(request, timeout=_TIMEOUT_SECONDS) as reply:
        body = reply.read(_MOST_BYTES + 1)
    if reply.status == http.client.NOT_FOUND:
        return None
    if reply.status != http.client.OK or len(body) > _MOST_BYTES:
        raise ValueError(f"answers {reply.status} with {len(body)} bytes")
    return json.loads(body)


def gpu_of(row: Mapping[str, Any], seconds: float, now: float) -> tuple[str, Gpu]:
    """A GPU of the ledger, of a job that lasted so long. Raises one of `NONSENSE`."""
    place = f"{row['gpu']}" + (f":{row['uuid'][:12]}" if "mig" in row else "")
    observed, busy = _amount(row["observed_seconds"]), _amount(row["busy_seconds"])
    lost = {_text(_WORD, name): _amount(part) for name, part in row["stall_seconds"].items()}
    held = _amount(row["end_seconds"] or now) - _amount(row["start_seconds"])
    lost["unallocated"] = lost.get("unallocated", 0.0) + max(0.0, seconds - held)
    memory = change = None
    if "memory_peak_bytes" in row and "memory_total_bytes" in row:
        memory = _amount(row["memory_peak_bytes"]), _amount(row["memory_total_bytes"])
    if advice := row.get("recommendation"):
        values = {"from": _amount(advice["current_value"]), "to": _amount(advice["value"])}
        change = {"knob": _text(_WORD, advice["knob"]), **values}
    lasted = observed + max(0.0, seconds - held)
    return _text(_PLACE, place), Gpu(lasted, min(busy, observed), lost, memory, change)


def _amount(value: Any) -> float:  # noqa: ANN401 - JSON
    """A number from 0 up. Raises ValueError for anything else."""
    if type(value) not in (int, float) or not 0 <= value <= _LARGEST:
        raise ValueError(f"{value!r:.20} is no amount")
    return float(value)


def _text(pattern: str, value: str) -> str:
    """`value`, which people will see. Raises ValueError if it is unlike `pattern`."""
    if not re.fullmatch(pattern, value):
        raise ValueError(f"{value!r:.40} is no name")
    return value


def summarized(job: Job, nodes: Mapping[str, Gpus]) -> str:
    """The comment: within `MOST_CHARACTERS`, if need be in round numbers and without reasons."""
    before = _before(job.comment)
    if not nodes:
        sentinel = "JS1:Short" if job.seconds < SHORT_SECONDS else "JS1:None"
        return job.comment if before else sentinel
    for digits, more in ((4, {"gpu_bottleneck": reasons(job, nodes)}), (2, {})):
        told = {node: before.get(node, {}) | of_node(nodes[node], digits) for node in nodes}
        summary = {"nodes": before | told, "total_time": job.seconds, "gpus": job.gpus, **more}
        if len(text := encoded(summary)) <= MOST_CHARACTERS:
            return text
    return "JS1:None"


def encoded(summary: Mapping[str, Any]) -> str:
    """`summary` as a comment; the same one is always the same."""
    text = json.dumps(summary, separators=(",", ":")).encode()
    return "JS1:" + base64.b64encode(gzip.compress(text, mtime=0)).decode()


def _before(comment: str) -> dict[str, Any]:
    """Nodes as jobstats has stored them: what it measured of CPUs is kept. Empty if nothing."""
    try:
        nodes = json.loads(gzip.decompress(base64.b64decode(comment[4:])))["nodes"]
        return {node: dict(found) for node, found in nodes.items()}
    except (OSError, EOFError, *NONSENSE):
        return {}


def of_node(gpus: Gpus, digits: int) -> dict[str, Any]:
    """Jobstats' keys. Its readers divide by the total memory and expect what is used with it."""

    def brief(value: float) -> float:
        return float(f"{value:.{digits}g}")

    lasted = {place: gpu for place, gpu in gpus.items() if gpu.seconds}
    known = {place: gpu.memory for place, gpu in gpus.items() if gpu.memory and gpu.memory[1]}
    told = {
        "gpu_utilization": {at: brief(100 * one.busy / one.seconds) for at, one in lasted.items()},
        "gpu_used_memory": {place: int(brief(used)) for place, (used, _) in known.items()},
        "gpu_total_memory": {place: int(brief(total)) for place, (_, total) in known.items()},
    }
    return {name: values for name, values in told.items() if values}


def reasons(job: Job, nodes: Mapping[str, Gpus]) -> Mapping[str, Any]:
    """Our own keys: shares of the job's GPU time, the three largest causes, what to do first."""
    gpus = [gpu for found in nodes.values() for gpu in found.values()]
    seconds, busy = sum(gpu.seconds for gpu in gpus) or 1.0, sum(gpu.busy for gpu in gpus)
    causes: Counter[str] = Counter()
    for gpu in gpus:
        causes.update(gpu.lost)
    largest = ((cause, round(lost / seconds, 3)) for cause, lost in causes.most_common(3))
    told: dict[str, Any] = {
        "busy": round(busy / seconds, 3),
        "lost_gpu_hours": round((seconds - busy) / 3600, 3),
        "causes": {cause: share for cause, share in largest if share},
    }
    if len(gpus) < job.gpus:
        told["gpus_seen"] = len(gpus)
    worst_first = sorted(gpus, key=lambda gpu: gpu.busy - gpu.seconds)
    if changes := [gpu.change for gpu in worst_first if gpu.change]:
        told["change"] = changes[0]
    return told


if __name__ == "__main__":
    main()
