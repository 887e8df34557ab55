"""What each rule of `feeders/tcp.py` is for: its verdicts on recorded connections, without it.

    PYTHONPATH=tests python -m stacks.matrix --tape TAPE
    PYTHONPATH=tests python -m stacks.ablation TAPE

The first writes each look at connections to TAPE. The second judges them again, each time with one
rule less, and prints of how many cases more than a tenth of the looks end otherwise. What a changed
verdict does to the label is up to the rest of the split.
"""

# ruff: noqa: ANN401 - what stands in for a method takes what that takes

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from gpu_bottleneck_exporter.feeders import tcp, timeouts
from gpu_bottleneck_exporter.feeders.tcp import Course, TcpTracker, Verdict
from gpu_bottleneck_exporter.feeders.timeouts import AnswerTimeouts
from gpu_bottleneck_exporter.host.process import environment
from gpu_bottleneck_exporter.host.sockets import Connection, Endpoint, Sockets, TcpState
from gpu_bottleneck_exporter.settings import Settings
from stacks.cases import CASES

PROC = Path("/proc")
TOLD = 0.1
"""Share of the looks of a case that end otherwise, from which the rule matters to it."""
Look = dict[str, Any]
Tape = dict[str, list[Look]]
"""Looks by case."""


def without(name: str, *, of: object, by: object = None) -> Callable[[], Any]:
    """A rule left out: attribute `name` replaced."""
    return lambda: mock.patch.object(of, name, by)


def forgetting(name: str) -> Callable[[], Any]:
    """A rule left out: what `Course` counts in attribute `name` stays 0."""
    update = Course.update

    def forgotten(self: Course, *arguments: Any, **named: Any) -> None:
        update(self, *arguments, **named)
        setattr(self, name, 0)

    return lambda: mock.patch.object(Course, "update", forgotten)


def _tie_is_a_question(now: Connection, patience_ms: int) -> bool:
    if now.state not in tcp._OPEN or not now.sent_segments or now.sent_ms > patience_ms:
        return now.state == TcpState.SYN_SENT
    return now.sent_ms <= now.received_ms


RULES: dict[str, Callable[[], Any]] = {
    "a question grows too old for an answer": without(
        "longest_for", of=AnswerTimeouts, by=lambda *_: 10**9
    ),
    "slow answers that fed the GPU are learnt": without(
        "longest_for", of=AnswerTimeouts, by=lambda *_: timeouts.PATIENCE_MS
    ),
    "a delayed acknowledgement tells who spoke last": without(
        "_asked", of=tcp, by=_tie_is_a_question
    ),
    "data that keeps coming is a stream": without("_arriving", of=tcp, by=lambda *_: False),
    "data that comes again and again is pushed": without(
        "pushed", of=Course, by=property(lambda _: False)
    ),
    "answers without data are no load": forgetting("small"),
    "signals do not feed": forgetting("signals"),
    "who is asked in vain is a queue": forgetting("vain"),
    "an answer in parts is not over between them": forgetting("streak"),
    "who takes slowly holds up": without("_is_stuck", of=TcpTracker, by=lambda *_: False),
    "a poll with nothing new expects no answer": without(
        "note_polled", of=AnswerTimeouts, by=lambda *_: None
    ),
    "what fed the GPU is waited for": without("feeds", of=AnswerTimeouts, by=lambda *_: False),
    "a new connection shows that the old one was answered": without(
        "_replaced", of=TcpTracker, by=lambda *_: None
    ),
    "datagrams that feed the GPU count": without(
        "_datagrams", of=TcpTracker, by=lambda *_: Verdict.IDLE
    ),
}


@contextlib.contextmanager
def recording(path: Path | None) -> Iterator[None]:
    """Write each look at the connections of cases that are staged meanwhile to `path`."""
    if path is None:
        yield
        return
    inspect, of = TcpTracker.inspect, Sockets.of

    def asked(self: Any, numbers: Sequence[int]) -> list[Connection]:
        self.found = of(self, numbers)
        return list(self.found)

    def inspected(self: Any, numbers: Any, ours: Any = (), held: Any = (), **whole: bool) -> Any:
        self.sockets.found = None
        verdicts = inspect(self, numbers, ours, held, **whole)
        if self.sockets.found is not None:
            pid, job = self.sockets.pid, self._timeouts
            values = dict(one.partition("=")[::2] for one in environment(PROC, pid).split("\0"))
            look = {
                "case": values.get("STACKS_CASE", ""),
                "job": id(job),
                "process": id(self),
                "at_ns": time.monotonic_ns(),
                "worked_ns": job.worked_ns,
                "ours": [one.cookie for one in self.sockets.found if (one[3], one[2]) in ours],
                "held": [*held],
                "found": [*map(_plain, self.sockets.found)],
                **whole,
            }
            tape.write(f"{json.dumps(look)}\n")
        return verdicts

    with (
        path.open("w") as tape,
        mock.patch.object(TcpTracker, "inspect", inspected),
        mock.patch.object(Sockets, "of", asked),
    ):
        yield


def _plain(one: Connection) -> list[Any]:
    ends = ((end.address.hex(), end.port) for end in (one.local, one.remote))
    return [one.fd, one.cookie, *ends, *one[4:]]


def verdicts(looks: Sequence[Look]) -> Iterator[dict[int, Verdict]]:
    """What is said of the connections at each look of one case."""
    longest_ms = int(Settings().longest_answer_seconds * 1000)
    at_ns = 0
    clock = SimpleNamespace(monotonic_ns=lambda: at_ns)
    jobs: dict[int, AnswerTimeouts] = {}
    trackers: dict[int, Any] = {}
    with mock.patch.object(tcp, "time", clock), mock.patch.object(timeouts, "time", clock):
        for look in looks:
            at_ns = look["at_ns"]
            job = jobs.setdefault(look["job"], AnswerTimeouts(longest_ms))
            job.worked_ns = look["worked_ns"]
            tracker = trackers.setdefault(look["process"], TcpTracker(PROC, 0, job))
            found = [
                Connection(fd, cookie, _end(local), _end(remote), *rest)
                for fd, cookie, local, remote, *rest in look["found"]
            ]
            tracker.sockets = SimpleNamespace(all=lambda _, f=found: f, of=lambda _, f=found: f)
            ours = {(one.remote, one.local) for one in found if one.cookie in look["ours"]}
            yield tracker.inspect((), ours, look["held"], whole=look.get("whole", False))


def _end(plain: tuple[str, int]) -> Endpoint:
    return Endpoint(bytes.fromhex(plain[0]), plain[1])


def replay(path: Path) -> str:
    """The table."""
    tape: Tape = defaultdict(list)
    for line in path.read_text().splitlines():
        look = json.loads(line)
        tape[look["case"]].append(look)
    tape.pop("", None)
    with_all = {case: [*verdicts(looks)] for case, looks in tape.items()}
    held_out = {case.title for case in CASES if case.held_out}
    lines = ["| without the rule | tuned on | held out | such as |", "| --- | ---: | ---: | --- |"]
    for rule, leaving_out in RULES.items():
        changed = []
        for case, looks in tape.items():
            with leaving_out():
                pairs = zip(with_all[case], verdicts(looks), strict=True)
                if sum(before != after for before, after in pairs) > TOLD * len(looks):
                    changed.append(case)
        out = [case for case in changed if case in held_out]
        such = "; ".join(changed[:2])
        lines.append(f"| {rule} | {len(changed) - len(out)} | {len(out)} | {such} |")
    number = len(tape.keys() & held_out)
    return "\n".join([f"Of {len(tape) - number} and {number} cases:", "", *lines])


if __name__ == "__main__":
    sys.stdout.write(f"{replay(Path(sys.argv[1]))}\n")
