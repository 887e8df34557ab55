"""An agent with the documented configuration feeds a central engine.

Prometheus in agent mode and VictoriaMetrics are the real ones. Of the document only addresses
are replaced, and the scrape interval, which is too long for a test.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from deploy.machine import README, fleets_configuration, recorded_names
from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.create import H100
from grafana.boards import asked
from rules.fleet import FILES
from rules.parsed import Rule, rules
from support.board_exporter import Exporter, over_board
from support.daemon import HOST, daemon, free_port, get
from support.metrics import Metrics
from support.prometheus import Labels, Prometheus
from support.tools import require
from support.victoriametrics import victoria_metrics
from support.waiting import until

NODE = "localhost"
"""Has a name, as nodes do: the part before the port becomes the instance."""
INTERVAL_SECONDS = 1.0
OBSERVED = "gpu_observed_seconds_total"


def of_an_agent(folder: Path, exporter: Exporter, engine: int) -> str:
    """The same for an agent, which takes no rules, with the addresses of this machine."""
    nodes = folder / "gpu-nodes.json"
    nodes.write_text(json.dumps([{"targets": [f"{NODE}:{exporter.port}"]}]))
    config = re.sub(r"^rule_files: .*\n", "", fleets_configuration(), flags=re.MULTILINE)
    config, replaced = re.subn(SENT, lambda _: f'regex: "{of_agents()}"', config)
    assert replaced == 1
    here = {
        "/etc/prometheus/gpu-nodes.json": f"{nodes}",
        "https://metrics.example.com/": f"http://{HOST}:{engine}/",
        "scrape_interval: 30s": f"scrape_interval: {round(INTERVAL_SECONDS * 1000)}ms",
    }
    for text, ours in here.items():
        assert config.count(text) == 1, text
        config = config.replace(text, ours)
    return config


@contextmanager
def agent(folder: Path, config: str) -> Iterator[int]:
    """Prometheus that only forwards; its port."""
    path, port = folder / "agent.yml", free_port()
    path.write_text(config)
    command = [require("prometheus", "prometheus"), "--enable-feature=agent", "--log.level=warn"]
    command += [f"--config.file={path}", f"--storage.agent.path={folder / 'agent'}"]
    command += [f"--web.listen-address={HOST}:{port}"]
    with daemon(command, port, "/-/ready", folder / "agent.log"):
        yield port


def central_engine(folder: Path, port: int) -> AbstractContextManager[Prometheus]:
    # By default a query sees nothing of the last 30 s.
    return victoria_metrics(folder, "-retentionPeriod=1", "-search.latencyOffset=0s", port=port)


def found(engine: Prometheus, query: str) -> list[tuple[Labels, float]]:
    """Result of `query`, with all samples received so far."""
    assert get(engine.port, "/internal/force_flush")[0] == http.client.OK
    return engine.query(query)


def names(engine: Prometheus) -> set[str]:
    assert get(engine.port, "/internal/force_flush")[0] == http.client.OK
    status, body = get(engine.port, "/api/v1/label/__name__/values")
    assert status == http.client.OK
    return set(json.loads(body)["data"])


def of_each(engine: Prometheus, name: str) -> list[Labels]:
    return sorted((labels for labels, _ in found(engine, name)), key=lambda of: of["gpu"])


SENT = re.compile(r'regex: "(gpu:.*?)"$', re.MULTILINE | re.DOTALL)


def of_agents() -> str:
    """The names that an agent sends: all."""
    (pattern,) = re.findall(r'^ *regex: "(gpu\[.*?)"$', README, re.MULTILINE | re.DOTALL)
    return re.sub(r"\\\n *", "", pattern)


def test_the_centre_receives_the_promised_series(
    make_board: Callable[..., Board], tmp_path: Path
) -> None:
    board, port = make_board(gpus=[H100, H100]), free_port()
    with (
        over_board(board.path) as exporter,
        central_engine(tmp_path, port) as engine,
        agent(tmp_path, of_an_agent(tmp_path, exporter, port)),
    ):
        until(lambda: len(found(engine, OBSERVED)) == len(board.gpus), OBSERVED)
        place = {"cluster": "west-1", "job": "gpu", "instance": NODE}
        of_gpus = [
            {**place, "gpu": f"{index}", "uuid": gpu.record.uuid.decode()}
            for index, gpu in enumerate(board.gpus)
        ]
        for name in ("gpu_up", OBSERVED):
            expected = [{"__name__": name, **labels} for labels in of_gpus]
            until(lambda: of_each(engine, name) == expected, partial(of_each, engine, name))  # noqa: B023
        # On a busy machine, not each scrape is in time.
        until(lambda: [value for _, value in found(engine, "gpu_up")] == [1, 1], "GPUs that are up")
        until(lambda: found(engine, "up") == [({"__name__": "up", **place}, 1)], "a scrape")

        _, exposed = get(exporter.port, "/metrics")
        pattern = re.compile(of_agents())
        exposed_names = Metrics(exposed.decode()).names
        promised = {name for name in exposed_names if pattern.fullmatch(name)}
        until(lambda: promised <= names(engine), lambda: promised - names(engine))
        assert {name for name in names(engine) if not pattern.fullmatch(name)} == set()
        # Something is left out: else nothing would have been tried.
        assert "process_open_fds" in exposed_names
        assert "process_open_fds" not in names(engine)


def test_all_that_rules_and_dashboards_ask_for_is_sent() -> None:
    """But for what kube-state-metrics shows, which another agent scrapes."""
    reads = {name for query in asked() for name in Rule("", "", {"expr": query.text()}).reads}
    for rule in rules({file.name: file.read_text("utf-8") for file in FILES}):
        reads |= rule.reads | ({"ALERTS"} if rule.is_alert else {rule.name})
    assert {name for name in reads if not re.fullmatch(f"{of_agents()}|kube_.*", name)} == set()


def test_recorded_series_are_enough_for_the_fleets_dashboard() -> None:
    of_fleet = [query for query in asked() if query.board == "fleet"]
    reads = {name for query in of_fleet for name in Rule("", "", {"expr": query.text()}).reads}
    sent = recorded_names()
    assert {name for name in reads if not sent.fullmatch(name)} == set()
    recorded = {rule.name for rule in rules() if rule.file == "recording.yml"}
    assert 10 < sum(bool(sent.fullmatch(name)) for name in recorded) < 40
    assert not [name for name in recorded if name.startswith("gpu:stall") and sent.fullmatch(name)]
