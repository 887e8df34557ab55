from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from gpu_bottleneck_exporter.nodeview.model import Gpu, Node
from gpu_bottleneck_exporter.prescription.model import REFUSALS
from gpu_bottleneck_exporter.sampling.sampler import SamplerState
from gpu_bottleneck_exporter.web.status.assets import CONTENT_SECURITY_POLICY
from gpu_bottleneck_exporter.web.status.page import status_page
from support.nodes import changed, node, trends, waiting, with_gpu
from support.states import NO_DRIVER, PRESCRIBED, SCORED, ampere, hopper, lost, mixed_state, state

HOSTILE = [
    "<script>alert(1)</script>",
    "</td></tr></table>",
    "' onmouseover='alert(1)",
    '" onmouseover="alert(1)',
    "<!--",
    "&lt;b&gt;",
    "größer\n&copy",
]
VOID = {"meta", "link", "rect", "path"}


class Outline(HTMLParser):
    """The elements and texts of a page; refuses one that is not well formed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.of: dict[str, list[str]] = {}
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs)
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
            self.of.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.text += data
        for tag in set(self.open):
            self.of[tag][-1] += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    def labels(self) -> list[str]:
        """What is said of pictures."""
        return [attributes["aria-label"] or "" for tag, attributes in self.elements if tag == "svg"]


def page(shown: Node | SamplerState) -> str:
    course = trends(shown) if isinstance(shown, SamplerState) else {}
    found = node(shown) if isinstance(shown, SamplerState) else shown
    books = "https://example.org/books/"
    return status_page(found, course, telemetry_path="/metrics", runbooks=books)


def outline(shown: Node | SamplerState) -> Outline:
    return Outline(page(shown))


def test_a_card_for_each_gpu_in_its_order() -> None:
    found = outline(mixed_state())
    assert found.of["h3"] == [
        "GPU 0 NVIDIA H100 80GB HBM3",
        "GPU 1 NVIDIA H100 80GB HBM3",
        "GPU 1 · MIG 3g.40gb NVIDIA H100 80GB HBM3 MIG 3g.40gb",
        "GPU 2 NVIDIA A100-SXM4-80GB",
        "GPU 3 NVIDIA A100-SXM4-80GB",
    ]


def test_the_figures_of_a_gpu() -> None:
    found = outline(state(hopper()))
    facts = dict(zip(found.of["dt"], found.of["dd"], strict=True))
    assert {
        "Power": "412 of 700 W",
        "Temperature": "61 of 87 °C",
        "Memory": "52 of 80 GiB",
        "SMs active": "50 %",
        "SM clock": "1755 of 1980 MHz",
        "Feeders": "processes: 2, workers: 8",
    }.items() <= facts.items()
    assert "Held by research/train-7f9c/trainer, Slurm job 123456, user alice" in found.text
    assert "clocks held down: power_cap" in found.of["li"]


def test_bars_have_text_that_says_the_same() -> None:
    bar, trend = outline(state(hopper())).labels()
    assert bar.startswith("The last 24 s: busy 62 %, unknown 7 %, asleep 6 %")
    assert trend == "Trend of the last 1 min: 62 % busy on average"


def test_the_cause_its_remedy_and_its_runbook() -> None:
    found = outline(state(waiting({"worker_cpu": 60 * 10**9}, busy_ns=40 * 10**9)))
    assert "Waits: worker_cpu for 4 min: loader workers burn CPU" in found.text
    assert "Try first: more workers if cores are free" in found.text
    links = [attributes["href"] for tag, attributes in found.elements if tag == "a"]
    assert links[-1] == "https://example.org/books/GpuCpuPreprocessingBound.md"


def test_a_gpu_that_is_kept_busy_needs_no_remedy() -> None:
    found = outline(state(waiting({}, busy_ns=40 * 10**9)))
    assert "Kept busy for 4 min" in found.text
    assert "Try first" not in found.text
    assert "Prescription" not in found.of["dt"]
    assert "Last change" in found.of["dt"]


def test_the_prescription_and_the_last_change_or_why_there_is_none() -> None:
    found = outline(mixed_state())
    pairs = list(zip(found.of["dt"], found.of["dd"], strict=True))
    uses = (
        "alone: its job's 2 GPUs 40 % → 62 %; "
        "uses 4 of 7 free cores, 2.1 of 40 GiB; then host_code limits"
    )
    assert [pair for pair in pairs if pair[0] in ("Prescription", "Last change")] == [
        ("Prescription", f"num_workers 2 → 6: busy 44 % → 93 % (88–95); {uses}"),  # noqa: RUF001
        ("Last change", "num_workers 1 → 2: predicted 46 % (42–50), now 44 %"),  # noqa: RUF001
        ("Prescription", f"none: {REFUSALS['mixed']}"),
    ]
    assert found.elements.count(("dl", {"class": "advice"})) == 2, "the others have neither"


@pytest.mark.parametrize(
    ("reason", "said"), [("GPU is lost", "GPU is lost"), (None, "see the log")]
)
def test_a_gpu_that_is_down_says_why_and_shows_no_figures(reason: str | None, said: str) -> None:
    found = outline(with_gpu(node(state(lost())), down_reason=reason))
    assert f"Down: {said}" in found.text
    assert "GpuTelemetryLost" in found.text
    assert found.labels() == []
    assert "SM clock" not in found.text


def test_what_is_not_known_is_a_dash_and_no_zero() -> None:
    gpu = Gpu(gpu="0", uuid="", up=True)
    found = outline(Node(time_seconds=0, window_seconds=60, version="9", gpus=(gpu,)))
    assert set(found.of["dd"]) == {"–"}  # noqa: RUF001 - the dash
    assert "Nothing observed" in found.text


@pytest.mark.parametrize("remedy", [None, "modprobe nvidia"])
def test_without_gpus_it_says_why_and_what_to_do_once_that_is_known(remedy: str | None) -> None:
    shown = replace(node(NO_DRIVER), driver_status="opening the driver", driver_remedy=remedy)
    found = outline(shown)
    assert "No GPU to show: opening the driver." in found.text
    assert ("To fix it: modprobe nvidia." in found.text) == (remedy is not None)
    assert ("To fix it" in found.text) == (remedy is not None)
    assert found.of.get("article") is None


def test_a_gpu_that_is_down_has_the_remedy_of_its_error() -> None:
    down = with_gpu(node(state(lost())), remedy="look at /dev/nvidia0")
    assert "look at /dev/nvidia0" in outline(down).text


def test_missing_signals_tell_what_they_cost() -> None:
    found = outline(mixed_state())
    assert "psi_cgroup" in found.of["th"]
    assert any("jobs have pressure only under cgroup v2" in cell for cell in found.of["td"])
    assert any("GPM needs Hopper" in cell for cell in found.of["td"]), "as its driver has it"
    assert "schedstat" not in found.of["th"]


def test_collectors_that_fail_say_why() -> None:
    cells = outline(mixed_state()).of["td"]
    assert "fails: nvmlDeviceGetPowerUsage: 999" in cells
    assert cells.count("works") == 9


def test_many_gpus_have_an_overview() -> None:
    links = [a["href"] for tag, a in outline(mixed_state()).elements if tag == "a"]
    assert [link for link in links if link and link.startswith("#")] == [
        f"#gpu-{n}" for n in range(5)
    ]
    assert "Overview" not in outline(state(hopper(), ampere())).text


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_shown_and_change_nothing(text: str) -> None:
    def shown(name: str) -> Outline:
        now = node(mixed_state())
        owner = {"workload_namespace": name, "workload_pod": name, "user": name}
        who = {"gpu": name, "uuid": name, "name": name, "mig_profile": name}
        gpus = [changed(gpu, **who, down_reason=name, owners=(owner,)) for gpu in now.gpus[3:]]
        gpus[0] = replace(
            gpus[0],
            throttle_reasons=(name,),
            xid_errors={name: 1},
            trouble=(name,),
            evidence=(name,),
            prescription=replace(PRESCRIBED, knob=name, then=name),
            last_change=replace(SCORED, knob=name),
        )
        return outline(
            replace(now, gpus=tuple(gpus), driver_status=name, version=name, signals={name: False})
        )

    plain, hostile = shown("plain"), shown(text)
    assert [tag for tag, _ in hostile.elements] == [tag for tag, _ in plain.elements]
    assert [set(attributes) for _, attributes in hostile.elements] == [
        set(attributes) for _, attributes in plain.elements
    ]
    assert f"Held by {text}/{text}, user {text}" in hostile.text
    assert hostile.of["h3"][0] == f"GPU {text} · MIG {text} {text}"
    assert f"Down: {text}" in hostile.text
    said = [dd for dd in hostile.of["dd"] if dd.startswith((f"{text} 2 → 6", f"{text} 1 → 2"))]
    assert len(said) == 2, "the prescription and the last change"
    assert text in hostile.of["li"]


def test_simulated_gpus_are_announced() -> None:
    assert "simulated" in outline(state(hopper(), simulated=True)).text
    assert "simulated" not in outline(state(hopper())).text


def test_the_page_is_a_whole_document() -> None:
    text = page(mixed_state())
    assert text.startswith("<!DOCTYPE html>\n<html lang=")
    count = Counter(tag for tag, _ in Outline(text).elements)
    once = ("html", "head", "title", "body", "h1", "main", "header", "footer", "style", "script")
    assert [count[tag] for tag in once] == [1] * len(once)
    assert count["caption"] == count["table"] > 0


def test_the_policy_lets_only_our_style_and_script_run() -> None:
    found = outline(mixed_state())
    for tag in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(found.of[tag][0].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}';" in CONTENT_SECURITY_POLICY
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    names = {name for _, attributes in found.elements for name in attributes}
    assert not [name for name in names if name == "style" or name.startswith("on")]


def test_every_wait_has_a_colour_of_its_own() -> None:
    style = outline(mixed_state()).of["style"][0]
    colours = re.findall(r"\.c-(\w+) \{ --c: (#\w+); \}", style)
    assert len(colours) == len({colour for _, colour in colours}) == 13


def test_names_that_are_no_unicode_do_not_break_the_page() -> None:
    text = page(with_gpu(node(state(hopper())), owners=({"user": "\udcff"},)))
    assert "user ?" in text.encode(errors="replace").decode()
