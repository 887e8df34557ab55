"""A small machine with Debian's kernel, emulated in software, that runs tests and exits."""

from __future__ import annotations

import platform
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cgroup2 import image
from support import fetched
from support.tools import missing, require

KERNEL = "linux-image-cloud-amd64"
"""Has NVMe and ext4 built in: needs no modules and no initial RAM disk."""
_CORES, _MEMORY = "2", "1536"
PATIENCE_SECONDS = 1500
INSIDE = "SMALL_MACHINE"
"""A variable that is set only there."""
_ENDED = re.compile(r"^ended with (-?\d+)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Said:
    """The machine's console output, and the exit status of the tests; None: it had none."""

    console: str
    status: int | None


def run(*arguments: str) -> Said:
    """Start pytest with `arguments` in the machine, and wait until it ends.

    Skips if the machine cannot be made: other processors, no Debian, no qemu.
    """
    if platform.machine() != "x86_64":
        missing("the kernel is Debian's for x86_64")
    qemu = require("qemu-system-x86_64", "qemu-system-x86")
    kernel = fetched.kernel(KERNEL)
    with tempfile.TemporaryDirectory() as name:
        disk, staging, console = (Path(name, part) for part in ("disk", "staging", "console"))
        staging.mkdir()
        image.make(disk, staging)
        command = [qemu, *_options(kernel, disk, arguments), "-serial", f"file:{console}"]
        return _said(command, console)


def _options(kernel: Path, disk: Path, arguments: tuple[str, ...]) -> list[str]:
    hardware = ["-accel", "tcg", "-cpu", "max", "-smp", _CORES, "-m", _MEMORY]
    drive = ["-drive", f"file={disk},if=none,id=disk,format=raw,cache=unsafe"]
    # The kernel passes parameters that it does not know as variables.
    told = " ".join(
        [
            "console=ttyS0 root=/dev/nvme0n1 rw panic=-1 psi=1 quiet loglevel=3",
            f"init={image.INIT} {INSIDE}=1 PYTEST={','.join(arguments)}",
            f"TESTS={image.TESTS.parent} PYTHONPATH={image.PACKAGE.parent}",
        ]
    )
    return [
        *hardware,
        *drive,
        *("-device", "nvme,drive=disk,serial=1"),
        *("-kernel", f"{kernel}", "-append", told),
        *("-nodefaults", "-display", "none", "-no-reboot"),
    ]


def _said(command: list[str], console: Path) -> Said:
    error = ""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
        error = done.stderr
    except subprocess.TimeoutExpired:
        error = f"not over within {PATIENCE_SECONDS} s"
    seen = console.read_text(errors="replace").replace("\r", "") if console.exists() else ""
    (*_, status) = (None, *_ENDED.findall(seen))
    return Said(f"{seen}\n{error}", None if status is None else int(status))
