"""The page's template and script, and the policy that allows only these."""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files

from gpu_bottleneck_exporter.markup.style import STYLE, digest

PAGE = (files(__package__) / "page.html").read_text(encoding="utf-8")
SCRIPT = (files(__package__) / "refresh.js").read_text(encoding="utf-8")
BUILD = sha256((STYLE + SCRIPT).encode()).hexdigest()[:12]
"""Hash by which an open page detects another build."""

CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src {digest(STYLE)}; script-src {digest(SCRIPT)}; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""Policy that keeps names from running as script or leaking."""
