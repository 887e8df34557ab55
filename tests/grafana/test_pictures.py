"""What draws the pictures of the dashboards: all of their panels, in the right colours."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from html import escape
from xml.etree import ElementTree as ET

import pytest

from builders import pack
from dashboardpictures import tables, units
from dashboardpictures.asking import Labels, Points, Series, Window, runs, variables
from dashboardpictures.page import body, page
from dashboardpictures.supported import UnsupportedError
from dashboardpictures.take import pages, refuse_busy_machine
from gpu_bottleneck_exporter import palette
from grafana.boards import NAMES, Json, board, panels

START, END = 1_767_225_600.0, 1_767_225_825.0
SIZE = (700.0, 300.0)
_PAIRS = (
    "instance=node7 gpu=1 uuid=GPU-1 job=gpu alertname=GpuFault severity=info owner=nlp/train-0 "
    "cause=small_batch runbook=small_batch waiting_on=storage role=main on=disk resource=cpu "
    "collector=power signal=psi version=1.2.3 python_version=3.11.2 blind=io reason=thermal "
    "sensor=gpu pipe=tensor kind=some xid=94"
)
LABELS = dict(pair.split("=") for pair in _PAIRS.split())
HOSTILE = """</td><script>alert("it's & <b>")</script>"""
_VARIABLE = re.compile(r"\$[a-z_{]")
EVERY_PANEL = [(name, panel) for name in NAMES for panel in panels(name)]


def ids(value: object) -> str:
    return value if isinstance(value, str) else str(value["title"])  # type: ignore[index]


class Made:
    """Answers every query with these series, in the middle of the window a gap."""

    def __init__(self, labels: list[Labels], value: float = 0.25) -> None:
        self.labels, self.value = labels, value

    def query(self, promql: str, at: float | None = None) -> list[tuple[Labels, float]]:
        assert not _VARIABLE.search(promql)
        assert at is None or at == END
        return [(labels, self.value) for labels in self.labels]

    def query_range(
        self, promql: str, start: float, end: float, step: float
    ) -> list[tuple[Labels, Points]]:
        assert not _VARIABLE.search(promql)
        times = [start + at * step for at in range(int((end - start) / step) + 1)]
        points = [(at, self.value) for at in times if not 100 < at - start < 150]
        return [(labels, list(points)) for labels in self.labels]


def window(source: Made, name: str = "gpu") -> Window:
    values = variables(board(name), {"gpu": "GPU-1", "cost": "2"})
    return Window(source, values, START, END, scale=20)


def found(name: str, title: str) -> Json:
    (panel,) = [one for one in panels(name) if one["title"] == title]
    return panel


def drawn(name: str, panel: Json, labels: list[Labels], value: float = 0.25) -> str:
    return body(panel, window(Made(labels, value), name), SIZE)


@pytest.mark.parametrize(("name", "panel"), EVERY_PANEL, ids=ids)
def test_every_panel_is_drawn(name: str, panel: Json) -> None:
    html = drawn(name, panel, [LABELS, {**LABELS, "gpu": "2", "uuid": "GPU-2"}])
    assert 'class="empty"' not in html
    for svg in re.findall("<svg.*</svg>", html):
        ET.fromstring(svg)  # noqa: S314 - our own


@pytest.mark.parametrize(("name", "panel"), EVERY_PANEL, ids=ids)
def test_a_panel_without_data_says_so(name: str, panel: Json) -> None:
    said = panel["fieldConfig"]["defaults"]["noValue"]
    assert escape("No data" if said == "-" else said) in drawn(name, panel, [])


@pytest.mark.parametrize(("name", "panel"), EVERY_PANEL, ids=ids)
def test_label_values_are_escaped(name: str, panel: Json) -> None:
    html = drawn(name, panel, [dict.fromkeys(LABELS, HOSTILE)])
    assert "<script" not in html
    legends = [target["legendFormat"] for target in panel["targets"]]
    shows_labels = panel["type"] == "table" or any("{{" in legend for legend in legends)
    assert (escape(HOSTILE) in html) == shows_labels


def test_whole_dashboards_are_drawn() -> None:
    made = pages(Made([LABELS]), END)
    assert list(made) == list(NAMES)
    for name, html in made.items():
        assert f"Drawn from grafana/{name}.json" in html
        assert all(escape(one["title"]) in html for one in board(name)["panels"])


@pytest.mark.parametrize(
    ("name", "title", "form"),
    [
        (
            "fleet",
            "Lost GPUs, by cause",
            '<i style="background:{colour}"></i>{cause}</td>',
        ),
        ("gpu", "Evidence over time", '<i style="background:{colour}"></i>{cause}</span>'),
        ("fleet", "GPU-hours lost, by cause", 'background:{colour}"></i><b style="color:{colour}"'),
        ("fleet", "Verdicts", 'style="background:{colour};color:{ink}">{cause}</td>'),
        ("fleet", "Who loses most", 'style="background:{colour};color:{ink}">{cause}</td>'),
        ("gpu", "Evidence", 'style="background:{colour};color:{ink}">{cause}</td>'),
    ],
)
def test_causes_have_their_colours(name: str, title: str, form: str) -> None:
    labels = [{**LABELS, "cause": cause, "uuid": cause} for cause in palette.CAUSES]
    html = drawn(name, found(name, title), labels)
    for cause, colour in palette.CAUSES.items():
        assert form.format(colour=colour, cause=cause, ink=palette.text_on(colour)) in html


def test_primary_causes_have_their_colours() -> None:
    panel = found("gpu", "Primary cause")
    for cause, rank in pack.ranks().items():
        html = drawn("gpu", panel, [LABELS], rank)
        assert f'fill="{palette.CAUSES[cause]}"' in html
        assert f">{cause}<" in html


def test_waits_have_their_colours() -> None:
    panel = found("gpu", "Busy, and idle by what it waited for")
    labels = [{"waiting_on": wait} for wait in palette.WAITING_ON]
    html = drawn("gpu", panel, labels, 1 / len(labels))
    for name, colour in {"busy": palette.BUSY, **palette.WAITING_ON}.items():
        assert f'fill="{colour}"' in html
        assert f'<i style="background:{colour}"></i>{name}</td>' in html


def test_thresholds_are_lines_in_the_colour_of_the_bad_side() -> None:
    clock = drawn("gpu", found("gpu", "SM clock, of the highest"), [LABELS])
    assert re.findall('stroke="(#[0-9A-F]{6})" stroke-opacity=".7"', clock) == [
        "#D55E00",
        "#E69F00",
    ]
    throttled = found("gpu", "Throttled, and idle CPUs of the node")
    colours = re.findall(
        'stroke="(#[0-9A-F]{6})" stroke-opacity=".7"', drawn("gpu", throttled, [LABELS])
    )
    assert colours == ["#E69F00", "#D55E00"]


def test_alerts_are_marked_where_the_dashboard_has_them_on() -> None:
    for name, marked in (("fleet", False), ("gpu", True)):
        html = page(board(name), window(Made([LABELS]), name), {}, "")
        assert ('stroke-dasharray="5 5"' in html) == marked


def test_no_pictures_of_a_busy_machine() -> None:
    with pytest.raises(SystemExit, match=r"busy: \{'1': 'cpu_oversubscribed'\}"):
        refuse_busy_machine(Made([{"gpu": "1", "cause": "cpu_oversubscribed"}]))


# --- What is refused ------------------------------------------------------------------------------
def _set(*path: str | int) -> Callable[[Json], None]:
    def change(panel: Json) -> None:
        *to, key, value = path
        for step in to:
            panel = panel[step]  # type: ignore[index]
        panel[key] = value  # type: ignore[index]

    return change


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_set("type", "heatmap"), "a panel of type heatmap"),
        (_set("options", "orientation", "vertical"), "options.orientation is 'vertical'"),
        (_set("options", "sparkline", "yes"), "options.sparkline"),
        (_set("fieldConfig", "defaults", "unit", "parsec"), "field.unit is 'parsec'"),
        (_set("fieldConfig", "defaults", "color", "mode", "thresholds"), "field.color.mode"),
        (_set("fieldConfig", "overrides", 0, "matcher", "id", "byType"), "field.matcher"),
        (_set("fieldConfig", "overrides", 0, "properties", 0, "id", "custom.x"), "field.custom.x"),
        (_set("targets", 0, "format", "heatmap"), "targets.format is 'heatmap'"),
    ],
)
def test_what_cannot_be_drawn_is_refused(change: Callable[[Json], None], named: str) -> None:
    panel = copy.deepcopy(found("fleet", "GPU-hours lost, by cause"))
    change(panel)
    with pytest.raises(UnsupportedError, match=re.escape(f"GPU-hours lost, by cause: {named}")):
        drawn("fleet", panel, [LABELS])


def test_another_transformation_is_refused() -> None:
    panel = copy.deepcopy(found("fleet", "Verdicts"))
    panel["transformations"].append({"id": "reduce", "options": {"reducers": ["max"]}})
    with pytest.raises(UnsupportedError, match=r"transformations\.reduce\.reducers"):
        drawn("fleet", panel, [LABELS])


def test_a_variable_that_needs_a_choice_needs_one() -> None:
    with pytest.raises(UnsupportedError, match="variable gpu"):
        variables(board("gpu"), {})


# --- Parts ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "short", "0"),
        (12, "none", "12"),
        (0.456, "short", "0.456"),
        (1234, "short", "1.23 K"),
        (0.4567, "percentunit", "45.7%"),
        (1, "percentunit", "100%"),
        (5.5e10, "bytes", "51.2 GiB"),
        (2.5e9, "Bps", "2.50 GB/s"),
        (701.24, "watt", "701 W"),
        (54, "celsius", "54 °C"),
        (0.0042, "s", "4.20 ms"),
        (90, "s", "1.50 mins"),
        (250, "cps", "250 c/s"),
    ],
)
def test_numbers_are_written_as_grafana_does(value: float, unit: str, text: str) -> None:
    assert units.text(value, unit) == text


@pytest.mark.parametrize(
    ("ago", "text"),
    [
        (3, "a few seconds ago"),
        (60, "a minute ago"),
        (600, "10 minutes ago"),
        (7200, "2 hours ago"),
    ],
)
def test_ages(ago: float, text: str) -> None:
    assert units.text((END - ago) * 1000, "dateTimeFromNow", now=END) == text


def test_a_gap_parts_a_line() -> None:
    points = [(0.0, 1.0), (1.0, 1.0), (4.0, 2.0)]
    assert runs(Series("", points, 1)) == [points[:2], points[2:]]


def test_answers_about_the_same_gpu_are_one_row() -> None:
    panel = found("fleet", "Verdicts")
    frame = tables.framed(panel, window(Made([LABELS, {**LABELS, "uuid": "GPU-2"}]), "fleet"))
    assert len(frame.rows) == 2
    assert frame.columns[:4] == ["instance", "gpu", "owner", "cause"]
    assert {f"Value #{letter}" for letter in "BCDEFG"} <= set(frame.columns)
    assert not {"Time", "Value #A"} & set(frame.columns)


def test_clusters_have_a_column_where_there_are_any() -> None:
    """And its rows agree in it: they are still one for each GPU."""
    panel = found("fleet", "Verdicts")
    labels = [{**LABELS, "cluster": "one"}, {**LABELS, "cluster": "two"}]
    frame = tables.framed(panel, window(Made(labels), "fleet"))
    assert frame.columns[:2] == ["cluster", "instance"]
    assert [row["cluster"] for row in frame.rows] == ["one", "two"]
    assert ">Cluster</th>" in drawn("fleet", panel, labels)
    assert ">Cluster</th>" not in drawn("fleet", panel, [LABELS])


@pytest.mark.parametrize(("name", "panel"), EVERY_PANEL, ids=ids)
def test_no_value_is_green_or_red_by_its_place(name: str, panel: Json) -> None:
    """Bars in cells, and numbers that stand alone: the first colour of the palette is green."""
    config = panel["fieldConfig"]
    for one in config["overrides"]:
        said = {prop["id"]: prop["value"] for prop in one["properties"]}
        if said.get("custom.cellOptions", {}).get("type") == "gauge":
            assert said["color"]["mode"] == "fixed", f"{name} {one}"
    if panel["type"] == "stat":
        coloured = {one["matcher"]["options"] for one in config["overrides"]}
        legends = {target["legendFormat"] for target in panel["targets"]}
        by_itself = config["defaults"]["color"]["mode"] == "fixed"
        assert by_itself or {one for one in legends if "{" not in one} <= coloured


def test_a_busy_gpu_has_the_colour_of_busy_time() -> None:
    html = drawn("fleet", found("fleet", "Verdicts"), [LABELS], 0.98)
    assert f'<i style="width:98.0%;background:{palette.BUSY}"></i>' in html


def test_cells_without_a_value() -> None:
    """Grafana takes the text for an empty panel, in the column's colour, unless told otherwise."""
    panel = copy.deepcopy(found("fleet", "Who loses most"))
    panel["fieldConfig"]["overrides"] = [
        one
        for one in panel["fieldConfig"]["overrides"]
        if one["matcher"] == {"id": "byName", "options": "cause"}
    ]
    (properties,) = [one["properties"] for one in panel["fieldConfig"]["overrides"]]
    properties[:] = [one for one in properties if one["id"] not in {"color", "noValue"}]
    nameless = [{"owner": "eve"}, LABELS]
    said = panel["fieldConfig"]["defaults"]["noValue"]
    there = f'style="background:[^"]*">{re.escape(escape(said))}<'
    assert re.search(there, drawn("fleet", panel, nameless))
    properties.append({"id": "color", "value": {"mode": "fixed", "fixedColor": "transparent"}})
    every = {"id": "byRegexp", "options": "/.*/"}
    panel["fieldConfig"]["overrides"].append(
        {"matcher": every, "properties": [{"id": "noValue", "value": "-"}]}
    )
    assert '<td style="">-</td>' in drawn("fleet", panel, nameless)


def test_a_label_that_is_a_number_takes_the_unit() -> None:
    """As in Grafana, whose remedy is the unit `string`."""
    panel = copy.deepcopy(found("gpu", "Evidence"))
    overrides = panel["fieldConfig"]["overrides"]
    (gpu,) = [one for one in overrides if one["matcher"]["options"] == "gpu"]
    gpu["properties"] = []
    assert ">100%</td>" in drawn("gpu", panel, [LABELS])
    gpu["properties"] = [{"id": "unit", "value": "string"}]
    assert ">1</td>" in drawn("gpu", panel, [LABELS])


def test_more_rows_than_fit_show_that_they_scroll() -> None:
    panel = found("gpu", "Evidence")
    assert "<s style" not in drawn("gpu", panel, [LABELS])
    assert "<s style" in drawn("gpu", panel, [{**LABELS, "uuid": f"{at}"} for at in range(20)])


def test_signals_are_a_matrix() -> None:
    labels = [{"signal": "psi", "instance": one} for one in ("a", "b")] + [
        {"signal": "nvlink", "instance": "a"}
    ]
    frame = tables.framed(found("exporter", "Signals"), window(Made(labels, 1.0), "exporter"))
    assert frame.columns == ["instance\\signal", "psi", "nvlink"]
    assert frame.rows == [
        {"instance\\signal": "a", "psi": 1.0, "nvlink": 1.0},
        {"instance\\signal": "b", "psi": 1.0},
    ]


@pytest.mark.parametrize(("value", "text", "colour"), [(1, "yes", "#009E73"), (0, "no", "#D55E00")])
def test_a_signal_is_there_or_not_or_unknown(value: float, text: str, colour: str) -> None:
    """In the colours of Okabe and Ito, which the colour-blind tell apart; in none if unknown."""
    labels = [{"signal": "psi", "instance": "a"}, {"signal": "gpm", "instance": "b"}]
    html = drawn("exporter", found("exporter", "Signals"), labels, value)
    assert html.count(f'style="background:{colour};color:#000000">{text}</td>') == 2
    assert html.count(">-</td>") == 2
    assert '<td style="">a</td>' in html
