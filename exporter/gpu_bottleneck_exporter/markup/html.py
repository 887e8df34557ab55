"""HTML that its content cannot break: all text is escaped once, where it is inserted."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from string import Template


class Html(str):
    """Text that is already HTML."""

    __slots__ = ()


def element(tag: str, /, *content: str | None, **attributes: str | None) -> Html:
    """One element. Content is text unless it is `Html`; None is left out.

    A trailing underscore avoids Python's keywords; other underscores become hyphens.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{tag}{written}>{join(*content)}</{tag}>")


def join(*content: str | None) -> Html:
    """The pieces, one after another; None is left out."""
    return Html("".join(_safe(piece) for piece in content if piece is not None))


def filled(template: str, **content: str) -> Html:
    """A template of HTML, with text unless it is `Html` in place of each $name."""
    return Html(Template(template).substitute({k: _safe(v) for k, v in content.items()}))


def listed(items: Iterable[str], class_: str, label: str) -> Html:
    """A list without order; `label` names it."""
    return element("ul", *(element("li", item) for item in items), class_=class_, aria_label=label)


def described(pairs: Iterable[tuple[str, str]], class_: str) -> Html:
    """A list of names and what is known under them."""
    items = (element("div", element("dt", name), element("dd", text)) for name, text in pairs)
    return element("dl", *items, class_=class_)


def _safe(piece: str) -> str:
    return piece if isinstance(piece, Html) else escape(piece)
