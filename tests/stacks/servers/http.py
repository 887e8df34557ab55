"""A remote server: it answers late. `... http NAME [tls]`.

/late/MS/SIZE  SIZE bytes after MS milliseconds, also in ranges
/file/MS/NAME  file NAME of the case's folder, also in ranges; late for every request
"""

# ruff: noqa: PLC0415 - only one with TLS needs trustme

from __future__ import annotations

import re
import ssl
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from stacks.loops.common import FOLDER
from stacks.servers.listen import announce


class Handler(BaseHTTPRequestHandler):
    """Answers by path, on connections that stay open."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 2**20

    def body(self) -> bytes:
        """The answer, late."""
        kind, milliseconds, what = self.path.strip("/").split("?")[0].split("/", 2)
        time.sleep(float(milliseconds) / 1000)
        return bytes(int(what)) if kind == "late" else (FOLDER / what).read_bytes()

    def do_GET(self) -> None:
        """Send it, or the part of it that is asked for."""
        body = self.body()
        whole = len(body)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if wanted:
            first, last = int(wanted[1]), int(wanted[2] or whole - 1)
            body = body[first : last + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{first + len(body) - 1}/{whole}")
        else:
            self.send_response(200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", f"{len(body)}")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - the base class names it

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class Server(ThreadingHTTPServer):
    """Accepts more connections at once than the default."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """Log nothing: clients are killed."""


def main(name: str, how: str = "") -> None:
    """Serve until killed."""
    server = Server(("127.0.0.1", 0), Handler)
    if how:
        import trustme

        authority = trustme.CA()
        authority.cert_pem.write_to_path(f"{FOLDER / 'ca.pem'}")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    announce(name, server.server_address[1])
    server.serve_forever()
