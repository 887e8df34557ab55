from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from gpu_bottleneck_exporter.feeders.serving import Serving
from gpu_bottleneck_exporter.nodeview.model import (
    CollectorHealth,
    GpuStatus,
    Node,
    ProcessEntry,
    TenantStatus,
)
from gpu_bottleneck_exporter.nodeview.text import sentence
from gpu_bottleneck_exporter.prescription.model import REFUSALS
from gpu_bottleneck_exporter.remedies import REMEDIES
from gpu_bottleneck_exporter.sampling.sampler import SamplerState
from gpu_bottleneck_exporter.stacktraces.model import IdleLines
from gpu_bottleneck_exporter.web.status.assets import CONTENT_SECURITY_POLICY
from gpu_bottleneck_exporter.web.status.page import status_page
from support.nodes import changed, node, sharing, waiting, with_gpu
from support.rows import rows
from support.states import LOST, NO_DRIVER, PRESCRIBED, SCORED, hopper, lost, mixed_state, state

HOSTILE = [
    *("<script>alert(1)</script>", "</td></tr></table>", "<!--", "&lt;b&gt;", "größer\n&copy"),
    *("' onmouseover='alert(1)", '" onmouseover="alert(1)'),
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
        """Descriptions of pictures."""
        return [attributes["aria-label"] or "" for tag, attributes in self.elements if tag == "svg"]


def page(shown: Node | SamplerState) -> str:
    result = node(shown) if isinstance(shown, SamplerState) else shown
    books = "https://example.org/books/"
    return status_page(result, telemetry_path="/metrics", runbooks=books)


def outline(shown: Node | SamplerState) -> Outline:
    return Outline(page(shown))


def test_a_card_for_each_gpu_that_waits_worst_first_then_a_line_for_each_other() -> None:
    gpus = {
        "0": waiting({}, busy_ns=40 * 10**9),
        "1": waiting({"unallocated": 40 * 10**9}, busy_ns=0),
        "2": waiting({"worker_cpu": 10 * 10**9}, busy_ns=30 * 10**9),
        "3": waiting({"asleep": 39 * 10**9}, busy_ns=10**9),
    }
    identities = (replace(gpu.identity, index=int(n), uuid=n) for n, gpu in gpus.items())
    values = [
        replace(gpu, identity=who) for gpu, who in zip(gpus.values(), identities, strict=True)
    ]
    document = outline(state(*values, lost(replace(LOST, index=4))))
    assert [title.split()[1] for title in document.of["h3"]] == ["4", "3", "2", "0", "1"]
    assert len(document.of["article"]) == 3
    assert (
        document.of["p"][0]
        == "2 of 5 GPUs starved, 1.2 GPUs of capacity lost (1 unallocated, 1 down)"
    )
    assert "Kept busy for 4 min" in document.text
    assert "Waiting for a job (unallocated) for 4 min" in document.text


def test_the_figures_of_a_gpu() -> None:
    document = outline(state(hopper()))
    facts = [" ".join(fact) for fact in zip(document.of["dt"], document.of["dd"], strict=True)]
    assert {*("Power 412 of 700 W", "Temperature 61 of 87 °C", "Memory 52 of 80 GiB")} <= {*facts}
    assert {*("SMs active 50 %", "SM clock 1755 of 1980 MHz", "Workers 8")} <= {*facts}
    shown = with_gpu(node(state(hopper())), process_list=(ProcessEntry(7, "main", "train.py"),))
    owner = "research/train-7f9c/trainer, Slurm job 123456, user alice"
    assert f"Held by {owner}: train.py (pid 7)" in outline(shown).text
    assert "clocks held down: power_cap" in document.of["li"]
    assert document.labels() == ["Its last minutes"]
    assert document.of["li"][1:4] == ["busy 62 %", "unknown 7 %", "asleep 6 % a sleeping job"]
    assert [attributes["class"] for tag, attributes in document.elements if tag == "path"].count(
        "c-unknown"
    ) == 0, "what is unknown is left blank"


def test_the_cause_has_its_recommendation_and_its_runbook() -> None:
    document = outline(state(waiting({"worker_cpu": 60 * 10**9}, busy_ns=40 * 10**9)))
    assert "Waiting for loader workers (worker_cpu) for 4 min: they take too long" in document.text
    job = "If only this rank changes, the job's 2 GPUs go from 40 % busy to 62 %."
    uses = (
        "This takes 4 of 7 free cores and 2.1 of 40 GiB of memory. Then the limit is Python code."
    )
    workers = "Try: Use 6 loader workers (now 2): the GPU would be 93 % busy (88–95 %)."  # noqa: RUF001
    assert f"{workers} {job} {uses} " in document.text
    assert "Last change: Loader workers changed from 1 to 2. " in document.text
    links = [attributes["href"] for tag, attributes in document.elements if tag == "a"]
    assert "https://example.org/books/GpuStarved-cpu_preprocessing_bound.md" in links


def test_an_unknown_value_is_a_dash_and_no_zero() -> None:
    gpu = GpuStatus(gpu="0", uuid="", up=True)
    document = outline(Node(time_seconds=0, window_seconds=60, version="9", gpus=(gpu,)))
    assert "Measuring" in document.text
    assert "– busy" in document.text  # noqa: RUF001 - the dash
    idle = replace(gpu, busy_ratio=0.2, cause="storage")
    document = outline(Node(time_seconds=0, window_seconds=60, version="9", gpus=(idle,)))
    assert set(document.of["dd"]) == {"–"}  # noqa: RUF001 - the dash


HELD, DOWN, MIXED = node(state(hopper())), node(state(lost())), node(mixed_state())
NOTHING = replace(node(NO_DRIVER), driver_status="opening the driver")
GOOD = (CollectorHealth("power", success=True),)
FAILS = "Collectors: power fails: nvmlDeviceGetPowerUsage: 999."
LOOKED, LOOKS = IdleLines(looks=9, age_seconds=120), IdleLines(looks=9, looking=True)
ASKED = Serving((8000,), 12, 0, 3, 4.2, complete=True)
SERVES = "Serves port 8000: 12 clients, 3 requests in flight, the longest for 4.2 s."
NO_PREDICTION = (
    f"Try: {sentence(REMEDIES['unknown'])} There is no prediction, because {REFUSALS['mixed']}. "
)


@rows(
    "shown, said, unsaid",
    {
        "a refusal": (MIXED, NO_PREDICTION, "To fix it"),
        "down": (with_gpu(DOWN, down_reason="GPU is lost"), "down: GPU is lost", "SM clock"),
        "down, unknown": (with_gpu(DOWN, down_reason=None), "down: see the log", "SM clock"),
        "an alert": (DOWN, "GpuTelemetryLost", "Held by"),
        "lines of code": (with_gpu(MIXED, idle_lines=LOOKED), "Sample again 2 min ago", "Find"),
        "without samples": (
            with_gpu(MIXED, idle_lines=IdleLines()),
            "Find the line",
            "Sample again",
        ),
        "with samples": (with_gpu(MIXED, idle_lines=LOOKS), "", "Sample again"),
        "a remedy": (with_gpu(DOWN, remedy="look at it"), "Look at it.", "SM clock"),
        "no driver": (NOTHING, "No GPU to show: opening the driver.", "To fix it"),
        "its remedy": (replace(NOTHING, driver_remedy="do x"), "To fix it: do x.", "simulated"),
        "failing": (MIXED, FAILS, "work."),
        "all work": (replace(MIXED, collectors=GOOD), "Collectors: all 1 work.", "fails"),
        "simulated": (node(state(hopper(), simulated=True)), "simulated", "No GPU"),
        "real": (HELD, "Held by", "simulated"),
        "no server": (HELD, "Held by", "Serves"),
        "a server": (with_gpu(HELD, serving=ASKED), f"alice. {SERVES}", "at least"),
        "a busy one": (with_gpu(HELD, serving=ASKED, cause=None), SERVES, "at least"),
    },
)
def test_sentences_of_the_page(shown: Node, said: str, unsaid: str) -> None:
    text = outline(shown).text
    assert said in text
    assert unsaid not in text


def test_missing_signals_name_their_cost() -> None:
    document = outline(MIXED)
    fields = dict(zip(document.of["dt"], document.of["dd"], strict=True))
    assert "jobs have pressure only under cgroup v2" in fields["psi_cgroup"]
    assert any("GPM needs Hopper" in text for text in fields.values()), "as its driver has it"
    assert "schedstat" not in fields


def shape(page: Outline) -> list[tuple[str, set[str]]]:
    return [(tag, {*attributes}) for tag, attributes in page.elements]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_shown_and_change_nothing(text: str) -> None:
    def shown(name: str) -> Outline:
        now = node(mixed_state())
        owner = {"workload_namespace": name, "workload_pod": name, "user": name}
        tenant = TenantStatus(tenant=name, owner=owner, busy_seconds=1, stall_seconds={name: 1})
        who = {"gpu": name, "uuid": name, "name": name, "mig_profile": name}
        gpus = [changed(gpu, **who, down_reason=name, owners=(owner,)) for gpu in now.gpus[3:]]
        gpus[0] = replace(
            gpus[0],
            throttle_reasons=(name,),
            xid_errors={name: 1},
            trouble=(name,),
            evidence=(name,),
            process_list=(ProcessEntry(1, "main", name, name, name),),
            cause="storage",
            prescription=replace(PRESCRIBED, knob=name, then=name),
            last_change=replace(SCORED, knob=name),
            tenants=(tenant,),
        )
        return outline(
            replace(now, gpus=tuple(gpus), driver_status=name, version=name, signals={name: False})
        )

    hostile = shown(text)
    assert shape(hostile) == shape(shown("plain"))
    assert f"Held by {text}/{text}, user {text}: {text} (pid 1)" in hostile.text
    assert hostile.of["h3"][1] == f"GPU {text} · MIG {text} {text}"
    assert f"busy: {text}/{text}, user {text}, waited for ? ({text})" in hostile.text
    assert f"down: {text}" in hostile.text
    assert f"Try: Set {text} to 6 (now 2): the GPU would be" in hostile.text
    assert f"Last change: {text} changed from 1 to 2" in hostile.text
    assert any(item.startswith(text) for item in hostile.of["li"])


def test_the_policy_lets_only_our_style_and_script_run() -> None:
    document = outline(mixed_state())
    for tag in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(document.of[tag][0].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}';" in CONTENT_SECURITY_POLICY
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    names = {name for _, attributes in document.elements for name in attributes}
    assert not [name for name in names if name == "style" or name.startswith("on")]


def test_names_that_are_no_unicode_do_not_break_the_page() -> None:
    text = page(with_gpu(node(state(hopper())), owners=({"user": "\udcff"},)))
    assert "user ?" in text.encode(errors="replace").decode()


@pytest.mark.parametrize("busy_ns", [10 * 10**9, 95 * 10**9], ids=["a card", "a line"])
def test_a_shared_gpu_lists_its_tenants(busy_ns: int) -> None:
    gpu = sharing()
    totals = replace(gpu.totals, busy_ns=busy_ns, observed_ns=busy_ns + 9 * 10**9)
    shown = outline(state(replace(gpu, totals=totals)))
    assert shown.of["bdi"][-4:] == [
        "55 % of 91 s busy: research/infer-0, user bob",
        "33 %: research/train-7f9c/trainer, Slurm job 123456, user alice",
        *("11 %: others", "1 %: not attributed"),
    ]
    assert "Shared, in the last 5 min:" in shown.text
    assert "Shared" not in page(state(hopper()))
