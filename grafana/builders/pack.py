"""What the dashboards take from the rules: thresholds, the order of causes, alerts, links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import yaml

from gpu_bottleneck_exporter import rulepack

THRESHOLD = "gpu:threshold:"
_DURATION = re.compile(r"(?:\d+[smhd])+")
_BRANCH = re.compile(r'if eq \$labels\.cause "(\w+)"')


@cache
def _rules() -> tuple[dict[str, Any], ...]:
    return tuple(_read())


def _read() -> Iterator[dict[str, Any]]:
    for name in rulepack.NAMES:
        for group in yaml.load(rulepack.files()[name], Loader=yaml.CSafeLoader)["groups"]:
            for rule in group["rules"]:
                yield {"labels": {}, **rule, "interval": group["interval"]}


def threshold(name: str) -> float:
    """The number of `gpu:threshold:<name>`. Raises KeyError if there is none."""
    found = {rule["record"]: rule["expr"] for rule in _rules() if "record" in rule}
    return _number(found[THRESHOLD + name])


def ranks() -> dict[str, float]:
    """Each cause of the chain and its rank, the first one the smallest."""
    orders = (rule for rule in _rules() if rule.get("record") == "gpu:cause:order")
    return {rule["labels"]["cause"]: _number(rule["expr"]) for rule in orders}


def alerts() -> dict[str, str]:
    """Each cause and the name of its alert."""
    return {
        cause: rule["alert"] for rule in _rules() if "alert" in rule for cause in _causes_of(rule)
    }


def pages() -> dict[str, str]:
    """Each cause and the file name of its runbook."""
    return {
        cause: rule["annotations"]["runbook_url"]
        .rpartition("/")[2]
        .replace("{{ $labels.cause }}", cause)
        for rule in _rules()
        if "alert" in rule
        for cause in _causes_of(rule)
    }


def _causes_of(rule: dict[str, Any]) -> list[str]:
    """The causes that an alert names: one, or those whose texts it has."""
    of_label = rule["labels"].get("cause")
    return [of_label] if of_label else _BRANCH.findall(rule["annotations"]["summary"])


def runbooks() -> str:
    """The folder of the runbooks, as the alerts link it."""
    urls = {rule["annotations"]["runbook_url"] for rule in _rules() if "alert" in rule}
    (folder,) = {url.rpartition("/")[0] for url in urls}
    return str(folder)


def interval_seconds() -> int:
    """Seconds between two samples of the loss."""
    lost = (rule for rule in _rules() if rule.get("record") == "gpu:bottleneck:lost_ratio")
    (interval,) = {rule["interval"] for rule in lost}
    return seconds(interval)


def blind_kinds() -> list[str]:
    """Kinds of causes that `gpu:blind:bool` may report."""
    found = (rule for rule in _rules() if rule.get("record") == "gpu:blind:bool")
    return [rule["labels"]["blind"] for rule in found]


def seconds(duration: str) -> int:
    """A Prometheus duration of whole seconds, like `1m30s`. Raises ValueError for anything else."""
    if not _DURATION.fullmatch(duration):
        raise ValueError(f"not a duration of whole seconds: {duration!r}")
    return rulepack.milliseconds(duration) // 1000


def _number(expression: str) -> float:
    return float(expression.removeprefix("vector(").removesuffix(")"))
