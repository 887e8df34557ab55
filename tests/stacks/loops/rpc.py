"""Batches over gRPC: `python -m stacks.loops.rpc unary|stream [WHERE]`."""

from __future__ import annotations

from typing import Any

import grpc

from stacks.loops.common import HOST, Load, port

Get = Any
"""What grpc's stubs cannot infer without a message type."""


def unary() -> Load:
    """One call per batch."""
    channel = grpc.insecure_channel(f"{HOST}:{port('rpc')}")
    get: Get = channel.unary_unary("/stacks/Get")
    return lambda: get(b"")


def stream() -> Load:
    """One call, a message per batch: the server sends the next one only on request."""
    channel = grpc.insecure_channel(f"{HOST}:{port('rpc')}")
    stream: Get = channel.unary_stream("/stacks/Stream")
    messages = iter(stream(b""))
    return lambda: next(messages)
