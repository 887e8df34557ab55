"""The dashboards as files: what the builders make, of the right shape, in accord with the rules.

Formats are those of the schemas that Grafana 11, 12 and 13 are published with.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import combinations, pairwise, product
from math import dist

from builders import pack
from builders.__main__ import rendered
from builders.colours import CAUSES as OF_CAUSES
from gpu_bottleneck_exporter import palette
from gpu_bottleneck_exporter.accounting.stall import WAITING_ON
from grafana.boards import FOLDER, NAMES, Json, asked, board, each_board, each_panel, panels
from grafana.schema import VERSIONS, faults
from rules import causes_table, parsed
from rules.fleet import RULES
from support.offenders import each

UIDS = {name: f"gpu-bottleneck-{name}" for name in ("fleet", "gpu")}
UIDS["exporter"] = "gpu-bottleneck-self"
"""Links and bookmarks hold on to them."""
ALL = causes_table.pack()
THRESHOLDS = {
    rule.name: float(rule.fields["expr"].removeprefix("vector(").removesuffix(")"))
    for rule in ALL
    if rule.name.startswith("gpu:threshold:") and not rule.labels
}
CAUSES = {one.labels["cause"] for one in causes_table.alerts() if "cause" in one.labels}
TOLD = re.compile(r"`(gpu:threshold:\w+)`")
KINDS = {"stat", "state-timeline", "table", "timeseries"}


def test_the_files_are_what_the_builders_make() -> None:
    committed = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    assert committed == rendered(), "run `make generate`"
    assert {name.removesuffix(".json") for name in committed} == set(NAMES)


# --- The format -----------------------------------------------------------------------------------
@each_board
def test_it_has_what_grafana_asks_for(name: str) -> None:
    found = board(name)
    assert found["uid"] == UIDS[name]
    assert len(found["uid"]) <= 40
    assert "id" not in found  # of the database it was exported from
    assert found["schemaVersion"] == 39  # Grafana 11.0; later ones migrate it
    assert found["title"]
    assert found["time"]["to"] == "now"
    variables = [one["name"] for one in found["templating"]["list"]]
    ids, titles = ([panel[key] for panel in found["panels"]] for key in ("id", "title"))
    for told in (variables, ids, titles):
        assert len({*told}) == len(told)


@each_board
def test_panels_do_not_overlap(name: str) -> None:
    places = [panel["gridPos"] for panel in board(name)["panels"]]
    assert all(0 <= place["x"] <= 24 - place["w"] for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] >= other["x"] + other["w"] or other["x"] >= one["x"] + one["w"]
        above = one["y"] >= other["y"] + other["h"] or other["y"] >= one["y"] + one["h"]
        assert beside or above


@each_board
def test_each_row_has_panels_below_it(name: str) -> None:
    """Or in it, where it is collapsed."""
    found = board(name)["panels"]
    assert found[0]["type"] == "row"
    for one, other in pairwise([*found, {"type": "row"}]):
        if one["type"] == "row":
            assert one["collapsed"] is bool(one["panels"])
            assert one["collapsed"] or other["type"] != "row"
    assert {panel["type"] for panel in panels(name)} <= KINDS


OF_ANOTHER = {
    # A table column that is not shown says so twice: `hidden` up to 12.1, `hideFrom` from 12.2 on.
    # The footer that is not shown is a field's option in newer ones, and this one is dropped;
    # `fields` may be "" for all in 11, whatever the schema says.
    "11": re.compile(r".*\.(custom\.hideFrom: unknown|options\.footer\.fields: '' .*)"),
    "newer": re.compile(r".*\.(custom\.hidden|options\.footer): unknown"),
}
"""Faults that are none, as they are for other versions: by major version."""


def test_there_is_a_schema_of_each_major_version() -> None:
    assert {version.split(".")[0] for version in VERSIONS} == {"11", "12", "13"}
    assert VERSIONS[0] == "11.0.0"


@each(product(NAMES, VERSIONS))
def test_the_schema_knows_everything(of: tuple[str, str]) -> None:
    name, version = of
    other = OF_ANOTHER["11" if version.startswith("11.") else "newer"]
    assert [one for one in faults(board(name), version) if not other.fullmatch(one)] == []


@each_panel
def test_hidden_columns_are_hidden_in_every_version(panel: Json) -> None:
    for rule in panel["fieldConfig"]["overrides"]:
        told = {one["id"]: one["value"] for one in rule["properties"]}
        hidden = told.get("custom.hideFrom", {}).get("viz", False)
        assert told.get("custom.hidden", False) is hidden


# --- Of one mind with the rules -------------------------------------------------------------------
@each_panel
def test_thresholds_are_those_of_the_rules_and_of_all_lines_of_the_panel(panel: Json) -> None:
    """A line of something else would cross it and mean nothing."""
    told = TOLD.findall(panel["description"])
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert [step["value"] for step in steps] == [None, *sorted(THRESHOLDS[one] for one in told)]
    assert not told or len(panel["targets"]) == 1


def mappings(panel: Json) -> list[Json]:
    """Value mappings of a panel and of its fields."""
    config = panel["fieldConfig"]
    found = list(config["defaults"].get("mappings", []))
    for one in config["overrides"]:
        found += [m for p in one["properties"] if p["id"] == "mappings" for m in p["value"]]
    return found


def series_colours(panel: Json) -> dict[str, str]:
    return {
        one["matcher"]["options"]: prop["value"]["fixedColor"]
        for one in panel["fieldConfig"]["overrides"]
        for prop in one["properties"]
        if prop["id"] == "color" and "fixedColor" in prop["value"]
    }


@each_panel
def test_a_cause_or_a_wait_has_its_colour(panel: Json) -> None:
    legends = {target["legendFormat"] for target in panel["targets"]}
    told = series_colours(panel)
    if "{{cause}}" in legends:
        # What is no cause has a colour of its own: else it would look like one.
        others = {one: told.get(one) for one in legends - {"{{cause}}"}}
        assert told == OF_CAUSES | others
        assert None not in others.values()
    if "{{waiting_on}}" in legends:
        assert told == {"busy": palette.BUSY_COLOUR, **palette.WAIT_COLOURS}
    options = [option for one in mappings(panel) for option in one["options"].values()]
    shown = {one["text"]: one["color"] for one in options if one["text"] in CAUSES}
    assert shown.items() <= OF_CAUSES.items()


def test_ranks_are_shown_as_their_causes() -> None:
    (panel,) = [one for one in panels("gpu") if one["title"] == "Primary cause"]
    (shown,) = mappings(panel)
    ranks = {
        rule.labels["cause"]: float(rule.fields["expr"].removeprefix("vector(").rstrip(")"))
        for rule in ALL
        if rule.name == "gpu:cause:order"
    }
    assert {one["text"]: float(rank) for rank, one in shown["options"].items()} == ranks


@each(["fleet", "gpu"])
def test_a_cause_leads_to_its_runbook(name: str) -> None:
    verdicts = next(one for one in panels(name) if one["title"].startswith("Verdict"))
    names, pages = properties_of(verdicts, "runbook"), properties_of(verdicts, "page")
    assert set(texts(names).values()) == {"open"}
    of_causes = [one for one in causes_table.alerts() if "cause" in one.labels]
    assert texts(pages) == {
        one.labels["cause"]: f"{causes_table.page(one)}.md" for one in of_causes
    }
    (base,) = [v for v in board(name)["templating"]["list"] if v["name"] == "runbooks"]
    (link,) = names["links"]
    assert link["url"] == "${runbooks}/${__data.fields.page}"
    urls = {one.annotations["runbook_url"] for one in of_causes}
    assert {f"{base['query']}/{page}" for page in texts(pages).values()} <= urls
    # Of a GPU without a cause, to all of them: not to a page of the name that stands for nothing.
    assert pages["noValue"] == "."


def properties_of(panel: Json, column: str) -> Json:
    """What is said of a column."""
    (found,) = [
        one
        for one in panel["fieldConfig"]["overrides"]
        if one["matcher"]["options"] == column and one["properties"][0]["id"] != "custom.hidden"
    ]
    return {prop["id"]: prop["value"] for prop in found["properties"]}


def texts(properties: Json) -> dict[str, str]:
    """What its values are shown as."""
    (mapping,) = properties["mappings"]
    return {value: one["text"] for value, one in mapping["options"].items()}


def test_links_between_dashboards_lead_somewhere() -> None:
    text = "".join((FOLDER / f"{name}.json").read_text(encoding="utf-8") for name in NAMES)
    assert set(re.findall(r'"/d/([\w-]+)', text)) == {UIDS["gpu"]}
    tags = [set(link["tags"]) for name in NAMES for link in board(name)["links"]]
    assert all(tag <= set(board(name)["tags"]) for tag in tags for name in NAMES)

    text = (FOLDER / "fleet.json").read_text(encoding="utf-8")
    names = {one["name"] for one in board("gpu")["templating"]["list"]}
    assert set(re.findall(r"var-(\w+)=", text)) | set(re.findall(r"\{(\w+):query", text)) <= names


# --- What the builders take from the rules --------------------------------------------------------


def test_hours_are_counted_in_the_steps_of_the_rules() -> None:
    """Of the group that records what is summed up; sums of ten minutes are seconds already."""
    (group,) = {rule.group for rule in ALL if rule.name.endswith("lost_ratio")}
    groups = parsed.groups((RULES / "recording.yml").read_text(encoding="utf-8"))
    (seconds,) = [parsed.seconds(one["interval"]) for one in groups if one["name"] == group]
    assert pack.interval_seconds() == seconds
    every = [one.target["expr"] for one in asked() if "/ 3600" in one.target["expr"]]
    hours = [expr for expr in every if ":sum5m" not in expr]
    assert [expr for expr in hours if f"* {seconds:g} / 3600" not in expr] == []


def test_what_gpus_may_be_blind_for() -> None:
    recorded = [one for one in ALL if one.name == "gpu:blind:bool"]
    assert pack.blind_kinds() == [one.labels["blind"] for one in recorded]


# --- Colours: of each cause and each wait, legible on the page's two grounds ----------------------
COLOURS = [palette.BUSY_COLOUR, *palette.WAIT_COLOURS.values(), *OF_CAUSES.values()]
COLOURS += palette.DARK_COLOURS.values()


def test_every_wait_and_every_cause_has_a_colour() -> None:
    assert tuple(palette.WAIT_COLOURS) == WAITING_ON
    assert set(OF_CAUSES) == CAUSES
    for one in (OF_CAUSES, {"busy": palette.BUSY_COLOUR, **palette.WAIT_COLOURS}):
        assert len(set(one.values())) == len(one)


def contrast(one: str, other: str) -> float:
    """1 to 21, as WCAG 2 defines it."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(part * share for part, share in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


# Linear RGB as people see it (Machado and others 2009, severity 1): all, no red, no green.
VISION = {
    "normal": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
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
TO_XYZ = ((0.4339, 0.3762, 0.1899), (0.2126, 0.7152, 0.0722), (0.0177, 0.1095, 0.8727))
"""From linear sRGB, relative to white (D65)."""


def times(
    matrix: Iterable[tuple[float, float, float]], vector: Iterable[float]
) -> tuple[float, ...]:
    return tuple(sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix)


def lab(colour: str, vision: str) -> tuple[float, float, float]:
    """CIE L*a*b* of a colour as somebody with this vision sees it."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    seen = [min(max(part, 0.0), 1.0) for part in times(VISION[vision], linear)]
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in times(TO_XYZ, seen))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@each(VISION)
def test_any_two_waits_can_be_told_apart_by_colour(vision: str) -> None:
    light = {"busy": palette.BUSY_COLOUR, **palette.WAIT_COLOURS}
    for colours in (light, light | palette.DARK_COLOURS):
        for one, other in combinations(colours, 2):
            assert dist(lab(colours[one], vision), lab(colours[other], vision)) >= 16, (one, other)


@each(COLOURS)
def test_a_colour_can_be_written_on_and_stands_out_from_a_dark_page(colour: str) -> None:
    """As a line, on a panel of Grafana's dark theme."""
    assert max(contrast(text, colour) for text in ("#000000", "#FFFFFF")) >= 4.5
    assert contrast(colour, "#181B1F") >= 3
