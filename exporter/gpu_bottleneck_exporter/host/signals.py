"""Which of the host's signals can be read here: depends on kernel, mounts and permissions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from gpu_bottleneck_exporter.host.borrow import may_borrow
from gpu_bottleneck_exporter.host.cgroup import hidden
from gpu_bottleneck_exporter.host.files import listed, read
from gpu_bottleneck_exporter.host.pressure import stalled_ns
from gpu_bottleneck_exporter.host.process import parse_stat
from gpu_bottleneck_exporter.host.sockets import same_pids

_FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""Inode number of the machine's own PID namespace (PROC_PID_INIT_INO)."""
_SLEEPING = "S"


def host_signals(proc: Path, sysfs: Path, feeding: Collection[int]) -> Mapping[str, bool]:
    """By signal, whether it can be read. `proc`, `sysfs`: the host's.

    Signals that need permissions are tried on the processes `feeding` GPUs; without any, on
    process 1 unless that is us. Signals that cannot be determined at the moment are left out.
    """
    tried = feeding or (() if _is_first_process(proc) else (1,))
    cgroups = sysfs / "fs/cgroup"
    lost = {
        name
        for pid in feeding
        if (text := read(proc / str(pid) / "cgroup"))
        for name in hidden(text, sysfs)
    }
    found = {
        "psi_host": _gives_pressure(proc / "pressure/cpu"),
        "psi_cgroup": _cgroups_give_pressure(cgroups) and "unified" not in lost,
        "schedstat": (proc / "self/schedstat").exists(),
        "cgroup_cpu": _has_controller(cgroups, "cpu", "cpu.stat") and "cpu" not in lost,
        "cgroup_memory": (
            _has_controller(cgroups, "memory", "memory.stat") and "memory" not in lost
        ),
    }
    doubtful = {
        "process_io": _all(_tells_io(proc / str(pid)) for pid in tried),
        "wait_channel": _all(_tells_wait_channel(proc / str(pid)) for pid in tried),
        "connections": _all(_lends(proc, pid) for pid in tried),
        "host_pids": _sees_all_processes(proc),
    }
    return found | {name: given for name, given in doubtful.items() if given is not None}


def _is_first_process(proc: Path) -> bool:
    """Whether we are process 1, as in a container: a try on ourselves would prove nothing."""
    return (proc / "self").resolve() == (proc / "1").resolve()


def _all(answers: Iterable[bool | None]) -> bool | None:
    """Whether all known answers are true; None if none is known."""
    known = [answer for answer in answers if answer is not None]
    return all(known) if known else None


def _gives_pressure(path: Path) -> bool:
    return bool(stalled_ns(read(path) or ""))


def _cgroups_give_pressure(cgroups: Path) -> bool:
    """Cgroup v2 only. The root has pressure files on newer kernels only, so look below it too."""
    root = _unified(cgroups)
    if root is None:
        return False
    if _gives_pressure(root / "cpu.pressure"):
        return True
    return any(_gives_pressure(path) for path in root.glob("*/cpu.pressure"))


def _has_controller(cgroups: Path, name: str, file: str) -> bool:
    if any((folder / file).exists() for folder in cgroups.glob(f"{name}*")):
        return True  # v1; cpu may be mounted as cpu,cpuacct
    root = _unified(cgroups)
    return root is not None and name in (read(root / "cgroup.controllers") or "").split()


def _unified(cgroups: Path) -> Path | None:
    for root in (cgroups, cgroups / "unified"):
        if (root / "cgroup.controllers").exists():
            return root
    return None


def _tells_io(process: Path) -> bool | None:
    """Whether /proc/PID/io can be read; None if the process has ended."""
    given = read(process / "io") is not None
    return given if given or process.exists() else None


def _tells_wait_channel(process: Path) -> bool | None:
    """Whether the wait channel can be read; None if the process has ended or is not asleep."""
    channel = read(process / "wchan")
    stat = parse_stat(read(process / "stat"))
    if stat is None or stat.state != _SLEEPING:
        return None
    if channel and channel != "0":
        return True
    # It may have fallen asleep between the two reads, or be asleep but still on a run queue.
    return None if channel and _may_trace(process) else False


def _lends(proc: Path, pid: int) -> bool | None:
    """Whether we may inspect the sockets of a process; None if it has ended.

    We may not without the permission to ptrace, under a seccomp profile that blocks pidfd_getfd,
    before Linux 5.6, or if `proc` belongs to another PID namespace than ours.
    """
    if not same_pids(proc):
        return False
    try:
        listed(proc / str(pid) / "fd", 1)
    except FileNotFoundError:
        return None
    except OSError:
        return False
    return may_borrow(pid)


def _may_trace(process: Path) -> bool:
    """Whether we may read wait channels; following the link `root` takes the same permission."""
    try:
        (process / "root").readlink()
    except OSError:
        return False
    return True


def _sees_all_processes(proc: Path) -> bool | None:
    """Whether neither a PID namespace nor hidepid hides processes; None if unknown."""
    ours = in_hosts_pid_namespace(proc)
    # hidepid makes other users' processes unreadable or invisible; process 1 is root's.
    return ours if not ours else read(proc / "1/stat") is not None


def in_hosts_pid_namespace(proc: Path) -> bool | None:
    """Whether we are in the machine's own PID namespace; None if unknown."""
    try:
        return (proc / "self/ns/pid").stat().st_ino == _FIRST_PID_NAMESPACE
    except OSError:
        return None
