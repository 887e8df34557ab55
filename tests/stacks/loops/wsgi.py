"""A model behind gunicorn: `python -m stacks.loops.wsgi WORK OPTION ...`.

Each worker process holds the GPU itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable

from stacks.loops.common import HOST, PORT, WORKS
from stacks.loops.gpu import Model

Start = Callable[[str, list[tuple[str, str]]], object]


def main(work: str, *options: str) -> None:
    """Become gunicorn."""
    application = f"stacks.loops.wsgi:loaded('{work}')"
    gunicorn = [sys.executable, "-m", "gunicorn", "-b", f"{HOST}:{PORT}", *options, application]
    os.execv(sys.executable, gunicorn)  # noqa: S606 - the point of it


def loaded(work: str) -> Callable[[object, Start], Iterable[bytes]]:
    """The application, in a worker that holds the GPU."""
    model = Model()
    model.load()

    def application(_environ: object, start: Start) -> Iterable[bytes]:
        WORKS[work]()
        model.infer()
        start("200 OK", [("Content-Length", "4")])
        return [b"done"]

    return application
