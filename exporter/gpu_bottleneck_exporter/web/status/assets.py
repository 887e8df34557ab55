"""The page's frame, style and script, and the policy that allows these two and nothing else."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files

from gpu_bottleneck_exporter.palette import BUSY, ON_DARK, WAITING_ON


def _read(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def digest(text: str) -> str:
    """The source expression of a policy that allows `text`."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _classes(colours: Mapping[str, str]) -> str:
    """A class for each wait; `var(--c)` is its colour."""
    return "".join(f".c-{name} {{ --c: {colour}; }}\n" for name, colour in colours.items())


PAGE = _read("page.html")
STYLE = (
    _read("status.css")
    + _classes({"busy": BUSY, **WAITING_ON})
    + f"@media (prefers-color-scheme: dark) {{\n{_classes(ON_DARK)}}}\n"
)
SCRIPT = _read("refresh.js")
BUILD = sha256((STYLE + SCRIPT).encode()).hexdigest()[:12]
"""An open page that fetches another build reloads itself: its own style would not fit."""

CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src {digest(STYLE)}; script-src {digest(SCRIPT)}; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""The page shows names of processes and users: none may run as script or leave the page."""
