"""Names of the host's users by user id."""

from __future__ import annotations

import pwd
import time
from functools import partial
from pathlib import Path

from gpu_bottleneck_exporter.host.aside import GuardedExecutor
from gpu_bottleneck_exporter.host.mounts import mount_points
from gpu_bottleneck_exporter.host.signals import in_hosts_pid_namespace

_NAME_TIMEOUT_SECONDS = 0.05
"""Time limit of a look-up; a later result is used next time."""


def known_name(uid: int) -> str | None:
    """The name from /etc/passwd or a slow directory service; None if it is no label.

    A name of digits would pass for a user id.
    """
    try:
        name = pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return None
    is_label = name.isprintable() and not name.isdecimal()
    return name if is_label and len(name) <= 64 else None  # noqa: PLR2004


class UserNames:
    """Caches user names by user id.

    Of a container's /etc/passwd, only root is the host's.
    """

    def __init__(self, proc: Path, timeout_seconds: float = _NAME_TIMEOUT_SECONDS) -> None:
        """`proc`: the host's; `timeout_seconds`: limit of a look-up."""
        self._look_up = known_name
        self._has_host_users = _is_host_root(proc)
        self._known: dict[int, str] = {0: "root"}
        self._due: dict[int, float] = {}
        self._directory = GuardedExecutor(timeout_seconds)

    def of(self, uid: int) -> str:
        """The name of user `uid`, or the id as text."""
        due = uid not in self._known and time.monotonic() >= self._due.get(uid, 0.0)
        if due and self._has_host_users:
            # As one process: one look-up at a time.
            self._directory.call(0, partial(self._update, uid))
        return self._known.get(uid, str(uid))

    def _update(self, uid: int) -> None:
        self._due[uid] = time.monotonic() + 600.0  # then retry
        if name := self._look_up(uid):
            self._known[uid] = name


def _is_host_root(proc: Path) -> bool:
    """Whether our root folder, so /etc/passwd, is that of process 1."""
    ours = _root(proc / "self")
    return bool(in_hosts_pid_namespace(proc)) and ours is not None and ours == _root(proc / "1")


def _root(process: Path) -> tuple[str, str] | None:
    """Device and folder of the root mount of `process`.

    Mount ids are not comparable across mount namespaces.
    """
    mount = mount_points(process).get("/")
    return (mount.device, mount.root) if mount else None
