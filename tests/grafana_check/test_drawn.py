"""Each dashboard as Grafana draws it: nothing fails, is unknown, cut, misread or too pale.

`make grafana-check` draws them on two sets of data: a day of a made-up fleet of 1 000 GPUs, and the
demo beside GPUs of every kind. Pictures and report lie in build/grafana-check.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from grafana.boards import NAMES, ROOT, board, panels
from grafana_check.stage import GPUS, WIDTHS, Json, Source, draw, filled, job, of_demo

FOLDER = ROOT / "build" / "grafana-check"
FIRST_SCREEN = 900
"""Pixels."""
OF_TEXTS = {"rgb(204, 204, 220)", "#ccccdc"}
"""The colour of texts in the dark theme."""
TO_GPU = r"/d/gpu-bottleneck-gpu\?from=.+&to=.+&var-instance=node-\d+:10170&var-gpu=GPU-\S+"
DRAWN_BY_US = "state-timeline"
"""A panel type that none of Grafana's packages has."""

Drawn = dict[str, Any]

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    """Each drawing's report, by name."""
    with filled(tmp_path_factory.mktemp("data")) as (day, now):
        return {item["name"]: item for item in draw(jobs(day, now), FOLDER)}


def jobs(day: Source, now: Source) -> Iterator[Json]:
    for width in WIDTHS:
        yield job("fleet", day, width, name="day-fleet", chosen={"cost": "2.5"})
        yield job("exporter", now, width)
    yield job("fleet", now, WIDTHS[0])
    yield job("fleet", now, WIDTHS[0], name="fleet-healthy", chosen={"instance": "job"})
    for name, gpu in {**GPUS, "demo": of_demo(now)}.items():
        yield job("gpu", now, WIDTHS[0], name=f"gpu-{name}", chosen={"gpu": gpu})


def every(drawn: Drawn, *kinds: str) -> Iterator[tuple[str, Json]]:
    """Each panel of these kinds, by drawing and title; of all kinds by default."""
    for name, report in drawn.items():
        for panel in report["panels"]:
            if not kinds or panel["type"] in kinds:
                yield f"{name}: {panel['title']}", panel


def found(drawn: Drawn, name: str, title: str) -> Json:
    panel: Json
    (panel,) = [panel for panel in drawn[name]["panels"] if panel["title"] == title]
    return panel


def of_board(drawn: Drawn, board_name: str) -> Iterator[Json]:
    title = board(board_name)["title"]
    return (report for report in drawn.values() if report["title"] == title)


# --- Nothing fails, nothing is unknown ------------------------------------------------------------
@pytest.mark.parametrize("what", ["errors", "unknown", "wider", "cutHeads"])
def test_nothing_fails_is_unknown_wider_than_its_panel_or_without_its_head(
    drawn: Drawn, what: str
) -> None:
    assert {name: value[what] for name, value in drawn.items() if value.get(what)} == {}
    assert {name: item[what] for name, item in every(drawn) if item.get(what)} == {}


@pytest.mark.parametrize("name", NAMES)
def test_every_field_that_is_spoken_of_is_there(drawn: Drawn, name: str) -> None:
    """Each is in one drawing at least."""
    spoken: dict[str, set[str]] = defaultdict(set)
    there: dict[str, set[str]] = defaultdict(set)
    for report in of_board(drawn, name):
        for panel in report["panels"]:
            spoken[panel["title"]] |= set(panel["spoken"])
            there[panel["title"]] |= set(panel["fields"])
    missing = {title: names - there[title] for title, names in spoken.items() if there[title]}
    # Grafana leaves out the letter where only one query has an answer.
    either = {"Value", "Value #A"}
    for title, names in missing.items():
        assert names - (either if there[title] & either else set()) == set(), title


@pytest.mark.parametrize("name", NAMES)
def test_every_panel_is_there_and_shows_something(drawn: Drawn, name: str) -> None:
    shown: dict[str, bool] = {}
    for report in of_board(drawn, name):
        for panel in report["panels"]:
            assert panel["text"].startswith(panel["title"])
            shown[panel["title"]] = shown.get(panel["title"], False) or not panel["empty"]
    assert set(shown) == {panel["title"] for panel in panels(name)}
    assert {title for title, filled in shown.items() if not filled} == set()


def test_alerts_are_marked(drawn: Drawn) -> None:
    for name in ("day-fleet-1600", "fleet-1600", "gpu-limited-1600"):
        assert any(panel["annotations"] for panel in drawn[name]["panels"]), name


# --- Everything can be read -----------------------------------------------------------------------
def test_no_text_is_cut(drawn: Drawn) -> None:
    """Cells of nodes and owners may be cut: their length depends on the data."""
    cut = {name: item["cut"] for name, item in every(drawn) if item["type"] != DRAWN_BY_US}
    assert {name: texts for name, texts in cut.items() if texts} == {}


def test_the_sorting_of_a_table_is_visible(drawn: Drawn) -> None:
    for name, panel in every(drawn, "table"):
        values = [item for item in panel["spoken"] if item in panel["columns"]]
        assert panel["empty"] or not panel["sorted"] or set(panel["sorted"]) <= set(values), name
    assert found(drawn, "day-fleet-1600", "Verdicts")["sorted"] == ["GPU-hours lost"]


def test_a_name_stands_above_its_number(drawn: Drawn) -> None:
    """Beside it, it is read with the number before."""
    for name, panel in every(drawn, "stat"):
        for item, other in pairwise(panel["boxes"]):
            apart = item["top"] + item["bottom"] - other["top"] - other["bottom"]
            words = re.search("[a-z]", item["text"]) and re.match(r"[\d.,]+$", other["text"])
            assert not words or abs(apart) > other["bottom"] - other["top"], (name, item["text"])


def test_axes_fit_their_data(drawn: Drawn) -> None:
    """A line of zeroes is no line at the foot of 10 000 %."""
    for name, panel in every(drawn, "timeseries"):
        highest = max((item["max"] or 0 for item in panel["series"]), default=0)
        units = {item["unit"] for item in panel["series"]}
        if panel["axis"] and units == {"percentunit"}:
            assert panel["axis"]["max"] <= 1.05 * max(1, highest), name
        if panel["axis"] and highest == 0 and units != {"bytes"}:
            assert panel["axis"]["max"] <= 1000 if units == {"Bps"} else 1.05, name


# --- Colours say what is wrong --------------------------------------------------------------------
def test_a_healthy_zero_has_no_colour(drawn: Drawn) -> None:
    for name, panel in every(drawn, "stat"):
        for entry in panel["series"]:
            assert entry["last"] != 0 or entry["colour"] in OF_TEXTS, (name, entry["name"])
    healthy = found(drawn, "fleet-healthy-1600", "GPUs")
    assert {item["last"] for item in healthy["series"][:3]} == {0}


def test_a_cause_that_is_ruled_out_is_not_painted(drawn: Drawn) -> None:
    evidence = found(drawn, "gpu-limited-1600", "Evidence")
    assert "0%" in evidence["text"]
    assert evidence["painted"] == []
    assert "cpu_throttled" in found(drawn, "gpu-limited-1600", "Verdict")["painted"]


# --- At 2 a.m. ------------------------------------------------------------------------------------
def test_the_first_screen_shows_faults_and_firing_alerts(drawn: Drawn) -> None:
    counts = found(drawn, "day-fleet-1600", "GPUs")
    assert counts["text"].splitlines()[1:5] == ["underused", "700", "held and idle", "450"]
    alerts = found(drawn, "day-fleet-1600", "Firing alerts")
    assert alerts["columns"] == ["Severity", "Alert", "Cause", "Who", "GPUs", "Nodes"]
    assert max(counts["bottom"], alerts["bottom"]) < FIRST_SCREEN


# --- Links lead somewhere -------------------------------------------------------------------------
def test_verdicts_lead_to_the_gpu_and_to_the_runbook(drawn: Drawn) -> None:
    links = found(drawn, "day-fleet-1600", "Verdicts")["tableLinks"]
    assert set(links) == {"Node", "GPU", "Cause", "Runbook"}
    for column in ("Node", "GPU", "Cause"):
        (url,) = links[column]
        assert re.fullmatch(TO_GPU, url), url
    assert is_runbook(*links["Runbook"])


def test_other_links_lead_to_runbooks(drawn: Drawn) -> None:
    assert is_runbook(*found(drawn, "day-fleet-1600", "Firing alerts")["tableLinks"]["Alert"])
    urls = [url for _, panel in every(drawn) for url in panel["links"]]
    assert urls
    assert all(map(is_runbook, urls))


def is_runbook(url: str) -> bool:
    """Whether it is a page of this project; the folder where there is no cause."""
    folder, _, page = url.rpartition("/")
    return folder.endswith("/rules/runbooks") and Path(ROOT / "rules" / "runbooks" / page).exists()
