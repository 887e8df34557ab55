"""The image, built on a bare Debian by `make image` and run with a read-only root.

Takes a minute or two and the network: `make test-image`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.machine import NAME, PREFIX, REPOSITORY
from support.daemon import HOST, daemon, free_port, get
from support.rights import _usable
from support.tools import require

pytestmark = pytest.mark.timeout(900)

DEBIAN = "bookworm"
BASE = "localhost/base"
IMAGE = "localhost/exporter"
MOST_BYTES = 24 * 2**20
"""Limit of the size of the exporter and its packages, unpacked."""
MODULES = "bcrypt, h2, yaml, pynvml, psutil._psutil_linux, gpu_bottleneck_exporter.commands.serve"


@dataclass(frozen=True)
class Image:
    """An image, unpacked."""

    root: Path
    config: dict[str, Any]

    def command(self, *command: str) -> list[str]:
        """Run `command` as a runtime would: its user, no rights, nothing writable."""
        user, group = self.config["User"].split(":")
        mounts = f"""
            mount --bind {self.root} {self.root}
            mount --rbind /dev {self.root}/dev
            mount -t proc proc {self.root}/proc
            mount --rbind /sys {self.root}/sys
            mount -o remount,bind,ro {self.root}
            cd {self.root}
            exec {require("chroot", "coreutils")} . \\
                /usr/bin/env --ignore-environment {" ".join(self.config["Env"])} \\
                setpriv --reuid={user} --regid={group} --clear-groups \\
                --no-new-privs --bounding-set=-all -- "$@"
        """
        unshare = _usable((require("unshare", "util-linux"), "--mount"))
        return [*unshare, "sh", "-ec", mounts, "sh", *command]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*command), capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """buildah, with images of its own."""
    buildah = require("buildah", "buildah")
    folder = tmp_path_factory.mktemp("store")
    places = ["--root", f"{folder}/root", "--runroot", f"{folder}/run", "--storage-driver", "vfs"]
    yield [buildah, *places]
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def image(store: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    folder = tmp_path_factory.mktemp("image")
    make_base(store, folder)
    arguments = [f"--build-arg BASE={BASE} --isolation=chroot --network=host --layers=false"]
    arguments += secrets(folder)
    settings = [f"BUILDER={' '.join(store)}", f"IMAGE={IMAGE}", f"IMAGE_ARGS={' '.join(arguments)}"]
    subprocess.run(["make", "image", *settings], cwd=REPOSITORY, check=True)
    container = said(*store, "from", IMAGE)
    inspected = json.loads(said(*store, "inspect", "--type=image", IMAGE))
    yield Image(Path(said(*store, "mount", container)), inspected["OCIv1"]["config"])
    subprocess.run([*store, "rm", container], check=True)


def said(*command: str) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def make_base(store: list[str], folder: Path) -> None:
    """Debian's essential packages and its Python."""
    debian = [require("mmdebstrap", "mmdebstrap"), "--quiet", "--variant=minbase"]
    archive = folder / "debian.tar"
    debian += ["--include=python3,python3-venv", DEBIAN, f"{archive}", *mirrors()]
    subprocess.run(debian, check=True)
    container = said(*store, "from", "scratch")
    said(*store, "add", container, f"{archive}", "/")
    said(*store, "commit", container, BASE)
    said(*store, "rm", container)


def mirrors() -> list[str]:
    """Source of this machine's own packages, if that is Debian too."""
    release = Path("/etc/os-release").read_text()
    if f"VERSION_CODENAME={DEBIAN}" not in release:
        return []
    lines = said("apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)").splitlines()
    return sorted({line.split()[0] for line in lines if line.endswith(f" {DEBIAN}")})


def secrets(folder: Path) -> Iterator[str]:
    """This machine's own index, as pip knows it."""
    listed = said(sys.executable, "-m", "pip", "config", "list")
    options = dict(re.findall(r"^[^.]+\.\.?([\w-]+)='(.*)'$", listed, re.MULTILINE))
    if authority := options.pop("cert", None):
        yield f"--secret id=ca,src={authority}"
    for of_our_files in ("find-links", "constraint"):
        options.pop(of_our_files, None)
    lines = [f"{name} = {value}\n" for name, value in options.items()]
    (folder / "pip.conf").write_text("[global]\n" + "".join(lines).replace("\\n", " "))
    yield f"--secret id=pip,src={folder}/pip.conf"


def test_it_runs_as_an_unprivileged_user_and_serves(image: Image) -> None:
    fields = {
        "User": "65534:65534",
        "StopSignal": "SIGTERM",
        "Entrypoint": [NAME],
        "Cmd": ["serve"],
    }
    assert image.config["ExposedPorts"] == {"10170/tcp": {}}
    assert fields.items() <= image.config.items()


def test_it_serves_from_a_read_only_root(image: Image, tmp_path: Path) -> None:
    port = free_port()
    command = image.command(NAME, "serve", "--web.listen-address", f"{HOST}:{port}")
    with daemon(command, port, "/-/ready", tmp_path / "log") as pid:
        assert b"LIBRARY_NOT_FOUND" in get(port, "/-/ready")[1]
        status, body = get(port, "/metrics")
        owner = Path(f"/proc/{pid}").stat().st_uid
        status_file = Path(f"/proc/{pid}/status").read_text()
        capabilities = re.findall(r"^Cap(?:Eff|Bnd):\t(\w+)", status_file, re.MULTILINE)
    assert status == 200
    assert b"\ngpu_exporter_build_info{" in body
    assert b"\ngpu_host_cpus " in body
    assert owner == 65534
    assert {int(sets, 16) for sets in capabilities} == {0}


def test_check_names_the_needs_of_a_container(image: Image) -> None:
    result = image.run(NAME, "check")
    assert result.returncode == 1, result.stderr
    assert "in a container, use the NVIDIA runtime with the capability 'utility'" in result.stdout


def test_all_it_may_import_is_there_and_no_installer(image: Image) -> None:
    python = f"{PREFIX}/bin/python"
    imported = image.run(python, "-c", f"import {MODULES}")
    assert (imported.returncode, imported.stderr) == (0, "")
    assert image.run(python, "-m", "pip").stderr.endswith("No module named pip\n")


def test_it_is_compiled_small_and_has_no_secrets(image: Image) -> None:
    sources = list((image.root / PREFIX[1:]).rglob("*.py"))
    assert len(sources) > 100
    for source in sources:
        assert list((source.parent / "__pycache__").glob(f"{source.stem}.*.pyc")), source
    files = [path for path in (image.root / PREFIX[1:]).rglob("*") if not path.is_symlink()]
    assert sum(path.stat().st_size for path in files if path.is_file()) < MOST_BYTES
    for name in ("source", "etc/pip.conf", "ca.crt"):
        assert not (image.root / name).exists()
