"""A real Prometheus with the real rules on the scenarios: which alerts fire, with which cause.

The rules are those of `support.quickrules`: an alert that takes twenty minutes fires within a case.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.exposition.render import TEXT, Exposition
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from scenarios.cases import Diagnosis, Expected
from support.beside import Reply, Request, answering
from support.daemon import HOST
from support.prometheus import Labels, Prometheus, prometheus
from support.quickrules import MODEST, await_rules, quick_rules

SILENT_SECONDS = 12.0
"""A job is judged from 5 s on, and alerts fire 5 s later; the layers of rules take the rest."""
_SCRAPED_EVERY_SECONDS = 0.5
_UNCOUNTED = "GpuCausesBlind"
"""Not a cause: it reports which signals the virtual board or this machine lacks."""
_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Heard:
    """What Prometheus said of one GPU, and what was expected."""

    expected: Expected
    primary: frozenset[str]
    """The primary cause at the end; empty: none."""
    firing: frozenset[Diagnosis]
    """At the end."""
    fired: frozenset[Diagnosis]
    """At any time of the case, or of its half."""
    pending: frozenset[Diagnosis]

    @property
    def wrong(self) -> str | None:
        """What does not meet the expectation; None if all does."""
        accepted = self.expected.alerts
        others = self.fired - accepted - self.expected.before
        excess = [f"{diagnosis.alert} fired" for diagnosis in sorted(others)]
        if not accepted:
            excess += [f"{diagnosis.alert} is pending" for diagnosis in sorted(self.pending)]
        causes = {diagnosis.cause for diagnosis in accepted}
        right = self.primary <= causes and bool(self.primary) == bool(accepted)
        if not right:
            excess.append(f"the primary cause is {', '.join(sorted(self.primary)) or 'none'}")
        if accepted and not self.firing & accepted:
            excess.append("none of the expected alerts fires")
        return ", ".join(excess) or None


class Listener:
    """Prometheus, and what it is shown: one case after the other, nothing in between.

    The endpoint is always up, as Prometheus takes seconds to find a new target. Cases do not
    affect each other: each has its own GPUs, whose series end with it.
    """

    server: Prometheus
    _shown: Exposition | None = None

    def answer(self, request: Request) -> Reply:
        """Of the endpoint."""
        shown = self._shown
        body, kind = shown.render(request.headers["Accept"]) if shown else (b"", TEXT)
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
        """What Prometheus has reported about the GPU with UUID `gpu` since monotonic time `began`.

        Waits until it is as expected, up to the time allowed.
        """
        while True:
            elapsed = time.monotonic() - began
            heard = self._hear(gpu, expected, elapsed)
            if expected.alerts:
                enough = not heard.wrong or elapsed >= expected.alert_seconds
            else:
                enough = elapsed >= SILENT_SECONDS
            if enough:
                return heard
            time.sleep(_POLL_SECONDS)

    def _hear(self, gpu: str, expected: Expected, seconds: float) -> Heard:
        query = self.server.query
        primary = query(f'gpu:bottleneck:primary{{uuid="{gpu}"}}')
        alerts = f'ALERTS{{uuid=~"|{gpu}",alertname!="{_UNCOUNTED}"}}'
        now = [labels for labels, _ in query(alerts)]
        ever = [labels for labels, _ in query(f"last_over_time({alerts}[{round(seconds)}s])")]
        return Heard(
            expected=expected,
            primary=frozenset(labels["cause"] for labels, _ in primary),
            firing=_diagnoses(now, "firing"),
            fired=_diagnoses(ever, "firing"),
            pending=_diagnoses(now, "pending"),
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


def _diagnoses(alerts: list[Labels], state: str) -> frozenset[Diagnosis]:
    return frozenset(
        Diagnosis(labels["alertname"], labels.get("cause", ""))
        for labels in alerts
        if labels["alertstate"] == state
    )
