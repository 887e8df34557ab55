"""HTML that cannot be broken by what it shows: all text is escaped, once, where it goes in."""

from __future__ import annotations

from html import escape

VOID = frozenset({"meta", "link", "rect", "path"})
"""Elements without content; those of SVG are closed in the tag."""


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(tag: str, /, *content: str | None, **attributes: str | None) -> Html:
    """One element. Content is text unless it is `Html`; what is None is left out.

    A trailing underscore keeps an attribute off Python's keywords, others become hyphens.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if tag in VOID:
        return Html(f"<{tag}{written}/>")
    return Html(f"<{tag}{written}>{join(*content)}</{tag}>")


def join(*content: str | None) -> Html:
    """Pieces one after another."""
    return Html("".join(_safe(piece) for piece in content if piece is not None))


def _safe(piece: str) -> str:
    return piece if isinstance(piece, Html) else escape(piece)
