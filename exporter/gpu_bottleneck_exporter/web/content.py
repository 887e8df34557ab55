"""What the HTTP server shows, told apart from how it is served."""

from __future__ import annotations

from typing import Protocol


class Content(Protocol):
    """Answers for the HTTP server; every method may be called from any thread."""

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """Renders one scrape.

        Called from one thread only, one call at a time: it may take as long as a
        scrape may. Returning the very same bytes object again spares the server
        compressing it again.

        Args:
            accept: The request's Accept header, "" when it sent none.

        Returns:
            The body and its content type, as negotiated by `accept`.
        """
        ...

    def status_page(self) -> bytes:
        """Renders the page for people.

        Called from one thread only, one call at a time, and not from the thread of
        `metrics`: the page answers while a scrape hangs, as long as the two share no
        lock.

        Returns:
            UTF-8 HTML. The page may hold the style and the script of `web.status` and
            `data:` images; the server's Content-Security-Policy stops everything else.
        """
        ...

    def healthy(self) -> tuple[bool, str]:
        """Tells liveness. Called on the event loop, so it must not block.

        Returns:
            Whether the process is worth keeping, and one plain sentence.
        """
        ...

    def ready(self) -> tuple[bool, str]:
        """Tells readiness. Called on the event loop, so it must not block.

        Returns:
            Whether a scrape would give data now, and one plain sentence.
        """
        ...
