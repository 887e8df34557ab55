"""The `gpu-bottleneck-exporter` command.

Imports take half a second, during which Ctrl-C must work, too.
"""

from __future__ import annotations

import signal
from typing import NoReturn


def main() -> NoReturn:
    """Entry point."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback from imports
    from gpu_bottleneck_exporter.cli import main as run  # noqa: PLC0415

    run()


if __name__ == "__main__":
    main()
