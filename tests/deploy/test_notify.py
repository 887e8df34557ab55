"""Messages to systemd, over a real socket, by the real command."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.commands.notify import Supervisor
from gpu_bottleneck_exporter.demo.board.create import H100, create
from gpu_bottleneck_exporter.driver.protocol import Driver, DriverMissing
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from gpu_bottleneck_exporter.settings import Settings
from support.command import ANY_PORT, Server, serving
from support.drivers import Libraries
from support.logged import logged
from support.rows import rows
from support.waiting import PATIENCE_SECONDS, until

WATCHDOG_SECONDS = 1.0
HOST_FILES = ("stat", "meminfo", "diskstats", "uptime", "mounts", "1/stat", "self/schedstat")
Start = Callable[..., Server]
NO_DRIVER = "STATUS=nvmlInit: LIBRARY_NOT_FOUND"


@dataclass
class Ear:
    """systemd's end of the socket."""

    socket: socket.socket
    address: str
    heard: list[str] = field(default_factory=list)

    def listen(self) -> None:
        """Take what has come."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self.heard += self.socket.recv(4096, socket.MSG_DONTWAIT).decode().splitlines()

    def has(self, beginning: str, times: int = 1) -> bool:
        """Whether an assignment was heard so often by now."""
        self.listen()
        return sum(line.startswith(beginning) for line in self.heard) >= times

    def has_no_food(self) -> bool:
        """Whether the watchdog would bite."""
        self.listen()
        self.heard.clear()
        time.sleep(1.5 * WATCHDOG_SECONDS)
        return not self.has("WATCHDOG=1")


@pytest.fixture
def ear(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ear]:
    """A socket on a path, and where a test asks for it an abstract one."""
    path = getattr(request, "param", "path") == "path"
    address = f"{tmp_path}/notify" if path else f"@{os.getpid()}-{tmp_path.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(address if path else f"\0{address[1:]}")
        yield Ear(listening, address)


@pytest.fixture
def procfs(tmp_path: Path) -> Path:
    """A copy of the files of the host in /proc, for one of them to become another kind of file."""
    copy = tmp_path / "proc"
    for name in HOST_FILES:
        if (source := Path("/proc", name)).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes(source.read_bytes())
    return copy


@pytest.fixture
def start(tmp_path: Path, ear: Ear) -> Iterator[Start]:
    """Starts `serve` as systemd would."""
    fields = {"NOTIFY_SOCKET": ear.address, "WATCHDOG_USEC": f"{WATCHDOG_SECONDS * 1e6:.0f}"}
    words = ("serve", *ANY_PORT)
    with contextlib.ExitStack() as servers:
        yield lambda *more, **variables: servers.enter_context(
            serving(tmp_path, *words, *more, **fields, **variables)
        )


@pytest.mark.parametrize("ear", ["path", "abstract"], indirect=True)
def test_without_a_driver_it_is_ready_gives_the_reason_feeds_and_stops(
    start: Start, ear: Ear
) -> None:
    server = start()
    until(lambda: ear.has("READY=1"), "READY=1")
    until(lambda: ear.has(NO_DRIVER), "the reason")
    assert server.get("/-/ready")[0] == 200
    until(lambda: ear.has("WATCHDOG=1", 3), "the watchdog's food")
    assert not ear.has("STOPPING=1")
    server.process.terminate()
    until(lambda: ear.has("STOPPING=1"), "STOPPING=1")
    assert server.process.wait(PATIENCE_SECONDS) == 0


def test_a_stopped_loop_starves_the_watchdog_until_it_continues(
    start: Start, ear: Ear, procfs: Path
) -> None:
    start("--path.procfs", f"{procfs}")
    until(lambda: ear.has("WATCHDOG=1", 2), "the watchdog's food")
    stuck = procfs / "meminfo"
    text = stuck.read_bytes()
    os.mkfifo(procfs / "fifo")
    (procfs / "fifo").rename(stuck)  # a reader that opens it now waits for a writer
    until(
        lambda: ear.has("STATUS=the thread that samples the host and its processes is stuck"),
        "alarm",
    )
    until(ear.has_no_food, "hunger")  # an alarm before may have been of a busy machine
    (procfs / "regular").write_bytes(text)
    with stuck.open("wb") as writer:
        (procfs / "regular").rename(stuck)
        writer.write(text)
    until(lambda: ear.has("WATCHDOG=1"), "food again")
    assert ear.has("STATUS=")


def test_a_hung_gpu_is_reported_and_does_not_starve_the_watchdog(
    start: Start, ear: Ear, libraries: Libraries, tmp_path: Path
) -> None:
    with create(tmp_path / "board", gpus=[H100, H100]) as board:
        board.gpus[1].record.hang = 1
        shutil.copy(libraries.path(int(board.header.driver_branch)), tmp_path)
        fast = ("--sampling.interval", "0.2", "--sampling.deadline", "1")
        server = start(*fast, FAKE_NVML_BOARD=f"{board.path}")
        until(lambda: ear.has("STATUS=watching 2 GPUs (nvml driver); down: GPU 1"), "status")
        assert server.get("/-/ready")[0] == 200
        ear.heard.clear()
        until(lambda: ear.has("WATCHDOG=1", 3), "the watchdog's food")
        board.gpus[1].record.hang = 0
        up = "STATUS=watching 2 GPUs (nvml driver)"
        until(lambda: ear.has(up) and up in ear.heard, "up")


@rows(
    "variables, seconds",
    {
        "no": ({}, 0),
        "half a second": ({"WATCHDOG_USEC": "500000"}, 0.5),
        "off": ({"WATCHDOG_USEC": "0"}, 0),
        "no number": ({"WATCHDOG_USEC": "soon"}, 0),
        "another's": ({"WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}, 0),
        "ours": ({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": f"{os.getpid()}"}, 1),
    },
)
def test_the_watchdog_that_the_environment_names(variables: dict[str, str], seconds: float) -> None:
    assert Supervisor({"NOTIFY_SOCKET": "/n", **variables}).watchdog_seconds == seconds


@pytest.mark.parametrize("address", ["{}/nobody", "vsock:2:1234"])
def test_a_supervisor_that_is_gone_is_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, address: str
) -> None:
    there = address.format(tmp_path)
    gone = Supervisor({"NOTIFY_SOCKET": there})
    for _ in range(20):
        gone.send("READY=1", "STATUS=well")
    assert logged(caplog) == [
        f"cannot notify the supervisor address={there} err=[Errno 2] No such file or directory"
    ]


def no_driver() -> Driver:
    raise DriverMissing("none here")


def test_no_pass_is_a_standstill_only_after_some_patience(procfs: Path) -> None:
    sampler = Sampler(no_driver, ALL, Settings(procfs=procfs), lambda _: None)
    assert sampler.standstill() is not None
    (procfs / "meminfo").unlink()
    os.mkfifo(procfs / "meminfo")
    sampler.start()
    try:
        until(lambda: sampler.standstill(0.5) is not None, "a standstill")
        assert sampler.standstill() is None
    finally:
        sampler.stop()  # comes back though the pass does not
        with (procfs / "meminfo").open("wb"):
            pass
    assert sampler.standstill() == "the sampler has stopped: none here"
