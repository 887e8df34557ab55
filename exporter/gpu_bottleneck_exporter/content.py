"""What the HTTP server shows: the exposition, the status page, and how the exporter feels."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_bottleneck_exporter import __version__
from gpu_bottleneck_exporter.collectors.base import Collector
from gpu_bottleneck_exporter.exposition import Exposition
from gpu_bottleneck_exporter.sampler import Sampler
from gpu_bottleneck_exporter.web.status import status_page


class ExporterContent:
    """The exporter as `web.content.Content`."""

    def __init__(
        self, sampler: Sampler, collectors: Sequence[Collector], telemetry_path: str
    ) -> None:
        self._sampler = sampler
        self._exposition = Exposition(sampler, collectors)
        self._telemetry_path = telemetry_path

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """One scrape."""
        return self._exposition.render(accept)

    def status_page(self) -> bytes:
        """The page for people."""
        return status_page(
            version=__version__,
            status=self._sampler.status,
            state=self._sampler.state(),
            down=self._sampler.down_reasons(),
            telemetry_path=self._telemetry_path,
        ).encode()

    def healthy(self) -> tuple[bool, str]:
        """Liveness: the sampler runs. A missing or hung driver is no reason to be restarted."""
        if self._sampler.alive:
            return True, "the sampler is running"
        return False, f"the sampler has stopped: {self._sampler.status}"

    def ready(self) -> tuple[bool, str]:
        """Readiness: every GPU was tried once, or it is known that there is no driver."""
        return self._sampler.ready, self._sampler.status
