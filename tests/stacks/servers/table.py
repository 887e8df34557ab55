"""The servers for cases, each a separate process: remote machines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Server:
    """A module here and its arguments; it writes NAME.port into the case's folder once it is up."""

    module: str
    arguments: tuple[str, ...] = ()
    venv: str = "light"
    programs: tuple[str, ...] = ()
    """That it takes."""


def _server(words: str, venv: str = "light", programs: str = "") -> Server:
    module, *arguments = words.split()
    return Server(module, tuple(arguments), venv, tuple(programs.split()))


SERVERS = {
    "http": _server("http"),
    "tls": _server("http tls"),
    "lines": _server("sockets answers 0.12"),
    "late": _server("sockets answers 5"),
    "late-8": _server("sockets answers 8"),
    "late-25": _server("sockets answers 25"),
    "push": _server("sockets push 0.6"),
    **{
        how: _server(f"sockets {how}")
        for how in ("tracker", "pushes", "queue", "takes", "datagrams", "client")
    },
    "rpc": _server("rpc 120"),
    "s3": _server("s3 100", "s3"),
    "redis": _server("broker", programs="redis-server"),
    "mosquitto": _server("broker", programs="mosquitto"),
    "publish": _server("publish 0.12", "services"),
    "publish-much": _server("publish 0.002", "services"),
    "kafka": _server("publish 0.12", "services"),
    "kafka-much": _server("publish 0.002", "services"),
    "kafka-idle": _server("publish 0", "services"),
    "quic": _server("quic", "services"),
    "fuse": _server("fuse cached", programs="fusermount3"),
    "fuse-direct": _server("fuse direct", programs="fusermount3"),
    # Clients of the loop, and of a gateway.
    "ask": _server("clients http 1 0"),
    "ask-much": _server("clients http 6 0"),
    "ask-crowd": _server("clients http 8 0"),
    "ask-seldom": _server("clients http 1 0.4"),
    "call": _server("clients grpc 1 0"),
    "call-much": _server("clients grpc 6 0"),
    "ask-gateway": _server("clients gateway 1 0"),
    "ask-gateway-seldom": _server("clients gateway 1 0.4"),
    # Programs that feed the loop, by their work.
    **{
        f"gateway-{how}-{work}": _server(f"gateway {work} {how}")
        for work in ("burn", "fetch", "hardly")
        for how in ("keep", "anew")
    },
    **{
        f"sidecar-{joint}-{work}": _server(f"sidecar {joint} {work}")
        for joint in ("unix", "fifo", "tcp", "ipc", "ask", "gateway", "gateway-anew")
        for work in ("burn", "disk", "fetch", "rest", "hardly")
    },
    "sidecar-pod-burn": _server("sidecar pod burn", programs="ip nsenter"),
    "sidecar-pod-gateway-burn": _server("sidecar pod-gateway burn", programs="ip nsenter"),
}
