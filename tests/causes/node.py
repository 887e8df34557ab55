"""The exporter of one node, with time running faster.

    python tests/causes/node.py PORT FOLDER

What the exporter normally reads every two or ten seconds, it reads at every tick here: a rule
window with many readings lasts two and a half seconds. The kubelet's socket may be in FOLDER.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.commands.serve import ExporterContent
from gpu_bottleneck_exporter.driver.nvml.driver import NvmlDriver
from gpu_bottleneck_exporter.jobs.ledger import Ledger
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.web.listen import bind
from gpu_bottleneck_exporter.web.server import WebServer

HOST = "127.0.0.1"
SOCKET = "kubelet.sock"
_TICK_SECONDS = 0.5
_DEADLINE_SECONDS = 2.0


def main(port: str, folder: str) -> None:
    """Serve until killed."""
    listening = bind(f"{HOST}:{port}")
    sys.stderr.write(f"serving on http://{HOST}:{listening.getsockname()[1]}/metrics\n")
    sys.stderr.flush()
    settings = Settings(
        interval_seconds=_TICK_SECONDS,
        deadline_seconds=_DEADLINE_SECONDS,
        kubelet_socket=Path(folder) / SOCKET,
        container_logs=Path(folder),
    )
    collectors = [replace(collector, every_ns=0) for collector in ALL]
    sampler = Sampler(NvmlDriver, collectors, settings, sys.exit)
    sampler.start()
    content = ExporterContent(sampler, settings, Ledger(settings))
    WebServer(content, listening).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
