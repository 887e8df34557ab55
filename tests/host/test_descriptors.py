"""Nothing but sockets is borrowed from a job; one that holds us up is in faults/test_reads.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_bottleneck_exporter.host.links import links
from gpu_bottleneck_exporter.host.sockets import Sockets
from support.hangs import FLUSH, unanswering
from support.programs import Program, program

PROC = Path("/proc")
BECOMES_A_FILE = """
server = socket.create_server(("127.0.0.1", 0))
s = connect(server.getsockname()[1])
f = os.open(sys.argv[1], os.O_RDONLY)
ready(s.fileno()); told()
os.dup2(f, s.fileno()); ready(); told()
"""


@contextmanager
def job(mount: Path) -> Iterator[tuple[Program, Program]]:
    """One with two sockets, one of which becomes a file on `mount` when told so; and its server."""
    mount.mkdir()
    with unanswering(mount, FLUSH) as server, program(BECOMES_A_FILE, mount / "file") as process:
        try:
            yield process, server
        finally:
            server.tell("answer")  # or the job could not even be killed


def test_a_number_that_has_become_a_file_is_not_borrowed(tmp_path: Path) -> None:
    with job(tmp_path / "mount") as (process, server):
        sockets, number = Sockets(PROC, process.pid), int(process.words[0])
        assert number in {each.fd for each in sockets.query()}
        process.ask()
        for _ in range(2):
            assert number not in {each.fd for each in sockets.query([number])}
            assert sockets.query_descriptors([number]) == []
            links(PROC, process.pid)
            sockets.recheck()
        assert server.ask("?") == []
