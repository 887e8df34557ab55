"""The unit under a real systemd: what the exporter gets there, what it does not, and its end."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deploy.machine import BASE, DEPLOY, NAME, PREFIX, UNIT, Machine, booted
from gpu_bottleneck_exporter.demo.board.create import H100, create
from support.daemon import HOST, free_port, get
from support.drivers import Libraries
from support.metrics import Metrics
from support.waiting import until

PORT = free_port()
DROP_INS = f"/etc/systemd/system/{NAME}.service.d"
SETTINGS = f"""
GPU_EXPORTER_LOG_FORMAT=json
LD_LIBRARY_PATH=/opt/stage:{BASE}/lib
FAKE_NVML_BOARD=/opt/stage/board
ARGS="--web.listen-address={HOST}:{PORT} --no-collector.clocks"
"""
STAGE = "[Service]\nReadWritePaths=/opt/stage\n"
"""The stand-in for the driver's library writes to its board; the driver takes no such right."""
IMPATIENT = "[Service]\nWatchdogSec=2\nTimeoutAbortSec=1\nRestartSec=100ms\n"
PRIVATE = ("process_io", "wait_channel")
PROBE = """
import mmap, os

def told(what, act):
    try:
        act()
    except OSError as error:
        what += " " + error.strerror
    print(what)

told("gpu:", lambda: os.open("/opt/gpu", os.O_RDWR))
told("memory:", lambda: os.open("/opt/memory", os.O_RDONLY))
told("etc:", lambda: os.mkdir("/etc/x"))
told("code:", lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_WRITE | mmap.PROT_EXEC))
"""
"""Rights of a program in the service's place. No driver answers behind the GPU's node."""
SANDBOX = """
gpu: No such device or address
memory: Operation not permitted
etc: Read-only file system
code: Operation not permitted
"""


@pytest.fixture(scope="module")
def machine(libraries: Libraries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("machine")
    files = {f"/etc/default/{NAME}": SETTINGS, f"{DROP_INS}/stage.conf": STAGE}
    with create(folder / "board", gpus=[H100]) as board:
        board.path.chmod(0o666)
        shutil.copy(libraries.path(int(board.header.driver_branch)), folder)
        with booted(folder, files) as machine:
            yield machine


@contextmanager
def started(machine: Machine, drop_in: str = "") -> Iterator[Machine]:
    """The service with a drop-in of its own."""
    machine.write(f"{DROP_INS}/test.conf", drop_in or "[Service]\n")
    start = machine.run("systemctl", "start", NAME)
    assert start.returncode == 0, start.stderr + machine.log
    try:
        yield machine
    finally:
        machine.run("systemctl", "stop", NAME)
        machine.run("systemctl", "reset-failed", NAME)


@pytest.fixture
def service(machine: Machine) -> Iterator[Machine]:
    with started(machine):
        yield machine


def scraped() -> Metrics:
    return Metrics(get(PORT, "/metrics")[1].decode())


def private() -> list[float | None]:
    """Health of the private signals, once it is known."""
    signals = until(lambda: s if (s := scraped().signals).keys() >= {*PRIVATE} else None, "signals")
    return [signals.get(name) for name in PRIVATE]


def test_systemd_finds_nothing_wrong_with_the_unit(machine: Machine) -> None:
    path = f"/etc/systemd/system/{NAME}.service"
    verified = machine.run("systemd-analyze", "verify", "--recursive-errors=one", path)
    assert (verified.returncode, verified.stderr) == (0, "")


def test_it_is_ready_when_systemd_reports_it_and_has_read_its_environment(service: Machine) -> None:
    assert service.show("ActiveState") == "active"
    assert get(PORT, "/-/ready")[0] == 200
    assert service.show("StatusText") == "watching 1 GPU (nvml driver)"
    names = scraped().names
    assert "gpu_up" in names
    assert "gpu_clock_hertz" not in names
    assert '"level": "info"' in service.log


def test_it_reads_private_files_of_other_users_processes(service: Machine) -> None:
    pid = service.show("MainPID")
    assert service.run("stat", "--format=%U", f"/proc/{pid}").stdout == f"{NAME}\n"
    assert private() == [1, 1]


def test_it_may_do_nothing_else(machine: Machine) -> None:
    for node, major, minor in (("/opt/gpu", "195", "255"), ("/opt/memory", "1", "1")):
        machine.run("mknod", "--mode=666", node, "c", major, minor)
    machine.write("/opt/probe.py", PROBE)
    text = UNIT.read_text().replace("Type=notify", "Type=oneshot").replace("-/etc/", "/etc/")
    text = text.replace(f"{PREFIX}/bin/{NAME} serve $ARGS", f"{PREFIX}/bin/python /opt/probe.py")
    out = "[Service]\nStandardOutput=file:/var/log/probe\nStandardError=file:/var/log/probe\n"
    machine.write("/etc/systemd/system/probe.service.d/log.conf", out)
    machine.write("/etc/systemd/system/probe.service", text)
    machine.run("systemctl", "start", "probe")
    assert machine.run("cat", "/var/log/probe").stdout == SANDBOX.removeprefix("\n")


def test_the_documented_drop_in_takes_its_rights_away(machine: Machine) -> None:
    readme = (DEPLOY / "README.md").read_text()
    (drop_in,) = (part for part in readme.split("```") if "AmbientCapabilities=" in part)
    with started(machine, drop_in.removeprefix("ini\n")):
        assert private() == [0, 0]
        assert "gpu_host_cpus" in scraped().names


def test_a_standstill_ends_in_a_restart(machine: Machine) -> None:
    with started(machine, IMPATIENT):
        pid = machine.show("MainPID")
        machine.run("kill", "-STOP", pid)
        machine.wait_for("NRestarts", "1")
        machine.wait_for("ActiveState", "active")
        assert machine.show("MainPID") != pid


def test_bad_settings_are_not_tried_again(machine: Machine) -> None:
    bad = f"{IMPATIENT}Environment=GPU_EXPORTER_SAMPLING_INTERVAL=60\n"
    machine.write(f"{DROP_INS}/test.conf", bad)
    assert machine.run("systemctl", "start", NAME).returncode != 0
    assert machine.show("ActiveState") == "failed"
    assert (machine.show("ExecMainStatus"), machine.show("NRestarts")) == ("2", "0")
    assert "--sampling.interval must be" in machine.log
    machine.run("systemctl", "reset-failed", NAME)
