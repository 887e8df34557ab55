"""A model behind gRPC: `python -m stacks.loops.calls burn|infer`."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc

from stacks.loops.common import HOST, PORT, WAIT, burn
from stacks.loops.gpu import STEP, hold, ready, warm

_gpu = hold()
_one_at_a_time = threading.Lock()


def _answer(_request: bytes, _context: grpc.ServicerContext) -> bytes:
    if sys.argv[1] == "burn":
        burn(WAIT)
    with _one_at_a_time:
        _gpu.run(STEP)
    return b"done"


def main() -> None:
    """Serve until killed."""
    server = grpc.server(ThreadPoolExecutor(8))
    methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]]
    methods = {"Get": grpc.unary_unary_rpc_method_handler(_answer)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("stacks", methods)])
    server.add_insecure_port(f"{HOST}:{PORT}")
    server.start()
    warm(_gpu)
    ready()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
