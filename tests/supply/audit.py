"""Asks whether a version that the image is built from has a known vulnerability.

    python tests/supply/audit.py [OSV_URL]

pip-audit asks PyPI's advisories about the lock file, then OSV's if those do not answer. The exit
status is 1 for a known vulnerability, and 0, with a word, if no service answered: by itself
pip-audit fails then, or, behind a mirror that knows no advisories, says that all is well.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

LOCK = Path(__file__).parents[2] / "exporter/deploy/requirements.txt"
_TIMEOUT_SECONDS = 60
_PIN = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)


def services(osv_url: str | None) -> list[list[str]]:
    """Arguments for each service, in order."""
    if osv_url:
        return [["-s", "osv", "--osv-url", osv_url]]
    return [["-s", "pypi"], ["-s", "osv"]]


def answer(service: Sequence[str]) -> list[Mapping[str, Any]]:
    """Replies of the service for each package; nothing where it cannot be asked."""
    command = [sys.executable, "-m", "pip_audit", "-r", f"{LOCK}", "--require-hashes"]
    command += ["--disable-pip", "--format", "json", "--progress-spinner", "off", "--timeout", "20"]
    try:
        done = subprocess.run(
            [*command, *service], capture_output=True, check=False, timeout=_TIMEOUT_SECONDS
        )
        return list(json.loads(done.stdout)["dependencies"])
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        return []


def known(packages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Each vulnerability in a line."""
    for package in packages:
        for result in package.get("vulns", ()):
            fixed = ", ".join(result["fix_versions"]) or "no version"
            yield f"{package['name']} {package['version']}: {result['id']}, mended by {fixed}"


def locked() -> dict[str, str]:
    """Versions by name."""
    return dict(_PIN.findall(LOCK.read_text(encoding="utf-8")))


def main(osv_url: str | None) -> int:
    """Print what is known; the exit status."""
    left = set(locked())
    for service in services(osv_url):
        packages = answer(service)
        if result := list(known(packages)):
            print(*result, sep="\n")
            return 1
        left -= {package["name"] for package in packages if "vulns" in package}
        if not left:
            print(f"no known vulnerability in {len(locked())} packages")
            return 0
    print(f"not audited, as no advisory service knows them from here: {', '.join(sorted(left))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else None))
