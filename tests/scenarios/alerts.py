"""A real Prometheus with the real rules on the scenarios: which alerts fire, with which cause.

The rules are those of `support.quickrules`: an alert that takes twenty minutes fires within a case.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.exposition.render import TEXT_TYPE, Exposition
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from scenarios.cases import Expected
from scenarios.diagnoses import Diagnosis, Heard
from support.beside import Reply, Request, answering
from support.daemon import HOST
from support.prometheus import Labels, Prometheus, prometheus
from support.quickrules import MODEST, await_rules, quick_rules

SILENT_SECONDS = 12.0
"""A job is judged from 5 s on, and alerts fire 5 s later; the layers of rules take the rest."""
_PASSING_SECONDS = 8.0
"""A primary cause that is gone by then is none: scaled windows hold a few scrapes, and of two
counters that are read one after the other, one may lag."""
_SCRAPED_EVERY_SECONDS = 0.5
_UNCOUNTED = "GpuCausesBlind"
"""Not a cause: it reports which signals the virtual board or this machine lacks."""
_POLL_SECONDS = 0.5


class Listener:
    """Prometheus, and what it is shown: one case after the other, nothing in between.

    The endpoint is always up, as Prometheus takes seconds to find a new target. Cases do not
    affect each other: each has its own GPUs, whose series end with it.
    """

    server: Prometheus
    _shown: Exposition | None = None

    def answer(self, request: Request) -> Reply:
        """Response of the endpoint."""
        shown = self._shown
        body, kind = shown.render(request.headers["Accept"]) if shown else (b"", TEXT_TYPE)
        return Reply(body, headers={"Content-Type": kind})

    @contextmanager
    def showing(self, sampler: Sampler) -> Iterator[None]:
        """Let Prometheus scrape `sampler`."""
        self._shown = Exposition(sampler, ALL)
        try:
            yield
        finally:
            self._shown = None

    def await_answer(self, gpu: str, expected: Expected, began: float) -> Heard:
        """Alerts of Prometheus about the GPU with UUID `gpu` since monotonic time `began`.

        Waits until it is as expected, up to the time allowed.
        """
        while True:
            elapsed = time.monotonic() - began
            heard = self._hear(gpu, expected, elapsed)
            if expected.alerts:
                enough = not heard.wrong or elapsed >= expected.alert_seconds
            else:
                patience = _PASSING_SECONDS if heard.wrong else 0.0
                enough = elapsed >= SILENT_SECONDS + patience
            if enough:
                return heard
            time.sleep(_POLL_SECONDS)

    def _hear(self, gpu: str, expected: Expected, seconds: float) -> Heard:
        query = self.server.query
        primary = query(f'gpu:bottleneck:primary{{uuid="{gpu}"}}')
        alerts = f'ALERTS{{uuid=~"|{gpu}",alertname!="{_UNCOUNTED}"}}'
        now = [labels for labels, _ in query(alerts)]
        ever = [labels for labels, _ in query(f"last_over_time({alerts}[{round(seconds)}s])")]
        target, fired = expected.alerts, _with_state("firing", ever)
        return Heard(
            wanted=target,
            besides=expected.before,
            causes=frozenset(item.cause for item in target) or frozenset({""}),
            fired=fired if target else fired | _with_state("pending", now),
            firing=_with_state("firing", now),
            primary=", ".join(sorted(labels["cause"] for labels, _ in primary)),
        )


@contextmanager
def listening(folder: Path) -> Iterator[Listener]:
    """A ready Prometheus with the scaled rules; its files lie below `folder` until the end."""
    listener = Listener()
    with answering(listener.answer) as port, quick_rules(folder) as rules:
        jobs = [("gpu", f"{HOST}:{port}", _SCRAPED_EVERY_SECONDS)]
        with prometheus(folder, jobs, rules, MODEST) as listener.server:
            await_rules(listener.server)
            yield listener


def _with_state(state: str, alerts: list[Labels]) -> frozenset[Diagnosis]:
    return frozenset(Diagnosis.of(labels) for labels in alerts if labels["alertstate"] == state)
