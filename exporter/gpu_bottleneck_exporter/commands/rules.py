"""The `rules` command: the rules as the flags ask."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpu_bottleneck_exporter import rulepack
from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.flags import PROGRAM

MOST_HOURS = 1e7
"""Of a budget: a month of ten thousand GPUs."""
_OWNER_LABEL = re.compile(r"label_[a-zA-Z0-9_]{1,128}")
_BUDGET = re.compile(r"([^\x00-\x1f\x7f]{1,128})=(\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the flags ask for.

    Raises SettingsError, with the flag's name, for an invalid value.
    """

    dialect: str = "exporter"
    jobstats: bool = False
    owner_label: str | None = None
    budgets: tuple[str, ...] = ()
    alerts: tuple[str, ...] = ()
    group_size: int | None = None
    scale: float = 1.0
    without_keep_firing: bool = False
    without_prescriptions: bool = False
    runbook_base: str | None = None
    grafana_url: str | None = None
    workload_namespace: bool = False
    prometheusrule: bool = False
    name: str | None = None
    namespace: str | None = None
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        given = {"--name": self.name, "--namespace": self.namespace, "--label": self.labels}
        if alone := [flag for flag, value in given.items() if value and not self.prometheusrule]:
            raise SettingsError(f"{' and '.join(alone)}: only with --prometheusrule")
        if wrong := [label for label in self.labels if label.count("=") != 1]:
            raise SettingsError(f"--label must be like release=prometheus, not {wrong[0]!r}")
        if self.owner_label and not _OWNER_LABEL.fullmatch(self.owner_label):
            raise SettingsError(
                "--owner-label must be one that kube-state-metrics shows, like label_team, "
                f"not {self.owner_label!r}"
            )
        self.hours()
        self.severities()

    def severities(self) -> dict[str, str]:
        """Of alerts, by name; `rulepack.OFF` for one that is left out."""
        found = {alert: alert.partition("=") for alert in self.alerts}
        wrong = [typed for typed, pair in found.items() if pair[2] not in rulepack.SEVERITIES]
        if wrong:
            raise SettingsError(
                f"--alert must be an alert and one of {', '.join(rulepack.SEVERITIES)}, like "
                f"GpuOversized=off, not {wrong[0]!r}"
            )
        return {name: severity for name, _, severity in found.values()}

    def hours(self) -> dict[str, float]:
        """The budgets: GPU-hours by owner."""
        found: dict[str, float] = {}
        for budget in self.budgets:
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
    asked = {
        rulepack.JOBSTATS: wanted.jobstats,
        rulepack.OWNERS: wanted.owner_label,
        rulepack.BUDGETS: wanted.budgets,
    }
    extras = [name for name, value in asked.items() if value]
    chosen = rulepack.for_dialect(rulepack.files(), wanted.dialect, extras)
    chosen = rulepack.with_severities(chosen, wanted.severities())
    pack = {name: _adapted(text, wanted) for name, text in chosen.items()}
    if wanted.workload_namespace:  # what an owner loses is in no namespace
        namespaced = rulepack.with_workload_namespace
        pack |= {name: namespaced(pack[name]) for name in pack if name != rulepack.BUDGETS}
    if not wanted.prometheusrule:
        return pack
    name = wanted.name or PROGRAM
    labels = dict(label.split("=") for label in wanted.labels)
    parts: dict[str, dict[str, str]] = {}
    for file, text in pack.items():
        part = f"{name}-alerts" if file in rulepack.ALERTS else name
        parts.setdefault(part, {})[file] = text
    return {
        f"{part}.yml": rulepack.as_prometheusrule(texts, part, wanted.namespace, labels)
        for part, texts in parts.items()
    }


def printed(wanted: Wanted) -> str:
    """The PrometheusRule objects, or one rule file with all groups."""
    files = rendered(wanted)
    return "---\n".join(files.values()) if wanted.prometheusrule else rulepack.merged(files)


def _adapted(text: str, wanted: Wanted) -> str:
    if wanted.owner_label:
        text = rulepack.with_owner_label(text, wanted.owner_label)
    text = rulepack.with_budgets(text, wanted.hours())
    if wanted.scale != 1:
        text = rulepack.scaled(text, wanted.scale)
    if wanted.without_keep_firing:
        text = rulepack.without_keep_firing(text)
    if wanted.without_prescriptions:
        text = rulepack.without_prescriptions(text)
    if wanted.runbook_base is not None:
        text = rulepack.with_runbooks_at(text, wanted.runbook_base)
    if wanted.grafana_url is not None:
        text = rulepack.with_dashboards_at(text, wanted.grafana_url)
    if wanted.group_size is not None:
        text = rulepack.with_groups_of(text, wanted.group_size)
    return text
