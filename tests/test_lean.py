"""What a server that is only scraped does not load: each module stays in its memory for ever."""

from __future__ import annotations

import subprocess
import sys

import pytest

SERVES = """
import gpu_bottleneck_exporter.cli
import gpu_bottleneck_exporter.commands.serve
import gpu_bottleneck_exporter.web.server
import sys
print(*sys.modules)
"""


@pytest.fixture(scope="module")
def loaded() -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SERVES], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    "needless",
    [
        "asyncio",
        "bcrypt",
        "gpu_bottleneck_exporter.demo",
        "gpu_bottleneck_exporter.rulepack",
        "gpu_bottleneck_exporter.top",
        "gpu_bottleneck_exporter.web.status",
        "grpc",
        "h2",
        "sqlite3",
        "yaml",
        "zipfile",
    ],
)
def test_a_server_that_is_only_scraped_does_not_load(needless: str, loaded: list[str]) -> None:
    assert "gpu_bottleneck_exporter.web.routes" in loaded
    assert [name for name in loaded if f"{name}.".startswith(f"{needless}.")] == []
