"""The style of pages, and how a policy allows it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files

from gpu_bottleneck_exporter.palette import BUSY, ON_DARK, WAITING_ON


def digest(text: str) -> str:
    """The source expression of a policy that allows `text`."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _classes(colours: Mapping[str, str]) -> str:
    """A class for each wait; `var(--c)` is its colour."""
    return "".join(f".c-{name} {{ --c: {colour}; }}\n" for name, colour in colours.items())


STYLE = (
    (files(__package__) / "style.css").read_text(encoding="utf-8")
    + _classes({"busy": BUSY, **WAITING_ON})
    + f"@media (prefers-color-scheme: dark) {{\n{_classes(ON_DARK)}}}\n"
)
