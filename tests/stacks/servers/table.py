"""The servers for cases, each a separate process: remote machines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Server:
    """A command, which writes NAME.port into the case's folder once it is up."""

    command: tuple[str, ...]
    """`{folder}` and `{port}` are filled in; for the Python of `venv`, if that is named."""
    venv: str = "light"
    programs: tuple[str, ...] = ()


def _module(name: str, *arguments: str, venv: str = "light", programs: str = "") -> Server:
    command = ("-m", f"stacks.servers.{name}", *arguments)
    return Server(command, venv, tuple(programs.split()))


def _load(name: str, path: str, clients: int, pause: float) -> Server:
    return _module("load", name, path, f"{clients}", f"{pause}")


def _gateway(work: str, how: str) -> dict[str, Server]:
    """It, and clients of its own."""
    name = f"gateway-{how}-{work}"
    return {
        name: _module("gateway", name, work, how),
        f"ask-{name}": _module("load", f"ask-{name}", "/work", "1", "0", name),
        f"ask-{name}-seldom": _module("load", f"ask-{name}-seldom", "/work", "1", "0.4", name),
    }


def _sidecar(joint: str, work: str) -> Server:
    programs = "ip nsenter" if joint.startswith("pod") else ""
    return _module("sidecar", f"sidecar-{joint}-{work}", joint, work, programs=programs)


SIDECARS = [
    *(("unix", work) for work in ("burn", "disk", "fetch", "rest", "hardly")),
    *(("fifo", work) for work in ("burn", "disk", "fetch")),
    *(
        (joint, "burn")
        for joint in ("ipc", "tcp", "ask", "gateway", "gateway-anew", "pod", "pod-gateway")
    ),
    ("tcp", "fetch"),
]
GATEWAYS = [(work, how) for work in ("burn", "fetch", "hardly") for how in ("keep", "anew")]
SLOW = ("late", "late-8", "late-25", "tracker", "pushes", "queue", "takes", "datagrams")
SERVERS = {
    "http": _module("http", "http"),
    "tls": _module("http", "tls", "tls"),
    "lines": _module("lines", "lines", "120"),
    "push": _module("push", "push", "600"),
    **{how: _module("slow", how, how) for how in SLOW},
    "client": _module("slow", "client", "client", "{port}"),
    "rpc": _module("rpc", "rpc", "120"),
    "s3": _module("s3", "s3", "100", venv="s3"),
    "redis": _module("broker", "redis", programs="redis-server"),
    "mosquitto": _module("broker", "mosquitto", programs="mosquitto"),
    "publish": _module("publish", "publish", "0.12", venv="services"),
    "publish-much": _module("publish", "publish-much", "0.002", venv="services"),
    "kafka": _module("publish", "kafka", "0.12", venv="services"),
    "kafka-much": _module("publish", "kafka-much", "0.002", venv="services"),
    "kafka-idle": _module("publish", "kafka-idle", "0", venv="services"),
    "quic": _module("quic", "quic", venv="services"),
    "fuse": _module("fuse", "fuse", "cached", programs="fusermount3"),
    "fuse-direct": _module("fuse", "fuse-direct", "direct", programs="fusermount3"),
    # Clients of the loop.
    "ask": _load("ask", "/work", 1, 0.0),
    "ask-much": _load("ask-much", "/work", 6, 0.0),
    "ask-crowd": _load("ask-crowd", "/work", 8, 0.0),
    "ask-seldom": _load("ask-seldom", "/work", 1, 0.4),
    "call": _module("calls", "call", "1", "0"),
    "call-much": _module("calls", "call-much", "6", "0"),
    # Programs that feed the loop.
    **{name: one for pair in GATEWAYS for name, one in _gateway(*pair).items()},
    **{f"sidecar-{joint}-{work}": _sidecar(joint, work) for joint, work in SIDECARS},
}
