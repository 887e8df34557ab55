"""The exporter over the driver in Python, as a separate process, on any port.

    python tests/support/board_server.py BOARD

serves a virtual board that something else made and feeds.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gpu_bottleneck_exporter.commands.serve import listening, serve
from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.settings import Settings

if __name__ == "__main__":
    settings = Settings(listen_address="127.0.0.1:0")
    serve(settings, lambda: VirtualDriver(Board(Path(sys.argv[1]))), *listening(settings))
