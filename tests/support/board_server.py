"""The exporter over the driver in Python, as a separate process.

    python tests/support/board_server.py BOARD PORT [STATE]

serves a virtual board that something else made and feeds. Port 0 lets the kernel choose. STATE is
the file of its ledger.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gpu_bottleneck_exporter.commands.serve import serve
from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.web.listen import bind


def main(board: str, port: str, state: str = "") -> None:
    """Serve the board file `board` until SIGTERM."""
    listening = bind(f"127.0.0.1:{port}")
    host, bound = listening.getsockname()
    sys.stderr.write(f"serving on http://{host}:{bound}/metrics\n")
    sys.stderr.flush()
    serve(Settings(jobs_state_file=state), lambda: VirtualDriver(Board(Path(board))), listening)


if __name__ == "__main__":
    main(*sys.argv[1:])
