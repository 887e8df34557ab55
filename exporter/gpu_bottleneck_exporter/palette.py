"""Colours of the waits in dashboards, the status page and the terminal.

They are Okabe and Ito's, with intermediate ones. Tests check that any two differ by at least 16
(CIE L*a*b*) in normal, red-blind and green-blind vision, and have a contrast of at least 3 on
Grafana's dark panels.
"""

from __future__ import annotations

BUSY_COLOUR = "#0AA175"

WAIT_COLOURS: dict[str, str] = {
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

DARK_COLOURS = {"peer": "#C7C16B", "asleep": "#A39958"}
"""Replacements for the two brightest colours, on a dark page."""
