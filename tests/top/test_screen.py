from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_bottleneck_exporter import palette
from gpu_bottleneck_exporter.feeders.serving import Serving
from gpu_bottleneck_exporter.nodeview.model import Key, Node, ProcessEntry
from gpu_bottleneck_exporter.remedies import MEANINGS
from gpu_bottleneck_exporter.sampling.sampler import OPENING
from gpu_bottleneck_exporter.top import spans
from gpu_bottleneck_exporter.top.keys import HELP, Choice, ordered, pressed
from gpu_bottleneck_exporter.top.screen import frame, page
from gpu_bottleneck_exporter.top.source import Feed, Remote
from gpu_bottleneck_exporter.top.spans import IN_COLOUR, Glyphs, Line, cells
from gpu_bottleneck_exporter.top.terminal import nearest
from support.nodes import changed, node, with_gpu
from support.states import HOPPER, NO_DRIVER, PRESCRIBED, SCORED, ampere, hopper, mixed_state, state

UP, DOWN, PAGE_DOWN, END, ENTER = "KEY_UP", "KEY_DOWN", "KEY_NPAGE", "KEY_END", "\n"
SIZES = [(80, 24), (200, 50), (100, 12), (40, 10), (20, 6), (1, 1)]

NODE7 = Remote("http://node7:10170")


def plain(line: Line) -> str:
    return "".join(span.text for span in line)


def latest(shown: Node | None, error: str | None = None) -> Feed:
    feed = Feed(NODE7, 1)
    feed.node, feed.error = shown, error
    return feed


def crowded(count: int) -> Node:
    now = node(state(hopper()))
    gpus = (
        replace(now.gpus[0], gpu=f"{n}", uuid=f"u{n}", power_watts=float(100 - n))
        for n in range(count)
    )
    return replace(now, gpus=tuple(gpus))


def without_gpus(status: str | None = None, remedy: str | None = None) -> Node:
    return replace(node(NO_DRIVER), driver_status=status, driver_remedy=remedy)


def screen(
    shown: Feed, choice: Choice | None = None, size: tuple[int, int] = (80, 24)
) -> list[str]:
    lines = frame(shown, choice or Choice(), *size, IN_COLOUR)
    return [plain(line) for line in lines]


def rows(lines: Sequence[str]) -> list[str]:
    """The table's rows: their first cells."""
    return [line.split()[0] for line in lines[4:] if line[:1].isdigit()]


def after(keys: Sequence[str], shown: Node) -> Choice:
    choice = Choice()
    for key in keys:
        choice = pressed(choice, key, shown)
    return choice


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("choice", [Choice(), Choice(help=True), Choice(details=False)])
@pytest.mark.parametrize(
    "shown",
    [None, without_gpus("no driver"), node(mixed_state()), crowded(60)],
    ids=["nothing", "no gpu", "mixed", "crowded"],
)
def test_every_screen_fits(shown: Node | None, choice: Choice, size: tuple[int, int]) -> None:
    width, height = size
    lines = screen(latest(shown, "cannot read " + "x" * 300), choice, size)
    assert len(lines) == height
    if width >= 40:
        assert max(cells(line) for line in lines) <= width


def test_without_a_gpu_the_remedy_is_that_of_the_reason() -> None:
    none = without_gpus("nvmlInit: DRIVER_NOT_LOADED (9)", "load the kernel module")
    text = " ".join(" ".join(screen(latest(none))).split())
    assert "No GPU to show: nvmlInit: DRIVER_NOT_LOADED (9). To fix it: load the" in text
    assert "install NVIDIA's driver" not in text
    elsewhere = " ".join(" ".join(screen(latest(without_gpus()))).split())
    assert "Run gpu-bottleneck-exporter check there to see why." in elsewhere


def test_a_row_for_each_gpu_at_80_columns() -> None:
    lines = screen(latest(node(mixed_state())))
    assert "3 of 4 GPUs starved, 1.1 GPUs of capacity lost (1 down)" in lines[0]
    head = "GPU busy and waiting BUSY* WATTS °C GiB SM LIKELY CAUSE"
    assert " ".join(lines[3].split()) == head
    assert rows(lines) == ["3", "0", "1", "1", "2"]
    assert lines[4].split() == ["3", *"–" * 5, "down"]  # noqa: RUF001 - the dash
    assert lines[5].split()[-6:] == ["62%", "412/700", "61", "52/80", "50%", "unknown"]
    assert lines[7].startswith("1 · MIG 3g.40gb")


def test_the_selected_gpu_is_shown_in_full() -> None:
    shown = node(mixed_state())
    text = "\n".join(screen(latest(shown), size=(100, 40)))
    assert "GPU 3  NVIDIA A100-SXM4-80GB" in text
    assert "XID 79 (1)" in text
    assert "held by" not in text
    assert "try          Look for the driver's errors" in text
    gone = changed(shown.gpus[4], remedy="look at its fan")
    text = "\n".join(screen(latest(replace(shown, gpus=(gone,))), size=(100, 40)))
    assert "try          Look at its fan." in text
    text = "\n".join(screen(latest(shown), after([DOWN], shown), size=(100, 40)))
    assert "likely cause Waiting for an unknown cause (unknown) for 4 min: " in text
    assert "runbook      gpu-bottleneck-exporter runbook GpuUnexplainedLowUtilization" in text
    assert "clocks held down: power_cap" in text


def test_the_selected_gpu_has_its_processes_below_the_recommendation() -> None:
    crew = (ProcessEntry(7, "main", "train.py", "alice", "sleeping"), ProcessEntry(8, "worker"))
    shown = with_gpu(node(state(hopper())), process_list=crew)
    lines = screen(latest(shown), size=(100, 24))
    first = next(number for number, line in enumerate(lines) if "processes" in line)
    assert lines[first].split() == ["processes", "7", "alice", "train.py", "main,", "sleeping"]
    assert lines[first + 1].split() == ["8", "–", "–", "worker,", "–"]  # noqa: RUF001 - the dash
    assert [line.split()[0] for line in (lines[first - 4], lines[first - 1])] == ["try", "history"]


@pytest.mark.parametrize(("glyphs", "levels"), [(IN_COLOUR, " ▄█"), (spans.IN_ASCII, "049")])
def test_the_history_has_a_cell_for_each_step_in_the_colour_of_the_wait(
    glyphs: Glyphs, levels: str
) -> None:
    steps = (
        {"busy": 0.02, "peer": 0.98},
        {"busy": 0.45, "storage": 0.5, "peer": 0.05},
        {"busy": 1.0},
    )
    drawn = spans.strip((*steps, {}), glyphs)
    assert plain(drawn) == f"{levels} "
    assert [span.style for span in drawn] == ["busy on peer", "busy on storage", "busy", "busy"]


def test_the_screen_is_calm_while_the_driver_is_opened() -> None:
    lines = frame(latest(without_gpus(OPENING)), Choice(), 80, 24, IN_COLOUR)
    assert "Measuring: opening the driver." in [plain(line) for line in lines]
    assert not any(span.style == "bad" for line in lines for span in line)


def test_wide_terminals_show_more_and_the_recommendation_if_any() -> None:
    def table(shown: Node, width: int) -> list[str]:
        return screen(latest(shown), size=(width, 24))[3:]

    heading, _, first, *_ = table(node(mixed_state()), 230)
    assert heading.split()[-3:] == ["TRY", "OWNER", "MODEL"]
    assert "Use 6 loader workers: 93 %" in first
    assert "research/train-7f9c/trainer" in first
    assert first.rstrip().endswith(HOPPER.name or "?")
    assert " TRY " not in table(crowded(2), 115)[0]
    assert " TRY " in table(crowded(2), 116)[0]
    assert " TRY " not in table(node(state(ampere())), 230)[0]


def test_keys_sort_turn_round_and_select() -> None:
    shown = crowded(4)
    assert rows(screen(latest(shown), after(["w"], shown))) == ["0", "1", "2", "3"]
    assert rows(screen(latest(shown), after(["w", "r"], shown))) == ["3", "2", "1", "0"]
    assert rows(screen(latest(shown), after(["g", "r"], shown))) == ["3", "2", "1", "0"]
    assert after([DOWN, DOWN, UP], shown).selected == Key("1", "u1")
    assert after([UP], shown).selected == Key("0", "u0")
    assert after([DOWN] * 9, shown).selected == Key("3", "u3")
    assert after([PAGE_DOWN], without_gpus("none")).selected is None
    assert pressed(Choice(), PAGE_DOWN, crowded(9), page=7).selected == Key("7", "u7")
    assert [after(["s"] * n, shown).order for n in (1, 6)] == ["gpu", "idle"]
    assert not after([ENTER], shown).details
    assert after(["q"], shown).ended
    assert after(["?", "q"], shown).ended
    assert not after(["?", "x"], shown).help


def test_the_details_of_a_server_name_its_clients() -> None:
    serving = Serving((8000,), 2, 0, 1, 4.2, complete=True)
    shown = with_gpu(node(state(hopper())), serving=serving)
    lines = screen(latest(shown), size=(100, 40))
    text = "port 8000: 2 clients, 1 request in flight, the longest for 4.2 s"
    assert f"  {'serves':13}{text}" in [line.rstrip() for line in lines]


def test_unknown_values_sort_last() -> None:
    shown = node(mixed_state())
    for keys in (["w"], ["w", "r"]):
        last = [gpu.power_watts for gpu in ordered(after(keys, shown), shown)][-2:]
        assert last == [None, None]


def test_the_selected_row_is_always_on_the_screen() -> None:
    shown = crowded(60)
    for steps in (0, 1, 30, 58, 59):
        lines = frame(latest(shown), after([DOWN] * steps, shown), 80, 24, IN_COLOUR)
        chosen = [plain(line) for line in lines if any(span.style == "selected" for span in line)]
        assert [line.split()[0] for line in chosen] == [f"{steps}"]


@pytest.mark.parametrize("details", [True, False])
def test_a_page_is_one_screen(details: bool) -> None:  # noqa: FBT001 - a parameter
    shown, choice = crowded(60), Choice(details=details)
    assert page(shown, choice, 24) == len(rows(screen(latest(shown), choice)))
    assert page(None, choice, 24) == 1


def test_rows_beyond_the_screen_are_counted() -> None:
    shown = crowded(20)

    def told(keys: Sequence[str]) -> list[str]:
        lines = screen(latest(shown), after(keys, shown))
        assert len(rows(lines)) == 10
        return [line for line in lines if line.startswith("…")]

    assert told([]) == ["… 10 more below"]
    assert told([END]) == ["… 10 more above"]
    assert told([DOWN] * 10) == ["… 5 more above, 5 more below"]
    assert not any("more" in line for line in screen(latest(crowded(11))))
    assert len(rows(screen(latest(crowded(11))))) == 11


def test_the_help_names_all_keys_and_colours_in_24_lines() -> None:
    lines = screen(latest(crowded(1)), Choice(help=True))
    assert "1 GPU" in lines[0]
    values = [line.lstrip(" █") for line in lines[1:-1]]
    for name in [*dict(HELP), "busy: ", *(f"{name}: " for name in MEANINGS)]:
        assert any(line.startswith(name) for line in values), name


def test_the_reference_names_all_keys() -> None:
    text = (Path(__file__).parents[2] / "exporter/REFERENCE.md").read_text(encoding="utf-8")
    table = text.partition("\n## top\n")[2].partition("\nWithout a terminal")[0]
    keys = {key for keys in dict(HELP) for key in re.split(", | ", keys)}
    assert {"h", "End", "up", "c"} <= keys
    assert keys <= set(re.findall(r"[\w?-]+", table))


@pytest.mark.parametrize("glyphs", [IN_COLOUR, spans.WITHOUT_COLOUR, spans.IN_ASCII])
def test_bars_are_exact_to_a_cell(glyphs: Glyphs) -> None:
    parts = crowded(1).gpus[0].parts
    for width in (10, 37, 100):
        line = spans.bar(parts, width, glyphs)
        assert cells(plain(line)) == width
        busy = next(len(span.text) for span in line if span.style == "busy")
        assert busy == pytest.approx(0.62 * width, abs=1)
        # Without colour, the cause can be told from busy and from the rest.
        assert len({*plain(line)} - {" "}) == len({*glyphs[:3]})
    assert plain(spans.bar({}, 5, glyphs)) == "     "
    assert cells(plain(spans.bar({"busy": 0.9, "storage": 1e9, "peer": -1.0}, 10, glyphs))) == 10


def test_the_colours_of_waits_are_distinct_in_256() -> None:
    colours = [palette.BUSY_COLOUR, *palette.WAIT_COLOURS.values()]
    assert len({nearest(colour) for colour in colours}) == len(colours)


def test_an_error_is_shown_with_its_start() -> None:
    lines = screen(latest(None, "cannot read http://node7: refused"))
    assert "cannot read http://node7: refused" in lines[2]
    assert lines[2].endswith("trying again")


def test_hostile_names_cannot_steer_the_terminal() -> None:
    evil = "\x1b[2J\r\n\u202eevil\x07"
    result = with_gpu(
        node(state(hopper())),
        **dict.fromkeys(("uuid", "name", "verdict", "cause"), evil),
        **dict.fromkeys(("meaning", "remedy", "runbook"), evil),
        evidence=(evil,),
        process_list=(ProcessEntry(1, evil, evil, evil, evil),),
        trend=({evil: 0.3},),
        stall_ratios={evil: 0.3},
        owners=({"user": evil},),
        trouble=(evil,),
        prescription=replace(PRESCRIBED, knob=evil, then=evil),
        last_change=replace(SCORED, knob=evil),
    )
    shown = latest(replace(result, driver_status=evil), evil)
    for line in screen(shown, size=(200, 40)):
        assert line.isprintable()


def test_wide_characters_take_two_cells() -> None:
    assert cells("漢字") == 4
    assert spans.clipped("漢字漢字", 5) == "漢字…"
    assert spans.clipped("e\u0301", 1) == "e\u0301"
