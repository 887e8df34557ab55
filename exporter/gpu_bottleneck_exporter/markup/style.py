"""The style sheet of pages."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files

from gpu_bottleneck_exporter.palette import BUSY_COLOUR, DARK_COLOURS, WAIT_COLOURS


def digest(text: str) -> str:
    """Content-Security-Policy source that allows `text`."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _classes(colours: Mapping[str, str]) -> str:
    return "".join(f".c-{name} {{ --c: {colour}; }}\n" for name, colour in colours.items())


STYLE = (
    (files(__package__) / "style.css").read_text(encoding="utf-8")
    + _classes({"busy": BUSY_COLOUR, **WAIT_COLOURS})
    + f"@media (prefers-color-scheme: dark) {{\n{_classes(DARK_COLOURS)}}}\n"
)
