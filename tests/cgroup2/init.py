"""The first process of the small machine: mounts, the tests, and the end. Runs there only."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_RESTART = 0x01234567
"""RB_AUTOBOOT: the machine is set to exit on reboot."""
MOUNTS = (
    ("devtmpfs", "/dev"),
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("tmpfs", "/run"),
    ("cgroup2", "/sys/fs/cgroup"),
    ("tmpfs", "/dev/shm"),  # noqa: S108 - a machine of its own
)


def main() -> None:
    """Run the command that the kernel passes, and report how it ended."""
    for kind, point in MOUNTS:
        Path(point).mkdir(parents=True, exist_ok=True)
        _libc.mount(kind.encode(), point.encode(), kind.encode(), 0, None)
    os.environ.update(PATH="/usr/sbin:/usr/bin:/sbin:/bin", HOME="/root", CI="true")
    os.chdir(os.environ["TESTS"])
    child = subprocess.Popen([sys.executable, "-m", "pytest", *os.environ["PYTEST"].split(",")])
    status = None
    while status is None:
        pid, ended = os.wait()  # orphans become children of the first process
        if pid == child.pid:
            status = os.waitstatus_to_exitcode(ended)
    sys.stdout.write(f"\nended with {status}\n")
    sys.stdout.flush()
    os.sync()
    _libc.reboot(_RESTART)


if __name__ == "__main__":
    main()
