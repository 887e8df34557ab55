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
import io
import json
import math
import os
import re
import socket
import ssl
import subprocess
import sys
import syslog
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

MOST_CHARACTERS = 5000
"""Of a comment."""
SHORT_SECONDS = 60
"""jobstats summarizes no shorter ones."""
_MOST_BYTES, _FRAMING_BYTES = 2**20, 2**16
"""Bounds on a node's answer, where one about 16 GPUs has 100 kB; and on its headers and chunks."""
_TIMEOUT_SECONDS = 5.0
"""Deadline of one answer; less if little time is left."""
_AT_ONCE = 64
"""Nodes that are asked at the same time."""
_NODES_SHARE = 2 / 3
"""Part of the time left that nodes get; sacctmgr has the rest."""
_PAUSE_SECONDS = 0.5
_SETTLE_SECONDS = 3.0
"""After so long the exporter has read the last of what a job did."""
_SKEW_SECONDS = 2.0
"""Error of a node's clock once it is corrected, and of the whole seconds of the accounting."""
_LARGEST = 2.0**60
NONSENSE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What JSON that is not as expected raises."""
_FIELDS = "JobIDRaw,JobID,Cluster,ElapsedRaw,Start,End,AllocTRES,NodeList,AdminComment"
_GPUS = re.compile(r"(?:^|,)gres/gpu=([0-9]+)(?:,|$)")
_WORD = r"[a-z_]{1,32}"
_PLACE = r"[0-9]{1,5}(:MIG-[0-9a-f]{8})?"
"""A GPU's number, and the beginning of the UUID of a part of it."""


class Job(NamedTuple):
    """What Slurm's accounting says of the last run of a job: requeued, a job keeps its number."""

    name: str
    """Of the only one that is to be changed: of an array, with the task."""
    cluster: str
    seconds: float
    gpus: int
    nodes: str
    """Slurm's short form of their names."""
    comment: str
    start: float
    """Unix seconds, by the controller's clock, as `end`."""
    end: float


class Gpu(NamedTuple):
    """What the job did on one GPU of a node, in seconds and bytes."""

    seconds: float
    busy: float
    lost: Mapping[str, float]
    """By cause; `unallocated` while the job held no GPU."""
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
    add("--exporters", help="file with lines `NODE HOST`, or a command that prints them for NODEs")
    add("--ca-file", help="certificates to trust instead of the system's")
    add("--wait", type=float, default=15.0, help="seconds that all of it may take")
    add("--job", default=os.environ.get("SLURM_JOB_ID", ""), help="its number, if not the epilog's")
    options = parser.parse_args()
    if not re.fullmatch(r"[0-9]+", options.job):
        parser.error("--job: give the number of a job")
    if not 0 < options.wait < _LARGEST:
        parser.error("--wait: give a number of seconds")
    syslog.openlog(f"gpu-bottleneck-epilog[{options.job}]")
    try:
        syslog.syslog(run(options))
    except SystemExit as failure:
        syslog.syslog(syslog.LOG_ERR, f"{failure}")
        raise


def run(options: argparse.Namespace) -> str:
    """What was done about the job."""
    number, over = options.job, time.monotonic() + options.wait
    job = ended(number, over)
    if not job.gpus:
        return "no GPUs"
    if job.comment and not job.comment.startswith("JS1:"):
        sys.exit("has another AdminComment, which is left alone")
    names = said(over, "scontrol", "show", "hostnames", job.nodes).split()
    hosts = exporters(options.exporters, names, over) if options.exporters else {}
    now = time.monotonic()

    def ask(timeout: float, node: str) -> tuple[Gpus, bool]:
        host = hosts.get(node, node)
        return asked(options.url, number, job, options.ca_file, timeout, host)

    answers = gathered(names, ask, now + _NODES_SHARE * (over - now))
    for node in (name for name in names if name not in answers):
        syslog.syslog(syslog.LOG_WARNING, f"{node}: no answer in time")
    nodes = {node: gpus for node, gpus in answers.items() if gpus}
    comment = summarized(job, nodes)
    if comment == job.comment:
        return "nothing new"
    where = ("where", f"jobid={job.name}", f"cluster={job.cluster}")
    said(over, "sacctmgr", "-i", "update", "job", *where, "set", f"AdminComment={comment}")
    return f"{comment[:9]}, {len(comment)} characters, {len(nodes)} of {len(names)} nodes"


def said(over: float, *command: str) -> str:
    """What a program of Slurm's says until monotonic `over`; exits if it fails or is too late."""
    left, env = max(over - time.monotonic(), 0.0), {**os.environ, "SLURM_TIME_FORMAT": "%s"}
    run = partial(subprocess.run, capture_output=True, errors="replace", check=True)
    try:
        done = run(command, env=env, timeout=left)
    except (OSError, subprocess.SubprocessError) as error:
        told = getattr(error, "stderr", None) or getattr(error, "stdout", None) or error
        sys.exit(f"{command[0]}: {told}".splitlines()[0])
    return done.stdout


def ended(number: str, over: float) -> Job:
    """The job once its end is in the accounting; exits if it is not there at monotonic `over`."""
    while True:
        for row in said(over, "sacct", "-X", "-P", "-n", "-o", _FIELDS, "-j", number).splitlines():
            with suppress(ValueError):  # it has not ended, or is a further line of a comment
                raw, name, cluster, seconds, start, end, given, nodes, comment = row.split("|", 8)
                if raw == number:
                    gpus, task = _GPUS.search(given), name if "_" in name else raw
                    of = task, cluster, float(seconds), int(gpus[1]) if gpus else 0, nodes, comment
                    return Job(*of, _unix(start), _unix(end))
        if time.monotonic() + _PAUSE_SECONDS > over:
            sys.exit("its end is not in the accounting")
        time.sleep(_PAUSE_SECONDS)


def _unix(text: str) -> float:
    """A time of sacct's as Unix seconds. Raises ValueError for `Unknown`."""
    return float(text) if text.isdigit() else datetime.fromisoformat(text).timestamp()


def exporters(source: str, nodes: Sequence[str], over: float) -> Mapping[str, str]:
    """Hosts of the exporters of `nodes`, as far as `source`, a file or a command, has them.

    Where slurmd runs in pods, a Slurm node has the pod's name, and the exporter the host's.
    """
    if os.access(source, os.X_OK):
        text = said(over, source, *nodes)
    else:
        try:
            with open(source, encoding="utf-8") as file:
                text = file.read(_MOST_BYTES)
        except (OSError, ValueError) as error:
            sys.exit(f"--exporters: {error}")
    lines = (line.split() for line in text.splitlines())
    return {words[0]: words[1] for words in lines if len(words) == 2}  # noqa: PLR2004


def gathered(
    names: Sequence[str], ask: Callable[[float, str], tuple[Gpus, bool]], deadline: float
) -> Mapping[str, Gpus]:
    """What the job did on nodes that answer `ask` before monotonic `deadline`; others are missing.

    Each is asked until its answer is final, but not again before all others were. What makes no
    sense is nothing, and a line in the log.
    """
    answers: dict[str, Gpus] = {}
    waiting = deque(names)

    def work() -> None:
        with suppress(IndexError):  # no node is left
            while (left := deadline - time.monotonic()) > 0:
                node, is_final = waiting.popleft(), False
                try:
                    answers[node], is_final = ask(min(_TIMEOUT_SECONDS, left / 3), node)
                except socket.timeout:  # noqa: UP041 - no TimeoutError before Python 3.10
                    pass
                except (OSError, http.client.HTTPException, *NONSENSE) as error:
                    answers.setdefault(node, {})
                    syslog.syslog(syslog.LOG_WARNING, f"{node}: {error!r:.200}")
                    continue
                if not is_final:
                    time.sleep(min(_PAUSE_SECONDS, left))
                    waiting.append(node)

    # Daemons: one that hangs, as the look-up of a name may, must not keep the program from ending.
    threads = [threading.Thread(target=work, daemon=True) for _ in names[:_AT_ONCE]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0.0))
    return answers.copy()


def asked(  # noqa: PLR0913, PLR0917 - what differs between calls is last
    url: str, number: str, job: Job, ca_file: str | None, timeout: float, node: str
) -> tuple[Gpus, bool]:
    """What the job did on a node as far as known, and whether that is final.

    It is some seconds after the run has ended, there too. Raises OSError, HTTPException or one of
    `NONSENSE`.
    """
    began = time.time()
    found = _get(url.replace("{node}", node), f"/api/v1/jobs/slurm-{number}", ca_file, timeout)
    if found is None:
        return {}, False
    record, now = found["job"], _amount(found["time_seconds"])
    behind = (began + time.time()) / 2 - now
    end = record["end_seconds"]
    is_final = end is not None and now - max(_amount(end), job.end - behind) >= _SETTLE_SECONDS
    rows = [row for row in record["gpus"] if is_of_run(row, job, behind)]
    return dict(gpu_of(row, job.seconds, now) for row in rows), is_final


def is_of_run(row: Mapping[str, Any], job: Job, behind: float) -> bool:
    """Whether a GPU of the ledger is of this run of the job, not of another one.

    `behind`: seconds by which the node's clock is behind ours. Raises ValueError if it is of both.
    """
    start = _amount(row["start_seconds"]) + behind
    end = math.inf if row["end_seconds"] is None else _amount(row["end_seconds"]) + behind
    if start >= job.start - _SKEW_SECONDS:
        return end > job.start and start <= job.end + _SKEW_SECONDS
    if end > job.start + _SKEW_SECONDS:
        raise ValueError("its record is of an earlier run, too")
    return False


class _Channel(socket.SocketIO):
    """The receiving side of a socket for `http.client`, bounded in time and bytes."""

    def __init__(self, line: socket.socket, deadline: float) -> None:
        super().__init__(line, "r")
        self._line, self._deadline = line, deadline
        self._bytes_left = _MOST_BYTES + _FRAMING_BYTES

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - Python 3.9 has no type for it
        if (left := self._deadline - time.monotonic()) <= 0 or self._bytes_left < 0:
            raise ValueError("its answer is too slow or too long")
        self._line.settimeout(left)
        self._bytes_left -= (count := super().readinto(buffer) or 0)
        return count


def _get(url: str, path: str, ca_file: str | None, timeout: float) -> Any:  # noqa: ANN401 - JSON
    """The document at `path`; None if there is nothing. No proxy, no redirect."""
    parts, deadline, headers = urlsplit(url), time.monotonic() + timeout, {}
    if parts.username:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        token = base64.b64encode(pair.encode("utf-8", "surrogateescape"))
        headers["Authorization"] = f"Basic {token.decode()}"
    connect: Callable[..., http.client.HTTPConnection] = http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=ca_file)
        connect = partial(http.client.HTTPSConnection, context=context)
    with closing(connect(parts.netloc.rpartition("@")[2], timeout=timeout)) as connection:
        connection.request("GET", parts.path + path, headers=headers)
        channel: Any = _Channel(connection.sock, deadline)
        with http.client.HTTPResponse(channel, method="GET") as reply:
            reply.begin()
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
    free = max(0.0, seconds - held) + _amount(row.get("pause_seconds", 0.0))
    lost["unallocated"] = lost.get("unallocated", 0.0) + free
    memory = change = None
    if "memory_peak_bytes" in row and "memory_total_bytes" in row:
        memory = _amount(row["memory_peak_bytes"]), _amount(row["memory_total_bytes"])
    if advice := row.get("recommendation"):
        values = {"from": _amount(advice["current_value"]), "to": _amount(advice["value"])}
        change = {"knob": _text(_WORD, advice["knob"]), **values}
    lasted = observed + free
    share = min(seconds / lasted, 1.0) if lasted else 1.0  # processes may outlive their job
    lost = {cause: share * part for cause, part in lost.items()}
    gpu = Gpu(share * lasted, share * min(busy, observed), lost, memory, change)
    return _text(_PLACE, place), gpu


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
    before = _before(job)
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


def _before(job: Job) -> dict[str, Any]:
    """Nodes as jobstats has stored them: what it measured of CPUs is kept.

    Empty if nothing is stored, or of another run: one that lasted another time.
    """
    try:
        stored = json.loads(gzip.decompress(base64.b64decode(job.comment[4:])))
        lasted = _amount(stored["total_time"])
        if min(abs(lasted - job.seconds), abs(lasted - (job.end - job.start))) > 1:
            return {}
        return {node: dict(found) for node, found in stored["nodes"].items()}
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
    possible = min(seconds, job.seconds * job.gpus)  # it may hold GPUs that it was not given
    causes: Counter[str] = Counter()
    for gpu in gpus:
        causes.update(gpu.lost)
    largest = ((cause, round(lost / seconds, 3)) for cause, lost in causes.most_common(3))
    told: dict[str, Any] = {
        "busy": round(busy / seconds, 3),
        "lost_gpu_hours": round(possible * (1 - busy / seconds) / 3600, 3),
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
