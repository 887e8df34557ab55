"""A gRPC server that answers late: `... NAME MILLISECONDS`."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc

from stacks.servers.listen import announce

_REPLY = bytes(65536)


def started(get: Callable[[], bytes], port: int = 0) -> tuple[grpc.Server, int]:
    """A server that answers what `get` returns, and its port."""

    def unary(_request: bytes, _context: grpc.ServicerContext) -> bytes:
        return get()

    server = grpc.server(ThreadPoolExecutor(16))
    methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]]
    methods = {"Get": grpc.unary_unary_rpc_method_handler(unary)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("stacks", methods)])
    found = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    return server, found


def main(name: str, milliseconds: str) -> None:
    """Serve until killed."""

    def get() -> bytes:
        time.sleep(float(milliseconds) / 1000)
        return _REPLY

    server, port = started(get)
    announce(name, port)
    server.wait_for_termination()
