"""A model behind gunicorn: `python -m stacks.loops.wsgi WORK OPTION ...`.

Each worker process imports this module again, and so holds the GPU itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable

from stacks.loops.common import HOST, PORT, WAIT, burn
from stacks.loops.gpu import STEP, hold, ready, warm

Start = Callable[[str, list[tuple[str, str]]], object]

if __name__ == "__main__":
    os.environ["STACKS_WORK"], *options = sys.argv[1:]
    gunicorn = [sys.executable, "-m", "gunicorn", "-b", f"{HOST}:{PORT}", *options]
    os.execv(sys.executable, [*gunicorn, "stacks.loops.wsgi:application"])  # noqa: S606

_gpu = hold()
warm(_gpu)
ready()


def application(_environ: dict[str, object], start: Start) -> Iterable[bytes]:
    """Answer a request."""
    if os.environ["STACKS_WORK"] == "burn":
        burn(WAIT)
    _gpu.run(STEP)
    start("200 OK", [("Content-Length", "4")])
    return [b"done"]
