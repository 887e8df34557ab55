"""A small machine with Debian's kernel, emulated in software, that runs tests and exits."""

from __future__ import annotations

import contextlib
import platform
import subprocess
import tempfile
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


def run(*arguments: str) -> str:
    """Output of pytest with `arguments` on the machine's console, until that ends.

    Skips if the machine cannot be made: other processors, no Debian, no qemu.
    """
    if platform.machine() != "x86_64":
        missing("the kernel is Debian's for x86_64")
    qemu = require("qemu-system-x86_64", "qemu-system-x86")
    kernel = fetched.kernel(KERNEL)
    with tempfile.TemporaryDirectory() as name:
        disk, staging, console = (Path(name, part) for part in ("disk", "staging", "console"))
        staging.mkdir()
        console.touch()
        image.make(disk, staging)
        command = [qemu, *_options(kernel, disk, arguments), "-serial", f"file:{console}"]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, timeout=PATIENCE_SECONDS, check=False)
        return console.read_text(errors="replace").replace("\r", "")


def _options(kernel: Path, disk: Path, arguments: tuple[str, ...]) -> list[str]:
    # The kernel passes parameters that it does not know as variables.
    text = " ".join(
        [
            "console=ttyS0 root=/dev/nvme0n1 rw panic=-1 psi=1 quiet loglevel=3",
            f"init={image.INIT} {INSIDE}=1 PYTEST={','.join(arguments)}",
            f"TESTS={image.TESTS.parent} PYTHONPATH={image.PACKAGE.parent}",
        ]
    )
    return [
        *("-accel", "tcg", "-cpu", "max", "-smp", _CORES, "-m", _MEMORY),
        *("-drive", f"file={disk},if=none,id=disk,format=raw,cache=unsafe"),
        *("-device", "nvme,drive=disk,serial=1"),
        *("-kernel", f"{kernel}", "-append", text),
        *("-nodefaults", "-display", "none", "-no-reboot"),
    ]
