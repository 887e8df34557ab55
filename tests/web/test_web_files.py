"""Configuration files that are no files, or lie where nobody answers: nobody waits for them."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.web.reload import WebConfigFile
from support.certificates import Authority, ask, client
from support.command import ANY_PORT, serving
from support.hangs import hanging
from support.waiting import PATIENCE_SECONDS, until

from .test_users import basic, hashed

if TYPE_CHECKING:
    from .conftest import Serve

KEYS = ("cert_file", "key_file", "client_ca_file")
PARTS = ("web.yml", *KEYS)


def configure(folder: Path, **files: str) -> Path:
    Authority(folder).issue("server")
    tls = {"cert_file": "server.pem", "key_file": "server.key", **files}
    if "client_ca_file" in files:
        tls["client_auth_type"] = "VerifyClientCertIfGiven"
    (folder / "web.yml").write_text(json.dumps({"tls_server_config": tls}))
    return folder / "web.yml"


def with_part(folder: Path, part: str, name: str) -> Path:
    """A configuration of which `part` has this name."""
    if part == "web.yml":
        return folder / name
    return configure(folder, **{part: name})


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


KINDS: Mapping[str, Callable[[Path], object]] = {"fifo": os.mkfifo, "socket": listen}


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", PARTS)
def test_what_is_no_file_is_refused_at_the_start(tmp_path: Path, part: str, kind: str) -> None:
    KINDS[kind](tmp_path / "odd")
    with pytest.raises(SettingsError, match=r"not a regular file|No such device") as raised:
        WebConfigFile(with_part(tmp_path, part, "odd"))
    assert str(raised.value).isprintable()


def test_an_endless_certificate_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "endless.pem").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(SettingsError, match="larger than"):
        WebConfigFile(configure(tmp_path, cert_file="endless.pem"))


@pytest.mark.parametrize("part", PARTS)
def test_a_mount_that_hangs_is_told_of_at_the_start(tmp_path: Path, part: str) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    path = with_part(tmp_path, part, "mount/file")
    with hanging(mount), pytest.raises(SettingsError, match="file system hang"):
        WebConfigFile(path, patience=0.3)


@pytest.mark.parametrize("part", ["web.yml", "cert_file", "key_file"])
def test_a_fifo_in_place_of_a_file_leaves_the_last_good_one_in_force(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    running = serve(web_config=configure(tmp_path))
    trusting = client(tmp_path / "ca.pem")
    replaced = {"cert_file": "server.pem", "key_file": "server.key"}.get(part, part)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "fifo").replace(tmp_path / replaced)
    until(lambda: errors(caplog), "an error")
    assert [ask(running.port, trusting) for _ in range(3)] == [200] * 3
    (said,) = errors(caplog)
    assert said.startswith("The last good web configuration stays in force: ")
    assert "not a regular file" in said


@pytest.mark.parametrize("part", ["web.yml", "cert_file"])
def test_a_mount_that_hangs_stops_nobody(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    mount, file = tmp_path / "mount", configure(tmp_path)
    mount.mkdir()
    text = json.loads(file.read_text())
    file.write_text(json.dumps({**text, "basic_auth_users": {"alice": hashed("right")}}))
    running, trusting = serve(web_config=file, patience=0.5), client(tmp_path / "ca.pem")
    replaced = {"cert_file": "server.pem"}.get(part, part)
    (tmp_path / "link").symlink_to("mount/file")

    def statuses() -> list[int]:
        words = ("right", "wrong")
        return [ask(running.port, trusting, headers=basic("alice", word)) for word in words]

    with hanging(mount) as end:
        (tmp_path / "link").replace(tmp_path / replaced)
        until(lambda: statuses() == [200, 401] and errors(caplog), "an error")
        assert [statuses() for _ in range(5)] == [[200, 401]] * 5
        (said,) = errors(caplog)
        assert said.startswith("The last good web configuration stays in force: ")
        assert "file system hang" in said
        end()
        until(lambda: any("cannot be read" in error for error in errors(caplog)[1:]), "an error")
        assert statuses() == [200, 401]


def test_the_server_can_stop_while_a_mount_hangs(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "mount").mkdir()
    (tmp_path / "web.yml").touch()
    running = serve(web_config=tmp_path / "web.yml")
    (tmp_path / "link").symlink_to("mount/file")
    with hanging(tmp_path / "mount"):
        (tmp_path / "link").replace(tmp_path / "web.yml")
        until(lambda: running.file and running.file._reading_since, "a check")
        running.end()


def test_sighup_rereads_the_web_configuration(tmp_path: Path) -> None:
    (tmp_path / "web.yml").write_text("")
    with serving(tmp_path, "serve", *ANY_PORT, "--web.config.file", "web.yml") as server:
        assert server.get()[0] == 200
        for text, said in (
            ("", 'msg="Reloaded the web configuration: no TLS, no users."'),
            (
                "basic_auth_users: {a: x}",
                "The last good web configuration stays in force: --web.config.file web.yml: ",
            ),
        ):
            (tmp_path / "web.yml").write_text(text)
            server.process.send_signal(signal.SIGHUP)
            until(lambda: said in server.said, said)  # noqa: B023
        assert server.get()[0] == 200
        assert server.terminate() == 0


def test_sighup_without_a_web_configuration_changes_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, "serve", *ANY_PORT) as server:
        assert server.get()[0] == 200
        server.process.send_signal(signal.SIGHUP)
        until(lambda: "there is no --web.config.file" in server.said, "a line")
        assert server.get()[0] == 200
        assert server.terminate() == 0


def test_the_demo_ends_with_its_terminal(tmp_path: Path) -> None:
    with serving(tmp_path, "demo", *ANY_PORT) as server:
        assert server.get()[0] == 200
        server.process.send_signal(signal.SIGHUP)
        assert server.process.wait(PATIENCE_SECONDS) == 0
        until(lambda: not server.session(), "the end of its processes")
