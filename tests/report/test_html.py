"""The page of a report: what is in it, and that nothing in it can act."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from gpu_bottleneck_exporter.report.html import columns, html
from report.documents import HOSTILE, NOW, Fields, advised, bill, document, example, gpu, job


def page(*documents: Fields, **wanted: object) -> ET.Element:
    return ET.fromstring(html(bill(*documents, **wanted)))  # noqa: S314 - our own, and so is XML


def text(of: ET.Element, path: str) -> str:
    result = of.find(path)
    assert result is not None
    return "".join(result.itertext())


def test_a_job_has_its_figures_its_gpus_and_a_timeline_for_screen_readers() -> None:
    result = page(*example(), job="4711")
    assert text(result, ".//h1") == "Job 4711"
    whole = text(result, "body")
    for outcome in (
        "15.1 GPU-hours",
        "Use 6 loader workers (now 2)",
        "GPU 3 on node7 was the slowest",
        "1 kWh",
        "52 of 80 GiB",
    ):
        assert outcome in whole
    assert len(result.findall(".//table")) == 1
    assert {element.get("scope") for element in result.iter("th")} == {"col", "row"}
    assert ["".join(item.itertext()) for item in result.findall(".//tbody//th")] == [
        f"GPU {index} on node{7 + index // 4}" for index in range(8)
    ]
    drawn = [*result.iter("svg")]
    assert len(drawn) == 9
    assert all(item.get("role") == "img" for item in drawn)
    assert "quarter 4: busy 41 %, host_code 5 %, worker_cpu 38 %" in f"{drawn[0].get('aria-label')}"
    assert drawn[0].find("path[@class='c-worker_cpu']") is not None


def test_several_jobs_have_tables_with_names() -> None:
    result = page(
        document("node7", job("slurm-1", gpu(0, storage=0.5)), job("slurm-2", gpu(1), user="bob"))
    )
    names = [element.get("aria-label") for element in result.iter("table")]
    assert names == ["Jobs", "Owners", "Job 1", "Job slurm-2"]
    assert not [*result.iter("caption")]  # the heading above says it
    assert text(result, ".//dl") == "storagethe job reads or writes files"
    assert len(result.findall(".//tbody//td")) == len([*result.iter("td")])


def test_time_before_a_job_opened_its_gpu_is_labelled_so() -> None:
    result = page(document("node7", job("slurm-1", gpu(0, unallocated=0.5))))
    assert "before it opened the GPU" in text(result, ".//ul[@class='parts']")
    assert "no process holds it" not in text(result, ".//main")


def test_hostile_names_are_text() -> None:
    rank = gpu(0, storage=0.5, **{'"><b>': 0.1})
    rank |= {"gpu": HOSTILE, "mig": HOSTILE, "model": HOSTILE, "uuid": HOSTILE}
    rank["recommendation"] = advised(1, 2, 0.9, cause=HOSTILE, knob=HOSTILE)
    owner = {"namespace": HOSTILE, "pod": HOSTILE, "user": HOSTILE}
    result = page(document(HOSTILE, job(HOSTILE, rank, **owner), job("slurm-1", gpu(1))))
    assert not {element.tag for element in result.iter()} & {
        "script",
        "img",
        "a",
        "b",
        "iframe",
        "link",
    }
    names = {name for element in result.iter() for name in element.attrib}
    assert not any(name.startswith("on") for name in names)
    assert "href" not in names
    assert "<script>alert(1)</script>" in text(result, ".//main")
    assert {"\x1b", "\u202e"}.isdisjoint(text(result, "body"))


def test_the_page_loads_nothing() -> None:
    result = page(*example())
    (policy,) = (element for element in result.iter("meta") if "http-equiv" in element.attrib)
    assert f"{policy.get('content')}".startswith("default-src 'none'; style-src 'sha256-")
    assert "url(" not in text(result, ".//style")
    assert not any({"style", "src"} & {*element.attrib} for element in result.iter())


def test_the_timeline_adds_up() -> None:
    (whole,) = bill(*example()).jobs
    parts = columns(whole.gpus, NOW - 3.2 * 3600, NOW, 7)
    assert len(parts) == 7
    for part in parts:
        assert part == pytest.approx({"busy": whole.busy_ratio, **whole.stall_ratios})
    half = columns(whole.gpus[:1], NOW - 6.4 * 3600, NOW, 4)
    assert [bool(part) for part in half] == [False, False, True, True]


def test_a_timeline_of_another_time_is_not_drawn_and_breaks_nothing() -> None:
    rank = gpu(0, storage=0.5)
    rank["timeline"] |= {"start_seconds": 1.0, "step_seconds": 1e10}
    rank["timeline"]["spent_seconds"]["busy"] = [1.0]
    result = page(document("node7", job("slurm-1", rank)))
    assert len(result.findall(".//table")) == 1
