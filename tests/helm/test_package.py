"""The chart's package, and its documentation."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path

import pytest
import yaml

from helm import chart, commented

README = chart.CHART / "README.md"
LINKS = {"rules": "../../rules", "dashboards": "../../grafana"}
OWN = {"Chart.yaml", "README.md", "values.schema.json", "values.yaml"}
OWN |= {"files/fetch.py", "files/newer.yaml"}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(chart.helm.package(chart.CHART, destination=tmp_path_factory.mktemp("package")))


def contents(package: Path) -> dict[str, bytes]:
    with tarfile.open(package) as archive:
        members = archive.getmembers()
        assert all(member.isfile() for member in members)
        files = {m.name.partition("/")[2]: archive.extractfile(m) for m in members}
        return {name: file.read() for name, file in files.items() if file is not None}


def test_links_lead_to_the_sources() -> None:
    assert {name: f"{(chart.CHART / name).readlink()}" for name in LINKS} == LINKS


def test_it_has_rules_and_dashboards_as_files_and_nothing_else(package: Path) -> None:
    names = (
        *("thresholds.yml", "recording.yml", "serving.yml", "alerts.yml", "reclaim.yml"),
        *("owners.yml", "budgets.yml"),
    )
    expected = {f"rules/{n}": (chart.ROOT / "rules" / n).read_bytes() for n in names}
    grafana = (chart.ROOT / "grafana").glob("*.json")
    expected |= {f"dashboards/{path.name}": path.read_bytes() for path in grafana}
    there = contents(package)
    assert {name: there.get(name) for name in expected} == expected
    others = there.keys() - expected.keys() - {".helmignore"}
    assert {name for name in others if not name.startswith("templates/")} == OWN


def test_every_value_is_documented() -> None:
    rows = [entry.key for entry in commented.values(commented.VALUES.read_text())]
    assert len(rows) == len(set(rows))
    paths = [".".join(path) for path, _ in chart.leaves(dict(chart.chart().values))]
    assert [
        entry for entry in paths if not any(f"{entry}.".startswith(f"{row}.") for row in rows)
    ] == []


def test_examples_in_the_readme_are_values() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 1
    for block in blocks:
        chart.rendered(yaml.safe_load(block))


ADDRESS = re.compile(r"([\w.-]+):10170\b")


def test_the_readme_and_the_notes_name_addresses_where_an_exporter_listens() -> None:
    """A node's own address only beside the value that makes the exporter listen there."""
    service = chart.rendered().service["metadata"]
    name = f"{service['name']}.{service['namespace']}"
    for line in README.read_text(encoding="utf-8").splitlines():
        assert {*ADDRESS.findall(line)} <= {name} or "hostPort=10170" in line, line
    assert ADDRESS.findall(chart.rendered().notes) == [name]
    assert ADDRESS.findall(chart.rendered(hostNetwork=True).notes) == [name, "NODE"]
    own = chart.rendered(hostPort=9400, service={"clusterIP": "", "port": 80}).notes
    assert f"http://{name}:80 leads to one of them" in own
    assert "http://NODE:9400" in own


def test_flags_in_the_readme_are_values() -> None:
    text = README.read_text(encoding="utf-8")
    platforms = re.findall(r"`((?:[a-zA-Z]+\.)+[a-zA-Z]+=[^\s`]*)`", text)
    settings = [*re.findall(r"--set (\S+)", text), *platforms]
    ours = [setting for setting in settings if not setting.startswith(("sidecar.", "cdi."))]
    assert ours
    for setting in ours:
        chart.chart().validate_schema(chart.helm.parse_set_string(setting))


def test_the_schema_is_tidy() -> None:
    schema = json.loads((chart.CHART / "values.schema.json").read_text())
    used = set(re.findall(r'"#/\$defs/(\w+)"', json.dumps(schema)))
    assert used == set(schema["$defs"])
    values = set(chart.chart().values)
    assert set(schema["properties"]) == values | {"global", "enabled"}
