"""A model behind gRPC: `python -m stacks.loops.calls burn|infer`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc

from stacks.loops.common import HOST, PORT, WORKS
from stacks.loops.gpu import Model


def main(work: str) -> None:
    """Serve until killed."""
    model = Model()

    def answer(_request: bytes, _context: grpc.ServicerContext) -> bytes:
        WORKS[work]()
        model.infer()
        return b"done"

    server = grpc.server(ThreadPoolExecutor(8))
    methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]]
    methods = {"Get": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("stacks", methods)])
    server.add_insecure_port(f"{HOST}:{PORT}")
    server.start()
    model.load()
    server.wait_for_termination()
