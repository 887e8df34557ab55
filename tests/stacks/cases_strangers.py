"""Loops that programs feed which are neither their children nor kin (servers/sidecar.py)."""

from __future__ import annotations

from gpu_bottleneck_exporter.accounting.stall import ASLEEP, NETWORK, STORAGE, WORKER_CPU

_BESIDE = {"disk": "fuse ", "fetch": "http "}
"""What the program itself waits for."""


def _fed(name: str, joint: str, expected: str, work: str = "burn") -> tuple[str, str, str, str]:
    return name, f"fed {joint}", expected, f"{_BESIDE.get(work, '')}sidecar-{joint}-{work}"


STRANGERS = (
    _fed("a UNIX socket, its peer decodes", "unix", WORKER_CPU),
    _fed("a UNIX socket, its peer reads files", "unix", STORAGE, "disk"),
    _fed("a UNIX socket, its peer fetches", "unix", NETWORK, "fetch"),
    _fed("a UNIX socket, its peer sleeps", "unix", ASLEEP, "rest"),
    _fed("a FIFO, its writer decodes", "fifo", WORKER_CPU),
    _fed("a FIFO, its writer reads files", "fifo", STORAGE, "disk"),
    _fed("a FIFO, its writer fetches", "fifo", NETWORK, "fetch"),
    _fed("ZeroMQ's PUSH over ipc, its sender decodes", "ipc", WORKER_CPU),
    _fed("ZeroMQ's PUSH over TCP, its sender decodes", "tcp", WORKER_CPU),
    _fed("ZeroMQ's PUSH over TCP, its sender fetches", "tcp", NETWORK, "fetch"),
    _fed("a tokeniser behind a UNIX socket", "ask", WORKER_CPU),
    ("a gateway that tokenises", "web standard infer", WORKER_CPU, "sidecar-gateway-burn"),
    (
        "a gateway that tokenises and connects anew",
        "web standard infer",
        WORKER_CPU,
        "sidecar-gateway-anew-burn",
    ),
    ("xz and tar, left in a shell's pipeline", "fed pipeline", WORKER_CPU, ""),
    _fed("healthy: a UNIX socket", "unix", "busy", "hardly"),
)
"""Name, loop, what is waited for, and servers."""
