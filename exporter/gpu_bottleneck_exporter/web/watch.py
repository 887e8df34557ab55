"""The web configuration for the event loop, which never waits for a file system."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading

from gpu_bottleneck_exporter.web.reload import Active, WebConfigFile

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 1.0
"""For a look at the files; it takes a tenth of a millisecond where nothing hangs."""


class WebConfigWatch:
    """Looks at the file in a thread of its own; all but `close` are for the event loop.

    The thread is a daemon, and never joined: where a mount hangs, it hangs.
    """

    def __init__(self, file: WebConfigFile, patience: float = PATIENCE_SECONDS) -> None:
        self._file = file
        self._patience = patience
        self._asked: queue.SimpleQueue[asyncio.AbstractEventLoop | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._look: asyncio.Future[None] | None = None
        self._hangs = False

    @property
    def active(self) -> Active:
        """The configuration in force."""
        return self._file.active

    async def fresh(self) -> Active:
        """The newest configuration that works, or the last one where looking takes too long.

        One look serves all who ask meanwhile. Once a look has taken too long nobody
        waits for it any more.
        """
        if self._look is None:
            self._look = self._begin()
        if not self._hangs:
            look = self._look
            await asyncio.wait([look], timeout=self._patience)
            if not look.done() and not self._hangs:
                self._hangs = True
                self._complain()
        return self._file.active

    async def reload(self) -> None:
        """Reads everything again, changed or not; the log says what came of it."""
        self._file.forget()
        if self._hangs:
            self._complain()
        await self.fresh()

    def _complain(self) -> None:
        logger.error(
            "The last good web configuration stays in force: its files could not be looked at "
            "within %g s; does their file system hang?",
            self._patience,
        )

    def close(self) -> None:
        """Ends the thread, once it is back from the look that it is at."""
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
            except Exception:  # else nobody would ever look again
                logger.exception("The web configuration could not be looked at.")
            try:
                loop.call_soon_threadsafe(self._looked)
            except RuntimeError:  # the loop has ended meanwhile
                return

    def _looked(self) -> None:
        look, self._look = self._look, None
        if self._hangs:
            self._hangs = False
            logger.info("The files of the web configuration can be looked at again.")
        if look is not None and not look.done():
            look.set_result(None)
