"""The `gpu-bottleneck-exporter` command, also as `python -m gpu_bottleneck_exporter`.

What it takes is imported only here, which takes half a second: until then, Ctrl-C ends it, too.
"""

from __future__ import annotations

import signal
from typing import NoReturn


def main() -> NoReturn:
    """Entry point."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback of what is being imported
    from gpu_bottleneck_exporter.cli import main as run  # noqa: PLC0415

    run()


if __name__ == "__main__":
    main()
