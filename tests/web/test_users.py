"""Users and headers of the web configuration file, over plain HTTP."""

from __future__ import annotations

import concurrent.futures
import json
import math
import os
import socket
from collections.abc import Mapping
from pathlib import Path

import bcrypt
import psutil
import pytest

from gpu_bottleneck_exporter.web.users import Authenticator
from support.command import ANY_PORT, Server, run, serving
from support.daemon import drain
from support.logins import CHEAP, Word, as_bytes, basic, encoded, hashed
from support.waiting import PATIENCE_SECONDS, eventually, until

from .conftest import Gate, Log, Page, Reply, Running, Serve, warned

DEARER, DEAREST = 5, 7
"""Costs of hashes."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "web.yml", {"alice": hashed("right")})


def write(path: Path, users: Mapping[str, str], **headers: str) -> Path:
    path.write_text(
        json.dumps({"basic_auth_users": users, "http_server_config": {"headers": headers}})
    )
    return path


def status(running: Running, user: Word, password: Word, path: str = "/metrics") -> int:
    """The answer to a user who logs in."""
    return running.get(path, headers=basic(user, password)).status


class Checks(Gate):
    """Real checks, noted and, while the gate is closed, held up."""

    def __init__(self) -> None:
        super().__init__()
        self.costs: list[int] = []
        self.passwords: list[bytes] = []


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    result, real = Checks(), bcrypt.checkpw

    def check(password: bytes, hashed_password: bytes) -> bool:
        result.costs.append(int(hashed_password[4:6]))
        result.passwords.append(password)
        result.enter()
        return real(password, hashed_password)

    monkeypatch.setattr(bcrypt, "checkpw", check)
    return result


def assert_challenged(reply: Reply) -> None:
    assert reply.status == 401
    assert reply.headers["www-authenticate"].startswith('Basic realm="gpu-bottleneck-exporter"')
    assert b"right" not in reply.body


def test_every_page_asks_for_a_user_also_one_that_does_not_exist(serve: Serve, file: Path) -> None:
    running = serve(web_config=file)
    pages = ("/", "/metrics", "/api/v1/node", "/api/v1/jobs", "/api/v1/jobs/slurm-7")
    for path in (*pages, "/-/healthy", "/-/ready", "/nonsense"):
        assert_challenged(running.get(path))
        assert status(running, "alice", "right", path) == (404 if path == "/nonsense" else 200)


PASSWORDS: Mapping[str, Word] = {
    "alice": "right",
    "colons": "a:b::",
    "jürgen": "päßwörd 🔑",
    "empty": "",
    "blanks": "  x  ",
    "no UTF-8": b"\xff\xfe",
    "long": "x" * 72,
}
HASHES = {f"kind {kind}": f"$2{kind}${hashed('right')[4:]}" for kind in "aby"}
ODD_NAMES = ("007", "yes", "null", "1e3", "~")
"""Which YAML would take for something else."""
RIGHT: list[tuple[Word, Word]] = [
    *PASSWORDS.items(),
    *((user, "right") for user in (*HASHES, *ODD_NAMES)),
]


@pytest.fixture
def everybody(tmp_path: Path, serve: Serve) -> Running:
    quoted = {user: hashed(password) for user, password in PASSWORDS.items()} | HASHES
    users = {f'"{user}"': text for user, text in quoted.items()}
    users |= {user: hashed("right") for user in ODD_NAMES}
    lines = "".join(f"  {user}: {text}\n" for user, text in users.items())
    (tmp_path / "web.yml").write_text(f"basic_auth_users:\n{lines}", encoding="utf-8")
    return serve(web_config=tmp_path / "web.yml")


def test_the_right_user_and_password_come_in(everybody: Running) -> None:
    """The first 72 bytes of a long password count, as with htpasswd."""
    right = [basic(*item) for item in (*RIGHT, ("long", "x" * 100))]
    right += [encoded(b"alice:right", scheme) for scheme in ("basic", "BASIC", "Basic ")]
    assert [item for item in right if everybody.get("/metrics", headers=item).status != 200] == []


def test_all_else_is_refused(everybody: Running, page: Page, caplog: Log) -> None:
    wrong = [basic(user, as_bytes(password) + b"x") for user, password in RIGHT if user != "long"]
    wrong += [basic("alice", word) for word in ("wrong", "", "right ", b"right\0")]
    wrong += [basic("long", "x" * 71), basic("Alice", "right"), basic("bob", "right")]
    wrong += [basic("", ""), basic(b"\xff", b"\xff"), encoded(b"alice")]
    wrong += [encoded(b"alice:right", "Bearer")]
    wrong += [{"Authorization": result} for result in ("", "Basic", "Basic !!!", "Basic \xfc")]
    for item in wrong:
        assert_challenged(everybody.get("/metrics", headers=item))
    assert page.accepted == []
    assert warned(caplog) == []


# --- What a check costs, and whom it holds up -----------------------------------------------------
def test_only_right_passwords_are_remembered(serve: Serve, file: Path, checks: Checks) -> None:
    running = serve(web_config=file)
    users = ("bob", "bob", "alice", "bob", "alice", "alice")
    answers = [status(running, user, "right") for user in users]
    assert answers == [401, 401, 200, 401, 200, 200]
    assert checks.costs == [CHEAP] * 4


def test_wrong_and_unknown_cost_the_same(serve: Serve, tmp_path: Path, checks: Checks) -> None:
    """One more of cost is twice the work. A right one costs its own hash only."""
    users = {"alice": hashed("a", DEARER), "bob": hashed("b"), "carol": hashed("c", DEAREST)}
    running = serve(web_config=write(tmp_path / "web.yml", users))
    for user in ("alice", "nobody", "", "bob", "carol"):
        for _ in range(2):
            checks.costs.clear()
            assert status(running, user, "wrong") == 401
            assert sum(2**cost for cost in checks.costs) == 2**DEAREST, user
    checks.costs.clear()
    assert status(running, "bob", "b") == 200
    for headers in ({}, {"Authorization": "Basic !"}):  # nothing to check
        assert running.get("/metrics", headers=headers).status == 401
    assert checks.costs == [CHEAP]


def test_checks_hold_up_no_known_user(serve: Serve, file: Path, checks: Checks) -> None:
    running = serve(web_config=file)
    assert status(running, "alice", "right") == 200
    checks.gate.clear()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        stranger = pool.submit(status, running, "alice", "wrong")
        try:
            assert checks.entered.acquire(timeout=PATIENCE_SECONDS)
            for path in ("/metrics", "/-/healthy", "/"):
                assert status(running, "alice", "right", path) == 200
            assert running.get("/metrics").status == 401
            assert not stranger.done()
        finally:
            checks.gate.set()
        assert stranger.result(PATIENCE_SECONDS) == 401


def request(user: str, password: str) -> bytes:
    value = basic(user, password)["Authorization"].encode()
    return b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: " + value + b"\r\n\r\n"


def test_all_in_line_wait_except_evicted_clients(serve: Serve, file: Path, checks: Checks) -> None:
    running = serve(
        web_config=file, request_timeout=PATIENCE_SECONDS, connections=5, min_lifetime=0
    )
    checks.gate.clear()
    first = [running.connect(request("alice", "wrong 0"))]
    assert checks.entered.acquire(timeout=PATIENCE_SECONDS)
    first += [running.connect(request("alice", f"wrong {number}")) for number in range(1, 5)]
    eventually(lambda: [item.deadline for item in [*running.server.connections]] == [math.inf] * 5)
    last = [running.connect(request("alice", "right")) for _ in range(5)]
    assert [drain(client) for client in first] == [b""] * 5
    checks.gate.set()
    assert [client.recv(12) for client in last] == [b"HTTP/1.1 200"] * 5
    assert checks.passwords[:2] == [b"wrong 0", b"right"]


def test_a_client_that_waits_long_for_a_check_gets_it(checks: Checks) -> None:
    users, authenticator = {b"alice": hashed("right").encode()}, Authenticator()
    result = basic("alice", "right")["Authorization"]
    checks.gate.clear()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        first = pool.submit(authenticator.check, users, result, lambda: True)
        assert checks.entered.acquire(timeout=PATIENCE_SECONDS)
        assert not authenticator.check(users, result, lambda: False), "who has gone"
        assert authenticator.check(users, result, lambda: checks.gate.set() is None)  # type: ignore[func-returns-value]
        assert first.result(PATIENCE_SECONDS)


ENDLESS = """
import bcrypt
real = bcrypt.checkpw
def check(password, hashed):
    while True:
        real(password, hashed)
bcrypt.checkpw = check
"""
"""Short checks without end: the server's ends in the midst of one."""


def test_a_password_that_is_being_checked_does_not_delay_the_end(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(ENDLESS)
    write(tmp_path / "web.yml", {"alice": hashed("right")})
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    arguments = ("serve", *ANY_PORT, "--web.config.file", "web.yml")
    with serving(tmp_path, *arguments, PYTHONPATH=path) as server:
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE_SECONDS) as client:
            before = _cpu_seconds(server)
            client.sendall(request("alice", "wrong"))
            until(lambda: _cpu_seconds(server) - before > 1, "the check")
            assert server.terminate() == 0
        assert "Traceback" not in server.said


def _cpu_seconds(server: Server) -> float:
    return sum(psutil.Process(server.process.pid).cpu_times()[:2])


# --- The file -------------------------------------------------------------------------------------
def test_users_change_without_a_restart(serve: Serve, file: Path) -> None:
    running = serve(web_config=file)
    assert status(running, "alice", "right") == 200
    write(file, {"alice": hashed("new"), "bob": hashed("right")})
    until(lambda: status(running, "alice", "right") == 401, "the change")
    assert status(running, "alice", "new") == status(running, "bob", "right") == 200
    write(file, {})
    until(lambda: running.get("/metrics").status == 200, "the change")


def test_headers_are_added_to_every_response(serve: Serve, tmp_path: Path) -> None:
    headers = {
        "X-Frame-Options": "sameorigin",
        "Strict-Transport-Security": "max-age=31536000",
        "Content-Security-Policy": "default-src 'self'",
    }
    users = {"a": hashed("right")}
    file = write(tmp_path / "web.yml", users, **headers, **{"X-XSS-Protection": ""})
    running, result = serve(web_config=file), basic("a", "right")
    expected = {name.lower(): value for name, value in headers.items()}
    expected["x-content-type-options"] = "nosniff"
    for path, login in (("/", {}), ("/", result), ("/no", result)):
        reply = running.get(path, headers=login)
        assert expected.items() <= reply.headers.items()
        assert "x-xss-protection" not in reply.headers


def test_without_the_extra_one_line_names_it(tmp_path: Path, file: Path) -> None:
    (tmp_path / "bcrypt.py").write_text("raise ImportError")
    result = run(tmp_path, "serve", "--web.config.file", str(file), PYTHONPATH=str(tmp_path))
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "pip install 'gpu-bottleneck-exporter[web-config]'" in result.stderr
