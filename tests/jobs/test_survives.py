"""Whatever a reader returns survives document, JSON, store and back."""

from __future__ import annotations

import json
import zlib
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_bottleneck_exporter.accounting.bucket import Role
from gpu_bottleneck_exporter.accounting.stall import WAITING_ON
from gpu_bottleneck_exporter.accounting.windows import Window
from gpu_bottleneck_exporter.errors import printable
from gpu_bottleneck_exporter.host.waits import Wait
from gpu_bottleneck_exporter.jobs.model import MAX_DECIMALS, Job, JobGpu, Timeline
from gpu_bottleneck_exporter.jobs.store import Row, Store
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.nodeview import model, wire
from gpu_bottleneck_exporter.stacktraces.frames import Frame
from gpu_bottleneck_exporter.stacktraces.lines import LineCount, StackSample, ThreadSample
from gpu_bottleneck_exporter.stacktraces.model import IdleLines

NAMES = st.text(max_size=513).map(printable)
"""Names as `Codes` reads them."""
FRAMES = st.builds(Frame, NAMES, NAMES, st.integers(1, 2**31 - 1))
ROLES = st.sampled_from([Role.MAIN, Role.WORKER, Role.THREAD])
THREADS = st.builds(
    ThreadSample, ROLES, st.sampled_from(Wait), st.lists(FRAMES, max_size=3), native=st.booleans()
)
LOOKS = st.builds(StackSample, st.integers(0, 4 * 10**9), st.lists(THREADS, max_size=3))
WINDOWS = st.builds(
    lambda end, length, busy: Window(end, length, busy * length // 100),
    *(st.integers(1, 4 * 10**9), st.integers(0, 10**9), st.integers(0, 100)),
)
STALLS = st.dictionaries(st.sampled_from(WAITING_ON), st.integers(0, 10**10))


def again(job: Job) -> Job:
    """`job` as a ledger has it that was restarted, and was told the same time."""
    text = dumps(wire.document(job, MAX_DECIMALS))
    with closing(Store("", 10, 1e9)) as store:
        store.write([Row(job.id, "somebody", 5.0, zlib.compress(text.encode()))], 6.0)
        rows = store.read()
    assert rows
    (row,) = rows
    return wire.read(Job, json.loads(row.text))


def counted(windows: list[Window], stalls: dict[str, int], looks: list[StackSample]) -> IdleLines:
    count = LineCount()
    count.add(windows, stalls, looks)
    return count.result("")


@given(st.lists(WINDOWS, max_size=3), STALLS, st.lists(LOOKS, max_size=4), st.text(max_size=9))
def test_lines_of_any_code_survive(
    windows: list[Window], stalls: dict[str, int], looks: list[StackSample], uuid: str
) -> None:
    lines = counted(windows, stalls, looks)
    gpu = JobGpu(gpu="", uuid=uuid, start_seconds=1.0, idle_lines=lines, mig="")
    idle_lines = again(Job(id="a", gpus=[gpu], owner={"user": uuid})).gpus[0].idle_lines
    assert idle_lines is not None
    assert (idle_lines.looks, len(idle_lines.lines)) == (lines.looks, len(lines.lines))
    for was, now in zip(
        (*lines.lines, *lines.waits), (*idle_lines.lines, *idle_lines.waits), strict=True
    ):
        assert (was.file, was.line, was.function) == (now.file, now.line, now.function)
        assert now.ratio == pytest.approx(was.ratio, abs=1e-9)
    node = model.Node(
        time_seconds=1.0,
        window_seconds=1.0,
        version="",
        gpus=(model.GpuStatus(gpu="", uuid="", up=True, idle_lines=lines),),
    )
    assert wire.node_in(dumps(wire.document(node)).encode()).gpus[0].idle_lines is not None


def test_a_job_with_empty_names_is_read_again() -> None:
    windows, looks = [Window(10**9, 10**9, 0)], [StackSample(1, [LOOKED])]
    lines = counted(windows, {"host_code": 10**9}, looks)
    gpu = JobGpu(gpu="0", uuid="", start_seconds=1.0, idle_lines=lines)
    result = again(Job(id="a", gpus=[gpu])).gpus[0]
    assert (result.uuid, result.idle_lines) == ("", lines)
    assert [line.file for line in lines.lines] == [""]


def test_a_stored_document_is_short() -> None:
    line = Timeline(1.00049, spent_seconds={"busy": [0.12345]})
    gpu = JobGpu(gpu="0", uuid="u", start_seconds=1.23456, timeline=line, energy_joules=0.1 + 0.2)
    none = {"observed_seconds": 0.0, "busy_seconds": 0.0, "stall_seconds": {}}
    assert wire.document(Job(id="a").having([gpu]), MAX_DECIMALS) == {
        **none,
        "id": "a",
        "owner": {},
        "claims": {},
        "run": {},
        "start_seconds": 1.235,
        "end_seconds": None,
        "gpus": [
            {
                **none,
                "gpu": "0",
                "uuid": "u",
                "node": "",
                "start_seconds": 1.235,
                "end_seconds": None,
                "energy_joules": 0.3,
                "timeline": {
                    "start_seconds": 1.0,
                    "step_seconds": 1.0,
                    "spent_seconds": {"busy": [0.123]},
                },
            }
        ],
    }


LOOKED = ThreadSample(Role.MAIN, Wait.RUN, [Frame("", "", 1)])


@given(
    st.recursive(
        st.one_of(st.integers(), st.floats(), st.text(), st.none(), st.booleans()),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.integers(18, 6000),
)
def test_a_document_of_anything_is_json(found: object, digits: int) -> None:
    """The integers of a driver may have any number of digits."""
    huge = 10**digits
    document = json.loads(dumps(wire.document({"b": found, "c": huge, "d": [-huge, 1]})))
    expected = {"c": huge, "d": [-huge, 1]} if huge <= wire.MAX_INTEGER else {"d": [1]}
    assert {name: value for name, value in document.items() if name != "b"} == expected
