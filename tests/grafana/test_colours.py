"""The palette: a colour for each cause and each wait, legible on the page's two grounds."""

from __future__ import annotations

from builders.colours import CAUSES as OF_CAUSES
from gpu_bottleneck_exporter import palette
from gpu_bottleneck_exporter.accounting.stall import WAITING_ON
from rules.causes_table import pack
from support.offenders import each

CAUSES = {rule.labels["cause"] for rule in pack() if rule.is_alert and "cause" in rule.labels}
COLOURS = [palette.BUSY, *palette.WAITING_ON.values(), *OF_CAUSES.values()]


def test_every_wait_has_a_colour_and_those_of_causes_are_of_causes_of_the_rules() -> None:
    assert tuple(palette.WAITING_ON) == WAITING_ON
    assert set(OF_CAUSES) <= CAUSES
    for one in (OF_CAUSES, {"busy": palette.BUSY, **palette.WAITING_ON}):
        assert len(set(one.values())) == len(one)


def contrast(one: str, other: str) -> float:
    """1 to 21, as WCAG 2 defines it."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(part * share for part, share in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


@each(COLOURS)
def test_a_colour_can_be_written_on_and_stands_out_from_a_dark_page(colour: str) -> None:
    """As a line, on a panel of Grafana's dark theme."""
    assert max(contrast(text, colour) for text in ("#000000", "#FFFFFF")) >= 4.5
    assert contrast(colour, "#181B1F") >= 3
