"""The palette: a colour for each cause and each wait, told apart in every sight, legible."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations
from math import dist
from operator import mul

import pytest

from builders.colours import CAUSES as OF_CAUSES
from gpu_bottleneck_exporter import palette
from gpu_bottleneck_exporter.accounting.stall import WAITING_ON
from rules.causes_table import pack
from support.offenders import each

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


def contrast(one: str, other: str) -> float:
    """1 to 21, as WCAG 2 defines it."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    red, green, blue = linear_light(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def linear_light(colour: str) -> list[float]:
    """The channels of sRGB (0-1) as linear light."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]


def seen(colour: str, sight: str) -> tuple[float, float, float]:
    """As CIE L*a*b*."""
    linear = linear_light(colour)
    mixed = (sum(map(mul, row, linear)) for row in SIGHTS[sight])
    red, green, blue = (min(1.0, max(0.0, channel)) for channel in mixed)
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883
    fx, fy, fz = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def near(colours: Mapping[str, str], sight: str, floor: float) -> list[tuple[str, str]]:
    """Pairs that are less than `floor` apart."""
    places = {name: seen(colour, sight) for name, colour in colours.items()}
    pairs = combinations(places, 2)
    return [(one, other) for one, other in pairs if dist(places[one], places[other]) < floor]


@pytest.mark.parametrize("sight", SIGHTS)
def test_waits_and_causes_can_be_told_apart(sight: str) -> None:
    assert near({"busy": palette.BUSY, **palette.WAITING_ON}, sight, NO_DOUBT) == []
    assert near(OF_CAUSES, sight, SIDE_BY_SIDE) == []


ALIKE = {"green-blind": ("#D55E00", "#B07A00"), "red-blind": ("#C94A53", "#006B4E")}


@pytest.mark.parametrize("sight", ALIKE)
def test_the_check_of_sights(sight: str) -> None:
    colours = dict(zip(("one", "other"), ALIKE[sight], strict=True))
    assert near(colours, sight, SIDE_BY_SIDE)
    assert not near(colours, "normal", SIDE_BY_SIDE)


@each([palette.BUSY, *palette.WAITING_ON.values(), *OF_CAUSES.values()])
def test_a_colour_can_be_written_on_and_stands_out_from_a_dark_page(colour: str) -> None:
    """As a line, on a panel of Grafana's dark theme."""
    assert max(contrast(text, colour) for text in ("#000000", "#FFFFFF")) >= 4.5
    assert contrast(colour, "#181B1F") >= 3
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
