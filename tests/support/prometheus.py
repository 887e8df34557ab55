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
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from support.daemon import HOST, daemon, free_port, get
from support.metrics import Metrics
from support.tools import require

Labels = dict[str, str]
Job = tuple[str, str, float]
"""Name, target, seconds between scrapes."""
Samples = list[tuple[float, float]]
"""Unix times and values."""


class QueryError(Exception):
    """Prometheus refused a query."""


class Prometheus:
    """The HTTP API of a running Prometheus."""

    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self.pid = pid

    def query(self, promql: str, at: float | None = None) -> list[tuple[Labels, float]]:
        """The instant vector of `promql` at Unix time `at`, by default now."""
        result = self._ask("query", query=promql, **_time(at))
        return [(entry["metric"], float(entry["value"][1])) for entry in result]

    def value(self, promql: str, at: float | None = None) -> float:
        """The only value of `promql`."""
        result = self.query(promql, at)
        if len(result) != 1:
            raise QueryError(f"{promql} has {len(result)} values")
        return result[0][1]

    def matrix(self, selector: str) -> list[tuple[Labels, Samples]]:
        """Each scrape in the last hour, by series."""
        return self._series("query", query=f"{selector}[1h]")

    def missed(self) -> float:
        """The share of evaluations of rule groups that it left out, as others took too long."""
        own = Metrics(get(self.port, "/metrics")[1].decode())
        names = (f"prometheus_rule_group_iterations{what}_total" for what in ("_missed", ""))
        missed, every = (sum(item.value for item in own.samples_of(name)) for name in names)
        return missed / every

    def query_range(
        self, promql: str, start: float, end: float, step: float
    ) -> list[tuple[Labels, Samples]]:
        """`promql` evaluated every `step` seconds from Unix time `start` to `end`."""
        return self._series("query_range", query=promql, start=start, end=end, step=step)

    def _series(self, call: str, **parameters: object) -> list[tuple[Labels, Samples]]:
        return [
            (entry["metric"], [(float(at), float(value)) for at, value in entry["values"]])
            for entry in self._ask(call, **parameters)
        ]

    def _ask(self, call: str, **parameters: object) -> list[dict[str, Any]]:
        status, body = get(self.port, f"/api/v1/{call}?{urlencode(parameters)}")
        if status != http.client.OK:
            raise QueryError(f"{call} {parameters}: {status} {body.decode()}")
        values: list[dict[str, Any]] = json.loads(body)["data"]["result"]
        return values


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
    home = folder / "prometheus"
    home.mkdir()
    try:
        scrapes = [{**_scrape_config(job), **(access or {}).get(job[0], {})} for job in jobs]
        config = {"rule_files": [f"{path}" for path in rules], "scrape_configs": scrapes}
        with on_data(home, config, variables) as server:
            yield server
    finally:
        shutil.rmtree(home)


@contextmanager
def on_data(
    home: Path, config: Mapping[str, object], variables: Mapping[str, str] | None = None
) -> Iterator[Prometheus]:
    """A ready Prometheus; its database lies in `home`, and all else that it writes."""
    path, port = home / "prometheus.yml", free_port()
    path.write_text(json.dumps(config))  # which is YAML, too
    command = [
        require("prometheus", "prometheus"),
        f"--config.file={path}",
        f"--storage.tsdb.path={home / 'data'}",
        "--storage.tsdb.retention.time=1y",  # what was written beforehand may be old
        "--storage.tsdb.max-block-duration=2h",  # nothing is compacted while it answers
        f"--web.listen-address={HOST}:{port}",
        "--log.level=warn",
    ]
    with daemon(command, port, "/-/ready", home / "log", variables) as pid:
        yield Prometheus(port, pid)


def write_past(home: Path, samples: Iterable[str]) -> None:
    """Write samples in OpenMetrics format into the database in `home`."""
    text = home / "samples"
    with text.open("w", encoding="utf-8") as file:
        file.writelines(samples)
        file.write("# EOF\n")
    command = [require("promtool", "prometheus"), "tsdb", "create-blocks-from"]
    command += ["openmetrics", f"{text}", f"{home / 'data'}"]
    subprocess.run(command, check=True, capture_output=True)
    text.unlink()


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
