"""Clients that request work over HTTP: `... NAME PATH CLIENTS PAUSE_SECONDS [SERVER]`.

Each asks the loop, or that server, waits for the answer, pauses, and asks again.
"""

from __future__ import annotations

import http.client
import sys
import threading
import time

from stacks.servers.listen import FOLDER, PORT, announce

_PATIENCE_SECONDS = 60.0


def _ask_for_ever(port: int, path: str, pause: float) -> None:
    began = time.monotonic()
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            while True:
                connection.request("GET", path)
                connection.getresponse().read()
                time.sleep(pause)
        except OSError:
            if time.monotonic() > began + _PATIENCE_SECONDS:
                raise
            time.sleep(0.1)  # the server is not up yet
        except http.client.HTTPException:
            time.sleep(0.001)  # the server closes connections after each answer
        finally:
            connection.close()


def main() -> None:
    """Ask until killed."""
    name, path, clients, pause, *server = sys.argv[1:]
    port = int((FOLDER / f"{server[0]}.port").read_text()) if server else PORT
    announce(name, port)
    threads = [
        threading.Thread(target=_ask_for_ever, args=(port, path, float(pause)))
        for _ in range(int(clients))
    ]
    for thread in threads:
        thread.start()


if __name__ == "__main__":
    main()
