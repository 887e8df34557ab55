"""One gRPC call: to a real gRPC server, and to servers that are none."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_bottleneck_exporter.workload import podresources
from gpu_bottleneck_exporter.workload.podresources import KubeletTrouble, call
from support.kubelet import Kubelet, reply, with_gpus
from support.rows import rows
from support.waiting import PATIENCE_SECONDS

PODS = [with_gpus(f"train-{number}", "GPU-1") for number in range(200)]
LONG_SECONDS = PATIENCE_SECONDS
SHORT_SECONDS = 0.3
Serve = Callable[[socket.socket], object]
SETTINGS = bytes(3) + b"\x04" + bytes(5)
"""An empty SETTINGS frame, with which every HTTP/2 server begins."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kubelet.sock"


@pytest.fixture
def kubelet(path: Path) -> Iterator[Kubelet]:
    with Kubelet(path, *PODS) as serving:
        yield serving


def refused(path: Path, seconds: float = LONG_SECONDS) -> KubeletTrouble:
    with pytest.raises(KubeletTrouble) as caught:
        call(path, seconds)
    assert caught.value.sentence.isprintable()
    assert str(caught.value) == caught.value.sentence
    return caught.value


@contextlib.contextmanager
def server(path: Path, serve: Serve) -> Iterator[None]:
    """Anything that listens: `serve` gets the first connection."""
    done: Future[None] = Future()
    with socket.socket(socket.AF_UNIX) as listening:
        path.unlink(missing_ok=True)
        listening.bind(f"{path}")
        listening.listen()

        def run() -> None:
            with listening.accept()[0] as connection, contextlib.suppress(OSError):
                serve(connection)
            done.set_result(None)

        thread = threading.Thread(target=run)
        thread.start()
        yield
        done.result(LONG_SECONDS)
        thread.join()


def test_answers(kubelet: Kubelet) -> None:
    assert call(kubelet.path, LONG_SECONDS) == reply(PODS)
    kubelet.pods = ()
    assert call(kubelet.path, LONG_SECONDS) == b""
    kubelet.raw = os.urandom(3_000_000)
    assert call(kubelet.path, LONG_SECONDS) == kubelet.raw, "in many frames"


def test_a_slow_answer(kubelet: Kubelet) -> None:
    kubelet.answers.clear()
    result = refused(kubelet.path, SHORT_SECONDS)
    assert result.sentence == f"{kubelet.path} has not answered within 0.3 s"


@rows(
    "code, number, remedy",
    {
        "is busy": (grpc.StatusCode.RESOURCE_EXHAUSTED, 8, podresources.UNWELL),
        "forbids it": (grpc.StatusCode.PERMISSION_DENIED, 7, podresources.ROOT_ONLY),
        "fails": (grpc.StatusCode.INTERNAL, 13, podresources.UNWELL),
    },
)
def test_a_refusal(kubelet: Kubelet, code: grpc.StatusCode, number: int, remedy: str) -> None:
    kubelet.refusal = code
    result = refused(kubelet.path)
    assert result.sentence == f"{kubelet.path} refuses (gRPC status {number}: not%0Anow)"
    assert result.remedy == remedy


def test_another_service(path: Path) -> None:
    with Kubelet(path, service="v1alpha1.PodResourcesLister"):
        result = refused(path)
    assert "gRPC status 12" in result.sentence
    assert result.remedy == podresources.UPGRADE


def test_a_socket_without_a_server(path: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(f"{path}")
    assert refused(path).sentence == f"{path}: Connection refused"
    assert "too long" in refused(tmp_path / ("x" * 200)).sentence


def say_nothing(connection: socket.socket) -> None:
    while connection.recv(1 << 20):
        pass


def dribble(connection: socket.socket) -> None:
    connection.sendall(SETTINGS)
    while True:
        connection.sendall(b"\0\0\x08\x06\0\0\0\0\0" + bytes(8))  # a PING
        time.sleep(0.02)


@pytest.mark.parametrize("serve", [say_nothing, dribble])
def test_a_server_that_does_not_answer_is_given_up_on_in_time(path: Path, serve: Serve) -> None:
    with server(path, serve):
        assert "has not answered within" in refused(path, SHORT_SECONDS).sentence


def saying(answer: bytes) -> Serve:
    def serve(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(answer)

    return serve


CLOSED = "it closed the connection"


@rows(
    "answer, said",
    {
        "nothing": (b"", CLOSED),
        "settings": (SETTINGS, f"{CLOSED}|Broken pipe|Connection reset by peer"),
        "HTTP/1.1": (b"HTTP/1.1 400 Bad Request\r\n\r\n", CLOSED),
        "noise": (bytes(range(256)) * 99, "does not speak HTTP/2"),
        "no gRPC": (SETTINGS + b"\0\0\x01\x01\x05\0\0\0\x01\x88", "does not speak gRPC"),
        "reset": (SETTINGS + b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\x08", "it cancelled the call"),
        "goaway": (SETTINGS + b"\0\0\x08\x07\0\0\0\0\0" + bytes(8), "it cancelled the call"),
    },
)
def test_servers_that_are_no_grpc_server(path: Path, answer: bytes, said: str) -> None:
    with server(path, saying(answer)):
        result = refused(path)
    assert re.search(said, result.sentence), result


FRAMES = st.builds(
    lambda kind, flags, stream, body: (
        len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body
    ),
    st.integers(0, 10),
    st.integers(0, 255),
    st.sampled_from([0, 1, 1, 2, 3]),
    st.binary(max_size=20),
)


@given(st.lists(FRAMES, max_size=6).map(b"".join).map(SETTINGS.__add__))
@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_no_frames_are_too_strange(path: Path, answer: bytes) -> None:
    with server(path, saying(answer)), contextlib.suppress(KubeletTrouble):
        call(path, LONG_SECONDS)


def test_without_the_extra_it_explains_how_to_install_it(
    kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "h2.exceptions", None)  # as if it were not there
    result = refused(kubelet.path)
    assert "pip install 'gpu-bottleneck-exporter[kubernetes]'" in result.remedy
