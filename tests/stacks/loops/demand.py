"""Workers of queues and brokers, which wait for tasks: `python -m stacks.loops.demand HOW`."""

from __future__ import annotations

import os
import select
import socket
import threading
import time

from stacks.loops.common import MEBIBYTE
from stacks.loops.gpu import STEP, started
from stacks.loops.sockets import connected
from stacks.servers.resp import Redis
from stacks.servers.tasks import ACK, HEARTBEAT, TASK, deliveries

_RESULT = b"result " * 20
_POLL_SECONDS = "1"
_HEARTBEAT_SECONDS = 1.0


def jobs(answers: str = "answers", timeout: str = "0") -> None:
    """A worker of Redis: it blocks until a job comes, runs the model, and may store the result."""
    run = started()
    broker = Redis(connected("redis"))
    while True:
        if broker.ask("BLPOP", "jobs", timeout) is None:
            continue
        run(STEP)
        if answers == "answers":
            broker.ask("SETEX", "result", "60", _RESULT)


def celery() -> None:
    """A worker that polls with kombu: BRPOP of a second in an event loop, results elsewhere."""
    run = started()
    broker, results = Redis(connected("redis")), Redis(connected("redis"))
    poll = select.epoll()
    poll.register(broker.link, select.EPOLLIN)
    while True:
        broker.send("BRPOP", "jobs", "other", _POLL_SECONDS)
        while not poll.poll(1.0):
            pass
        if broker.reply() is not None:
            run(STEP)
            results.ask("SETEX", "result", "60", _RESULT)
            results.ask("PUBLISH", "result", _RESULT)


def prefork() -> None:
    """The same, by a parent that hands jobs to its child, which holds the GPU."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        run = started()
        while theirs.recv(MEBIBYTE):
            run(STEP)
            theirs.sendall(b"ok")
        os._exit(0)
    broker = Redis(connected("redis"))
    while True:
        if broker.ask("BRPOP", "jobs", _POLL_SECONDS) is not None:
            ours.sendall(TASK)
            ours.recv(MEBIBYTE)
            broker.ask("SETEX", "result", "60", _RESULT)


def consumer() -> None:
    """A broker pushes tasks: the answer and an acknowledgement go back over the connection."""
    run, broker = started(), connected("tasks")

    def beat() -> None:
        while True:
            time.sleep(_HEARTBEAT_SECONDS)
            broker.sendall(HEARTBEAT)

    threading.Thread(target=beat, daemon=True).start()
    for _ in deliveries(broker):
        run(STEP)
        broker.sendall(TASK + _RESULT)
        broker.sendall(ACK)


def main(name: str, *words: str) -> None:
    """Run one."""
    globals()[name](*words)
