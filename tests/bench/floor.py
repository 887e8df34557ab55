"""What waking up alone costs: a loop that only sleeps, per tick and per GPU.

    python tests/bench/floor.py GPUS PASS_SECONDS

A thread per GPU wakes once a second, the main thread every `PASS_SECONDS`.
"""

from __future__ import annotations

import sys
import threading
import time

TICK_SECONDS = 1.0


def main(gpus: int, pass_seconds: float) -> None:
    """Sleep until killed."""
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(TICK_SECONDS):
            pass

    for _ in range(gpus):
        threading.Thread(target=tick, daemon=True).start()
    while True:
        time.sleep(pass_seconds)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
