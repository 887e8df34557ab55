"""Content of the bill of materials."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from supply.audit import LOCK, locked

ROOT = Path(__file__).parents[2]


def test_the_bill_of_materials_lists_all_shipped_files_with_hashes(tmp_path: Path) -> None:
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
    assert {component["name"]: component["version"] for component in bill["components"]} == locked()
    hashes = re.findall(r'"content": "([0-9a-f]{64})"', made.read_text())
    assert set(hashes) == set(re.findall(r"sha256:([0-9a-f]{64})", LOCK.read_text()))
