"""S3 by moto, with latency added to every request: `... NAME MILLISECONDS`."""

# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from stacks.servers.listen import announce

Respond = Callable[..., object]


def main(name: str, milliseconds: str) -> None:
    """Serve until killed."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = DomainDispatcherApplication(create_backend_app)

    def late(environ: dict[str, object], respond: Respond) -> Iterable[bytes]:
        time.sleep(float(milliseconds) / 1000)
        answer: Iterable[bytes] = moto(environ, respond)
        return answer

    server = make_server("127.0.0.1", 0, late, threaded=True)
    announce(name, server.server_port)
    server.serve_forever()
