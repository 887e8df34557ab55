from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpu_bottleneck_exporter.driver.readings import Identity, Memory
from gpu_bottleneck_exporter.ledger import Totals
from gpu_bottleneck_exporter.sampler import State
from gpu_bottleneck_exporter.web.status import status_page
from support.states import (
    AMPERE,
    HOPPER,
    NO_DRIVER,
    ampere,
    by_type,
    hopper,
    lost,
    mig_instance,
    mixed_state,
    snapshot,
    state,
)
from support.tools import require

if TYPE_CHECKING:
    from .conftest import Page, Serve

HOSTILE = [
    "<script>alert(1)</script>",
    "</td></tr></table>",
    "' onmouseover='alert(1)",
    '" onmouseover="alert(1)',
    "<!--",
    "&lt;b&gt;",
    "größer\n&copy",
]
VOID = {"meta", "link", "br", "img", "input"}
BROWSER_PATIENCE_SECONDS = 100


class Outline(HTMLParser):
    """The elements and texts of a page; refuses one that is not well formed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs)
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)


def page(
    now: State,
    down: Mapping[int, str] | None = None,
    status: str = "watching",
    telemetry_path: str = "/metrics",
) -> str:
    return status_page(
        version="1.2.3", status=status, state=now, down=down or {}, telemetry_path=telemetry_path
    )


def outline(now: State, down: Mapping[int, str] | None = None) -> Outline:
    return Outline(page(now, down))


def test_the_page_shows_a_row_for_each_gpu() -> None:
    head, *rows = outline(mixed_state(), {3: "GPU is lost"}).rows
    assert head == ["GPU", "Model", "State", "Busy", "Power", "Temperature", "Memory"]
    healthy = ["up", "62% 62%", "412 W", "61 °C", "52.0 of 80.0 GiB"]
    nothing = ["not known"] * 4
    assert rows == [
        ["0", "NVIDIA H100 80GB HBM3", *healthy],
        ["1", "NVIDIA H100 80GB HBM3", *healthy],
        [
            "1 · MIG 3g.40gb",
            "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
            *("up", "62% 62%", "not known", "not known", "6.0 of 40.0 GiB"),
        ],
        ["2", "NVIDIA A100-SXM4-80GB", *healthy],
        ["3", "NVIDIA A100-SXM4-80GB", "down: GPU is lost", *nothing],
    ]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_shown_and_change_nothing(text: str) -> None:
    def shown(name: str) -> Outline:
        who = Identity(2, uuid=name, name=name, mig_profile=name, parent_uuid=name)
        gpu = replace(mig_instance(), identity=who)
        return Outline(
            page(state(hopper(), gpu, lost()), {3: name}, status=name, telemetry_path=f"/{name}")
        )

    plain, hostile = shown("plain"), shown(text)
    assert [tag for tag, _ in hostile.elements] == [tag for tag, _ in plain.elements]
    assert [set(attributes) for _, attributes in hostile.elements] == [
        set(attributes) for _, attributes in plain.elements
    ]
    assert hostile.rows[2][:2] == [f"2 · MIG {text}", text]
    assert hostile.rows[3][2] == f"down: {text}"
    assert ("th", {"scope": "row", "title": text}) in hostile.elements
    assert ("a", {"href": f"/{text}"}) in hostile.elements
    assert f"Version 1.2.3: {text}." in hostile.text


def test_a_gpu_that_is_down_for_no_known_reason() -> None:
    assert outline(state(lost())).rows[1][2] == "down: unknown"


def test_a_gpu_of_which_nothing_is_known() -> None:
    gpu = snapshot(Identity(index=0, uuid=""), Totals(), {})
    assert outline(state(gpu)).rows[1] == ["0", "unknown", "up", *["not known"] * 4]


def test_memory_without_a_total_is_not_known() -> None:
    gpu = replace(hopper(), readings=by_type(Memory(used_bytes=1)))
    assert outline(state(gpu)).rows[1][-1] == "not known"


def test_simulated_gpus_are_announced() -> None:
    assert "simulated" in outline(state(hopper(), simulated=True)).text
    assert "simulated" not in outline(state(hopper())).text


@pytest.mark.parametrize("now", [NO_DRIVER, state()], ids=["no driver", "no gpu"])
def test_without_gpus_there_is_no_table(now: State) -> None:
    found = outline(now)
    assert "No GPU to show." in found.text
    assert found.rows == []


def test_the_page_links_to_the_other_pages() -> None:
    links = [attributes["href"] for tag, attributes in outline(NO_DRIVER).elements if tag == "a"]
    assert links == ["/metrics", "/-/healthy", "/-/ready"]


def test_the_page_is_a_whole_document_without_scripts() -> None:
    text = page(mixed_state())
    assert text.startswith("<!DOCTYPE html>\n<html lang=")
    count = Counter(tag for tag, _ in Outline(text).elements)
    assert [count[tag] for tag in ("html", "head", "title", "body", "h1")] == [1] * 5
    assert count["script"] == 0


def dump_dom(url: str, profile: Path) -> str:
    """The page as a browser has understood it."""
    command = [
        require("chromium", "chromium"),
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        *(f"--user-data-dir={profile}", "--dump-dom", url),
    ]
    browser = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        page, _ = browser.communicate(timeout=BROWSER_PATIENCE_SECONDS)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(browser.pid, signal.SIGKILL)
        browser.communicate()
    assert browser.returncode == 0
    return page.decode()


def test_a_browser_shows_the_rows(serve: Serve, page: Page, tmp_path: Path) -> None:
    hostile = replace(ampere(), identity=replace(AMPERE, name=HOSTILE[0]))
    now = state(hopper(), hostile, lost(), simulated=True)
    page.page = status_page(
        version="1", status="watching", state=now, down={3: "<b>lost"}, telemetry_path="/metrics"
    ).encode()
    shown = Outline(dump_dom(f"http://127.0.0.1:{serve().port}/", tmp_path))
    assert [row[:3] for row in shown.rows[1:]] == [
        ["0", HOPPER.name, "up"],
        ["2", HOSTILE[0], "up"],
        ["3", "NVIDIA A100-SXM4-80GB", "down: <b>lost"],
    ]
    assert "simulated" in shown.text
