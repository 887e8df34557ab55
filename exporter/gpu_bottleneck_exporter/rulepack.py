"""The rule pack as data: parsed, changed as options ask, written.

A file that no option changes is written as it is, with its comments, which say why. The others
lose them; their first line names the original.
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

NAMES = ("thresholds.yml", "recording.yml", "alerts.yml")
DIALECTS = ("exporter", "dcgm", "both")
DCGM = "dcgm.yml"
"""Records from dcgm-exporter's metrics what the groups `INPUTS` record from this exporter's."""
JOBSTATS = "jobstats.yml"
"""Records for Princeton's jobstats what its own exporter would show."""
OWNERS = "owners.yml"
"""Records whose pods are, by a label that kube-state-metrics shows."""
BUDGETS = "budgets.yml"
"""Compares what owners lose with what they may lose."""
ALERTS = ("alerts.yml", BUDGETS)
"""Files that become an object of their own, as client-side apply limits the size of one."""
OFF = "off"
"""In place of the severity of an alert that is left out."""
SEVERITIES = ("critical", "warning", "info", OFF)
INPUTS = ("gpu-inputs", "gpu-inputs-host")

_ORIGINALS = "https://github.com/gpu-bottleneck-exporter/gpu-bottleneck-exporter/blob/main/rules"
_OWNER_LABEL = "label_team"
"""Example in `OWNERS`."""
_LOOKUP = "{{- $of :="
"""Beginning of the part of a text that looks something up; nothing else follows."""
_NAMESPACE = "{{ or $labels.workload_namespace $labels.namespace }}"
_WIDTH = 10_000
"""Columns, so that lines break only where their text does."""

_UNITS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_MORE_UNITS = {**_UNITS, "w": 7 * _UNITS["d"], "y": 365 * _UNITS["d"]}
_PART = re.compile(r"(\d+)(ms|[smhdwy])")
_DURATION = r"(?:\d+(?:ms|[smhdwy]))+"
# PromQL: ranges, steps and offsets. Two kinds of plain numbers are seconds too: predict_linear's
# horizon and the time for which each value counts in a sum of seconds.
_WINDOW = re.compile(rf"(?<=[\[:]){_DURATION}(?=[\]:])|(?<=offset )-?{_DURATION}")
_HORIZON = re.compile(r"(predict_linear\((?:[^()\[\]]|\[[^\]]*\])*, *)([\d.]+)(?= *\))")
_COUNTS_FOR = re.compile(r"\b60(?= \* sum by )")

Fields = dict[str, Any]
"""A rule, or a group of rules, by its keys in the file."""
Pack = Mapping[str, Sequence[Fields]]
"""Groups by file name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The changes to the pack; by default none, and no optional file is chosen."""

    dialect: str = "exporter"
    """One of `DIALECTS`: inputs from this exporter, DCGM, or both."""
    jobstats: bool = False
    owner_label: str | None = None
    """Label of kube_pod_labels and kube_namespace_labels that names the owner."""
    budgets: Mapping[str, float] = field(default_factory=dict)
    """GPU-hours that each owner may lose in a month."""
    severities: Mapping[str, str] = field(default_factory=dict)
    """Severities of alerts by name; `OFF` leaves one out. GpuUnderused ignores the causes of those
    that are no warning then."""
    group_size: int | None = None
    """Maximum number of rules of a group: NAME-2 continues NAME, and so on. A rule reads those of
    an earlier group as of its last evaluation."""
    scale: float = 1.0
    """Divisor of all durations, except in names and descriptions."""
    without_keep_firing: bool = False
    """For Prometheus before 2.42 and older vmalert, which reject `keep_firing_for`."""
    without_prescriptions: bool = False
    """For `vmalert -replay`, which rejects descriptions that look something up."""
    runbook_base: str | None = None
    """URL of the folder of the runbooks."""
    grafana_url: str | None = None
    workload_namespace: bool = False
    """Whether the label `namespace` of alerts of jobs is that of the job's pod, if it has one. The
    operator's AlertmanagerConfig objects and kube-prometheus-stack's inhibition rules match this
    label, which otherwise names the exporter's namespace."""


def files() -> dict[str, str]:
    """The pack: text by file name."""
    return {name: _packaged(name) for name in (*NAMES, DCGM, JOBSTATS, OWNERS, BUDGETS)}


def routes() -> dict[str, str]:
    """The example for Alertmanager, in a folder of its own: it is no rule file of Prometheus."""
    return {"alertmanager/alertmanager.yml": _packaged("alertmanager.yml")}


def _packaged(name: str) -> str:
    folder = resources("gpu_bottleneck_exporter") / "rules"
    return (folder / name).read_text(encoding="utf-8")


def milliseconds(duration: str) -> int:
    """Milliseconds of a Prometheus duration such as `1m30s`, without its sign."""
    return sum(int(count) * _MORE_UNITS[unit] for count, unit in _PART.findall(duration))


def parsed(texts: Mapping[str, str]) -> Pack:
    """The groups of rule files."""
    # Ten times as fast as Python's, unless PyYAML was built without libyaml.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return {name: yaml.load(text, loader)["groups"] for name, text in texts.items()}  # noqa: S506


def adapted(texts: Mapping[str, str], changes: Changes) -> dict[str, str]:
    """The rule files that `changes` chooses of `texts`, changed. Raises as `changed` does."""
    originals = parsed(texts)
    return {
        name: texts[name] if groups == originals[name] else _written(name, groups)
        for name, groups in changed(originals, changes).items()
    }


def changed(pack: Pack, changes: Changes) -> Pack:
    """The files that `changes` chooses of `pack`, changed; `pack` itself stays as it is.

    Raises SettingsError for an alert that is not in these files.
    """
    optional = {
        DCGM: changes.dialect != "exporter",
        JOBSTATS: changes.jobstats,
        OWNERS: changes.owner_label,
        BUDGETS: changes.budgets,
    }
    replaced = INPUTS if changes.dialect == "dcgm" else ()
    chosen = {
        name: [deepcopy(group) for group in groups if group["name"] not in replaced]
        for name, groups in pack.items()
        if optional.get(name, True)
    }
    _mark_untold(chosen, changes.severities)
    return {
        name: [part for group in groups for part in _changed_group(group, name, changes)]
        for name, groups in chosen.items()
    }


def _mark_untold(pack: Pack, severities: Mapping[str, str]) -> None:
    """Hide causes from GpuUnderused whose own alert becomes less than a warning."""
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
    """The group with its rules changed, in parts of at most the size that is asked for."""
    rules = [new for rule in group["rules"] for new in _replacements(rule, changes)]
    for rule in rules:
        if changes.owner_label:
            rule["expr"] = rule["expr"].replace(_OWNER_LABEL, changes.owner_label)
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
    """The rule; nothing for an alert that is off; for the example of a budget those asked for."""
    if rule.get("record") == "owner:budget:gpu_hours":
        for owner, hours in changes.budgets.items():
            labels = {"workload_owner": owner}
            yield {**rule, "labels": labels, "expr": f"vector({hours:.15g})"}
    elif changes.severities.get(rule.get("alert", "")) != OFF:
        yield rule


def _change_alert(alert: Fields, file: str, changes: Changes) -> None:
    labels, annotations = alert["labels"], alert["annotations"]
    labels["severity"] = changes.severities.get(alert["alert"], labels["severity"])
    # What an owner loses is in no namespace.
    if changes.workload_namespace and labels["responder"] == "job" and file != BUDGETS:
        labels["namespace"] = _NAMESPACE
    if changes.without_keep_firing:
        alert.pop("keep_firing_for", None)
    if changes.without_prescriptions:
        for key, text in annotations.items():
            annotations[key] = text.partition(_LOOKUP)[0].rstrip()
    if changes.runbook_base is not None:
        page = annotations["runbook_url"].rpartition("/")[2]
        annotations["runbook_url"] = f"{changes.runbook_base.rstrip('/')}/{page}"
    if changes.grafana_url is not None:
        path = annotations.pop("dashboard_path")
        annotations["dashboard_url"] = f"{changes.grafana_url.rstrip('/')}{path}"


def _scale(fields: Fields, factor: float) -> None:
    """Divide the durations of a rule or of a group."""
    for key in {"interval", "for", "keep_firing_for"} & fields.keys():
        fields[key] = _divided(fields[key], factor)
    name, expression = fields.get("record", ""), fields.get("expr", "")
    if name.startswith("gpu:threshold:") and name.endswith("_seconds"):
        number = expression.removeprefix("vector(").removesuffix(")")
        fields["expr"] = f"vector({_quotient(number, factor)})"
    elif expression:
        fields["expr"] = _scaled(expression, factor)


def _scaled(expression: str, factor: float) -> str:
    """`expression` with every number that stands for a time divided by `factor`."""
    expression = _WINDOW.sub(lambda found: _divided(found[0], factor), expression)
    expression = _COUNTS_FOR.sub(lambda found: _quotient(found[0], factor), expression)
    return _HORIZON.sub(lambda found: found[1] + _quotient(found[2], factor), expression)


def _divided(duration: str, factor: float) -> str:
    whole = milliseconds(duration)
    # 1 ms at least, unless it was zero: a duration must not vanish.
    quotient = max(min(1, whole), round(whole / factor))
    unit = next(unit for unit, length in _UNITS.items() if quotient % length == 0)
    sign = "-" if duration.startswith("-") else ""
    return f"{sign}{quotient // _UNITS[unit]}{unit}"


def _quotient(number: str, factor: float) -> str:
    return f"{float(number) / factor:.10g}"


def merged(texts: Mapping[str, str]) -> str:
    """One rule file with the groups of all `texts`, each after its file's introduction."""
    sections = []
    for name, text in texts.items():
        introduction, _, groups = text.partition("\ngroups:\n")
        sections.append(indent(f"# {name}\n{introduction}\n", "  ") + groups)
    return "groups:\n" + "\n".join(sections)


def as_prometheusrule(
    groups: Sequence[Fields], name: str, namespace: str | None, labels: Mapping[str, str]
) -> str:
    """A PrometheusRule object of the Prometheus Operator."""
    given = {"name": name, "namespace": namespace, "labels": dict(labels)}
    content = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {key: value for key, value in given.items() if value},
        "spec": {"groups": groups},
    }
    return f"# With comments: {_ORIGINALS}\n{_dumped(content)}"


def _written(name: str, groups: Sequence[Fields]) -> str:
    """A rule file, indented like the originals as `merged` mixes them."""
    head = f"# Changed by options; with comments: {_ORIGINALS}/{name}\n"
    return f"{head}groups:\n{indent(_dumped(groups), '  ')}"


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """The dumper of rule files."""


def _represented(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Break lines where `text` does; quote it if any YAML parser might take it for no string."""
    plain = len(text) > 1 and (text[0].isalpha() or re.fullmatch(_DURATION, text))
    style = "|" if "\n" in text else None if plain else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _represented)


def _dumped(content: object) -> str:
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=_WIDTH)
