"""What the HTTP server shows, independent of how it is served."""

from __future__ import annotations

from typing import Protocol


class Content(Protocol):
    """The content of the pages; every method may be called from any thread."""

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """Render one scrape; called for one client at a time.

        Returning the same bytes object as before saves the server compressing it again.

        Args:
            accept: The request's Accept header, "" if it had none.

        Returns:
            The body and its content type, as negotiated by `accept`.
        """

    def status_page(self) -> bytes:
        """Render the page for people; called for one client at a time.

        The page answers while a scrape hangs, provided that the two share no lock.

        Returns:
            UTF-8 HTML. The page may contain the style and the script of `web.status` and
            `data:` images; the server's Content-Security-Policy blocks everything else.
        """

    def node(self) -> bytes:
        """Render the node document, as JSON; called for one client at a time."""

    def healthy(self) -> tuple[bool, str]:
        """Check liveness; must not block.

        Returns:
            Whether the process is worth keeping, and one plain sentence.
        """

    def ready(self) -> tuple[bool, str]:
        """Check readiness; must not block.

        Returns:
            Whether a scrape would return data now, and one plain sentence.
        """
