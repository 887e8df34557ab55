"""The web configuration for the event loop, which must never wait for a file system."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading

from gpu_bottleneck_exporter.web.reload import Active, WebConfigFile

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 1.0
"""For checking the files, which takes a tenth of a millisecond unless something hangs."""


class WebConfigWatch:
    """Checks the file in its own thread; all methods except `close` are for the event loop.

    The thread is a daemon and never joined: if a mount hangs, it hangs.
    """

    def __init__(self, file: WebConfigFile) -> None:
        self._file = file
        self._asked: queue.SimpleQueue[asyncio.AbstractEventLoop | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._look: asyncio.Future[None] | None = None
        self._hangs = False

    async def fresh(self) -> Active:
        """The newest configuration that works, or the last one if the check takes too long.

        One check serves all requests that arrive meanwhile. Once it has taken too long, no
        request waits for it any more.
        """
        if self._look is None:
            self._look = self._begin()
        if not self._hangs:
            look = self._look
            await asyncio.wait([look], timeout=PATIENCE_SECONDS)
            if not look.done() and not self._hangs:
                self._hangs = True
                self._complain()
        return self._file.active

    async def reload(self) -> None:
        """Reread everything, changed or not; the log reports the outcome."""
        self._file.forget()
        if self._hangs:
            self._complain()
        await self.fresh()

    def _complain(self) -> None:
        logger.error(
            "The last good web configuration stays in force: its files were not checked within "
            "%g s; is their file system hanging?",
            PATIENCE_SECONDS,
        )

    def close(self) -> None:
        """End the thread once its current check returns."""
        self._asked.put(None)

    def _begin(self) -> asyncio.Future[None]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="web-config", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        self._asked.put(loop)
        return loop.create_future()

    def _run(self) -> None:
        while (loop := self._asked.get()) is not None:
            try:
                self._file.refresh()
            except Exception:  # else no check would ever follow
                logger.exception("The web configuration could not be checked.")
            try:
                loop.call_soon_threadsafe(self._looked)
            except RuntimeError:  # the loop has ended
                return

    def _looked(self) -> None:
        look, self._look = self._look, None
        if self._hangs:
            self._hangs = False
            logger.info("The files of the web configuration can be checked again.")
        if look is not None and not look.done():
            look.set_result(None)
