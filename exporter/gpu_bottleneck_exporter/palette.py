"""Colours: each wait has the same colour wherever people see it.

Dashboards, the status page and the terminal use these. They are the colours of Okabe and Ito, with
a few in between. Tests keep any two apart in normal, red-blind and green-blind vision by 16 (CIE
L*a*b*). A name always accompanies a colour. On Grafana's dark panels each colour has a contrast of
at least 3, which thin lines need.
"""

from __future__ import annotations

BUSY = "#0AA175"

WAITING_ON: dict[str, str] = {
    "unallocated": "#D9D9D9",
    "host_code": "#CC79A7",
    "worker_cpu": "#E69F00",
    "cpu_queue": "#D65F02",
    "cpu_quota": "#BC412D",
    "storage": "#0072B2",
    "memory": "#3363C9",
    "network": "#56B4E9",
    "requests": "#D2D8FC",
    "peer": "#F0E442",
    "video_engine": "#7744FF",
    "asleep": "#D9C68D",
    "unknown": "#6F6569",
}

ON_DARK = {"peer": "#C7C16B", "asleep": "#A39958"}
"""Instead of the two that are brightest, on large areas of a dark page."""
