"""User names by user id, if the names known here are the host's."""

from __future__ import annotations

import pwd
import time
from functools import partial
from pathlib import Path

from gpu_bottleneck_exporter.host.aside import Aside
from gpu_bottleneck_exporter.host.mounts import mount_points
from gpu_bottleneck_exporter.host.signals import in_hosts_pid_namespace

_PATIENCE_SECONDS = 0.05
"""How long a thread that samples waits for a name; a later one is used from the next read on."""
_AGAIN_SECONDS = 600.0
"""Between two look-ups of a user without a name."""
_LONGEST = 64
"""A directory service may allow names that useradd does not; they become label values."""


def known_name(uid: int) -> str | None:
    """The name from /etc/passwd or a directory service, which may be slow; None without one.

    A name of digits only would pass for the user with that number.
    """
    try:
        name = pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return None
    is_label = len(name) <= _LONGEST and name.isprintable() and not name.isdecimal()
    return name if is_label else None


class UserNames:
    """Names by user id; the id as text if there is none.

    A container's own /etc/passwd does not describe the host's users, except that 0 is root.
    """

    def __init__(self, proc: Path, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        """`proc`: the host's; `patience_seconds`: how long a caller waits for a name."""
        self._look_up = known_name
        self._ours_are_the_hosts = _users_are_the_hosts(proc)
        self._known: dict[int, str] = {0: "root"}
        self._due: dict[int, float] = {}
        self._directory = Aside(patience_seconds)

    def of(self, uid: int) -> str:
        """The name of user `uid`."""
        due = uid not in self._known and time.monotonic() >= self._due.get(uid, 0.0)
        if due and self._ours_are_the_hosts:
            # As of one process, so that one question at a time waits for an answer.
            self._directory.call(0, partial(self._learn, uid))
        return self._known.get(uid, str(uid))

    def _learn(self, uid: int) -> None:
        self._due[uid] = time.monotonic() + _AGAIN_SECONDS
        if name := self._look_up(uid):
            self._known[uid] = name


def _users_are_the_hosts(proc: Path) -> bool:
    """Whether our root folder is that of the machine's process 1, and so our /etc/passwd."""
    ours = _root(proc / "self")
    return bool(in_hosts_pid_namespace(proc)) and ours is not None and ours == _root(proc / "1")


def _root(process: Path) -> tuple[str, str] | None:
    """Device and folder of the root mount of `process`.

    Mount ids cannot be compared: a service with its own mount namespace has different ones.
    """
    mount = mount_points(process).get("/")
    return (mount.device, mount.root) if mount else None
