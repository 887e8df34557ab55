"""The page of a report: what is in it, and that nothing in it can act."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

import pytest

from gpu_bottleneck_exporter.commands.report import Wanted, bill_of
from gpu_bottleneck_exporter.report.bill import columns
from gpu_bottleneck_exporter.report.html import html
from gpu_bottleneck_exporter.report.ledgers import joined
from report.documents import HOSTILE, NOW, Fields, advised, document, example, gpu, job, read

VOID = {"meta", "link", "br", "img"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str | None]
    inside: list[str]
    text: str = ""


@dataclass
class Parser(HTMLParser):
    """All elements, each with those around it."""

    found: list[Element] = field(default_factory=list)
    open: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        one = Element(tag, dict(attrs), [outer.tag for outer in self.open])
        self.found.append(one)
        if tag not in VOID:
            self.open.append(one)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        for one in self.open:
            one.text += data


def page(*documents: Fields, **wanted: object) -> list[Element]:
    found = read(*documents)
    found.jobs = list(joined(found.jobs))
    parser = Parser()
    parser.feed(html(bill_of(found, Wanted(**wanted), None)))  # type: ignore[arg-type]
    parser.close()
    assert parser.open == []
    return parser.found


def named(found: list[Element], tag: str) -> Iterator[Element]:
    return (one for one in found if one.tag == tag)


def test_a_job_has_its_figures_its_gpus_and_a_timeline_that_can_be_heard() -> None:
    found = page(*example(), job="4711", hourly_cost=2.5)
    assert next(named(found, "h1")).text == "Job 4711"
    whole = next(named(found, "body")).text
    for text in ("38 €", "num_workers 2 → 6", "GPU 3 on node7 was the slowest", "8 kWh"):
        assert text in whole
    assert len(list(named(found, "table"))) == 1
    assert {one.attributes["scope"] for one in named(found, "th")} == {"col", "row"}
    assert [one.text for one in named(found, "th")][8:] == [
        f"GPU {index} on node{7 + index // 4}" for index in range(8)
    ]
    drawn = list(named(found, "svg"))
    assert len(drawn) == 9
    assert all(one.attributes["role"] == "img" for one in drawn)
    assert "quarter 4: busy 41 %, worker_cpu 38 %" in f"{drawn[0].attributes['aria-label']}"
    assert any(one.attributes["class"] == "c-worker_cpu" for one in named(found, "path"))


def test_several_jobs_have_tables_with_captions() -> None:
    found = page(
        document("node7", job("slurm-1", gpu(0, storage=0.5)), job("slurm-2", gpu(1), user="bob"))
    )
    captions = [one.text for one in named(found, "caption")]
    assert captions[:3] == [
        "The jobs that lost most",
        "All jobs, by owner",
        "All jobs, by what GPUs waited for",
    ]
    assert len(captions) == 5
    assert all("tbody" in one.inside for one in named(found, "td"))


def test_hostile_names_are_text() -> None:
    rank = gpu(0, storage=0.5)
    rank |= {"gpu": HOSTILE, "mig": HOSTILE, "model": HOSTILE, "uuid": HOSTILE}
    rank["stall_seconds"][HOSTILE] = 7200.0
    rank["recommendation"] = advised(1, 2, 0.9, cause=HOSTILE, knob=HOSTILE)
    owner = {"namespace": HOSTILE, "pod": HOSTILE, "user": HOSTILE}
    found = page(document(HOSTILE, job("pod-1", rank, **owner), job("slurm-1", gpu(1))))
    tags = {one.tag for one in found}
    assert not tags & {"script", "img", "a", "b", "iframe", "link", "form"}
    names = {name for one in found for name in one.attributes}
    assert not any(name.startswith("on") for name in names)
    assert "href" not in names
    assert "<script>alert(1)</script>" in next(named(found, "main")).text
    assert {"\x1b", "\u202e"}.isdisjoint(next(named(found, "body")).text)


def test_the_page_loads_nothing() -> None:
    found = page(*example())
    policy = next(one for one in named(found, "meta") if "http-equiv" in one.attributes)
    assert f"{policy.attributes['content']}".startswith("default-src 'none'; style-src 'sha256-")
    assert "url(" not in next(named(found, "style")).text
    assert not any("style" in one.attributes or "src" in one.attributes for one in found)


def test_the_timeline_adds_up() -> None:
    (whole,) = joined(read(*example()).jobs)
    uses = columns(whole.gpus, NOW - 3.2 * 3600, NOW, 7)
    assert len(uses) == 7
    assert sum(use.busy_seconds for use in uses) == pytest.approx(whole.use.busy_seconds)
    assert sum(use.observed_seconds for use in uses) == pytest.approx(whole.use.observed_seconds)
    assert uses[3].stall_ratios == pytest.approx(whole.use.stall_ratios)


def test_a_timeline_of_another_time_is_not_drawn_and_breaks_nothing() -> None:
    rank = gpu(0, storage=0.5)
    rank["timeline"] |= {"start_seconds": 1.0, "step_seconds": 1e10}
    rank["timeline"]["busy"] = [1.0]
    found = page(document("node7", job("slurm-1", rank)))
    assert len(list(named(found, "table"))) == 1
