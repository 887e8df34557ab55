"""The rule pack as text: read, scaled in time, adapted to older engines, wrapped for Kubernetes.

All changes are made to the text, so that its comments, which say why, survive. They rely on the
pack's style: block style, two spaces, one key per line. The tests parse the results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping
from importlib.resources import files as resources
from itertools import count, pairwise

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
EXTRAS = (JOBSTATS, OWNERS, BUDGETS)
"""Files that come when asked for."""
INPUTS = ("gpu-inputs", "gpu-inputs-host")
MINIMUM_SCALE, MAXIMUM_SCALE = 0.01, 10_000.0
"""Ten thousand times faster, a day takes nine seconds."""

_UNITS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_MORE_UNITS = {**_UNITS, "w": 7 * _UNITS["d"], "y": 365 * _UNITS["d"]}
_PART = re.compile(r"(\d+)(ms|[smhdwy])")
_DURATION = r"(?:\d+(?:ms|[smhdwy]))+"

_KEY = re.compile(rf"^( *(?:for|keep_firing_for|interval): )({_DURATION})(?=\s)", re.MULTILINE)
_KEEP_FIRING = re.compile(r"^ *keep_firing_for: .*\n", re.MULTILINE)
# An expression continues while lines are indented further than its key.
_EXPRESSION = re.compile(r"^( *)expr:.*(?:\n\1 +.*)*", re.MULTILINE)
_WINDOW = re.compile(rf"(?<=[\[:]){_DURATION}(?=[\]:])|(?<=offset )-?{_DURATION}")
# Three kinds of plain numbers are seconds too: predict_linear's horizon, the time for which each
# value counts in a sum of seconds, and recorded thresholds.
_HORIZON = re.compile(r"(predict_linear\((?:[^()\[\]]|\[[^\]]*\])*, *)([\d.]+)(?= *\))")
_COUNTS_FOR = re.compile(r"\b60(?= \* sum by )")
_SECONDS = re.compile(
    r"^( *)(- record: gpu:threshold:\w*_seconds\n(?:\1  .*\n)*?\1  expr: vector\()([\d.]+)(?=\))",
    re.MULTILINE,
)
_GROUPS = re.compile(r"^groups:\n", re.MULTILINE)
# With the comment above it, up to the next one's.
_INPUTS = re.compile(
    rf"(?:^  #.*\n)*^  - name: (?:{'|'.join(INPUTS)})\n(?:    .*\n|\n)*", re.MULTILINE
)
# The end of a description, which is as far as it is indented.
_PRESCRIBED = re.compile(r"^( *)\{\{- \$of := .*\n(?:\1.*\n)*", re.MULTILINE)
_RUNBOOK = re.compile(r"^( *runbook_url: )\S+/(\w.*\.md)$", re.MULTILINE)
_DASHBOARD = re.compile(r"^( *)dashboard_path: (?=/d/)", re.MULTILINE)
_OWNER_LABEL = "label_team"
_BUDGET = re.compile(r"^( *)- record: owner:budget:gpu_hours\n(?:\1  .*\n)*", re.MULTILINE)
_GROUP = re.compile(
    r"^( *- name: [\w-]+)(\n *interval: \w+\n *rules:\n)((?:      .*\n|\n(?=      ))*)",
    re.MULTILINE,
)
# The beginning, with the comment above it and blank lines.
_RULE = re.compile(r"^(?:(?:      #.*)?\n)*      - ", re.MULTILINE)
_ALERT = re.compile(r"^( *)- alert: (\w+)\n(?:\1 +.*\n)*", re.MULTILINE)
_SEVERITY = re.compile(r"(?<=severity: )\w+")
_ITS_CAUSES = re.compile(r"\b(?:cause: (\w+)|symptom=\"(\w+)\")")
_ORDER = re.compile(r"^ *- \{record: \"gpu:cause:order\", labels: \{([^}]*)\}", re.MULTILINE)
_JOBS_LABELS = re.compile(r"^( *labels: \{.*\bresponder: job\b.*)\}$", re.MULTILINE)


def files() -> dict[str, str]:
    """The pack: text by file name."""
    return {name: _packaged(name) for name in (*NAMES, DCGM, *EXTRAS)}


def routes() -> dict[str, str]:
    """The example for Alertmanager, in a folder of its own: it is no rule file of Prometheus."""
    return {"alertmanager/alertmanager.yml": _packaged("alertmanager.yml")}


def _packaged(name: str) -> str:
    folder = resources("gpu_bottleneck_exporter") / "rules"
    return (folder / name).read_text(encoding="utf-8")


def for_dialect(
    pack: Mapping[str, str], dialect: str, extras: Container[str] = ()
) -> dict[str, str]:
    """The files for `dialect`, one of `DIALECTS`: with inputs from this exporter, DCGM, or both.

    And those of `EXTRAS` that are in `extras`.
    """
    wanted = {DCGM: dialect != "exporter", **{name: name in extras for name in EXTRAS}}
    chosen = {name: text for name, text in pack.items() if wanted.get(name, True)}
    if dialect == "dcgm":
        chosen["recording.yml"] = _INPUTS.sub("", pack["recording.yml"])
    return chosen


def scaled(text: str, factor: float) -> str:
    """`text` with every duration divided by `factor`, except in names and descriptions.

    Raises SettingsError for a factor out of range.
    """
    if not MINIMUM_SCALE <= factor <= MAXIMUM_SCALE:
        raise SettingsError(
            f"--for-scale must be {MINIMUM_SCALE:g} to {MAXIMUM_SCALE:g}, not {factor:g}"
        )

    def expression(match: re.Match[str]) -> str:
        windows = _WINDOW.sub(lambda found: _divided(found[0], factor), match[0])
        sums = _COUNTS_FOR.sub(lambda found: _quotient(found[0], factor), windows)
        return _HORIZON.sub(lambda found: found[1] + _quotient(found[2], factor), sums)

    text = _KEY.sub(lambda found: found[1] + _divided(found[2], factor), text)
    text = _SECONDS.sub(lambda found: found[1] + found[2] + _quotient(found[3], factor), text)
    return _EXPRESSION.sub(expression, text)


def milliseconds(duration: str) -> int:
    """Milliseconds of a Prometheus duration such as `1m30s`, without its sign."""
    return sum(int(count) * _MORE_UNITS[unit] for count, unit in _PART.findall(duration))


def without_keep_firing(text: str) -> str:
    """`text` for Prometheus before 2.42 and older vmalert, which reject `keep_firing_for`."""
    return _KEEP_FIRING.sub("", text)


def without_prescriptions(text: str) -> str:
    """`text` with descriptions that look nothing up, which `vmalert -replay` rejects."""
    return _PRESCRIBED.sub("", text)


def with_runbooks_at(text: str, base: str) -> str:
    """`text` with runbook links below the URL `base`."""
    return _RUNBOOK.sub(lambda found: f"{found[1]}{base.rstrip('/')}/{found[2]}", text)


def with_dashboards_at(text: str, base: str) -> str:
    """`text` with links to dashboards of the Grafana at the URL `base` instead of paths."""
    return _DASHBOARD.sub(lambda found: f"{found[1]}dashboard_url: {base.rstrip('/')}", text)


def with_workload_namespace(text: str) -> str:
    """`text` with label `namespace` on alerts of jobs: that of the job's pod, if it has one.

    The operator's AlertmanagerConfig objects and kube-prometheus-stack's inhibition rules match
    this label, which otherwise names the exporter's namespace.
    """
    return _JOBS_LABELS.sub(
        r'\1, namespace: "{{ or $labels.workload_namespace $labels.namespace }}"}', text
    )


def with_severities(pack: Mapping[str, str], severities: Mapping[str, str]) -> dict[str, str]:
    """`pack` with these severities of alerts, by name; `OFF` leaves an alert out.

    What is below a warning then is no warning of GpuUnderused either.
    Raises SettingsError for an alert that is not in the pack.
    """
    alerts = [alert for text in pack.values() for alert in _ALERT.finditer(text)]
    if unknown := sorted(severities.keys() - {alert[2] for alert in alerts}):
        raise SettingsError(f"--alert: unknown alert {unknown[0]}")
    lowered = {name for name, severity in severities.items() if severity in {OFF, "info"}}
    of_alerts = [_ITS_CAUSES.findall(alert[0]) for alert in alerts if alert[2] in lowered]
    untold = {cause or symptom for causes in of_alerts for cause, symptom in causes}

    def severity(alert: re.Match[str]) -> str:
        wanted = severities.get(alert[2])
        return "" if wanted == OFF else _SEVERITY.sub(wanted or r"\g<0>", alert[0], count=1)

    def order(cause: re.Match[str]) -> str:
        labels = dict(label.split(": ") for label in cause[1].split(", "))
        if "hour" in labels or untold.isdisjoint({labels["cause"], labels.get("symptom", "")}):
            return cause[0]
        return cause[0].replace(cause[1], f"{cause[1]}, hour: untold")

    return {name: _ORDER.sub(order, _ALERT.sub(severity, text)) for name, text in pack.items()}


def with_groups_of(text: str, most: int) -> str:
    """`text` with groups of at most `most` rules: NAME-2 goes on where NAME ends, and so forth.

    A rule reads those of an earlier group as of its last evaluation.
    """

    def parts(group: re.Match[str]) -> str:
        cuts = [rule.start() for rule in _RULE.finditer(group[3])][most::most]
        chunks = (group[3][start:end] for start, end in pairwise([0, *cuts, len(group[3])]))
        names = (group[1] + (f"-{number}" if number > 1 else "") for number in count(1))
        return "".join(f"{name}{group[2]}{part}" for name, part in zip(names, chunks, strict=False))

    return _GROUP.sub(parts, text)


def with_owner_label(text: str, label: str) -> str:
    """`text` with this label of kube_pod_labels and kube_namespace_labels for the owner."""
    return text.replace(_OWNER_LABEL, label)


def with_budgets(text: str, hours: Mapping[str, float]) -> str:
    """`text` with the GPU-hours that each owner may lose in a month, in place of the example."""

    def rules(example: re.Match[str]) -> str:
        indent = example[1]
        return "".join(
            f"{indent}- record: owner:budget:gpu_hours\n"
            f"{indent}  labels: {json.dumps({'workload_owner': owner})}\n"
            f"{indent}  expr: vector({budget:.15g})\n"
            for owner, budget in hours.items()
        )

    return _BUDGET.sub(rules, text)


def merged(files: Mapping[str, str]) -> str:
    """One rule file with the groups of all `files`."""
    return "groups:\n" + "\n".join(_section(name, text) for name, text in files.items())


def as_prometheusrule(
    files: Mapping[str, str], name: str, namespace: str | None, labels: Mapping[str, str]
) -> str:
    """One PrometheusRule object of the Prometheus Operator with the groups of all `files`."""
    given = {"name": name, "namespace": namespace, "labels": labels}
    lines = (
        "apiVersion: monitoring.coreos.com/v1",
        "kind: PrometheusRule",
        f"metadata: {json.dumps({key: value for key, value in given.items() if value})}",
        "spec:",
    )
    return "\n".join(lines) + "\n" + _indented(merged(files))


def _divided(duration: str, factor: float) -> str:
    whole = milliseconds(duration)
    # 1 ms at least, unless it was zero: a duration must not vanish.
    quotient = max(min(1, whole), round(whole / factor))
    unit = next(unit for unit, length in _UNITS.items() if quotient % length == 0)
    sign = "-" if duration.startswith("-") else ""
    return f"{sign}{quotient // _UNITS[unit]}{unit}"


def _quotient(number: str, factor: float) -> str:
    return f"{float(number) / factor:.10g}"


def _section(name: str, text: str) -> str:
    """The groups of a file, with its introduction as a comment."""
    head, groups = _GROUPS.split(text, maxsplit=1)
    return _indented(f"# {name}\n{head}") + groups


def _indented(text: str) -> str:
    return re.sub(r"^(?=.)", "  ", text, flags=re.MULTILINE)
