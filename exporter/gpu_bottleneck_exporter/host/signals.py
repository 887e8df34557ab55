"""Availability of the host's signals by kernel, mounts and permissions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path

from gpu_bottleneck_exporter.host.aside import proc_reads
from gpu_bottleneck_exporter.host.cgroup import hidden_controllers, hierarchy, stalled_ns
from gpu_bottleneck_exporter.host.descriptors import may_borrow
from gpu_bottleneck_exporter.host.files import list_names, read
from gpu_bottleneck_exporter.host.sockets import same_pids

_HOST_PID_NAMESPACE_INODE = 0xEFFFFFFC
"""PROC_PID_INIT_INO."""


def host_signals(proc: Path, sysfs: Path, pids: Collection[int]) -> Mapping[str, bool]:
    """Whether each signal is readable, undetermined ones left out.

    Permissions are tried on processes `pids`, else on process 1.
    """
    # A try on ourselves proves nothing.
    tried = pids or (() if (proc / "self").resolve() == (proc / "1").resolve() else (1,))
    lost = {
        name
        for pid in pids
        if (text := read(f"{proc}/{pid}/cgroup"))
        for name in hidden_controllers(text, sysfs)
    }
    # With a timeout, for the lock of an execve.
    tries = [proc_reads.call(pid, partial(_try_on, proc, pid)) or {} for pid in tried]
    readable = {
        "psi_host": _has_pressure(proc / "pressure/cpu"),
        "psi_cgroup": _cgroups_have_pressure(sysfs) and "unified" not in lost,
        "schedstat": (proc / "self/schedstat").exists(),
        "cgroup_cpu": "cpu" not in lost and _has_controller(sysfs, "cpu,cpuacct", "cpu"),
        "cgroup_memory": "memory" not in lost and _has_controller(sysfs, "memory", "memory"),
        **{name: _all(answers.get(name) for answers in tries) for name in _PERMISSION_TRIALS},
        "host_pids": _shows_all_processes(proc),
    }
    return {name: value for name, value in readable.items() if value is not None}


def _try_on(proc: Path, pid: int) -> Mapping[str, bool | None]:
    return {name: can_read(proc, pid) for name, can_read in _PERMISSION_TRIALS.items()}


def _all(answers: Iterable[bool | None]) -> bool | None:
    """Whether all known answers are true; None if none is known."""
    definite = [answer for answer in answers if answer is not None]
    return all(definite) if definite else None


def _has_pressure(path: Path) -> bool:
    return bool(stalled_ns(read(path) or ""))


def _cgroups_have_pressure(sysfs: Path) -> bool:
    """Cgroup v2 only; the root has them on newer kernels only."""
    root = hierarchy(sysfs, "")
    files = (root / "cpu.pressure", *root.glob("*/cpu.pressure")) if root else ()
    return any(map(_has_pressure, files))


def _has_controller(sysfs: Path, v1: str, name: str) -> bool:
    first, unified = hierarchy(sysfs, v1), hierarchy(sysfs, "")
    if first and (first / f"{name}.stat").exists():
        return True
    return unified is not None and name in (read(unified / "cgroup.controllers") or "").split()


def _can_read_io(proc: Path, pid: int) -> bool | None:
    return _is_readable(proc / f"{pid}/io")


def _is_readable(path: Path) -> bool | None:
    """Whether a file of a process is readable; None if it has ended."""
    return read(path) is not None or (False if path.parent.exists() else None)


def _shows_wait_channel(proc: Path, pid: int) -> bool | None:
    """Whether the wait channel is readable; None if the process is hidden, ended or awake."""
    process = proc / f"{pid}"
    path = process / "wchan"
    channel = read(path)
    if read(process / "stat") is None:
        return None  # hidepid hides all files of a process
    if not channel:
        return _is_readable(path)
    if channel != "0":
        return True
    # Maybe awake; to follow this link takes the same permission.
    return False if _succeeds((process / "root").readlink) is False else None


def _can_query_sockets(proc: Path, pid: int) -> bool | None:
    """Whether we may query a process's sockets; None if it has ended.

    Needs the permission to ptrace, pidfd_getfd (Linux 5.6, seccomp), and our PID namespace.
    """
    if not same_pids(proc):
        return False
    return _succeeds(lambda: list_names(f"{proc}/{pid}/fd", 1)) and may_borrow(pid)


def _succeeds(attempt: Callable[[], object]) -> bool | None:
    try:
        attempt()
    except FileNotFoundError:
        return None
    except OSError:
        return False
    return True


def _shows_all_processes(proc: Path) -> bool | None:
    """Whether neither a PID namespace nor hidepid hides processes; None if unknown."""
    ours = in_hosts_pid_namespace(proc)
    # hidepid hides other users' processes; process 1 is root's.
    return ours if not ours else read(f"{proc}/1/stat") is not None


def in_hosts_pid_namespace(proc: Path) -> bool | None:
    """Whether we are in the machine's own PID namespace; None if unknown."""
    try:
        return (proc / "self/ns/pid").stat().st_ino == _HOST_PID_NAMESPACE_INODE
    except OSError:
        return None


_PERMISSION_TRIALS = {
    "process_io": _can_read_io,
    "wait_channel": _shows_wait_channel,
    "connections": _can_query_sockets,
}
"""Trial functions by signal."""
