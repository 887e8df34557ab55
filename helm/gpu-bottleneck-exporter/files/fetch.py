"""Fetch the metrics for `helm test`: URL, and "guarded" if it may ask for a password."""

import ssl
import sys
import urllib.error
import urllib.request
from http import HTTPStatus

url, guard = sys.argv[1:]
# The test is whether it answers, not whether its certificate names the service.
context = ssl._create_unverified_context() if url.startswith("https:") else None
try:
    with urllib.request.urlopen(url, timeout=10, context=context) as answer:
        text = answer.read().decode()
except urllib.error.HTTPError as error:
    if error.code != HTTPStatus.UNAUTHORIZED or guard != "guarded":
        sys.exit(f"{url}: {error}")
    print(f"{url}: asks for a password")
except OSError as error:
    sys.exit(f"{url}: {error}")
else:
    if "\ngpu_exporter_build_info{" not in text:
        sys.exit(f"{url}: these are not the exporter's metrics")
    up = sum(line.startswith("gpu_up{") and line.endswith(" 1.0") for line in text.splitlines())
    print(f"{url}: {up} GPUs answer")
