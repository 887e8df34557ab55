"""What stands in a document: links, headings, commands."""

from __future__ import annotations

import re
from pathlib import Path

LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
"""Target and anchor."""


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
