"""How a series or a column looks: its unit, its colour, its name, texts in place of values."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from dashboardpictures.units import text

Json = dict[str, Any]

PALETTE = (
    *("#73BF69", "#F2CC0C", "#8AB8FF", "#FF780A", "#F2495C", "#5794F2", "#B877D9", "#705DA0"),
    *("#37872D", "#FADE2A", "#447EBC", "#C15C17", "#890F02", "#0A437C", "#6D1F62", "#584477"),
    *("#B7DBAB", "#F4D598", "#70DBED", "#F9BA8F", "#F29191", "#82B5D8", "#E5A8E2", "#AEA2E0"),
)
"""Grafana's classic palette in its dark theme; it goes on, but for no panel here."""
_OF_NUMBERS = ("min", "max", "decimals")
"""Defaults that only columns of numbers take; an override is taken by any."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A value as it is read."""

    text: str
    colour: str


@dataclass(frozen=True, slots=True)
class Field:
    """A series or a column with the panel's defaults and the overrides of its name."""

    name: str
    settings: Json
    index: int
    """Its place among all of the panel, which the palette goes by."""

    @property
    def title(self) -> str:
        """The name that is shown."""
        return str(self.settings.get("displayName", self.name))

    @property
    def colour(self) -> str:
        """Of the series."""
        colour = self.settings["color"]
        if colour["mode"] == "fixed":
            return str(colour["fixedColor"])
        return PALETTE[self.index % len(PALETTE)]

    def custom(self, key: str) -> Any:  # noqa: ANN401 - whatever the panel's JSON says there
        """A setting of this kind of panel; None where it is not set."""
        return self.settings.get(f"custom.{key}")

    def shown(self, value: float | str | None, now: float = 0) -> Shown:
        """As Grafana shows it: mapped, a text that is a number formatted like one."""
        found = self._mapped(value)
        if found is not None:
            return Shown(found["text"], found.get("color", self.colour))
        number = self._number(value)
        if number is not None:
            unit, decimals = self.settings["unit"], self.settings.get("decimals")
            return Shown(text(number, unit, decimals, now=now), self.colour)
        return Shown(str(value) if value else str(self.settings.get("noValue", "")), self.colour)

    def _mapped(self, value: float | str | None) -> Json | None:
        if value is None:
            return None
        key = value if isinstance(value, str) else f"{value:g}"
        mappings = [one["options"] for one in self.settings.get("mappings", [])]
        return next((options[key] for options in mappings if key in options), None)

    def _number(self, value: float | str | None) -> float | None:
        if isinstance(value, str) and self.settings["unit"] != "string":
            try:
                return float(value)
            except ValueError:
                return None
        return value if isinstance(value, float) else None


def field(panel: Json, name: str, index: int, *, number: bool = True) -> Field:
    """The field `name`, the `index`th of its panel."""
    config = panel["fieldConfig"]
    defaults = dict(config["defaults"])
    custom = defaults.pop("custom", {})
    if not number:
        defaults = {key: value for key, value in defaults.items() if key not in _OF_NUMBERS}
    settings = {**defaults, **{f"custom.{key}": value for key, value in custom.items()}}
    for rule in config["overrides"]:
        if _matches(rule["matcher"], name):
            settings.update({one["id"]: one["value"] for one in rule["properties"]})
    return Field(name, settings, index)


def _matches(matcher: Json, name: str) -> bool:
    if matcher["id"] == "byRegexp":
        return re.search(matcher["options"].strip("/"), name) is not None
    return bool(matcher["options"] == name)


def empty(panel: Json) -> str:
    """What a panel without data says."""
    said = panel["fieldConfig"]["defaults"].get("noValue", "-")
    return "No data" if said == "-" else str(said)
