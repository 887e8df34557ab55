"""Fetch the metrics of every exporter for `helm test`.

Arguments: a URL whose host has the address of each pod, "guarded" if an exporter may ask for a
password, the GPUs that each pod must show at least, and the seconds to wait for that.
"""

import socket
import ssl
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from urllib.parse import urlsplit

url, guard, least, patience = sys.argv[1:]
parts = urlsplit(url)
# The test is whether it answers, not whether its certificate names the service.
context = ssl._create_unverified_context() if parts.scheme == "https" else None
deadline = time.monotonic() + float(patience)


def addresses() -> list[str]:
    """The addresses of all pods, ready or not."""
    resolved = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
    return sorted({f"{address[0]}" for *_, address in resolved})


def fetched(address: str) -> tuple[bool, str]:
    """Whether the exporter at the address is as it should be, and a sentence about it."""
    host = f"[{address}]" if ":" in address else address
    try:
        target = parts._replace(netloc=f"{host}:{parts.port}").geturl()
        with urllib.request.urlopen(target, timeout=10, context=context) as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.UNAUTHORIZED and guard == "guarded":
            return True, f"{target}: asks for a password"
        return False, f"{target}: {error}"
    except OSError as error:
        return False, f"{target}: {error}"
    if "\ngpu_exporter_build_info{" not in text:
        return False, f"{target}: these are not the exporter's metrics"
    up = sum(line.startswith("gpu_up{") and line.endswith(" 1.0") for line in text.splitlines())
    if up < int(least):
        why = "`gpu-bottleneck-exporter check` in that pod says why"
        return False, f"{target}: {up} GPUs answer, not {least} as the values promise; {why}"
    return True, f"{target}: {up} GPUs answer"


while True:
    try:
        with ThreadPoolExecutor(16) as pool:
            results = [*pool.map(fetched, addresses())]
    except OSError as error:
        results = [(False, f"{url}: {error}")]
    if all(passed for passed, _ in results) or time.monotonic() >= deadline:
        break
    time.sleep(2)
print(*(sentence for passed, sentence in results if passed), sep="\n")
if failures := [sentence for passed, sentence in results if not passed]:
    sys.exit("\n".join(failures))
