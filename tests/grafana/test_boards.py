"""The dashboards as files: what the builders make, of the right shape, in accord with the rules."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import combinations, pairwise
from typing import Any

import pytest
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from builders.__main__ import rendered
from gpu_bottleneck_exporter import palette
from gpu_bottleneck_exporter.stall import WAITING_ON
from grafana.boards import FOLDER, NAMES, Json, board, panels
from rules.causes_table import pack

UIDS = {
    "fleet": "gpu-bottleneck-fleet",
    "gpu": "gpu-bottleneck-gpu",
    "exporter": "gpu-bottleneck-self",
}
"""Links and bookmarks hold on to them."""
ALL = pack()
THRESHOLDS = {
    rule.name: float(rule.fields["expr"].removeprefix("vector(").removesuffix(")"))
    for rule in ALL
    if rule.name.startswith("gpu:threshold:") and not rule.labels
}
CAUSES = {rule.labels["cause"] for rule in ALL if rule.is_alert and "cause" in rule.labels}
TOLD = re.compile(r"`(gpu:threshold:\w+)`")
KINDS = {"bargauge", "stat", "state-timeline", "table", "timeseries"}
NOT_IN_THE_SCHEMA = re.compile(r"\.annotations\.list\[0\]\.(target\.\w+|titleFormat|textFormat)")
"""Of an annotation that queries Prometheus: the data source's own, which the schema leaves out."""

each_board = pytest.mark.parametrize("name", NAMES)


def test_the_files_are_what_the_builders_make() -> None:
    committed = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    assert committed == rendered(), "run `make generate`"


def test_the_folder_has_dashboards_only_as_json() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(NAMES)


# --- The format -----------------------------------------------------------------------------------
@each_board
def test_uids_are_stable(name: str) -> None:
    assert board(name)["uid"] == UIDS[name]
    assert len(board(name)["uid"]) <= 40


@each_board
def test_it_has_what_grafana_asks_for(name: str) -> None:
    found = board(name)
    assert "id" not in found  # of the database it was exported from
    assert found["schemaVersion"] == 39  # Grafana 11.0; later ones migrate it
    assert found["title"]
    assert found["time"]["to"] == "now"
    assert len({one["name"] for one in found["templating"]["list"]}) == len(
        found["templating"]["list"]
    )


@each_board
def test_ids_are_unique(name: str) -> None:
    numbers = Counter(panel["id"] for panel in board(name)["panels"])
    assert set(numbers.values()) == {1}
    titles = Counter(panel["title"] for panel in board(name)["panels"])
    assert set(titles.values()) == {1}


@each_board
def test_panels_do_not_overlap(name: str) -> None:
    def cells(panel: Json) -> set[tuple[int, int]]:
        place = panel["gridPos"]
        return {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }

    places = [cells(panel) for panel in board(name)["panels"]]
    assert all(not one & other for one, other in combinations(places, 2))
    assert all(0 <= x < 24 for place in places for x, _ in place)


@each_board
def test_each_row_has_panels_below_it(name: str) -> None:
    kinds = [panel["type"] for panel in board(name)["panels"]]
    assert kinds[0] == "row"
    assert kinds[-1] != "row"
    assert ("row", "row") not in pairwise(kinds)
    assert set(kinds) - {"row"} <= KINDS


@each_board
def test_targets_are_told_apart(name: str) -> None:
    for panel in panels(name):
        letters = [target["refId"] for target in panel["targets"]]
        assert letters == [chr(ord("A") + at) for at in range(len(letters))], panel["title"]


def plain(value: Any) -> Any:  # noqa: ANN401 - JSON
    """As JSON, the SDK's objects too."""
    return json.loads(json.dumps(value, default=lambda one: one.to_json()))


def missing(ours: Any, theirs: Any, path: str = "") -> list[str]:  # noqa: ANN401 - JSON
    """What is in `ours` and not, or otherwise, in `theirs`."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [
            line
            for key, value in ours.items()
            for line in (
                missing(value, theirs[key], f"{path}.{key}") if key in theirs else [f"{path}.{key}"]
            )
        ]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [
            line
            for at, (one, other) in enumerate(zip(ours, theirs, strict=True))
            for line in missing(one, other, f"{path}[{at}]")
        ]
    return [] if ours == theirs else [f"{path}: {ours!r} is {theirs!r}"]


@each_board
def test_the_schema_knows_every_field(name: str) -> None:
    """Grafana's own models take what they know and drop the rest: nothing may be lost."""
    register_default_plugins()
    ours = board(name)
    theirs = plain(Dashboard.from_json(board(name)))
    lost = missing(ours, theirs)
    assert [line for line in lost if not NOT_IN_THE_SCHEMA.fullmatch(line)] == []


def test_the_check_of_the_schema_finds_what_is_misspelt() -> None:
    register_default_plugins()
    ours = board("fleet")
    panel = next(one for one in ours["panels"] if one["type"] == "timeseries")
    panel["gridPos"]["width"] = 3
    panel["fieldConfig"]["defaults"]["custom"]["fillOpactiy"] = 1
    panel["options"]["lengend"] = {}
    panel["targets"][0]["exprr"] = "up"
    lost = {line.rpartition(".")[2] for line in missing(ours, plain(Dashboard.from_json(ours)))}
    assert {"width", "fillOpactiy", "lengend", "exprr"} <= lost


# --- Of one mind with the rules -------------------------------------------------------------------
def thresholds(panel: Json) -> list[float]:
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert steps[0]["value"] is None
    return [step["value"] for step in steps[1:]]


@each_board
def test_thresholds_are_those_of_the_rules(name: str) -> None:
    for panel in panels(name):
        told = TOLD.findall(panel["description"])
        assert sorted(THRESHOLDS[one] for one in told) == thresholds(panel), panel["title"]


def test_panels_have_thresholds() -> None:
    drawn = {one for name in NAMES for p in panels(name) for one in TOLD.findall(p["description"])}
    assert len(drawn) >= 9


def mappings(panel: Json) -> list[Json]:
    """Value mappings of a panel and of its fields."""
    config = panel["fieldConfig"]
    found = list(config["defaults"].get("mappings", []))
    for one in config["overrides"]:
        found += [m for p in one["properties"] if p["id"] == "mappings" for m in p["value"]]
    return found


def shown_causes(panel: Json) -> dict[str, str]:
    """Texts in mappings that are causes, and their colours."""
    options = [option for one in mappings(panel) for option in one["options"].values()]
    return {one["text"]: one["color"] for one in options if one["text"] in CAUSES}


def series_colours(panel: Json) -> dict[str, str]:
    return {
        one["matcher"]["options"]: prop["value"]["fixedColor"]
        for one in panel["fieldConfig"]["overrides"]
        for prop in one["properties"]
        if prop["id"] == "color"
    }


@each_board
def test_a_cause_or_a_wait_has_its_colour(name: str) -> None:
    for panel in panels(name):
        legends = {target["legendFormat"] for target in panel["targets"]}
        told = series_colours(panel)
        if "{{cause}}" in legends:
            assert told == palette.CAUSES, panel["title"]
        if "{{waiting_on}}" in legends:
            assert told == {"busy": palette.BUSY, **palette.WAITING_ON}, panel["title"]
        assert shown_causes(panel).items() <= palette.CAUSES.items(), panel["title"]


def test_ranks_are_shown_as_their_causes() -> None:
    (panel,) = [one for one in panels("gpu") if one["title"] == "Primary cause"]
    (shown,) = mappings(panel)
    ranks = {
        rule.labels["cause"]: float(rule.fields["expr"].removeprefix("vector(").rstrip(")"))
        for rule in ALL
        if rule.name == "gpu:cause:order"
    }
    assert {one["text"]: float(rank) for rank, one in shown["options"].items()} == ranks


@pytest.mark.parametrize("name", ["fleet", "gpu"])
def test_a_cause_leads_to_its_runbook(name: str) -> None:
    verdicts = next(one for one in panels(name) if one["title"].startswith("Verdict"))
    (column,) = [
        one
        for one in verdicts["fieldConfig"]["overrides"]
        if one["matcher"]["options"] == "runbook"
    ]
    properties = {prop["id"]: prop["value"] for prop in column["properties"]}
    names = {cause: one["text"] for cause, one in properties["mappings"][0]["options"].items()}
    alerts = {
        rule.labels["cause"]: rule.name for rule in ALL if "cause" in rule.labels and rule.is_alert
    }
    assert names == alerts
    (base,) = [v for v in board(name)["templating"]["list"] if v["name"] == "runbooks"]
    (link,) = properties["links"]
    for cause, alert in alerts.items():
        url = link["url"].replace("${runbooks}", base["query"])
        url = url.replace("${__value.text}", names[cause])
        (expected,) = {
            rule.annotations["runbook_url"] for rule in ALL if rule.is_alert and rule.name == alert
        }
        assert url == expected


def test_links_between_dashboards_lead_somewhere() -> None:
    text = "".join((FOLDER / f"{name}.json").read_text(encoding="utf-8") for name in NAMES)
    assert set(re.findall(r'"/d/([\w-]+)', text)) == {UIDS["gpu"]}
    tags = [set(link["tags"]) for name in NAMES for link in board(name)["links"]]
    assert all(tag <= set(board(name)["tags"]) for tag in tags for name in NAMES)


def test_a_link_to_a_gpu_sets_variables_that_it_has() -> None:
    text = (FOLDER / "fleet.json").read_text(encoding="utf-8")
    names = {one["name"] for one in board("gpu")["templating"]["list"]}
    assert set(re.findall(r"var-(\w+)=", text)) | set(re.findall(r"\{(\w+):query", text)) <= names


# --- The palette ----------------------------------------------------------------------------------
def test_every_cause_and_every_wait_has_a_colour() -> None:
    assert tuple(palette.WAITING_ON) == WAITING_ON
    assert set(palette.CAUSES) == CAUSES
    assert len(CAUSES) == 38
    colours = [*palette.CAUSES.values()]
    assert len(set(colours)) == len(colours)
    assert all(re.fullmatch(r"#[0-9A-F]{6}", one) for one in [*colours, palette.BUSY])


# Machado, Oliveira and Fernandes 2009, severity 1, of linear sRGB.
SIGHTS = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "red-blind": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "green-blind": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
}


def seen(colour: str, sight: str) -> tuple[float, float, float]:
    """As CIE L*a*b*."""
    linear = [palette._linear(int(colour[at : at + 2], 16) / 255) for at in (1, 3, 5)]
    red, green, blue = (
        min(1.0, max(0.0, sum(m * v for m, v in zip(row, linear, strict=True))))
        for row in SIGHTS[sight]
    )
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883
    fx, fy, fz = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("sight", SIGHTS)
def test_waits_can_be_told_apart(sight: str) -> None:
    """By a distance that leaves no doubt (2 is just noticeable side by side)."""
    colours = {"busy": palette.BUSY, **palette.WAITING_ON}
    near = [
        (one, other)
        for (one, a), (other, b) in combinations(colours.items(), 2)
        if sum((u - v) ** 2 for u, v in zip(seen(a, sight), seen(b, sight), strict=True)) < 16**2
    ]
    assert near == []


def test_the_check_of_sights() -> None:
    red, green = seen("#D00000", "green-blind"), seen("#606000", "green-blind")
    assert sum((u - v) ** 2 for u, v in zip(red, green, strict=True)) < 16**2


def test_texts_can_be_read_on_every_colour() -> None:
    for colour in [palette.BUSY, *palette.WAITING_ON.values(), *palette.CAUSES.values()]:
        assert palette.contrast(colour, palette.text_on(colour)) >= 4.5
    assert palette.contrast("#000000", "#FFFFFF") == pytest.approx(21)


def test_colours_stand_out_from_a_dark_page() -> None:
    """Of Grafana's dark theme."""
    assert min(palette.contrast(c, "#181B1F") for c in palette.CAUSES.values()) > 1.8
