"""A systemd of its own: process 1 of namespaces in which our unit is installed as documented.

Programs and kernel are this machine's. The machine must not notice: systemd knows no units
but ours (Debian's would empty /tmp, as at every boot), and can write nowhere but in memory.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import sysconfig
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

import gpu_bottleneck_exporter
from support.leftovers import mark
from support.rights import _usable
from support.tools import missing, require
from support.waiting import until

REPOSITORY = Path(__file__).resolve().parents[2]
DEPLOY = REPOSITORY / "exporter/deploy"
NAME = "gpu-bottleneck-exporter"
UNIT = DEPLOY / f"systemd/{NAME}.service"
README = (DEPLOY / "README.md").read_text(encoding="utf-8")
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
PREFIX = f"/opt/{NAME}"
"""Place in which the unit expects the program."""
BASE = "/opt/python"
"""Place of an interpreter from a home folder; its library too."""
LOG = f"/var/log/{NAME}"
_SYSTEMD = "/lib/systemd/systemd"
_CGROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
_UNITS = "/etc/systemd/system"
_WRITTEN = ("/run", "/etc/default", _UNITS, "/var", "/tmp", "/dev")  # noqa: S108 - in memory
_READ_ONLY = ("/", "/sys", "/proc/sys")
_DEVICES = {"null": "1 3", "zero": "1 5", "full": "1 7", "random": "1 8", "urandom": "1 9"}
_TARGETS = ("sysinit", "basic", "shutdown", "network", "multi-user", "idle")
_HOMES = ("/home", "/root", "/run/user")
"""Folders that `ProtectHome=` hides."""
_LOGGING = f"[Service]\nStandardOutput=append:{LOG}\nStandardError=append:{LOG}\n"
_CONSOLE = f"""#!{PREFIX}/bin/python
from gpu_bottleneck_exporter.cli import main
main()
"""


def setting(name: str) -> str:
    """The value of the unit's only line with `name`."""
    (value,) = re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)
    return str(value)


def fleets_configuration() -> str:
    """Prometheus' configuration for a fleet, as documented."""
    (config,) = re.findall(r"```yaml\n(global:.*?)```", README, re.DOTALL)
    return str(config)


def recorded_names() -> re.Pattern[str]:
    """Names that a Prometheus sends that evaluates the rules itself."""
    (rule,) = yaml.safe_load(fleets_configuration())["remote_write"][0]["write_relabel_configs"]
    return re.compile(rule["regex"])


@dataclass(frozen=True)
class Machine:
    """A running systemd."""

    enter: tuple[str, ...]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """`command` beside it, to its end."""
        return subprocess.run([*self.enter, *command], capture_output=True, text=True, check=False)

    def show(self, what: str, unit: str = NAME) -> str:
        """A property of the unit."""
        return self.run("systemctl", "show", "--property", what, "--value", unit).stdout.strip()

    def write(self, path: str, text: str) -> None:
        """Write a file, and let systemd read its units anew."""
        script = f"mkdir -p {Path(path).parent}; cat > {path}; systemctl daemon-reload"
        subprocess.run([*self.enter, "sh", "-ec", script], input=text, text=True, check=True)

    @property
    def log(self) -> str:
        """Log of the service."""
        return self.run("cat", LOG).stdout

    def wait_for(self, what: str, expected: str) -> None:
        """Wait until a property of our unit is `expected`."""
        status = "systemctl", "status", "--no-pager", NAME
        until(
            lambda: self.show(what) == expected,
            lambda: f"{what}={expected}: {self.run(*status).stdout}\n{self.log}",
        )


@contextmanager
def booted(folder: Path, files: Mapping[str, str]) -> Iterator[Machine]:
    """Our unit, `files` and the program in a machine whose `/opt/stage` is `folder`."""
    require(_SYSTEMD, "systemd")
    namespaces = ("--mount", "--pid", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child")
    way = _usable((require("unshare", "util-linux"), *namespaces))
    files = {
        **{f"{_UNITS}/{name}.target": "[Unit]\n" for name in _TARGETS},
        f"{_UNITS}/{NAME}.service": UNIT.read_text(),
        f"{_UNITS}/{NAME}.service.d/log.conf": _LOGGING,
        f"{PREFIX}/bin/{NAME}": _CONSOLE,
        **files,
    }
    with (
        _cgroup() as group,
        (folder / "console").open("wb") as console,
        subprocess.Popen(
            [
                *["sh", "-ec", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", *way],
                *["sh", "-ec", _boot(folder, files)],
            ],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
        ) as unshare,
    ):
        try:
            yield _up(unshare, folder / "console")
        finally:
            unshare.kill()  # and with it process 1 of the namespace, and with that all others


def _up(unshare: subprocess.Popen[bytes], console: Path) -> Machine:
    children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children")

    def machine() -> Machine:
        (child,) = children.read_text().split()
        spaces = (f"--{name}" for name in ("mount", "pid", "uts", "ipc"))
        return Machine((require("nsenter", "util-linux"), f"--target={child}", *spaces, "--"))

    def is_up() -> bool:
        if not children.exists() or not children.read_text().split():
            return False
        return machine().run("systemctl", "is-active", "idle.target").stdout == "active\n"

    until(
        is_up, lambda: f"systemd: {console.read_text()}", unless=lambda: unshare.poll() is not None
    )
    return machine()


def _boot(folder: Path, files: Mapping[str, str]) -> str:
    """The script that becomes systemd."""
    lines = [
        "mount --make-rprivate /",
        "mount -t proc proc /proc",
        "umount --recursive --lazy /sys/fs/cgroup",
        "mount -t tmpfs -o mode=755 tmpfs /opt",
        *_bind(folder, "/opt/stage"),
        *_program(),
        *(f"mount -t tmpfs -o mode=755 tmpfs {path}" for path in _WRITTEN),
        *(_here(Path(path), text) for path, text in files.items()),
        f"chmod +x {PREFIX}/bin/{NAME}",
        "mkdir -p /var/log /dev/mqueue /dev/pts /dev/shm",
        *(f"mknod -m 666 /dev/{name} c {numbers}" for name, numbers in _DEVICES.items()),
        "ln -s /opt/stage/console /dev/console",
        "mount --bind /proc/sys /proc/sys",
        *(f"mount -o remount,bind,ro {path}" for path in _READ_ONLY),
        "mount -t cgroup2 cgroup2 /sys/fs/cgroup",
        (
            f"exec env --ignore-environment container=test SYSTEMD_UNIT_PATH={_UNITS} "
            f"SYSTEMD_GENERATOR_PATH={_UNITS}/none PATH=/usr/sbin:/usr/bin:/sbin:/bin "
            f"{_SYSTEMD} --system --unit=idle.target --log-target=console --show-status=no"
        ),
    ]
    return "\n".join(lines)


def _program() -> Iterator[str]:
    """Environment of `python -m venv` and `pip install`, from the packages installed here."""
    base = Path(sys.base_prefix)
    if f"{base}".startswith(_HOMES):
        yield from _bind(base, BASE)
        base = Path(BASE)
    version = sysconfig.get_python_version()
    yield f"LD_LIBRARY_PATH={base}/lib {base}/bin/python{version} -m venv --without-pip {PREFIX}"
    yield from _bind(Path(gpu_bottleneck_exporter.__file__).parents[1], "/opt/ours")
    yield from _bind(Path(sysconfig.get_path("purelib")), "/opt/packages")
    site = f"{PREFIX}/lib/python{version}/site-packages"
    yield f"printf '/opt/ours\\n/opt/packages\\n' > {site}/here.pth"


def _bind(source: Path, target: str) -> Iterator[str]:
    yield f"mkdir -p {target}"
    yield f"mount --bind {shlex.quote(f'{source}')} {target}"


def _here(path: Path, text: str) -> str:
    return f"mkdir -p {path.parent}\nprintf %s {shlex.quote(text)} > {path}"


@contextmanager
def _cgroup() -> Iterator[Path]:
    """A cgroup v2 for systemd to be the root of its own."""
    mount = next((m for m in map(Path, _CGROUPS) if (m / "cgroup.controllers").exists()), None)
    if mount is None:
        missing("cgroup v2 is not mounted")
    group = mount / f"test-{mark()}-{uuid.uuid4().hex}"
    try:
        group.mkdir()
    except OSError as error:
        missing(f"cannot make a cgroup: {error}")
    try:
        yield group
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    (group / "cgroup.kill").write_text("1")
    folders = sorted(group.rglob("*/"), key=lambda path: len(path.parts), reverse=True)
    for folder in [*folders, group]:
        while "populated 1" in (folder / "cgroup.events").read_text():
            time.sleep(0.01)
        folder.rmdir()
