"""Idle seconds by line of code, from looks at stacks."""

from __future__ import annotations

import tracemalloc

import pytest

from gpu_bottleneck_exporter.accounting import stall
from gpu_bottleneck_exporter.accounting.bucket import Role
from gpu_bottleneck_exporter.accounting.windows import Window
from gpu_bottleneck_exporter.host.waits import Wait
from gpu_bottleneck_exporter.stacktraces.frames import Frame
from gpu_bottleneck_exporter.stacktraces.lines import (
    LineCount,
    StackSample,
    ThreadSample,
    gist,
    line_of,
    serves_others,
)
from gpu_bottleneck_exporter.stacktraces.model import CodeLine

SECOND = 1_000_000_000
TORCH = Frame("stack", "/usr/lib/python3.12/site-packages/torch/functional.py", 9)
GET = Frame("get", "/usr/lib/python3.12/queue.py", 171)
LOOP = Frame("main", "/home/ada/train.py", 200)
STACKS = {
    "collate": (TORCH, Frame("collate", "/home/ada/train.py", 142)),
    "decode": (Frame("decode", "/home/ada/data.py", 7), LOOP),
    "wait": (GET, LOOP),
    "synchronize": (
        Frame("synchronize", "/venv/lib/python3.12/site-packages/torch/cuda.py", 3),
        LOOP,
    ),
}


def look(at: float, *threads: tuple[str, Wait, str]) -> StackSample:
    values = [ThreadSample(role, wait, STACKS[stack]) for role, wait, stack in threads]
    return StackSample(int(at * SECOND), values)


def window(end: float, seconds: float, busy: float) -> Window:
    return Window(int(end * SECOND), int(seconds * SECOND), int(busy * seconds * SECOND))


def functions(lines: tuple[CodeLine, ...]) -> dict[str, float]:
    return {line.function: round(line.seconds, 3) for line in lines}


@pytest.mark.parametrize(
    ("frames", "line", "called"),
    [
        (STACKS["collate"], 142, "torch.stack"),
        (STACKS["wait"], 200, "queue.get"),
        (STACKS["decode"], 7, ""),
        ((GET,), 171, ""),
        ((Frame("f", "<string>", 3),), 3, ""),
        ((Frame("_find", "<frozen importlib>", 1), LOOP), 200, "<frozen importlib>._find"),
        ((TORCH, Frame("main.<listcomp>", LOOP.file, 3), LOOP), 3, "torch.stack"),
    ],
    ids=["a library", "Python's own", "a job", "nothing else", "-c", "an import", "a list"],
)
def test_a_line_is_the_jobs_own_if_it_has_one(
    frames: tuple[Frame, ...], line: int, called: str
) -> None:
    result = line_of(frames)
    assert result is not None
    assert (result.line, result.called) == (line, called)
    few = gist(frames)
    assert line_of(few) == result
    assert len(few) <= 2


LIB = "/usr/lib/python3.12"
ACCEPT = Frame("accept", f"{LIB}/socket.py", 295)
RUN = (Frame("run", f"{LIB}/threading.py", 1010), Frame("_bootstrap", f"{LIB}/threading.py", 1030))
SELECT = Frame("select", f"{LIB}/selectors.py", 468)
LOOPS = (SELECT, Frame("run_forever", f"{LIB}/asyncio/base_events.py", 641))
SENDS = (Frame("_feed", f"{LIB}/multiprocessing/queues.py", 280), *RUN)


@pytest.mark.parametrize(
    ("wait", "frames", "serves"),
    [
        (
            Wait.SOCKET,
            (ACCEPT, Frame("_serve", f"{LIB}/multiprocessing/resource_sharer.py", 1), *RUN),
            True,
        ),
        (Wait.SOCKET, (ACCEPT, LOOP), True),
        (Wait.SOCKET, (Frame("accept", "/home/ada/feed.py", 9), LOOP), False),
        (Wait.POLL, (*LOOPS, *RUN), True),
        (Wait.POLL, (*LOOPS, LOOP), False),
        (Wait.SOCKET, (Frame("recv", f"{LIB}/socket.py", 2), TORCH, *RUN), False),
        (Wait.LOCK, SENDS, True),
        (Wait.RUN, SENDS, False),
        (Wait.SOCKET, (), False),
    ],
    ids=[
        *("resource_sharer", "a server's own thread", "a function of that name", "an event loop"),
        *("an event loop of the job", "another library's", "a queue's thread", "that pickles", "C"),
    ],
)
def test_a_process_that_waits_for_requests_holds_up_no_gpu(
    wait: Wait, frames: tuple[Frame, ...], *, serves: bool
) -> None:
    assert serves_others(wait, frames) is serves


MAIN_WAITS, MAIN_DECODES = (Role.MAIN, Wait.LOCK, "wait"), (Role.MAIN, Wait.RUN, "decode")
COLLATES, READS = (Role.WORKER, Wait.RUN, "collate"), (Role.WORKER, Wait.DISK, "decode")


@pytest.mark.parametrize(
    ("cause", "threads", "blamed"),
    [
        (stall.WORKER_CPU, [MAIN_WAITS, COLLATES], "collate"),
        (stall.WORKER_CPU, [MAIN_WAITS, (Role.THREAD, Wait.RUN, "decode")], "decode"),
        (stall.HOST_CODE, [MAIN_DECODES, COLLATES], "decode"),
        (stall.STORAGE, [READS, (Role.WORKER, Wait.PIPE, "wait")], "decode"),
        (stall.STORAGE, [MAIN_DECODES], "decode"),
        (stall.NETWORK, [MAIN_WAITS, (Role.WORKER, Wait.SOCKET, "collate")], "collate"),
        (stall.NETWORK, [(Role.MAIN, Wait.POLL, "wait")], "main"),
        (stall.ASLEEP, [MAIN_WAITS], "main"),
        (stall.PEER, [(Role.MAIN, Wait.POLL, "synchronize")], "main"),
    ],
)
def test_the_process_that_the_gpu_waited_for_is_charged_with_all_of_it(
    cause: str, threads: list[tuple[str, Wait, str]], blamed: str
) -> None:
    count = LineCount()
    count.add([window(1, 1, 0)], {cause: SECOND}, [look(0.5, *threads)])
    result = count.result()
    assert functions(result.lines) == {blamed: 1.0}
    assert (result.lines[0].waiting_on, result.lines[0].ratio) == (cause, 1.0)


def test_each_cause_is_charged_to_its_own_lines_and_all_adds_up() -> None:
    count = LineCount()
    stalls = {stall.HOST_CODE: 6 * SECOND, stall.ASLEEP: 2 * SECOND, stall.UNALLOCATED: 1}
    looks = [
        *(look(at, MAIN_DECODES) for at in (1, 2)),
        look(3, (Role.MAIN, Wait.RUN, "collate")),
        look(4, MAIN_WAITS),
    ]
    count.add([window(8, 8, 0)], stalls, looks)
    result = count.result()
    assert functions(result.lines) == {"decode": 4.0, "collate": 2.0, "main": 2.0}
    assert [line.lock_ratio for line in result.lines] == [0, 0, 1]
    assert result.seconds == pytest.approx(8)
    assert sum(line.ratio for line in result.waits) == pytest.approx(1)


def test_a_main_that_waits_for_its_working_gpu_holds_nothing_up() -> None:
    """Steps shorter than a window: half of each look's time the GPU worked."""
    count = LineCount()
    for at in range(10):
        thread = (Role.MAIN, Wait.POLL, "synchronize") if at % 2 else MAIN_DECODES
        idle = {stall.HOST_CODE: SECOND // 2}
        count.add([window(at + 1, 1, 0.5)], idle, [look(at + 0.5, thread)])
    assert functions(count.result().lines) == {"decode": 5.0}
    assert functions(count.result().waits) == {"decode": 5.0}


def test_of_sleeps_those_count_in_which_the_gpu_idled() -> None:
    """Steps longer than a window."""
    count = LineCount()
    for at in range(10):
        busy, stack = (1.0, "synchronize") if at % 2 else (0.0, "decode")
        idle = {stall.ASLEEP: SECOND} if not busy else {}
        values = [look(at + 0.5, (Role.MAIN, Wait.TIMER, stack))]
        count.add([window(at + 1, 1, busy)], idle, values)
    assert functions(count.result().lines) == {"decode": 5.0}


def test_without_a_sample_nothing_is_charged() -> None:
    count = LineCount()
    count.add([window(1, 1, 0)], {stall.HOST_CODE: SECOND}, [])
    count.add([window(2, 1, 0)], {stall.HOST_CODE: SECOND}, [StackSample(SECOND, [])])
    result = count.result("no Python")
    assert (result.seconds, result.looks, result.lines, result.waits) == (2.0, 1, (), ())
    assert result.trouble == "no Python"


def test_a_line_in_a_comprehension_is_its_functions() -> None:
    """Before Python 3.12, that is a call of its own."""
    inner = Frame("main.<locals>.<listcomp>", LOOP.file, LOOP.line)
    assert line_of((inner, LOOP)) == line_of((LOOP,))


def test_a_job_with_invented_lines_takes_bounded_memory() -> None:
    taken = []
    count = LineCount()
    tracemalloc.start()
    for number in range(4000):
        made_up = ThreadSample(Role.MAIN, Wait.RUN, [Frame("f", f"/{number}.py", number)])
        count.add([window(1, 1, 0)], {stall.HOST_CODE: 1}, [StackSample(number, [made_up])])
        if number in {1999, 3999}:
            taken.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert taken[1] < 1.05 * taken[0]
