"""The list of all causes in the documentation, written from the annotations of the alerts."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from rules.parsed import Rule, rules

SEVERITIES = ("critical", "warning", "info")
RUNBOOKS = Path(__file__).parents[2] / "rules/runbooks"

_WHOSE = re.compile(r"^GPU .*?\(\{\{.*?\}\}\) ")
_LOSS = re.compile(
    r"^(is idle \{\{[^}]*\}\} of the time|loses \{\{[^}]*\}\} of what it could do): "
)
_OF_ONE_GPU = re.compile(r"\{\{- .*\{\{ end \}\}$")
_SENTENCE = re.compile(r"(?<=[.?]) ")


@cache
def pack() -> tuple[Rule, ...]:
    """All rules; reading them takes a second."""
    return tuple(rules())


def variants(name: str) -> list[Rule]:
    """The alerts of that name, the worst first."""
    found = [rule for rule in pack() if rule.is_alert and rule.name == name]
    return sorted(found, key=lambda rule: SEVERITIES.index(rule.labels["severity"]))


def severities(name: str) -> list[str]:
    """Of the alerts of that name, the worst first."""
    return list(dict.fromkeys(rule.labels["severity"] for rule in variants(name)))


def signal_and_remedy(description: str) -> tuple[str, str]:
    """The first sentence without the GPU, its owner and its loss; and all others.

    What is said of one GPU at the end is no remedy for all of them.
    """
    said = _OF_ONE_GPU.sub("", " ".join(description.split())).rstrip()
    said = _LOSS.sub("", _WHOSE.sub("", said))
    signal, *remedy = _SENTENCE.split(said, maxsplit=1)
    return signal[:1].upper() + signal[1:], "".join(remedy)


def causes() -> list[tuple[str, str]]:
    """Each cause and its alert: in the order of the causes, then those that are beside it."""
    order = {
        rule.labels["cause"]: float(rule.fields["expr"].removeprefix("vector(").rstrip(")"))
        for rule in pack()
        if rule.name == "gpu:cause:order"
    }
    alerts = {
        rule.labels["cause"]: rule.name
        for rule in pack()
        if rule.is_alert and "cause" in rule.labels
    }
    return sorted(alerts.items(), key=lambda item: order.get(item[0], float("inf")))


def table(runbooks: str) -> str:
    """The causes as a Markdown list; `runbooks`: the folder, for links."""
    return "\n".join(_line(cause, name, runbooks) for cause, name in causes())


def _line(cause: str, name: str, runbooks: str) -> str:
    signal, _ = signal_and_remedy(variants(name)[0].annotations["description"])
    alert = f"[{name}]({runbooks}/{name}.md)"
    return f"- `{cause}`, {alert}. {signal}"
