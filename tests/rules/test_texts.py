"""Labels and annotations of every alert, rendered by a real Prometheus: each alert fires at once.

What is the same before it is rendered is in test_contract.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gpu_bottleneck_exporter.commands.rules import RuleOptions, printed
from gpu_bottleneck_exporter.prescription.model import KNOBS, NUM_WORKERS, REMOVED
from rules import causes_table
from rules.fleet import RULES
from rules.parsed import Rule, rules
from support.daemon import get
from support.prometheus import prometheus
from support.waiting import until

WANTED = RuleOptions(workload_namespace=True, budgets={"vision": 400})
ALERTS = [one for one in rules({"": printed(WANTED)}) if one.is_alert]
HOSTILE = 'a"b\\c\n{{ .X }} é'
"""Part of the labels of a target or GPU, which anybody may shape."""
NOWHERE = "nothing"
"""Stands for a GPU about which no more is known."""
ALONE = "alone"
"""It has no workers, and some are recommended."""
GPUS = (*KNOBS, ALONE, NOWHERE)
"""By what is recommended for each."""
NODE = "[fe80::7]:9"
TARGET = {"job": f"gpu{HOSTILE}", "instance": NODE, "namespace": "ops", "blind": "b", "cause": "c"}
TARGET["missing"] = "rules"
TARGET["workload_owner"] = 'a"b\\c é'
REPLICA = "rank-1"
OWNERS = {
    "pod nlp/train-0": {"workload_namespace": "nlp"},
    "Slurm job 4711": {"workload_group": "slurm-4711"},
    "owner unknown": {},
    "pod nlp/rank-1": {
        "workload_namespace": "nlp",
        "workload_pod": REPLICA,
        "workload_group": "nlp/rank-0:29500",
    },
}
"""The other labels of each, by its name."""
PER_NODE = ("GpuExporterDown", "GpuCausesBlind", "GpuNodeBottleneck")
PER_SERVER = (
    *(
        "GpuThresholdsMissing",
        "GpuMonitoringAbsent",
        "GpuCountedTwice",
        "GpuFleetBottleneck",
        "GpuBudgetBurn",
    ),
)
PER_JOB = ("GpuReclaimable", "GpuReclaimableSoon")
BROKEN = ("<error", "{{", "}}", "%!", "<no value>", "NaN")
VALUE, PERCENT = "0.6382", "64%"
ROUNDED = {"GpuReclaimable": " 0.6 hours", "GpuReclaimableSoon": " 1970-01-01 00:00:00.638 "}
"""The value where it is told in another way."""
SHARE = '{{ printf "%.2f" $value | humanizePercentage }}'

OF_CAUSES = [(rule, cause) for rule in ALERTS for cause in causes_table.causes_of(rule) or ["c"]]
"""Each alert with each of its causes."""
LOOKED_UP = re.compile(r"\{\{- \$of := .*$", re.DOTALL)
RECOMMENDED = [
    rule for rule in ALERTS if "gpu:prescription:change" in rule.annotations["description"]
]
CAUSES = {
    *("cpu_throttled", "cpu_oversubscribed", "cpu_preprocessing_bound", "too_few_workers"),
    *("inline_loading", "host_loop_bound", "checkpoint_stall"),
    *("local_storage_bound", "network_storage_bound"),
}
"""Those that a setting may remove, whose runbooks ask for it."""
LOOKED_UP_HERE = {"gpu:prescription:change", "gpu:cause:order"}
KNOB_OF = {
    rule.labels["cause"]: rule.labels["knob"]
    for rule in causes_table.pack()
    if rule.name == "gpu:cause:order" and "knob" in rule.labels
}
"""The setting that may remove a cause."""
CHANGES = {
    "num_workers": "Use 6.23 loader workers (now 0.5)",
    "cpu_limit": (
        "Raise the CPU limit to 6.23 cores (now 0.5; resources.limits.cpu, --cpus or CPUQuota=)"
    ),
    "cpu_cores": (
        "Give the job 6.23 CPU cores (now 0.5; --cpus-per-task, requests.cpu, "
        "or fewer neighbours, threads or workers)"
    ),
    "host_code": "Cut the wait for Python code",
    "checkpoints": "Cut the wait for checkpoints",
}
"""Words of the displays (`nodeview.text`) by knob."""
AT_MOST = {NUM_WORKERS, *REMOVED}
"""Of which the prediction is said to be an upper bound here."""


def test_causes_that_a_setting_may_remove_tell_it_in_the_same_way() -> None:
    assert [rule.name for rule in RECOMMENDED] == ["GpuStarved"]
    assert ({*KNOB_OF}, {*KNOB_OF.values()}) == (CAUSES, {*KNOBS})
    pages = {page.stem: page.read_text() for page in RULES.glob("runbooks/*.md")}
    query = '{__name__=~"gpu:prescription:.+",instance="INSTANCE",gpu="GPU"}'
    of_causes = {one.labels.get("cause"): causes_table.page(one) for one in causes_table.alerts()}
    expected = {page for cause, page in of_causes.items() if cause in CAUSES}
    assert {name for name, text in pages.items() if query in text} == expected


def vector(labels: Mapping[str, str], value: str) -> str:
    """An expression for one series with these labels."""
    expression = f"vector({value})"
    for name, text in labels.items():
        # A `$` would refer to a group.
        quoted = json.dumps(text, ensure_ascii=False)
        expression = f'label_replace({expression}, "{name}", {quoted}, "", "")'
    return expression


def labels_of(gpu: str) -> dict[str, str]:
    return {**TARGET, "gpu": gpu, "uuid": f"GPU-{gpu}{HOSTILE}"}


def records() -> Iterator[Mapping[str, str]]:
    """What alerts look up."""
    for xid in ("48", "79"):
        known = vector({**labels_of(GPUS[0]), "xid": xid}, "1")
        yield {"record": "helper:fault:bool", "expr": known}
    culprit = vector({**labels_of("5"), "workload_group": "slurm-4711"}, "1")
    yield {"record": "gpu:hang:culprit", "expr": culprit}
    for gpu, knob in {**dict(zip(KNOBS, KNOBS, strict=True)), ALONE: NUM_WORKERS}.items():
        now = "0" if gpu == ALONE else "0.5"
        told = {"speedup": "2.114", "current_value": now, "value": "6.2345"}
        for name, value in {**told, "upper_bound": f"{int(knob in AT_MOST)}"}.items():
            expression = vector({**labels_of(gpu), "knob": knob}, value)
            yield {"record": f"gpu:prescription:{name}", "expr": expression}
    for tenant, share in {"pod b/y": "0.35", "pod a/x": "0.35", "pod a/a": "0.3"}.items():
        expression = vector({**labels_of(GPUS[0]), "workload": tenant}, share)
        yield {"record": "gpu:tenant_busy:share_rate5m", "expr": expression}
    replicas = {"namespace": "nlp", "deployment": "rank"}
    for name, value in {"needed": "2", "count": "6"}.items():
        yield {"record": f"serving:replicas:{name}", "expr": vector(replicas, value)}
    of_pod = vector({**replicas, "pod": REPLICA}, "0")
    yield {"record": "helper:serving_replica:requests", "expr": of_pod}
    of_pack = (rule for rule in causes_table.pack() if rule.name in LOOKED_UP_HERE)
    yield from (rule.fields for rule in of_pack)


def fired(folder: Path) -> list[Mapping[str, Any]]:
    """All alerts for each GPU and owner, with labels and annotations."""
    made = [
        {
            "alert": rule.name,
            "expr": " or ".join(
                vector({**labels_of(gpu), "cause": cause, "workload": owner, **more}, VALUE)
                for gpu, (owner, more) in zip(GPUS, cycle(OWNERS.items()), strict=False)
            ),
            "labels": {**rule.labels, "cause": cause},
            "annotations": rule.annotations,
        }
        for rule, cause in OF_CAUSES
    ]
    group = {"name": "made", "interval": "1s", "rules": [*records(), *made]}
    file = folder / "made.yml"
    file.write_text(json.dumps({"groups": [group]}))  # JSON is YAML
    with prometheus(folder, [], [file]) as server:

        def alerts() -> list[Mapping[str, Any]]:
            status, body = get(server.port, "/api/v1/alerts")
            assert status == http.client.OK, body
            return list(json.loads(body)["data"]["alerts"])

        until(lambda: len(alerts()) == len(OF_CAUSES) * len(GPUS), "all alerts")
        return alerts()


def test_alerts_about_a_job_are_in_its_namespace_and_those_about_an_owner_in_none() -> None:
    """An owner's loss is a sum over namespaces, so its label would be empty."""
    of_jobs = {rule.name for rule in ALERTS if rule.labels["responder"] == "job"}
    assert of_jobs - {rule.name for rule in ALERTS if "namespace" in rule.labels} == {
        "GpuBudgetBurn"
    }


def test_what_alerts_say(tmp_path: Path) -> None:
    pages = {causes_table.page(one) for one in causes_table.alerts()}
    for alert in fired(tmp_path):
        labels, texts = alert["labels"], alert["annotations"]
        (rule,) = (
            one
            for one in ALERTS
            if one.name == labels["alertname"]
            and one.labels["severity"] == labels["severity"]
            and one.labels.get("cause", labels["cause"]) == labels["cause"]
        )
        assert texts["runbook_url"].rpartition("/")[2].removesuffix(".md") in pages
        assert [*faults(rule, labels, texts)] == [], f"{rule}"


def faults(
    rule: Rule, labels: Mapping[str, str], texts: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """What is wrong with an alert of `rule`."""
    summary, said, gpu = texts["summary"], texts["description"], labels["gpu"]
    query = parse_qs(urlsplit(texts["dashboard_path"]).query)
    asked = {key.removeprefix("var-"): value for key, (value,) in query.items()}
    of_node = rule.name not in PER_SERVER
    of_gpu = rule.name not in (*PER_NODE, *PER_SERVER, *PER_JOB)
    template = rule.annotations["description"]
    space = labels.get("workload_namespace", "ops") if "namespace" in rule.labels else "ops"
    end = looked_up_of(rule, labels)
    whose = f"GPU {gpu} on {NODE} ({labels['workload']}) "
    whom = NODE
    if rule.labels["responder"] == "job":
        group = labels.get("workload_group", "")
        whom = f"job {group}" if "/" in group else labels["workload"]
    broken = (any(b in t for b in BROKEN) or t != " ".join(t.split()) for t in texts.values())
    for fault, is_so in {
        "broken": any(broken),
        "of another GPU": not asked.items() <= {"instance": NODE, "gpu": labels["uuid"]}.items(),
        "begins without its node or job": of_node and not summary.startswith(whom),
        "names a GPU in the summary": of_gpu and any(one in summary for one in (gpu, "GPU-")),
        "names not the GPU and its owner first": of_gpu and not said.startswith(whose),
        "no whole percent": SHARE in template and (PERCENT not in said or VALUE in said),
        "no value": "$value" in template.replace(SHARE, "")
        and ROUNDED.get(rule.name, VALUE) not in said,
        "in another namespace": labels["namespace"] != space,
        "looked up wrongly": not f"{summary}{said}".endswith(end)
        or "times as busy" in said.removesuffix(end),
        "without its XIDs": rule.labels["severity"] == "critical"
        and said.endswith(" Reported: XID 48. Reported: XID 79.") != (gpu == GPUS[0]),
    }.items():
        if is_so:
            yield fault, f"{summary} {said}"


def looked_up_of(rule: Rule, labels: Mapping[str, str]) -> str:
    """The end of its description."""
    alone = labels["gpu"] == ALONE
    knob = NUM_WORKERS if alone else labels["gpu"]
    if rule.name == "GpuCollectiveHang":
        is_known = "slurm-4711" in labels.get("workload_group", "")
        return f" The others wait for GPU 5 on {NODE}." * is_known
    if rule.name == "GpuSharingContention":
        return " pod a/x uses 35% of its busy time." * (labels["gpu"] == GPUS[0])
    if rule.name == "GpuIdle" and rule.labels["severity"] == "info":
        is_replica = labels.get("workload_pod") == REPLICA
        return " The last week needed 2 of 6 replicas." * is_replica
    if rule not in RECOMMENDED or KNOB_OF.get(labels["cause"]) != knob:
        return ""
    change = CHANGES[knob].replace("0.5", "0") if alone else CHANGES[knob]
    if alone and labels["cause"] == "network_storage_bound":
        change = "Let 6.23 threads or loader workers make the main process's requests (now 0)"
    most = "up to" if knob in AT_MOST else "about"
    return f" {change}: the GPU would be {most} 2.1 times as busy."
