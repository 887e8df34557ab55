"""Which of the host's signals can be read here: depends on kernel, mounts and permissions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path

from gpu_bottleneck_exporter.host.aside import proc_reads
from gpu_bottleneck_exporter.host.cgroup import hidden, hierarchy, stalled_ns
from gpu_bottleneck_exporter.host.descriptors import may_borrow
from gpu_bottleneck_exporter.host.files import listed, read
from gpu_bottleneck_exporter.host.sockets import same_pids

_FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""Inode number of the machine's own PID namespace (PROC_PID_INIT_INO)."""


def host_signals(proc: Path, sysfs: Path, pids: Collection[int]) -> Mapping[str, bool]:
    """Whether each signal can be read. `proc`, `sysfs`: the host's.

    Signals that need permissions are tried on processes `pids`; without any, on process 1 unless
    that is us. Signals that cannot be determined at the moment are left out.
    """
    # A try on ourselves would prove nothing: in a container we may be process 1.
    tried = pids or (() if (proc / "self").resolve() == (proc / "1").resolve() else (1,))
    lost = {
        name
        for pid in pids
        if (text := read(f"{proc}/{pid}/cgroup"))
        for name in hidden(text, sysfs)
    }
    # Aside, for the lock of an execve.
    tries = [proc_reads.call(pid, partial(_tried_on, proc, pid)) or {} for pid in tried]
    found = {
        "psi_host": _gives_pressure(proc / "pressure/cpu"),
        "psi_cgroup": _cgroups_give_pressure(sysfs) and "unified" not in lost,
        "schedstat": (proc / "self/schedstat").exists(),
        "cgroup_cpu": "cpu" not in lost and _has_controller(sysfs, "cpu,cpuacct", "cpu"),
        "cgroup_memory": "memory" not in lost and _has_controller(sysfs, "memory", "memory"),
        **{name: _all(answers.get(name) for answers in tries) for name in _TRIED},
        "host_pids": _sees_all_processes(proc),
    }
    return {name: given for name, given in found.items() if given is not None}


def _tried_on(proc: Path, pid: int) -> Mapping[str, bool | None]:
    return {name: can_read(proc, pid) for name, can_read in _TRIED.items()}


def _all(answers: Iterable[bool | None]) -> bool | None:
    """Whether all known answers are true; None if none is known."""
    known = [answer for answer in answers if answer is not None]
    return all(known) if known else None


def _gives_pressure(path: Path) -> bool:
    return bool(stalled_ns(read(path) or ""))


def _cgroups_give_pressure(sysfs: Path) -> bool:
    """Cgroup v2 only. The root has pressure files on newer kernels only, so look below it too."""
    root = hierarchy(sysfs, "")
    files = (root / "cpu.pressure", *root.glob("*/cpu.pressure")) if root else ()
    return any(map(_gives_pressure, files))


def _has_controller(sysfs: Path, v1: str, name: str) -> bool:
    """Whether v1 has this hierarchy, or v2 the controller `name`."""
    first, unified = hierarchy(sysfs, v1), hierarchy(sysfs, "")
    if first and (first / f"{name}.stat").exists():
        return True
    return unified is not None and name in (read(unified / "cgroup.controllers") or "").split()


def _counts_io(proc: Path, pid: int) -> bool | None:
    return _is_readable(proc / f"{pid}/io")


def _is_readable(path: Path) -> bool | None:
    """Whether a file in a process's folder can be read; None if the process has ended."""
    return read(path) is not None or (False if path.parent.exists() else None)


def _tells_wait_channel(proc: Path, pid: int) -> bool | None:
    """Whether the wait channel can be read; None if the process is hidden, ended or awake."""
    process = proc / f"{pid}"
    path = process / "wchan"
    channel = read(path)
    if read(process / "stat") is None:
        return None  # hidepid hides all files of a process, which says nothing of this one
    if not channel:
        return _is_readable(path)
    if channel != "0":
        return True
    # It may be awake; following this link takes the same permission.
    return False if _succeeds((process / "root").readlink) is False else None


def _lends(proc: Path, pid: int) -> bool | None:
    """Whether we may inspect the sockets of a process; None if it has ended.

    We may not without the permission to ptrace, under a seccomp profile that blocks pidfd_getfd,
    before Linux 5.6, or if `proc` belongs to another PID namespace than ours.
    """
    if not same_pids(proc):
        return False
    return _succeeds(lambda: listed(f"{proc}/{pid}/fd", 1)) and may_borrow(pid)


def _succeeds(attempt: Callable[[], object]) -> bool | None:
    """Whether an `attempt` to read of a process does; None if the process has ended."""
    try:
        attempt()
    except FileNotFoundError:
        return None
    except OSError:
        return False
    return True


def _sees_all_processes(proc: Path) -> bool | None:
    """Whether neither a PID namespace nor hidepid hides processes; None if unknown."""
    ours = in_hosts_pid_namespace(proc)
    # hidepid makes other users' processes unreadable or invisible; process 1 is root's.
    return ours if not ours else read(f"{proc}/1/stat") is not None


def in_hosts_pid_namespace(proc: Path) -> bool | None:
    """Whether we are in the machine's own PID namespace; None if unknown."""
    try:
        return (proc / "self/ns/pid").stat().st_ino == _FIRST_PID_NAMESPACE
    except OSError:
        return None


_TRIED = {"process_io": _counts_io, "wait_channel": _tells_wait_channel, "connections": _lends}
"""Signals that need permissions, with what tries to read them of a process."""
