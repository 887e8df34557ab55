"""What the audit says by what the advisory service answers; what the bill of materials lists."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supply.audit import LOCK, locked
from support.beside import Reply, Request, answering
from support.daemon import HOST, free_port

ROOT = Path(__file__).parents[2]
AUDIT = Path(__file__).with_name("audit.py")
ADVISORY = {
    "id": "GHSA-0000-0000-0000",
    "modified": "2026-01-01T00:00:00Z",
    "published": "2026-01-01T00:00:00Z",
    "details": "It is broken.",
    "affected": [
        {
            "package": {"name": "h2", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "99.1"}]}],
        }
    ],
}


@contextmanager
def advisories(broken: str | None) -> Iterator[str]:
    """An OSV service that knows of one vulnerability, or none; its address."""

    def answer(request: Request) -> Reply:
        known = json.loads(request.body)["package"]["name"] == broken
        return Reply(json.dumps({"vulns": [ADVISORY]} if known else {}).encode())

    with answering(answer) as port:
        yield f"http://{HOST}:{port}/v1/query"


def audit(address: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, f"{AUDIT}", address], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_a_known_vulnerability_of_what_is_shipped_is_an_error() -> None:
    pytest.importorskip("pip_audit", reason="pip install pip-audit")
    with advisories("h2") as address:
        status, said = audit(address)
    assert status == 1
    assert said == f"h2 {locked()['h2']}: GHSA-0000-0000-0000, mended by 99.1\n"


def test_no_known_vulnerability_is_said() -> None:
    pytest.importorskip("pip_audit", reason="pip install pip-audit")
    with advisories(None) as address:
        status, said = audit(address)
    assert (status, said) == (0, f"no known vulnerability in {len(locked())} packages\n")


def test_nobody_to_ask_is_said_and_no_error() -> None:
    status, said = audit(f"http://{HOST}:{free_port()}/")
    assert status == 0
    assert said.startswith("not audited")
    assert all(name in said for name in locked())


def test_the_bill_of_materials_lists_what_is_shipped_with_its_hashes(tmp_path: Path) -> None:
    pytest.importorskip("cyclonedx_py", reason="pip install cyclonedx-bom")
    made = tmp_path / "sbom.json"
    subprocess.run(
        ["make", "-s", "-C", f"{ROOT}", "sbom", f"SBOM={made}", f"VENV={sys.prefix}"],
        check=True,
        capture_output=True,
    )
    bill = json.loads(made.read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "gpu-bottleneck-exporter"
    assert {one["name"]: one["version"] for one in bill["components"]} == locked()
    hashes = re.findall(r'"content": "([0-9a-f]{64})"', made.read_text())
    assert set(hashes) == set(re.findall(r"sha256:([0-9a-f]{64})", LOCK.read_text()))
