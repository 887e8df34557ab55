"""The `rules` command: rules adapted by flags."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_bottleneck_exporter import rulepack
from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.flags import PROGRAM

_MAX_BUDGET_HOURS = 1e7
"""Limit of a budget: a month of ten thousand GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOptions(rulepack.Changes):
    """The flags of `rules`: changes, and the wrapping for Kubernetes.

    Raises SettingsError, with the flag's name, for an invalid value.
    """

    prometheusrule: bool = False
    name: str | None = None
    namespace: str | None = None
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        metadata = {"--name": self.name, "--namespace": self.namespace, "--label": self.labels}
        if alone := [flag for flag, text in metadata.items() if text and not self.prometheusrule]:
            raise SettingsError(f"{' and '.join(alone)}: only with --prometheusrule")
        texts = (self.name, self.namespace, self.runbook_base, self.grafana_url)
        for text in (*filter(None, texts), *self.labels, *self.budgets):
            if not text.isprintable():
                raise SettingsError(f"{text!r} has characters that cannot be printed")
        if wrong := [label for label in self.labels if label.count("=") != 1]:
            raise SettingsError(f"--label must be like release=prometheus, not {wrong[0]!r}")
        owner_label = r"label_[a-zA-Z0-9_]{1,128}"
        if self.owner_label and not re.fullmatch(owner_label, self.owner_label):
            raise SettingsError(
                "--owner-label must be one that kube-state-metrics shows, like label_team, "
                f"not {self.owner_label!r}"
            )
        low, high = 0.01, 10_000.0  # a day takes nine seconds
        if not low <= self.scale <= high:
            raise SettingsError(f"--for-scale must be {low:g} to {high:g}, not {self.scale:g}")


def severities(alerts: Sequence[str]) -> dict[str, str]:
    """The severities of `--alert`, by alert; `rulepack.OFF` for a disabled one."""
    pairs = {alert: alert.partition("=") for alert in alerts}
    wrong = [typed for typed, pair in pairs.items() if pair[2] not in rulepack.SEVERITIES]
    if wrong:
        raise SettingsError(
            f"--alert must be an alert and one of {', '.join(rulepack.SEVERITIES)}, like "
            f"GpuOversized=off, not {wrong[0]!r}"
        )
    return {name: severity for name, _, severity in pairs.values()}


def hours(budgets: Sequence[str]) -> dict[str, float]:
    """The GPU-hours of `--budget`, by owner."""
    result: dict[str, float] = {}
    for budget in budgets:
        parts = re.fullmatch(r"([^\x00-\x1f\x7f]{1,128})=(\d+(?:\.\d+)?)", budget)
        if not parts or not 0 < float(parts[2]) <= _MAX_BUDGET_HOURS:
            raise SettingsError(
                "--budget must be an owner and GPU-hours a month, up to "
                f"{_MAX_BUDGET_HOURS:.0f}, like vision=400, not {budget!r}"
            )
        if parts[1] in result:
            raise SettingsError(f"--budget: {parts[1]!r} has two budgets")
        result[parts[1]] = float(parts[2])
    return result


def rendered(options: RuleOptions) -> dict[str, str]:
    """Rule files, or PrometheusRule objects by the suffixes of `rulepack.OBJECTS`."""
    if not options.prometheusrule:
        return rulepack.adapted(rulepack.files(), options)
    name = options.name or PROGRAM
    labels = dict(label.split("=") for label in options.labels)
    objects: dict[str, list[rulepack.Fields]] = {}
    for file, groups in rulepack.changed(rulepack.parsed(rulepack.files()), options).items():
        part = "-".join(filter(None, (name, rulepack.OBJECTS.get(file))))
        objects.setdefault(part, []).extend(groups)
    return {
        f"{part}.yml": rulepack.as_prometheusrule(groups, part, options.namespace, labels)
        for part, groups in objects.items()
    }


def printed(options: RuleOptions) -> str:
    """PrometheusRule objects, or one rule file with all groups."""
    files = rendered(options)
    return "---\n".join(files.values()) if options.prometheusrule else rulepack.merged(files)
