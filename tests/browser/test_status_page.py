"""The status page in a real browser, served by real exporters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, ViewportSize, expect

from gpu_bottleneck_exporter.nodeview.model import Node
from gpu_bottleneck_exporter.web.routes import HTML, page_headers
from gpu_bottleneck_exporter.web.status.page import status_page
from support.browser import DESK, PHONE, chromium, opened
from support.command import ANY_PORT, Server, serving
from support.daemon import free_port
from support.metrics import Metrics
from support.nodes import node
from support.states import mixed_state
from support.waiting import until

# After the frame in which something changed.
TOP = """card => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(
    () => done(card.getBoundingClientRect().top))))"""
# In one go: the page changes meanwhile.
FONT_SIZE = "part => parseFloat(getComputedStyle(part).fontSize)"
DEMO = ("demo", "--collector.stacks")
WAITS = re.compile(r"Waiting for [\w ]+ \((\w+)\)")
MADE_FOR = {1: "worker_cpu", 2: "host_code", 3: "asleep", 4: "host_code", 5: "peer"}
"""Waits by GPU of its loop in demo/jobs.py, unless others keep the cores."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as result:
        yield result


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The demo, once it has something to say of each of its GPUs."""
    with serving(tmp_path_factory.mktemp("demo"), *DEMO, *ANY_PORT) as server:
        until(lambda: server.get("/")[1].count("<article") == len(MADE_FOR), "a card for each")
        yield server


def page_of(server: Server) -> str:
    return server.url.removesuffix("metrics")


def assert_accessible(page: Page) -> None:
    """And not too wide."""
    result = Axe().run(page)
    assert result.violations_count == 0, result.generate_report()
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")


def test_it_shows_the_demo_as_its_metrics_do(browser: Browser, demo: Server) -> None:
    with opened(browser, page_of(demo)) as (page, result):
        expect(page.get_by_text("simulated")).to_be_visible()
        expect(page.locator("#summary")).to_contain_text("of 8 GPUs starved, ")
        expect(page.get_by_role("article").first).to_contain_text("(asleep)")
        for index, cause in MADE_FOR.items():
            card = page.get_by_role("article", name=f"GPU {index} ")
            expect(card).to_contain_text(re.compile(f"\\(({cause}|cpu_queue)\\)"))
        expect(page.locator(".lines").get_by_role("listitem")).to_have_count(8 - len(MADE_FOR))

        def agree() -> bool:
            values = set(WAITS.findall(page.get_by_role("main").inner_text()))
            outcome = Metrics(demo.get()[1]).samples_of("gpu_stall_seconds_total")
            return "asleep" in values <= {sample.labels["waiting_on"] for sample in outcome}

        until(agree, "the causes of the metrics")
        assert result == []


def test_it_follows_without_losing_place_and_focus(browser: Browser, demo: Server) -> None:
    with opened(browser, page_of(demo), viewport=PHONE) as (page, result):
        cards = page.get_by_role("article")
        cards.last.get_by_role("link").focus()
        # A part before the link comes, as the trend does after a while: the link is still it.
        cards.last.evaluate("card => card.querySelector('.seen')?.remove()")
        # A card above grows meanwhile; what is being read must stay where it is all the same.
        cards.first.evaluate("card => card.lastElementChild.remove()")
        read = cards.nth(2).element_handle()  # whatever its rank is later
        assert read
        read.evaluate("card => { card.scrollIntoView(); window.before = true }")
        before, place = page.get_by_role("main").inner_text(), read.evaluate(TOP)
        expect(page.get_by_role("main")).not_to_have_text(before, use_inner_text=True)
        assert page.evaluate("document.activeElement.textContent").startswith("Runbook")
        assert read.evaluate(TOP) == pytest.approx(place, abs=8)
        assert page.evaluate("window.before")
        assert result == []


def test_cards_that_change_ranks_take_the_reader_along(browser: Browser, demo: Server) -> None:
    with opened(browser, page_of(demo), viewport=PHONE) as (page, result):
        last = page.get_by_role("article").last.element_handle()
        assert last
        # The other way round, until the page is fetched again.
        last.evaluate("""card => {
            const list = card.closest("ul");
            list.append(...[...list.children].reverse());
            card.querySelector("a").focus();
            list.children[1].scrollIntoView();
            window.read = list.children[1];
            window.first = list.firstElementChild;
        }""")
        place = page.evaluate("read.getBoundingClientRect().top")
        again = "read.closest('ul').firstElementChild !== first"
        until(lambda: page.evaluate(again), "the cards in their order")
        assert page.evaluate("read.getBoundingClientRect().top") == pytest.approx(place, abs=8)
        assert page.evaluate("document.activeElement.textContent").startswith("Runbook")
        assert result == []


def test_text_below_the_cards_keeps_its_place(browser: Browser, demo: Server) -> None:
    low: ViewportSize = {**PHONE, "height": 200}
    with opened(browser, page_of(demo), viewport=low) as (page, result):
        line = page.locator(".lines").get_by_role("listitem").first.element_handle()
        assert line
        page.get_by_role("article").first.evaluate("card => card.lastElementChild.remove()")
        line.evaluate("line => line.scrollIntoView()")
        before, place = page.get_by_role("main").inner_text(), line.evaluate(TOP)
        expect(page.get_by_role("main")).not_to_have_text(before, use_inner_text=True)
        assert line.evaluate(TOP) == pytest.approx(place, abs=8)
        assert result == []


@contextmanager
def showing(
    browser: Browser,
    shown: Node,
    viewport: ViewportSize,
    **context: Any,  # noqa: ANN401 - what new_context takes
) -> Iterator[tuple[Page, list[str]]]:
    """The page of a node in this state, with the headers that the exporter sends."""
    url = "http://exporter.test/"
    body = status_page(shown, telemetry_path="/metrics", runbooks="https://example.org")
    headers = dict(page_headers())
    with opened(browser, "about:blank", viewport=viewport, **context) as (page, result):
        page.route(url, lambda route: route.fulfill(body=body, content_type=HTML, headers=headers))
        page.goto(url)
        yield page, result


def test_a_button_finds_the_line_of_code_that_a_gpu_waits_for(
    demo: Server, browser: Browser
) -> None:
    with opened(browser, page_of(demo), viewport=PHONE) as (page, _):
        card = page.get_by_label("GPU 3")
        card.get_by_role("button").click()
        expect(card.locator(".code")).to_contain_text("jobs.py:", timeout=60_000)
        assert_accessible(page)


def test_without_scripts_it_shows_the_same_and_loads_itself_anew(browser: Browser) -> None:
    now = node(mixed_state())
    with showing(browser, now, PHONE) as (page, _):
        cards = page.get_by_role("article").count()
    with showing(browser, now, PHONE, java_script_enabled=False) as (page, result):
        with page.expect_request(page.url):
            pass
        expect(page.get_by_role("article")).to_have_count(cards)
        assert result == []


def test_an_unfolded_part_stays_with_its_gpu(browser: Browser) -> None:
    now = node(mixed_state())
    later = replace(now, gpus=tuple(reversed([replace(gpu, busy_ratio=0.5) for gpu in now.gpus])))
    with showing(browser, now, DESK) as (page, result):
        cards = page.get_by_role("article")
        shown = cards.count()
        expect(page.locator("details[open]")).to_have_count(0)
        name = cards.nth(1).get_attribute("aria-label")
        cards.nth(1).locator("summary").click()
        turned = status_page(later, telemetry_path="/metrics", runbooks="https://example.org")
        page.unroute_all()
        page.route(page.url, lambda route: route.fulfill(body=turned, content_type=HTML))
        expect(page.locator("article details[open]")).to_have_count(1)
        expect(cards.first).not_to_have_attribute("aria-label", name or "")
        page.wait_for_timeout(3000)  # until it was fetched
        assert cards.count() <= shown
        assert page.locator("article:has(details[open])").get_attribute("aria-label") == name
        assert result == []


@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_recommendation_and_evidence_are_readable(
    browser: Browser, viewport: ViewportSize, scheme: str
) -> None:
    now = node(mixed_state())
    now = replace(now, gpus=(replace(now.gpus[0], evidence=("/data is on NFS",)), *now.gpus[1:]))
    with showing(browser, now, viewport, color_scheme=scheme) as (page, result):
        card, refused = page.get_by_role("article").nth(1), page.get_by_role("article").nth(2)
        expect(card).to_contain_text("Use 6 loader workers (now 2): the GPU would be 93 % busy")
        expect(card).to_contain_text("Loader workers changed from 1 to 2. The GPU is")
        expect(refused).to_contain_text("no prediction, because several causes share the idle time")
        evidence = card.get_by_label("Evidence").get_by_role("listitem")
        assert evidence.evaluate(FONT_SIZE) < card.locator(".verdict").evaluate(FONT_SIZE)
        assert_accessible(page)
        assert result == []


def test_it_outlives_the_exporter(browser: Browser, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    arguments = ("serve", "--web.listen-address", address)
    with serving(tmp_path, *arguments) as server:
        url = page_of(server)
        until(lambda: "LIBRARY_NOT_FOUND" in server.get("/")[1], "the reason")
        with opened(browser, url) as (page, _):
            expect(page.get_by_text("No GPU to show")).to_be_visible()
            gone = page.get_by_role("status")
            expect(gone).to_be_hidden()
            assert server.terminate() == 0
            expect(gone).to_contain_text("not been reachable since")
            with serving(tmp_path, *arguments):
                expect(gone).to_be_hidden()
                expect(page.get_by_text("No GPU to show")).to_be_visible()
