"""The `rules` command: the rules as the flags ask."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_bottleneck_exporter import rulepack
from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.flags import PROGRAM

MOST_HOURS = 1e7
"""Of a budget: a month of ten thousand GPUs."""
MINIMUM_SCALE, MAXIMUM_SCALE = 0.01, 10_000.0
"""Ten thousand times faster, a day takes nine seconds."""
_OWNER_LABEL = re.compile(r"label_[a-zA-Z0-9_]{1,128}")
_BUDGET = re.compile(r"([^\x00-\x1f\x7f]{1,128})=(\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted(rulepack.Changes):
    """What the flags ask for: changes, and whether and how to wrap them for Kubernetes.

    Raises SettingsError, with the flag's name, for an invalid value.
    """

    prometheusrule: bool = False
    name: str | None = None
    namespace: str | None = None
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        given = {"--name": self.name, "--namespace": self.namespace, "--label": self.labels}
        if alone := [flag for flag, value in given.items() if value and not self.prometheusrule]:
            raise SettingsError(f"{' and '.join(alone)}: only with --prometheusrule")
        texts = (self.name, self.namespace, self.runbook_base, self.grafana_url)
        for text in (*filter(None, texts), *self.labels, *self.budgets):
            if not text.isprintable():
                raise SettingsError(f"{text!r} has characters that cannot be printed")
        if wrong := [label for label in self.labels if label.count("=") != 1]:
            raise SettingsError(f"--label must be like release=prometheus, not {wrong[0]!r}")
        if self.owner_label and not _OWNER_LABEL.fullmatch(self.owner_label):
            raise SettingsError(
                "--owner-label must be one that kube-state-metrics shows, like label_team, "
                f"not {self.owner_label!r}"
            )
        if not MINIMUM_SCALE <= self.scale <= MAXIMUM_SCALE:
            raise SettingsError(
                f"--for-scale must be {MINIMUM_SCALE:g} to {MAXIMUM_SCALE:g}, not {self.scale:g}"
            )


def severities(alerts: Sequence[str]) -> dict[str, str]:
    """The severities of `--alert`, by alert; `rulepack.OFF` for one that is left out."""
    found = {alert: alert.partition("=") for alert in alerts}
    wrong = [typed for typed, pair in found.items() if pair[2] not in rulepack.SEVERITIES]
    if wrong:
        raise SettingsError(
            f"--alert must be an alert and one of {', '.join(rulepack.SEVERITIES)}, like "
            f"GpuOversized=off, not {wrong[0]!r}"
        )
    return {name: severity for name, _, severity in found.values()}


def hours(budgets: Sequence[str]) -> dict[str, float]:
    """The GPU-hours of `--budget`, by owner."""
    found: dict[str, float] = {}
    for budget in budgets:
        parts = _BUDGET.fullmatch(budget)
        if not parts or not 0 < float(parts[2]) <= MOST_HOURS:
            raise SettingsError(
                "--budget must be an owner and GPU-hours a month, up to "
                f"{MOST_HOURS:.0f}, like vision=400, not {budget!r}"
            )
        if parts[1] in found:
            raise SettingsError(f"--budget: {parts[1]!r} has two")
        found[parts[1]] = float(parts[2])
    return found


def rendered(wanted: Wanted) -> dict[str, str]:
    """The files: rule files, or PrometheusRule objects, one of which has the alerts."""
    if not wanted.prometheusrule:
        return rulepack.adapted(rulepack.files(), wanted)
    name = wanted.name or PROGRAM
    labels = dict(label.split("=") for label in wanted.labels)
    objects: dict[str, list[rulepack.Fields]] = {}
    for file, groups in rulepack.changed(rulepack.parsed(rulepack.files()), wanted).items():
        part = f"{name}-alerts" if file in rulepack.ALERTS else name
        objects.setdefault(part, []).extend(groups)
    return {
        f"{part}.yml": rulepack.as_prometheusrule(groups, part, wanted.namespace, labels)
        for part, groups in objects.items()
    }


def printed(wanted: Wanted) -> str:
    """The PrometheusRule objects, or one rule file with all groups."""
    files = rendered(wanted)
    return "---\n".join(files.values()) if wanted.prometheusrule else rulepack.merged(files)
