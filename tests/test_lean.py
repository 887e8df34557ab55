"""Modules that a server that is only scraped does not load: each stays in its memory for ever."""

from __future__ import annotations

import subprocess
import sys

SERVES = """
import gpu_bottleneck_exporter.cli
import gpu_bottleneck_exporter.commands.serve
import gpu_bottleneck_exporter.web.server
import sys
print(*sys.modules)
"""
NEEDLESS = ("asyncio", "bcrypt", "grpc", "h2", "yaml", "zipfile")
OURS = ("api", "demo", "markup", "rulepack", "stacktraces.reader", "top", "web.status")


def test_a_server_that_is_only_scraped_loads_nothing_else() -> None:
    done = subprocess.run([sys.executable, "-c", SERVES], capture_output=True, check=True)
    loaded = done.stdout.decode().split()
    assert "gpu_bottleneck_exporter.web.routes" in loaded
    needless = (*NEEDLESS, *(f"gpu_bottleneck_exporter.{name}" for name in OURS))
    values = [name for name in loaded if f"{name}.".startswith(tuple(f"{n}." for n in needless))]
    assert values == []
