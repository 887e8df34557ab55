"""Ways to run a program with fewer rights than the tests have.

A way is the words to put before a command. Tests skip what this machine does not allow, and fail
under CI=true, where nothing may be missing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pynvml

import gpu_bottleneck_exporter
from support.tools import missing, require

Way = tuple[str, ...]

AS_WE_ARE: Way = ()
NOBODY = 65534
"""A user and a group that own nothing."""
_PROGRAMS = (sys.executable, os.__file__, pynvml.__file__, gpu_bottleneck_exporter.__file__)
_READABLE = 'for file; do test -r "$file" || exit 1; done'


def as_nobody(*capabilities: str, files: Iterable[Path]) -> Way:
    """Prefix for another user that has `capabilities` and can read the interpreter and `files`.

    If the interpreter lies in a home folder, that takes the right to read all files, but still
    not /proc of other users' processes: that takes the right to ptrace them.
    """
    plain = _usable(_nobody(capabilities))
    files = [*map(Path, _PROGRAMS), *files]
    for way in (plain, _nobody((*capabilities, "dac_read_search"))):
        if _runs((*way, "sh", "-c", _READABLE, "sh", *(f"{file.resolve()}" for file in files))):
            return way
    return missing(f"another user cannot read {' '.join(map(str, files))}")


def as_user(user: int, *capabilities: str) -> Way:
    """Prefix for `user`, and the group of the same number, with `capabilities` and never more."""
    return _usable((*_user(user, capabilities), "--no-new-privs"))


def with_a_network_of_its_own() -> Way:
    """Prefix for an own network namespace, where not even loopback is up."""
    return _unshared("--net")


def with_users_of_its_own() -> Way:
    """Prefix for an own user namespace, which maps no user: all are the overflow user."""
    return _unshared("--user")


def with_mounts_of_its_own() -> Way:
    """Prefix for an own mount namespace."""
    return _unshared("--mount")


def with_only_writable(folder: Path) -> Way:
    """Under a read-only root, in `/`, with `folder` as the only place for files."""
    mounts = "findmnt --list --noheadings --output=TARGET --submounts /"
    seal = f'{mounts} | while read -r at; do mount -o remount,bind,ro "$at" || true; done'
    keep = f"mount --bind '{folder}' '{folder}'"
    return (
        *_unshared("--mount"),
        *_after(keep, seal, f"mount -o remount,bind,rw '{folder}'", "cd /"),
    )


def with_proc_hiding_others(hidepid: int | str) -> Way:
    """Prefix that mounts /proc with `hidepid`; 1 hides other users' data, 2 their pids, too.

    ptraceable: hides processes that may not be traced.
    """
    return (*_unshared("--mount"), *_after(f"mount -t proc -o hidepid={hidepid} proc /proc"))


def with_cgroups_of_its_own(groups: Sequence[Path], *, mounted: bool) -> Way:
    """Prefix for `groups`, and a cgroup namespace with these as its roots.

    `mounted`: these are also all it sees of /sys/fs/cgroup, as in a container.
    """
    enter = [f"echo $$ > '{group}/cgroup.procs'" for group in groups]
    mount = [f"mount --bind '{group}' '{group.parent}'" for group in groups if mounted]
    return (*_after(*enter), *_unshared("--cgroup", "--mount"), *_after(*mount))


def _nobody(capabilities: Iterable[str]) -> Way:
    return _user(NOBODY, capabilities)


def _user(user: int, capabilities: Iterable[str]) -> Way:
    only = ",".join(["-all", *(f"+{name}" for name in sorted({*capabilities}))])
    sets = (f"--{kind}={only}" for kind in ("inh-caps", "ambient-caps", "bounding-set"))
    who = (f"--reuid={user}", f"--regid={user}", "--clear-groups")
    return (require("setpriv", "util-linux"), *who, *sets)


def _unshared(*what: str) -> Way:
    return _usable((require("unshare", "util-linux"), *what))


def _after(*commands: str) -> Way:
    return ("sh", "-ec", "\n".join([*commands, 'exec "$@"']), "sh")


def _usable(way: Way) -> Way:
    return way if _runs((*way, "true")) else missing(f"{' '.join(way)}: not permitted, or too old")


def _runs(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
