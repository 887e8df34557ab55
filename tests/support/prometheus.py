"""A real Prometheus on a loopback port, for as long as a test needs it.

    with prometheus(folder, [("gpu", "127.0.0.1:10170", 5.0)]) as server:
        server.query('up{job="gpu"}')

With rule files, it evaluates these too. Its configuration, database and log lie in the folder and
are removed afterwards.
"""

from __future__ import annotations

import http.client
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from support.daemon import HOST, daemon, free_port, get
from support.tools import require

Labels = dict[str, str]
Job = tuple[str, str, float]
"""Name, target, seconds between scrapes."""


class QueryError(Exception):
    """Prometheus refused a query."""


class Prometheus:
    """The HTTP API of a running Prometheus."""

    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self.pid = pid

    def query(self, promql: str, at: float | None = None) -> list[tuple[Labels, float]]:
        """The instant vector of `promql` at Unix time `at`, by default now."""
        found = self._ask("query", query=promql, **_time(at))
        return [(entry["metric"], float(entry["value"][1])) for entry in found]

    def value(self, promql: str, at: float | None = None) -> float:
        """The only value of `promql`."""
        found = self.query(promql, at)
        if len(found) != 1:
            raise QueryError(f"{promql} has {len(found)} values")
        return found[0][1]

    def samples(self, selector: str) -> list[tuple[float, float]]:
        """(Unix time, value) of each scrape in the last hour, of the only matching series."""
        found = self._ask("query", query=f"{selector}[1h]")
        if len(found) != 1:
            raise QueryError(f"{selector} has {len(found)} series")
        return [(float(at), float(value)) for at, value in found[0]["values"]]

    def matrix(self, selector: str) -> list[tuple[Labels, list[tuple[float, float]]]]:
        """(Unix time, value) of each scrape in the last hour, by series."""
        return [
            (found["metric"], [(float(at), float(value)) for at, value in found["values"]])
            for found in self._ask("query", query=f"{selector}[1h]")
        ]

    def query_range(
        self, promql: str, start: float, end: float, step: float
    ) -> list[tuple[Labels, list[tuple[float, float]]]]:
        """`promql` evaluated every `step` seconds from Unix time `start` to `end`."""
        found = self._ask("query_range", query=promql, start=start, end=end, step=step)
        return [
            (entry["metric"], [(float(at), float(value)) for at, value in entry["values"]])
            for entry in found
        ]

    def _ask(self, call: str, **parameters: object) -> list[dict[str, Any]]:
        status, body = get(self.port, f"/api/v1/{call}?{urlencode(parameters)}")
        if status != http.client.OK:
            raise QueryError(f"{call} {parameters}: {status} {body.decode()}")
        found: list[dict[str, Any]] = json.loads(body)["data"]["result"]
        return found


@contextmanager
def prometheus(
    folder: Path,
    jobs: Sequence[Job],
    rules: Sequence[Path] = (),
    variables: Mapping[str, str] | None = None,
    access: Mapping[str, Mapping[str, object]] | None = None,
) -> Iterator[Prometheus]:
    """A ready Prometheus that scrapes `jobs` and evaluates `rules`.

    `variables` are added to its environment. `access` has further settings of a job, by its name:
    scheme, certificates, user. Needs only `folder`, and leaves nothing there.
    """
    program = require("prometheus", "prometheus")
    home = folder / "prometheus"
    home.mkdir()
    try:
        scrapes = [{**_scrape_config(job), **(access or {}).get(job[0], {})} for job in jobs]
        with _running(program, home, scrapes, rules, variables or {}) as server:
            yield server
    finally:
        shutil.rmtree(home)


@contextmanager
def _running(
    program: str,
    home: Path,
    scrapes: Sequence[Mapping[str, object]],
    rules: Sequence[Path],
    variables: Mapping[str, str],
) -> Iterator[Prometheus]:
    config, log = home / "prometheus.yml", home / "log"
    # JSON is YAML.
    config.write_text(
        json.dumps({"rule_files": [f"{path}" for path in rules], "scrape_configs": scrapes})
    )
    port = free_port()
    command = [program, f"--config.file={config}", f"--storage.tsdb.path={home / 'data'}"]
    command += [f"--web.listen-address={HOST}:{port}", "--log.level=warn"]
    with daemon(command, port, "/-/ready", log, variables) as pid:
        yield Prometheus(port, pid)


def _scrape_config(job: Job) -> dict[str, object]:
    name, target, seconds = job
    interval = f"{round(seconds * 1000)}ms"
    return {
        "job_name": name,
        "scrape_interval": interval,
        "scrape_timeout": interval,
        "static_configs": [{"targets": [target]}],
    }


def _time(at: float | None) -> dict[str, float]:
    return {} if at is None else {"time": at}
