"""What is not public of uvicorn and asyncio, and the server builds on: that it is still there.

Where one of these fails, read what the new version does instead before its bound in pyproject.toml
is raised: an override of a method that is no longer called takes a client's limits away unseen.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from asyncio.sslproto import SSLProtocol
from importlib.metadata import requires, version

import pytest
import uvicorn
from packaging.requirements import Requirement
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from gpu_bottleneck_exporter.errors import ExporterError
from gpu_bottleneck_exporter.web import handshake
from gpu_bottleneck_exporter.web.handshake import TlsConnection, check_asyncio
from gpu_bottleneck_exporter.web.protocol import LimitedProtocol
from gpu_bottleneck_exporter.web.server import _Server
from supply.audit import locked

OVERRIDDEN: list[tuple[type, type, set[str]]] = [
    (
        LimitedProtocol,
        H11Protocol,
        {
            *("connection_made", "connection_lost", "data_received", "on_response_complete"),
            *("pause_writing", "resume_writing", "send_400_response"),
        },
    ),
    (
        TlsConnection,
        SSLProtocol,
        {
            *("connection_made", "connection_lost", "pause_writing", "resume_writing"),
            *("_on_handshake_complete", *(("max_size",) if sys.version_info >= (3, 11) else ())),
        },
    ),
    (_Server, uvicorn.Server, {"startup", "main_loop", "shutdown", "capture_signals"}),
]


@pytest.mark.parametrize(("ours", "base", "names"), OVERRIDDEN)
def test_what_is_overridden_is_there(ours: type, base: type, names: set[str]) -> None:
    shared = {name for name in vars(ours) if hasattr(base, name) and not name.endswith("__")}
    assert shared == names


async def nothing(_scope: object, _receive: object, _send: object) -> None:
    """An application."""


def test_what_uvicorns_connections_and_server_have() -> None:
    config = uvicorn.Config(
        nothing, interface="asgi3", http=LimitedProtocol, ws="none", lifespan="off"
    )
    config.load()
    server = uvicorn.Server(config)
    loop = asyncio.new_event_loop()
    try:
        found = H11Protocol(config, server.server_state, {}, _loop=loop)
    finally:
        loop.close()
    assert vars(found).keys() >= {
        *("loop", "transport", "conn", "flow", "cycle", "app_state"),
        *("timeout_keep_alive", "timeout_keep_alive_task"),
    }
    assert vars(server).keys() >= {"config", "server_state", "should_exit"}
    assert vars(ServerState()).keys() >= {"tasks", "connections"}
    assert inspect.iscoroutinefunction(uvicorn.Server.on_tick)
    assert "write_paused" in FlowControl.__init__.__code__.co_names
    assert "response_complete" in RequestResponseCycle.__init__.__code__.co_names


def test_what_asyncios_tls_has() -> None:
    check_asyncio()


def test_another_asyncio_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        """Of a Python to come."""

        def __init__(self, loop: object) -> None:
            pass

    monkeypatch.setattr(handshake, "SSLProtocol", Other)
    with pytest.raises(ExporterError, match=r"Python 3\.\d+") as refused:
        check_asyncio()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["uvicorn", "h11"])
def test_they_are_bounded_above_and_what_is_shipped_is_within(name: str) -> None:
    found = map(Requirement, requires("gpu-bottleneck-exporter") or ())
    (wanted,) = (one for one in found if one.name == name and one.marker is None)
    assert any(bound.operator == "<" for bound in wanted.specifier)
    assert locked()[name] in wanted.specifier
    assert version(name) in wanted.specifier
