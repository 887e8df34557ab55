"""A model behind gRPC: `python -m stacks.loops.calls burn|infer`."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc

from stacks.loops.common import HOST, PORT, STEP, WAIT, burn, hold, ready, warm

_gpu = hold()
_one_at_a_time = threading.Lock()


class Service(grpc.GenericRpcHandler):  # type: ignore[misc,unused-ignore]
    """Bytes in, bytes out: no generated protocol code is needed."""

    def service(
        self, _details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """Find the handler."""
        return grpc.unary_unary_rpc_method_handler(_answer)


def _answer(_request: bytes, _context: grpc.ServicerContext) -> bytes:
    if sys.argv[1] == "burn":
        burn(WAIT)
    with _one_at_a_time:
        _gpu.run(STEP)
    return b"done"


def main() -> None:
    """Serve until killed."""
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((Service(),))
    server.add_insecure_port(f"{HOST}:{PORT}")
    server.start()
    warm(_gpu)
    ready()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
