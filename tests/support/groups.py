"""Real control groups that belong to a user, with names of any bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.leftovers import mark
from support.waiting import until

MOUNTS = {name: Path("/sys/fs/cgroup") / name for name in ("pids", "unified")}
"""A hierarchy of v1, and one of v2."""
USER = 54321
"""The user to whom the groups belong."""


def container(number: int) -> str:
    """The folder of container `number`; names sort as they are nested."""
    return f"docker-{number:064x}.scope"


@contextmanager
def group(mount: Path, *names: bytes) -> Iterator[int]:
    """A descriptor of the innermost of nested groups; the first one belongs to a user."""
    opened = [os.open(mount, os.O_DIRECTORY)]
    try:
        for name in names:
            os.mkdir(name, dir_fd=opened[-1])
            opened.append(os.open(name, os.O_DIRECTORY, dir_fd=opened[-1]))
        os.fchown(opened[1], USER, USER)
        yield opened[-1]
    finally:
        for name, parent in zip(reversed(names[: len(opened) - 1]), opened[-2::-1], strict=True):
            until(lambda: _removed(name, parent), "an empty group")  # noqa: B023
        for descriptor in opened:
            os.close(descriptor)


def _removed(name: bytes, parent: int) -> bool:
    try:
        os.rmdir(name, dir_fd=parent)
    except OSError:
        return False
    return True


def move(pid: int, folder: int) -> None:
    """Move process `pid` into the group that descriptor `folder` is."""
    procs = os.open("cgroup.procs", os.O_WRONLY, dir_fd=folder)
    try:
        os.write(procs, b"%d" % pid)
    finally:
        os.close(procs)


def usable(mount: Path) -> Path:
    try:
        (mount / mark()).mkdir()
        (mount / mark()).rmdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    return mount
