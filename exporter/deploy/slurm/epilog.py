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
import contextlib
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
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

MOST_CHARACTERS = 5000
"""Of a comment."""
SHORT_SECONDS = 60
"""jobstats summarizes no shorter ones."""
_MOST_BYTES = 2**20
"""Of a node's answer; one about 16 GPUs has 100 kB."""
_TIMEOUT_SECONDS = 5.0
_COMMAND_SECONDS = 60.0
_PAUSE_SECONDS = 0.5
_SETTLE_SECONDS = 3.0
"""After so long the exporter has read the last of what a job did."""
_LARGEST = 2.0**60
_NONSENSE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""What JSON that is not as expected raises."""
_AT_ONCE = 32
"""Nodes that are asked at the same time."""
_CASE_KEPT = (23, 2)
"""Before, sacctmgr changed comments to lower case."""
_FIELDS = "JobIDRaw,JobID,Cluster,ElapsedRaw,End,AllocTRES,NodeList,AdminComment"
_GPUS = re.compile(r"(?:^|,)gres/gpu=([0-9]+)(?:,|$)")
_WORD = re.compile(r"[a-z_]{1,32}")
_PLACE = re.compile(r"[0-9]{1,5}(:MIG-[0-9a-f]{8})?")
"""A GPU's number, and the beginning of the UUID of a part of it."""

Json = Mapping[str, Any]


class Failed(Exception):  # noqa: N818 - not an error of this program
    """Why there is no summary, in one line."""


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
    """What `busy`, `unheld` and `stalls` add up to."""
    busy: float
    unheld: float
    """The part of the job's time in which it held no GPU yet, or no more."""
    stalls: Mapping[str, float]
    used: float | None
    total: float | None
    recommendation: object


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
    except Failed as failure:
        syslog.syslog(syslog.LOG_ERR, f"{failure}")
        sys.exit(f"{failure}")


def run(number: str, url: str, ca_file: str | None, wait_seconds: float) -> str:
    """What was done about job `number`. Raises Failed."""
    version = re.search(r"([0-9]+)\.([0-9]+)", said("sacctmgr", "--version"))
    if version and tuple(map(int, version.groups())) < _CASE_KEPT:
        raise Failed(f"Slurm {version[0]} stores comments in lower case: 23.02 or later is needed")
    deadline = time.monotonic() + wait_seconds
    job = ended(number, deadline)
    if not job.gpus:
        return "no GPUs"
    if job.comment and not job.comment.startswith("JS1:"):
        raise Failed("has another AdminComment, which is left alone")
    nodes = said("scontrol", "show", "hostnames", job.nodes).split()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = pool.map(lambda node: asked(url, node, number, ca_file, deadline), nodes)
        ledgers = {node: answer for node, answer in zip(nodes, answers) if answer}  # noqa: B905
    comment = summarized(job, ledgers)
    if comment == job.comment:
        return "nothing new"
    where = ("where", f"jobid={job.name}", f"cluster={job.cluster}")
    said("sacctmgr", "-i", "update", "job", *where, "set", f"AdminComment={comment}")
    return f"{comment[:9]}, {len(comment)} characters, {len(ledgers)} of {len(nodes)} nodes"


def said(*command: str) -> str:
    """What a program of Slurm's says. Raises Failed."""
    try:
        done = subprocess.run(  # noqa: S603 - Slurm's own programs, no shell
            command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"{command[0]}: {error}") from error
    if done.returncode:
        lines = done.stderr.strip() or done.stdout.strip() or f"status {done.returncode}"
        raise Failed(f"{command[0]}: {lines.splitlines()[0]}")
    return done.stdout


def ended(number: str, deadline: float) -> Job:
    """The job once its end is in the accounting. Raises Failed if it never is."""
    while True:
        for row in said("sacct", "-X", "-P", "-n", "-o", _FIELDS, "-j", number).splitlines():
            raw, name, cluster, seconds, end, given, nodes, comment = row.split("|", 7)
            if raw == number and end != "Unknown":
                gpus, task = _GPUS.search(given), name if "_" in name else raw
                return Job(
                    task, cluster, float(seconds), int(gpus[1] if gpus else 0), nodes, comment
                )
        if time.monotonic() > deadline:
            raise Failed("its end is not in the accounting")
        time.sleep(_PAUSE_SECONDS)


def asked(url: str, node: str, job: str, ca_file: str | None, deadline: float) -> Json | None:
    """A node's document of the job, at best once it has ended there too, some seconds ago.

    None, and a line in the log, if there is none.
    """
    try:
        while True:
            answer = _get(url.replace("{node}", node), f"/api/v1/jobs/slurm-{job}", ca_file)
            end = answer["job"].get("end_seconds") if answer else None
            ago = -1.0
            if answer and end is not None:
                ago = _amount(answer["time_seconds"]) - _amount(end)
            if ago >= _SETTLE_SECONDS or time.monotonic() > deadline:
                return answer
            time.sleep(_PAUSE_SECONDS)
    except (Failed, OSError, http.client.HTTPException, *_NONSENSE) as error:
        syslog.syslog(syslog.LOG_WARNING, f"{node}: {error}")
        return None


def _get(url: str, path: str, ca_file: str | None) -> Json | None:
    """The document at `path`; None if there is nothing. No proxy, no redirect."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    connection = http.client.HTTPConnection(host, timeout=_TIMEOUT_SECONDS)
    if parts.scheme == "https":
        trust = ssl.create_default_context(cafile=ca_file)
        connection = http.client.HTTPSConnection(host, timeout=_TIMEOUT_SECONDS, context=trust)
    headers = {"Accept": "application/json"}
    if parts.username:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    with contextlib.closing(connection):
        connection.request("GET", parts.path.rstrip("/") + path, headers=headers)
        reply = connection.getresponse()
        body = reply.read(_MOST_BYTES + 1)
    if reply.status == http.client.NOT_FOUND:
        return None
    if reply.status != http.client.OK or len(body) > _MOST_BYTES:
        raise Failed(f"answers {reply.status} with {len(body)} bytes")
    document = json.loads(body)
    if not (isinstance(document, dict) and isinstance(document.get("job"), dict)):
        raise Failed("answers with another document")
    return document


def summarized(job: Job, ledgers: Mapping[str, Json]) -> str:
    """The comment: within `MOST_CHARACTERS`, if need be without reasons, then in round numbers."""
    nodes = {node: found for node, ledger in ledgers.items() if (found := gpus_of(job, ledger))}
    before = _before(job.comment)
    if not nodes:
        sentinel = "JS1:Short" if job.seconds < SHORT_SECONDS else "JS1:None"
        return job.comment if before else sentinel

    def comment(digits: int | None, unit: int, more: Json) -> str:
        every = dict(before)
        for node, gpus in nodes.items():
            every[node] = {**every.get(node, {}), **_of_node(gpus, digits, unit)}
        return encoded({"nodes": every, "total_time": job.seconds, "gpus": job.gpus, **more})

    why = {"gpu_bottleneck": reasons(job, nodes)}
    forms: tuple[tuple[int | None, int, Json], ...] = ((1, 1, why), (1, 1, {}), (None, 2**30, {}))
    comments = (comment(*form) for form in forms)
    return next((text for text in comments if len(text) <= MOST_CHARACTERS), "JS1:None")


def encoded(summary: Json) -> str:
    """`summary` as a comment; the same one is always the same."""
    text = json.dumps(summary, separators=(",", ":")).encode()
    return "JS1:" + base64.b64encode(gzip.compress(text, mtime=0)).decode()


def _before(comment: str) -> Json:
    """Nodes as jobstats has stored them: what it measured of CPUs is kept. Empty if nothing."""
    try:
        found: Json = json.loads(gzip.decompress(base64.b64decode(comment[4:])))["nodes"]
        return found if all(isinstance(one, dict) for one in found.values()) else {}
    except (OSError, EOFError, *_NONSENSE):
        return {}


def gpus_of(job: Job, ledger: Json) -> Mapping[str, Gpu]:
    """The GPUs of one node, by number, and the instance where it is a part of one.

    What makes no sense is left out: unknown is not zero.
    """
    found: dict[str, Gpu] = {}
    rows = ledger["job"].get("gpus")
    for row in rows if isinstance(rows, list) else ():
        with contextlib.suppress(*_NONSENSE):
            place = f"{row['gpu']}" + (f":{row['uuid'][:12]}" if "mig" in row else "")
            if _PLACE.fullmatch(place):
                found[place] = _gpu(row, job, _amount(ledger["time_seconds"]))
    return found


def _gpu(row: Json, job: Job, now: float) -> Gpu:
    """A GPU of the ledger. Raises ValueError, TypeError or KeyError for nonsense."""
    observed, busy = _amount(row["observed_seconds"]), _amount(row["busy_seconds"])
    stalls = {name: _amount(seconds) for name, seconds in row["stall_seconds"].items()}
    if not all(map(_WORD.fullmatch, stalls)) or busy > observed:
        raise ValueError
    held = _amount(row["end_seconds"] or now) - _amount(row["start_seconds"])
    unheld = max(0.0, job.seconds - held)
    names = ("memory_peak_bytes", "memory_total_bytes")
    used, total = (_amount(row[name]) if name in row else None for name in names)
    advice = row.get("recommendation")
    return Gpu(observed + unheld, busy, unheld, stalls, used, total, advice)


def _amount(value: Any) -> float:  # noqa: ANN401 - JSON
    """A number from 0 up. Raises ValueError for anything else."""
    if type(value) not in (int, float) or not 0 <= value <= _LARGEST:
        raise ValueError(f"{value!r:.20} is no amount")
    return float(value)


def _of_node(gpus: Mapping[str, Gpu], digits: int | None, unit: int) -> Json:
    """Jobstats' keys. Its readers divide by the total memory and expect what is used with it."""
    sizes = [(at, gpu.used, gpu.total) for at, gpu in gpus.items()]
    known = [(at, used, total) for at, used, total in sizes if used is not None and total]
    told = {
        "gpu_utilization": {
            at: round(100 * gpu.busy / gpu.seconds, digits)
            for at, gpu in gpus.items()
            if gpu.seconds
        },
        "gpu_used_memory": {at: round(used / unit) * unit for at, used, _ in known},
        "gpu_total_memory": {at: round(total) for at, _, total in known},
    }
    return {name: values for name, values in told.items() if values}


def reasons(job: Job, nodes: Mapping[str, Mapping[str, Gpu]]) -> Json:
    """Our own keys: shares of the job's GPU time, the three largest causes, what to do first.

    The time in which no process of the job held the GPU counts as `unallocated`, as elsewhere.
    """
    gpus = [gpu for found in nodes.values() for gpu in found.values()]
    seconds, busy = sum(gpu.seconds for gpu in gpus) or 1.0, sum(gpu.busy for gpu in gpus)
    causes = Counter({"unallocated": sum(gpu.unheld for gpu in gpus)})
    for gpu in gpus:
        causes.update(gpu.stalls)
    largest = ((cause, round(lost / seconds, 3)) for cause, lost in causes.most_common(3))
    told: dict[str, Any] = {
        "busy": round(busy / seconds, 3),
        "lost_gpu_hours": round((seconds - busy) / 3600, 3),
        "causes": {cause: share for cause, share in largest if share},
    }
    if len(gpus) < job.gpus:
        told["gpus_seen"] = len(gpus)
    for gpu in sorted(gpus, key=lambda gpu: gpu.busy - gpu.seconds):  # the worst first
        if change := _change(gpu.recommendation):
            return {**told, "change": change}
    return told


def _change(advice: Any) -> Json | None:  # noqa: ANN401 - JSON
    """What to change from and to; None if nothing is known."""
    with contextlib.suppress(*_NONSENSE):
        change = {"from": _amount(advice["current_value"]), "to": _amount(advice["value"])}
        if _WORD.fullmatch(advice["knob"]):
            return {"knob": advice["knob"], **change}
    return None


if __name__ == "__main__":
    main()
