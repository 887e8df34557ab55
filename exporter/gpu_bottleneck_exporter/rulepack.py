"""Reads the rule pack, changes it by options, and writes it.

A changed file loses its comments; its first line links the original.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.resources import files as resources
from textwrap import indent
from typing import Any

import yaml

from gpu_bottleneck_exporter.errors import SettingsError

NAMES = ("thresholds.yml", "recording.yml", "serving.yml", "alerts.yml", "reclaim.yml")
DIALECTS = ("exporter", "dcgm", "both")
DCGM = "dcgm.yml"
"""Rules that record `INPUTS` metrics from those of dcgm-exporter."""
JOBSTATS = "jobstats.yml"
"""Rules that record the metrics of Princeton's jobstats exporter."""
OPENCOST = "opencost.yml"
"""Rules that record the metrics for OpenCost."""
OWNERS = "owners.yml"
"""Rules that record the owners of pods, by a label from kube-state-metrics."""
BUDGETS = "budgets.yml"
"""Rules that compare the losses of owners with their budgets."""
OBJECTS = {
    **dict.fromkeys(("alerts.yml", "reclaim.yml", BUDGETS), "alerts"),
    **dict.fromkeys(("serving.yml", DCGM, JOBSTATS, OPENCOST, OWNERS), "inputs"),
}
"""Suffix of a file's object, as objects are limited in size; other files are in the first."""
OFF = "off"
"""Severity of an omitted alert."""
SEVERITIES = ("critical", "warning", "info", OFF)
INPUTS = ("gpu-inputs", "gpu-inputs-host")

_RULES_URL = "https://github.com/gpu-bottleneck-exporter/gpu-bottleneck-exporter/blob/main/rules"
_UNIT_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_DURATION = r"(?:\d+(?:ms|[smhdwy]))+"

Fields = dict[str, Any]
"""The fields of a rule or of a group of rules."""
Pack = Mapping[str, Sequence[Fields]]
"""Groups by file name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The changes to the pack; by default none, without optional files."""

    dialect: str = "exporter"
    """Source of inputs, one of `DIALECTS`."""
    jobstats: bool = False
    opencost: bool = False
    owner_label: str | None = None
    """Label of kube_pod_labels and kube_namespace_labels that names the owner."""
    budgets: Mapping[str, float] = field(default_factory=dict)
    """Monthly budget of lost GPU-hours by owner."""
    severities: Mapping[str, str] = field(default_factory=dict)
    """Severity by alert; `OFF` omits it. GpuUnderused ignores the causes of those below warning."""
    group_size: int | None = None
    """Maximum rules per group; the rest is in NAME-2 and so on."""
    scale: float = 1.0
    """Divisor of all durations, except in names and descriptions."""
    without_keep_firing: bool = False
    """Whether to omit `keep_firing_for`, which Prometheus before 2.42 and older vmalert reject."""
    without_prescriptions: bool = False
    """Whether to omit queries from descriptions, which `vmalert -replay` rejects."""
    runbook_base: str | None = None
    """Base URL of runbooks."""
    grafana_url: str | None = None
    workload_namespace: bool = False
    """Whether job alerts have the pod's `namespace` instead of the exporter's.

    AlertmanagerConfig objects and kube-prometheus-stack's inhibition rules match it.
    """


def files() -> dict[str, str]:
    """Text by file name of the pack."""
    return {name: _packaged(name) for name in (*NAMES, DCGM, JOBSTATS, OPENCOST, OWNERS, BUDGETS)}


def routes() -> dict[str, str]:
    """The example for Alertmanager, no rule file of Prometheus."""
    return {"alertmanager/alertmanager.yml": _packaged("alertmanager.yml")}


def _packaged(name: str) -> str:
    folder = resources("gpu_bottleneck_exporter") / "rules"
    return (folder / name).read_text(encoding="utf-8")


def milliseconds(duration: str) -> int:
    """Milliseconds of a Prometheus duration such as `1m30s`, without its sign."""
    units = {**_UNIT_MS, "w": 7 * _UNIT_MS["d"], "y": 365 * _UNIT_MS["d"]}
    parts = re.findall(r"(\d+)(ms|[smhdwy])", duration)
    return sum(int(count) * units[unit] for count, unit in parts)


def parsed(texts: Mapping[str, str]) -> Pack:
    """Groups by rule file."""
    # Ten times as fast as SafeLoader, if PyYAML has libyaml.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return {name: yaml.load(text, loader)["groups"] for name, text in texts.items()}  # noqa: S506


def adapted(texts: Mapping[str, str], changes: Changes) -> dict[str, str]:
    """The selected rule files with `changes`. Raises SettingsError as `changed` does."""
    originals = parsed(texts)
    return {
        name: texts[name] if groups == originals[name] else _written(name, groups)
        for name, groups in changed(originals, changes).items()
    }


def changed(pack: Pack, changes: Changes) -> Pack:
    """A copy of the selected files with `changes`. Raises SettingsError for an unknown alert."""
    optional = {
        DCGM: changes.dialect != "exporter",
        JOBSTATS: changes.jobstats,
        OPENCOST: changes.opencost,
        OWNERS: changes.owner_label,
        BUDGETS: changes.budgets,
    }
    replaced = INPUTS if changes.dialect == "dcgm" else ()
    selected = {
        name: [deepcopy(group) for group in groups if group["name"] not in replaced]
        for name, groups in pack.items()
        if optional.get(name, True)
    }
    _hide_lowered(selected, changes.severities)
    return {
        name: [part for group in groups for part in _changed_group(group, name, changes)]
        for name, groups in selected.items()
    }


def _hide_lowered(pack: Pack, severities: Mapping[str, str]) -> None:
    rules = [rule for groups in pack.values() for group in groups for rule in group["rules"]]
    if unknown := sorted(severities.keys() - {rule.get("alert") for rule in rules}):
        raise SettingsError(f"--alert: unknown alert {unknown[0]}")
    lowered = [rule for rule in rules if severities.get(rule.get("alert", "")) in {OFF, "info"}]
    causes = {alert["labels"].get("cause") for alert in lowered}
    for rule in rules:
        if rule.get("record") == "gpu:cause:order":
            labels = rule["labels"]
            symptom = f'symptom="{labels.get("symptom")}"'
            if labels["cause"] in causes or any(symptom in alert["expr"] for alert in lowered):
                labels.setdefault("hour", "untold")


def _changed_group(group: Fields, file: str, changes: Changes) -> Iterator[Fields]:
    """The group with changed rules, split by `group_size`."""
    rules = [new for rule in group["rules"] for new in _replacements(rule, changes)]
    for rule in rules:
        if changes.owner_label:  # `OWNERS` has an example
            rule["expr"] = rule["expr"].replace("label_team", changes.owner_label)
        if "alert" in rule:
            _change_alert(rule, file, changes)
    if changes.scale != 1:
        for fields in (group, *rules):
            _scale(fields, changes.scale)
    size = changes.group_size or max(len(rules), 1)
    for number, start in enumerate(range(0, len(rules), size), 1):
        name = group["name"] + (f"-{number}" if number > 1 else "")
        yield {**group, "name": name, "rules": rules[start : start + size]}


def _replacements(rule: Fields, changes: Changes) -> Iterator[Fields]:
    """The rule, unless it is an alert that is off; the configured budgets for the example."""
    if rule.get("record") == "owner:budget:gpu_hours":
        for owner, hours in changes.budgets.items():
            labels = {"workload_owner": owner}
            yield {**rule, "labels": labels, "expr": f"vector({hours:.15g})"}
    elif changes.severities.get(rule.get("alert", "")) != OFF:
        yield rule


def _change_alert(alert: Fields, file: str, changes: Changes) -> None:
    labels, annotations = alert["labels"], alert["annotations"]
    labels["severity"] = changes.severities.get(alert["alert"], labels["severity"])
    # An owner's losses have no namespace.
    if changes.workload_namespace and labels["responder"] == "job" and file != BUDGETS:
        labels["namespace"] = "{{ or $labels.workload_namespace $labels.namespace }}"
    if changes.without_keep_firing:
        alert.pop("keep_firing_for", None)
    if changes.without_prescriptions:
        for key, text in annotations.items():  # the query ends the text
            annotations[key] = text.partition("{{- $of :=")[0].rstrip()
    if changes.runbook_base is not None:
        page = annotations["runbook_url"].rpartition("/")[2]
        annotations["runbook_url"] = f"{changes.runbook_base.rstrip('/')}/{page}"
    if changes.grafana_url is not None:
        path = annotations.pop("dashboard_path")
        annotations["dashboard_url"] = f"{changes.grafana_url.rstrip('/')}{path}"


def _scale(fields: Fields, factor: float) -> None:
    for key in {"interval", "for", "keep_firing_for"} & fields.keys():
        fields[key] = _divided(fields[key], factor)
    name, expression = fields.get("record", ""), fields.get("expr", "")
    if name.startswith("gpu:threshold:") and name.endswith("_seconds"):
        number = expression.removeprefix("vector(").removesuffix(")")
        fields["expr"] = f"vector({_quotient(number, factor)})"
    elif expression:
        fields["expr"] = _scaled(expression, factor)


def _scaled(expression: str, factor: float) -> str:
    """Divide the durations in PromQL."""
    window = rf"(?<=[\[:]){_DURATION}(?=[\]:])|(?<=offset )-?{_DURATION}"
    # The time that each value stands for in a sum of seconds.
    weight = r"\b60(?= \* sum by )"
    horizon = r"(predict_linear\((?:[^()\[\]]|\[[^\]]*\])*, *)([\d.]+)(?= *\))"
    expression = re.sub(window, lambda match: _divided(match[0], factor), expression)
    expression = re.sub(weight, lambda match: _quotient(match[0], factor), expression)
    return re.sub(horizon, lambda match: match[1] + _quotient(match[2], factor), expression)


def _divided(duration: str, factor: float) -> str:
    whole = milliseconds(duration)
    # At least 1 ms, unless it was zero.
    quotient = max(min(1, whole), round(whole / factor))
    unit = next(unit for unit, length in _UNIT_MS.items() if quotient % length == 0)
    sign = "-" if duration.startswith("-") else ""
    return f"{sign}{quotient // _UNIT_MS[unit]}{unit}"


def _quotient(number: str, factor: float) -> str:
    return f"{float(number) / factor:.10g}"


def merged(texts: Mapping[str, str]) -> str:
    """A single rule file, with each file's groups after its introduction."""
    sections = []
    for name, text in texts.items():
        introduction, _, groups = text.partition("\ngroups:\n")
        sections.append(indent(f"# {name}\n{introduction}\n", "  ") + groups)
    return "groups:\n" + "\n".join(sections)


def as_prometheusrule(
    groups: Sequence[Fields], name: str, namespace: str | None, labels: Mapping[str, str]
) -> str:
    """A PrometheusRule object of the Prometheus Operator."""
    metadata = {"name": name, "namespace": namespace, "labels": dict(labels)}
    content = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {key: value for key, value in metadata.items() if value},
        "spec": {"groups": groups},
    }
    return f"# With comments: {_RULES_URL}\n{_dumped(content)}"


def _written(name: str, groups: Sequence[Fields]) -> str:
    """A rule file, indented like the originals as `merged` mixes them."""
    head = f"# Changed by options; with comments: {_RULES_URL}/{name}\n"
    return f"{head}groups:\n{indent(_dumped(groups), '  ')}"


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """The dumper of rule files."""


def _represented(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Preserve line breaks; quote text that a YAML parser may not read as a string."""
    plain = len(text) > 1 and (text[0].isalpha() or re.fullmatch(_DURATION, text))
    style = "|" if "\n" in text else None if plain else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _represented)


def _dumped(content: object) -> str:
    # A width that wraps no line.
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=10_000)
