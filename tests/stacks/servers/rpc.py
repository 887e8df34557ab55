"""A gRPC server that answers late: `... NAME MILLISECONDS`.

/stacks/Get answers once, /stacks/Stream every MILLISECONDS.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc

from stacks.servers.listen import announce

_REPLY = bytes(65536)


def main(name: str, milliseconds: str) -> None:
    """Serve until killed."""

    def get(_request: bytes, _context: grpc.ServicerContext) -> bytes:
        time.sleep(float(milliseconds) / 1000)
        return _REPLY

    def stream(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        while context.is_active():
            yield get(request, context)

    server = grpc.server(ThreadPoolExecutor(16))
    methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Get": grpc.unary_unary_rpc_method_handler(get),
        "Stream": grpc.unary_stream_rpc_method_handler(stream),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("stacks", methods)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    announce(name, port)
    server.wait_for_termination()
