"""Configuration files that are no files, or lie on a silent server: no request waits for them."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.web.reload import WebConfigFile
from support.certificates import ask
from support.command import ANY_PORT, serving
from support.hangs import hanging
from support.logins import basic, hashed
from support.waiting import until

from .conftest import PAIR, Log, Serve, Site, warned

PARTS = ("web.yml", "cert_file", "key_file", "client_ca_file")


def with_part(site: Site, part: str, name: str) -> Path:
    """A configuration of which `part` has this name."""
    asks = {"client_auth_type": "VerifyClientCertIfGiven"} if part == "client_ca_file" else {}
    return site.folder / name if part == "web.yml" else site.configure(**asks, **{part: name})


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as item:
        item.bind(str(path))


def make_endless(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


KINDS: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "fifo": (os.mkfifo, "not a regular file"),
    "socket": (listen, "No such device"),
    "endless": (make_endless, "larger than"),
}


@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
def test_a_path_without_a_file_is_refused_at_the_start(site: Site, kind: str) -> None:
    make, result = KINDS[kind]
    make(site.folder / "odd")
    for part in PARTS:
        with pytest.raises(SettingsError, match=result) as raised:
            WebConfigFile(with_part(site, part, "odd"))
        assert str(raised.value).isprintable()


@pytest.mark.parametrize("part", PARTS)
def test_a_hanging_mount_is_reported_at_the_start(site: Site, part: str) -> None:
    (site.folder / "mount").mkdir()
    path = with_part(site, part, "mount/file")
    with hanging(site.folder / "mount"), pytest.raises(SettingsError, match="file system hang"):
        WebConfigFile(path, timeout_seconds=0.3)


@pytest.mark.parametrize("part", ["web.yml", "server.pem"])
def test_hanging_mounts_do_not_stop_the_server(
    serve: Serve, site: Site, caplog: Log, part: str
) -> None:
    file = site.write(tls_server_config=PAIR, basic_auth_users={"alice": hashed("right")})
    (site.folder / "mount").mkdir()
    (site.folder / "link").symlink_to("mount/file")
    running, trusting = serve(web_config=file, patience=0.5), site.client()

    def statuses() -> list[int]:
        words = ("right", "wrong")
        return [ask(running.port, trusting, headers=basic("alice", word)) for word in words]

    with hanging(site.folder / "mount") as end:
        (site.folder / "link").replace(site.folder / part)
        until(lambda: statuses() == [200, 401] and warned(caplog), "an error")
        assert [statuses() for _ in range(5)] == [[200, 401]] * 5
        (result,) = warned(caplog)
        assert result.startswith("the last good web configuration stays in force err=")
        assert "file system hang" in result
        end()
        until(lambda: any("cannot be read" in error for error in warned(caplog)[1:]), "an error")
        assert statuses() == [200, 401]


def test_the_server_can_stop_meanwhile(serve: Serve, tmp_path: Path, caplog: Log) -> None:
    (tmp_path / "mount").mkdir()
    (tmp_path / "web.yml").touch()
    running = serve(web_config=tmp_path / "web.yml", patience=0.3)
    (tmp_path / "link").symlink_to("mount/file")
    with hanging(tmp_path / "mount"):
        (tmp_path / "link").replace(tmp_path / "web.yml")
        until(lambda: running.file and running.file.active and warned(caplog), "a check")
        running.end()


def test_sighup_rereads_the_web_configuration(tmp_path: Path) -> None:
    (tmp_path / "web.yml").write_text("")
    with serving(tmp_path, "serve", *ANY_PORT, "--web.config.file", "web.yml") as server:
        assert server.get()[0] == 200
        for text, result in (
            ("", 'msg="reloaded the web configuration" now="no TLS, no users"'),
            ("a: x", 'stays in force" err="--web.config.file web.yml: '),
        ):
            (tmp_path / "web.yml").write_text(text)
            server.process.send_signal(signal.SIGHUP)
            until(lambda: result in server.said, result)  # noqa: B023
        assert server.get()[0] == 200
        assert server.terminate() == 0


def test_a_request_rereads_the_file_once_changed_or_not(tmp_path: Path, caplog: Log) -> None:
    (tmp_path / "web.yml").touch()
    file = WebConfigFile(tmp_path / "web.yml")
    caplog.set_level(logging.INFO)
    for times in (1, 2, 3):
        file.reload()
        until(lambda: len(caplog.messages) >= times, "a line")  # noqa: B023
        assert len(caplog.messages) == times
    file.close()


def test_sighup_without_a_web_configuration_changes_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, "serve", *ANY_PORT) as server:
        assert server.get()[0] == 200
        server.process.send_signal(signal.SIGHUP)
        until(lambda: "there is no --web.config.file" in server.said, "a line")
        assert server.get()[0] == 200
        assert server.terminate() == 0
