"""HTML builder; escapes all text on insertion."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from string import Template


class Html(str):
    """A string that is already HTML."""

    __slots__ = ()


def element(tag: str, /, *content: str | None, **attributes: str | None) -> Html:
    """An element. None is omitted from content and attributes.

    Attribute names lose a trailing underscore; other underscores become hyphens.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{tag}{written}>{join(*content)}</{tag}>")


def join(*content: str | None) -> Html:
    """Concatenate content, without None."""
    return Html("".join(_safe(piece) for piece in content if piece is not None))


def filled(template: str, **content: str) -> Html:
    """Fill each $name of an HTML template."""
    return Html(Template(template).substitute({k: _safe(v) for k, v in content.items()}))


def listed(items: Iterable[str], class_: str, label: str) -> Html:
    """An unordered list with an accessible label."""
    return element("ul", *(element("li", item) for item in items), class_=class_, aria_label=label)


def described(pairs: Iterable[tuple[str, str]], class_: str) -> Html:
    """A description list."""
    items = (element("div", element("dt", name), element("dd", text)) for name, text in pairs)
    return element("dl", *items, class_=class_)


def _safe(piece: str) -> str:
    return piece if isinstance(piece, Html) else escape(piece)
