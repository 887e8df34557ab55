"""What the HTTP server serves: the exposition, the status page, the node document, and health."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_bottleneck_exporter.exposition.render import Exposition
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.nodeview.local import LocalNode
from gpu_bottleneck_exporter.nodeview.wire import document
from gpu_bottleneck_exporter.sampling.collector import Collector
from gpu_bottleneck_exporter.sampling.sampler import Sampler


class ExporterContent:
    """The exporter as `web.routes.Content`."""

    def __init__(
        self, sampler: Sampler, collectors: Sequence[Collector], telemetry_path: str, runbooks: str
    ) -> None:
        self._sampler = sampler
        self._exposition = Exposition(sampler, collectors)
        self._telemetry_path = telemetry_path
        self._runbooks = runbooks
        self.recorder = LocalNode(sampler)

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """One scrape."""
        return self._exposition.render(accept)

    def status_page(self) -> bytes:
        """The status page."""
        # Imported late: it takes a megabyte, and most exporters' pages are never opened.
        from gpu_bottleneck_exporter.web.status import status_page  # noqa: PLC0415

        page = status_page(
            self.recorder.read(),
            self.recorder.trends(),
            telemetry_path=self._telemetry_path,
            runbooks=self._runbooks,
        )
        return page.encode(errors="replace")

    def node(self) -> bytes:
        """The node document."""
        return f"{dumps(document(self.recorder.read()))}\n".encode()

    def healthy(self) -> tuple[bool, str]:
        """Liveness: the sampler runs. A missing or hung driver is no reason for a restart."""
        standstill = self._sampler.standstill()
        return standstill is None, standstill or "the sampler is running"

    def ready(self) -> tuple[bool, str]:
        """Readiness: every GPU was tried once, or there is no driver."""
        return self._sampler.ready, self._sampler.status
