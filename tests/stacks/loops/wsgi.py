"""A model behind gunicorn: `python -m gunicorn stacks.loops.wsgi:application`.

Each worker process imports the module, and so holds the GPU itself. STACKS_WORK is what a request
makes it do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from stacks.loops.common import STEP, WAIT, burn, hold, ready, warm

_gpu = hold()
warm(_gpu)
ready()

Start = Callable[[str, list[tuple[str, str]]], object]


def application(_environ: dict[str, object], start: Start) -> Iterable[bytes]:
    """Answer a request."""
    if os.environ.get("STACKS_WORK") == "burn":
        burn(WAIT)
    _gpu.run(STEP)
    start("200 OK", [("Content-Length", "4")])
    return [b"done"]
