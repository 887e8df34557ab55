"""What tells that processes which hold different GPUs are of one job."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

from gpu_bottleneck_exporter.feeders.job import network_namespace
from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.host.process import parse_stat

GROUP = "group"
_SPAWNED = ("from multiprocessing.spawn import ", "from multiprocessing.forkserver import ")
_NAMES_HERE = frozenset({"localhost", "localhost.localdomain", "ip6-localhost"})
Key = tuple[str, ...]


def job_keys(proc: Path, pid: int) -> set[Key]:
    """Equal for processes of one job: the process itself, its group, those started beside it.

    The group is what torchrun and its like put into the environment, which only the
    same user or one with CAP_SYS_PTRACE may read; it counts among processes of one owner, and an
    address of this machine itself within one network namespace. Siblings are processes that
    Python's multiprocessing started for one parent.
    """
    keys: set[Key] = {("process", str(pid))}
    group = _group(proc, pid)
    siblings = _siblings(proc, pid)
    return keys | ({group} if group else set()) | ({siblings} if siblings else set())


def _group(proc: Path, pid: int) -> Key | None:
    entries = (read(proc / str(pid) / "environ") or "").split("\0")
    variables = dict(entry.partition("=")[::2] for entry in entries)
    address, port = variables.get("MASTER_ADDR"), variables.get("MASTER_PORT")
    if not address or not port or variables.get("WORLD_SIZE", "1") == "1":
        return None
    return (
        GROUP,
        address,
        port,
        _owner(proc, pid),
        f"{network_namespace(proc, pid)}" if _is_here(address) else "",
    )


def _siblings(proc: Path, pid: int) -> Key | None:
    command = read(proc / str(pid) / "cmdline") or ""
    stat = read(proc / str(pid) / "stat")
    if not command or not stat:
        return None
    parent = parse_stat(stat.encode()).parent
    forked = command == read(proc / str(parent) / "cmdline")
    spawned = any(words in command for words in _SPAWNED)
    return ("siblings", str(parent), _owner(proc, pid)) if forked or spawned else None


def _owner(proc: Path, pid: int) -> str:
    try:
        return str((proc / str(pid)).stat().st_uid)
    except OSError:
        return ""


def _is_here(address: str) -> bool:
    if address in _NAMES_HERE:
        return True
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False
