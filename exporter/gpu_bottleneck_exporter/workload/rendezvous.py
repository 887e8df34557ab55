"""Where the ranks of a distributed job meet: it shows which processes in many pods are one job."""

from __future__ import annotations

import hashlib
import re
import socket
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.host.process import network_namespace, user_id
from gpu_bottleneck_exporter.host.sockets import is_here

_NAMES_HERE = re.compile(r"(ip6-)?(localhost|loopback)[46]?(\.localdomain[46]?)?\.?", re.IGNORECASE)
_DIGITS = 12
Place = tuple[str, ...]


def rendezvous(proc: Path, pid: int, environment: str, unit: str = "") -> Place | None:
    """Address, port and user, the same for all processes of one job; None for a single process.

    `environment` is the text of /proc/PID/environ, where torchrun and similar launchers set
    MASTER_ADDR, MASTER_PORT and WORLD_SIZE. A loopback address is only unique within one network
    namespace and one `unit` (the process's container or Slurm job), so these are added to it.
    """
    variables = dict(entry.partition("=")[::2] for entry in environment.split("\0"))
    address, port = variables.get("MASTER_ADDR"), variables.get("MASTER_PORT")
    if not address or not port or variables.get("WORLD_SIZE", "1") == "1":
        return None
    where = ""
    if _is_here(address):  # in one network namespace of one machine, which its boot tells
        boot = (read(proc / "sys/kernel/random/boot_id") or "").strip()
        where = f"{boot}/{network_namespace(proc, pid)}/{unit}"
    return address, port, user_id(proc, pid), where


def named(place: Place) -> str:
    """A short hash of `place`: a plain address would disclose the job's network."""
    return hashlib.sha256("\0".join(place).encode(errors="replace")).hexdigest()[:_DIGITS]


def _is_here(address: str) -> bool:
    if _NAMES_HERE.fullmatch(address):
        return True
    with suppress(OSError, ValueError):  # also knows short forms such as `127.1`
        return is_here(IPv4Address(socket.inet_aton(address)))
    with suppress(ValueError):
        return is_here(IPv6Address(address))
    return False
