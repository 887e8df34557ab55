"""The palette: a colour for each cause and each wait, told apart in every sight, legible."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations
from math import dist

import pytest

from builders.colours import CAUSES as OF_CAUSES
from gpu_bottleneck_exporter import palette
from gpu_bottleneck_exporter.accounting.stall import WAITING_ON
from rules.causes_table import pack

CAUSES = {rule.labels["cause"] for rule in pack() if rule.is_alert and "cause" in rule.labels}
NO_DOUBT, SIDE_BY_SIDE = 16, 8
"""Distances in CIE L*a*b*, of which 2.3 is just noticeable. The few waits leave no doubt wherever
they stand; the many causes can be told apart where two of them touch."""


def test_every_wait_has_a_colour_and_those_of_causes_are_of_causes_of_the_rules() -> None:
    assert tuple(palette.WAITING_ON) == WAITING_ON
    assert set(OF_CAUSES) <= CAUSES
    colours = [*OF_CAUSES.values()]
    assert len(set(colours)) == len(colours)
    assert all(re.fullmatch(r"#[0-9A-F]{6}", one) for one in [*colours, palette.BUSY])


# Machado, Oliveira and Fernandes 2009, severity 1, of linear sRGB.
SIGHTS = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
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


def text_on(colour: str) -> str:
    """Black or white, whichever reads better."""
    return max(("#000000", "#FFFFFF"), key=lambda text: contrast(text, colour))


def contrast(one: str, other: str) -> float:
    """1 to 21, as WCAG 2 defines it."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    red, green, blue = (linear_light(int(colour[at : at + 2], 16) / 255) for at in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def linear_light(channel: float) -> float:
    """A channel of sRGB (0-1) as linear light."""
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4


def seen(colour: str, sight: str) -> tuple[float, float, float]:
    """As CIE L*a*b*."""
    linear = [linear_light(int(colour[at : at + 2], 16) / 255) for at in (1, 3, 5)]
    red, green, blue = (
        min(1.0, max(0.0, sum(m * v for m, v in zip(row, linear, strict=True))))
        for row in SIGHTS[sight]
    )
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883
    fx, fy, fz = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def near(colours: Mapping[str, str], sight: str, floor: float) -> list[tuple[str, str]]:
    """Pairs that are less than `floor` apart."""
    places = {name: seen(colour, sight) for name, colour in colours.items()}
    return [
        (one, other)
        for (one, a), (other, b) in combinations(places.items(), 2)
        if dist(a, b) < floor
    ]


@pytest.mark.parametrize("sight", SIGHTS)
def test_waits_can_be_told_apart(sight: str) -> None:
    assert near({"busy": palette.BUSY, **palette.WAITING_ON}, sight, NO_DOUBT) == []


@pytest.mark.parametrize("sight", SIGHTS)
def test_causes_can_be_told_apart(sight: str) -> None:
    assert near(OF_CAUSES, sight, SIDE_BY_SIDE) == []


@pytest.mark.parametrize(
    ("sight", "one", "other"),
    [
        ("green-blind", "#D55E00", "#B07A00"),
        ("green-blind", "#C94A53", "#8C7A45"),
        ("red-blind", "#D55E00", "#7A7300"),
        ("red-blind", "#C94A53", "#006B4E"),
    ],
)
def test_the_check_of_sights(sight: str, one: str, other: str) -> None:
    colours = {"one": one, "other": other}
    assert near(colours, sight, SIDE_BY_SIDE)
    assert not near(colours, "normal", SIDE_BY_SIDE)


def test_texts_can_be_read_on_every_colour() -> None:
    for colour in [palette.BUSY, *palette.WAITING_ON.values(), *OF_CAUSES.values()]:
        assert contrast(colour, text_on(colour)) >= 4.5
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)


def test_colours_stand_out_from_a_dark_page() -> None:
    """As lines, on a panel of Grafana's dark theme."""
    colours = [palette.BUSY, *palette.WAITING_ON.values(), *OF_CAUSES.values()]
    assert min(contrast(colour, "#181B1F") for colour in colours) >= 3
