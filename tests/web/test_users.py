"""Users and headers of the web configuration file, over plain HTTP."""

from __future__ import annotations

import base64
import concurrent.futures
import json
import logging
import math
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import bcrypt
import psutil
import pytest

from gpu_bottleneck_exporter.web.reload import WebConfigFile
from gpu_bottleneck_exporter.web.users import credentials
from support.command import ANY_PORT, Server, run, serving
from support.daemon import drain
from support.waiting import PATIENCE_SECONDS, eventually, until

if TYPE_CHECKING:
    from .conftest import Page, Reply, Serve


CHEAP, DEARER, DEAREST = 4, 5, 7
"""Costs of hashes: bcrypt allows nothing below 4."""


def hashed(password: str | bytes, cost: int = CHEAP) -> str:
    text = password if isinstance(password, bytes) else password.encode()
    return bcrypt.hashpw(text, bcrypt.gensalt(cost)).decode()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "web.yml", {"alice": hashed("right")})


def write(path: Path, users: Mapping[str, str], **headers: str) -> Path:
    path.write_text(
        json.dumps({"basic_auth_users": users, "http_server_config": {"headers": headers}})
    )
    return path


def basic(user: str | bytes, password: str | bytes) -> dict[str, str]:
    parts = (part if isinstance(part, bytes) else part.encode() for part in (user, password))
    return {"Authorization": "Basic " + base64.b64encode(b":".join(parts)).decode()}


class Checks:
    """Real checks, noted and, while the gate is closed, held up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.costs: list[int] = []
        self.passwords: list[bytes] = []
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self._real = bcrypt.checkpw
        monkeypatch.setattr(bcrypt, "checkpw", self._check)

    def _check(self, password: bytes, hashed_password: bytes) -> bool:
        self.costs.append(int(hashed_password[4:6]))
        self.passwords.append(password)
        self.entered.release()
        assert self.gate.wait(PATIENCE_SECONDS)
        return self._real(password, hashed_password)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    return Checks(monkeypatch)


def assert_challenged(reply: Reply) -> None:
    assert reply.status == 401
    assert reply.headers["www-authenticate"].startswith('Basic realm="gpu-bottleneck-exporter"')
    assert b"right" not in reply.body


@pytest.mark.parametrize(
    "path", ["/", "/metrics", "/api/v1/node", "/-/healthy", "/-/ready", "/nonsense"]
)
def test_every_page_asks_for_a_user_also_one_that_does_not_exist(
    serve: Serve, file: Path, path: str
) -> None:
    running = serve(web_config=file)
    assert_challenged(running.get(path))
    status = 404 if path == "/nonsense" else 200
    assert running.get(path, headers=basic("alice", "right")).status == status


@pytest.mark.parametrize(
    "headers",
    [
        basic("alice", "wrong"),
        basic("alice", ""),
        basic("alice", "right "),
        basic("Alice", "right"),
        basic("bob", "right"),
        basic("", ""),
        basic(b"\xff", b"\xff"),
        basic("alice", b"right\0"),
        {"Authorization": ""},
        {"Authorization": "Basic"},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Basic " + base64.b64encode(b"alice").decode()},
        {"Authorization": "Bearer " + base64.b64encode(b"alice:right").decode()},
        {"Authorization": "Basic \xfc"},
    ],
)
def test_all_else_is_refused(
    serve: Serve, file: Path, page: Page, headers: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    assert_challenged(serve(web_config=file).get("/metrics", headers=headers))
    assert page.accepted == []
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


PASSWORDS: Mapping[str, str | bytes] = {
    "colons": "a:b::",
    "non-ASCII": "päßwörd 🔑",
    "empty": "",
    "blanks": "  x  ",
    "no UTF-8": b"\xff\xfe",
}


@pytest.mark.parametrize("what", PASSWORDS)
def test_any_password_can_be_used(serve: Serve, tmp_path: Path, what: str) -> None:
    password = PASSWORDS[what]
    running = serve(web_config=write(tmp_path / "web.yml", {"jürgen": hashed(password)}))
    assert running.get("/metrics", headers=basic("jürgen", password)).status == 200
    other = (password if isinstance(password, bytes) else password.encode()) + b"x"
    assert running.get("/metrics", headers=basic("jürgen", other)).status == 401


def test_of_a_long_password_72_bytes_count_as_with_htpasswd(serve: Serve, tmp_path: Path) -> None:
    running = serve(web_config=write(tmp_path / "web.yml", {"a": hashed("x" * 72)}))
    assert running.get("/metrics", headers=basic("a", "x" * 100)).status == 200
    assert running.get("/metrics", headers=basic("a", "x" * 71)).status == 401


@pytest.mark.parametrize("kind", ["$2a$", "$2b$", "$2y$"])
def test_every_kind_of_hash(serve: Serve, tmp_path: Path, kind: str) -> None:
    text = kind + hashed("right")[4:]
    running = serve(web_config=write(tmp_path / "web.yml", {"a": text}))
    assert running.get("/metrics", headers=basic("a", "right")).status == 200


@pytest.mark.parametrize("user", ["007", "yes", "null", "1e3", "~"])
def test_a_user_may_be_called_anything(serve: Serve, tmp_path: Path, user: str) -> None:
    file = tmp_path / "web.yml"
    file.write_text(f"basic_auth_users:\n  {user}: {hashed('right')}\n")
    assert serve(web_config=file).get("/metrics", headers=basic(user, "right")).status == 200


def test_a_right_password_is_checked_once(serve: Serve, file: Path, checks: Checks) -> None:
    running = serve(web_config=file)
    for _ in range(5):
        assert running.get("/metrics", headers=basic("alice", "right")).status == 200
    assert checks.costs == [CHEAP]


def work(costs: list[int]) -> int:
    """What these checks take together: one more of cost is twice the work."""
    return sum(2**cost for cost in costs)


def test_wrong_and_unknown_cost_the_same_and_are_not_remembered(
    serve: Serve, tmp_path: Path, checks: Checks
) -> None:
    users = {"alice": hashed("a", DEARER), "bob": hashed("b"), "carol": hashed("c", DEAREST)}
    running = serve(web_config=write(tmp_path / "web.yml", users))
    for user in ("alice", "nobody", "", "bob", "carol"):
        for _ in range(2):
            checks.costs.clear()
            assert running.get("/metrics", headers=basic(user, "wrong")).status == 401
            assert work(checks.costs) == 2**DEAREST, user


def test_a_right_password_costs_its_own_hash_only(
    serve: Serve, tmp_path: Path, checks: Checks
) -> None:
    users = {"bob": hashed("b"), "carol": hashed("c", DEAREST)}
    running = serve(web_config=write(tmp_path / "web.yml", users))
    assert running.get("/metrics", headers=basic("bob", "b")).status == 200
    assert checks.costs == [CHEAP]


def test_an_unknown_user_with_somebodys_password_stays_out(
    serve: Serve, file: Path, checks: Checks
) -> None:
    running = serve(web_config=file)
    for _ in range(2):
        assert running.get("/metrics", headers=basic("bob", "right")).status == 401
    assert running.get("/metrics", headers=basic("alice", "right")).status == 200
    assert running.get("/metrics", headers=basic("bob", "right")).status == 401
    assert len(checks.costs) == 4


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Basic !"}])
def test_without_a_password_nothing_is_checked(
    serve: Serve, file: Path, checks: Checks, headers: dict[str, str]
) -> None:
    assert serve(web_config=file).get("/metrics", headers=headers).status == 401
    assert checks.costs == []


def test_known_users_are_answered_while_a_password_is_checked(
    serve: Serve, file: Path, checks: Checks
) -> None:
    running = serve(web_config=file)
    assert running.get("/metrics", headers=basic("alice", "right")).status == 200
    checks.gate.clear()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        stranger = pool.submit(running.get, "/metrics", headers=basic("alice", "wrong"))
        try:
            assert checks.entered.acquire(timeout=PATIENCE_SECONDS)
            for path in ("/metrics", "/-/healthy", "/"):
                assert running.get(path, headers=basic("alice", "right")).status == 200
            assert running.get("/metrics").status == 401
            assert not stranger.done()
        finally:
            checks.gate.set()
        assert stranger.result(PATIENCE_SECONDS).status == 401


def request(user: str, password: str) -> bytes:
    value = basic(user, password)["Authorization"].encode()
    return b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: " + value + b"\r\n\r\n"


GUESSERS = 50


def test_new_clients_come_in_beside_many_wrong_passwords(serve: Serve, tmp_path: Path) -> None:
    names = [f"new{n}" for n in range(10)]
    running = serve(
        web_config=write(tmp_path / "web.yml", dict.fromkeys(names, hashed("right", DEARER)))
    )
    guessing = threading.Event()
    guessing.set()

    def guess(number: int) -> None:
        tries = 0
        while guessing.is_set():
            wrong = basic(names[0], f"wrong {number} {tries}")
            assert running.get("/metrics", headers=wrong).status == 401
            tries += 1

    with concurrent.futures.ThreadPoolExecutor(GUESSERS) as pool:
        guesses = [pool.submit(guess, number) for number in range(GUESSERS)]
        try:
            eventually(lambda: len(running.server.connections) >= GUESSERS)
            asked = [running.get("/metrics", headers=basic(name, "right")).status for name in names]
        finally:
            guessing.clear()
        assert [guess.result(PATIENCE_SECONDS) for guess in guesses] == [None] * GUESSERS
    assert asked == [200] * len(names)


def test_who_made_way_no_longer_waits(serve: Serve, file: Path, checks: Checks) -> None:
    running = serve(web_config=file, connections=5, stay=0)
    checks.gate.clear()
    first = [running.connect(request("alice", "wrong 0"))]
    assert checks.entered.acquire(timeout=PATIENCE_SECONDS)
    first += [running.connect(request("alice", f"wrong {number}")) for number in range(1, 5)]
    eventually(lambda: [one.deadline for one in running.server.connections] == [math.inf] * 5)
    last = [running.connect(request("alice", "right")) for _ in range(5)]
    assert [drain(client) for client in first] == [b""] * 5
    checks.gate.set()
    assert [client.recv(12) for client in last] == [b"HTTP/1.1 200"] * 5
    assert checks.passwords[:2] == [b"wrong 0", b"right"]


def test_a_password_that_is_being_checked_does_not_delay_the_end(tmp_path: Path) -> None:
    # A hash of this cost takes seconds; it need not be anybody's.
    slow = hashed("right").replace("$04$", "$16$")
    write(tmp_path / "web.yml", {"alice": slow})
    with serving(tmp_path, "serve", *ANY_PORT, "--web.config.file", "web.yml") as server:
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE_SECONDS) as client:
            before = _cpu_seconds(server)
            client.sendall(request("alice", "wrong"))
            until(lambda: _cpu_seconds(server) - before > 1, "the check")
            began = time.monotonic()
            assert server.terminate() == 0
            assert time.monotonic() - began < 2
        assert "Traceback" not in server.said


def _cpu_seconds(server: Server) -> float:
    return sum(psutil.Process(server.process.pid).cpu_times()[:2])


def test_users_change_without_a_restart(serve: Serve, file: Path) -> None:
    running = serve(web_config=file)
    assert running.get("/metrics", headers=basic("alice", "right")).status == 200
    write(file, {"alice": hashed("new"), "bob": hashed("right")})
    until(
        lambda: running.get("/metrics", headers=basic("alice", "right")).status == 401, "the change"
    )
    assert running.get("/metrics", headers=basic("alice", "new")).status == 200
    assert running.get("/metrics", headers=basic("bob", "right")).status == 200
    write(file, {})
    until(lambda: running.get("/metrics").status == 200, "the change")


def test_neither_hashes_nor_passwords_show_anywhere(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    active = WebConfigFile(file).active
    file.write_text(f'basic_auth_users: {{alice: "{hashed("right")}x"}}')
    assert "$2b$" not in f"{active}"
    assert "$2b$" not in caplog.text


def test_headers_are_added_to_every_response(serve: Serve, tmp_path: Path) -> None:
    headers = {
        "X-Frame-Options": "sameorigin",
        "Strict-Transport-Security": "max-age=31536000",
        "Content-Security-Policy": "default-src 'self'",
        "X-XSS-Protection": "",
    }
    running = serve(web_config=write(tmp_path / "web.yml", {"a": hashed("right")}, **headers))
    asked = basic("a", "right")
    for reply in (
        running.get("/"),
        running.get("/", headers=asked),
        running.get("/no", headers=asked),
    ):
        assert reply.headers["x-frame-options"] == "sameorigin"
        assert reply.headers["strict-transport-security"] == "max-age=31536000"
        assert reply.headers["content-security-policy"] == "default-src 'self'"
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert "x-xss-protection" not in reply.headers


@pytest.mark.parametrize("scheme", ["Basic", "basic", "BASIC"])
def test_the_scheme_is_written_as_one_likes(scheme: str) -> None:
    said = credentials(f"{scheme}  {base64.b64encode(b'a:b:c').decode()}")
    assert said == (b"a", b"b:c")


@pytest.mark.parametrize("module", ["yaml", "bcrypt"])
def test_without_the_extra_one_line_names_it(tmp_path: Path, file: Path, module: str) -> None:
    (tmp_path / f"{module}.py").write_text("raise ImportError")
    result = run(tmp_path, "serve", "--web.config.file", str(file), PYTHONPATH=str(tmp_path))
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "pip install 'gpu-bottleneck-exporter[web-config]'" in result.stderr
