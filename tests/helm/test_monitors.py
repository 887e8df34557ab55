"""How Prometheus finds the exporters, and what may reach them."""

from __future__ import annotations

from typing import Any

from helm import chart
from helm.chart import Object, rendered
from support.offenders import each


def endpoint(monitor: Object) -> dict[str, Any]:
    spec = monitor["spec"]
    (found,) = spec.get("endpoints") or spec["podMetricsEndpoints"]
    return dict(found)


def test_a_service_monitor() -> None:
    values = chart.case("service-monitor")["serviceMonitor"]
    found = rendered(chart.case("service-monitor"))
    monitor, service = found.one("ServiceMonitor"), found.service
    assert monitor["metadata"]["namespace"] == values["namespace"]
    assert values["labels"].items() <= monitor["metadata"]["labels"].items()
    assert monitor["metadata"]["annotations"] == values["annotations"]
    assert monitor["spec"]["namespaceSelector"]["matchNames"] == [chart.NAMESPACE]
    labels = service["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert monitor["spec"]["jobLabel"] in labels
    scrape = endpoint(monitor)
    assert scrape["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert (scrape["interval"], scrape["scrapeTimeout"]) == ("15s", "5s")
    assert (scrape["path"], scrape["scheme"]) == ("/metrics", "http")
    assert scrape["honorLabels"] is False
    of_pods = endpoint(rendered(podMonitor={"enabled": True}).one("PodMonitor"))
    assert scrape["relabelings"] == [*of_pods["relabelings"], *values["relabelings"]]
    assert scrape["metricRelabelings"] == values["metricRelabelings"]


def test_a_pod_monitor() -> None:
    """Results of its relabeling are checked in test_operator."""
    found = rendered(chart.case("pod-monitor"))
    monitor = found.one("PodMonitor")
    assert all(service["metadata"]["name"].endswith("-test") for service in found.of("Service"))
    assert monitor["spec"]["selector"]["matchLabels"].items() <= found.labels.items()
    assert monitor["spec"]["jobLabel"] in found.labels
    assert endpoint(monitor)["port"] == found.container["ports"][0]["name"]
    assert endpoint(monitor)["honorLabels"] is True
    steps = endpoint(monitor)["relabelings"]
    assert [step.get("targetLabel") for step in steps] == ["node", None]


@each(["serviceMonitor", "podMonitor"])
def test_fields_of_the_operator_are_there_if_set(name: str) -> None:
    kind, values = name[0].upper() + name[1:], chart.case("newer")[name]
    expected = {key: value for key, value in values.items() if key != "enabled" and value}
    monitor = rendered(chart.case("newer")).one(kind)
    default = rendered({name: {"enabled": True}}).one(kind)
    fields = {**monitor["spec"], **endpoint(monitor)}
    assert {key: fields.get(key) for key in expected} == expected
    assert not expected.keys() & {*default["spec"], *endpoint(default)}


def test_the_service_leads_to_the_exporter_of_the_same_node_if_asked() -> None:
    assert rendered(chart.case("newer")).service["spec"]["internalTrafficPolicy"] == "Local"
    assert "internalTrafficPolicy" not in rendered().service["spec"]


@each([[], ["serviceMonitor"], ["podMonitor"], ["serviceMonitor", "podMonitor"]])
def test_neither_and_both_are_warned_of(monitors: list[str]) -> None:
    found = rendered({name: {"enabled": True} for name in monitors})
    kinds = [o["kind"] for o in found.objects if o["kind"].endswith("Monitor")]
    assert sorted(kinds) == sorted(name[0].upper() + name[1:] for name in monitors)
    assert ("Nothing scrapes it yet" in found.notes) is (monitors == [])
    assert ("scraped twice" in found.notes) is (len(monitors) > 1)


def test_one_path_for_all() -> None:
    values = {"exporter": {"telemetryPath": "/gpu"}, "serviceMonitor": {"enabled": True}}
    found = rendered(values)
    assert endpoint(found.one("ServiceMonitor"))["path"] == "/gpu"
    assert found.one("Pod")["spec"]["containers"][0]["args"][1].endswith("/gpu")


def test_the_service_stands_for_no_single_exporter() -> None:
    assert rendered().service["spec"]["clusterIP"] == "None"
    spec = rendered(chart.case("everything-else")).service["spec"]
    assert "clusterIP" not in spec
    assert spec["ports"][0]["port"] == 80


def test_a_network_policy_lets_scrapes_in_and_nothing_out() -> None:
    found = rendered(chart.case("network-policy-open"))
    spec = found.one("NetworkPolicy")["spec"]
    assert spec["podSelector"]["matchLabels"].items() <= found.labels.items()
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["ingress"] == [{"ports": [{"port": "metrics", "protocol": "TCP"}]}]
    assert spec["egress"] == []


def test_a_network_policy_for_some() -> None:
    values = chart.case("network-policy")
    found = rendered(values)
    spec = found.one("NetworkPolicy")["spec"]
    (rule,) = spec["ingress"]
    (tests,) = [source for source in rule["from"] if source not in values["networkPolicy"]["from"]]
    labels = found.one("Pod")["metadata"]["labels"]
    assert tests["podSelector"]["matchLabels"].items() <= labels.items()
    assert spec["egress"] == values["networkPolicy"]["egress"]
    without = rendered({**values, "tests": {"enabled": False}}).one("NetworkPolicy")["spec"]
    assert without["ingress"][0]["from"] == values["networkPolicy"]["from"]


def test_service_accounts() -> None:
    account = rendered().one("ServiceAccount")
    assert rendered().pod["serviceAccountName"] == account["metadata"]["name"]
    assert account["automountServiceAccountToken"] is False
    assert rendered(chart.case("every-node")).pod["serviceAccountName"] == "gpu"
    existing = rendered(chart.case("everything-else"))
    assert existing.of("ServiceAccount") == []
    assert existing.pod["serviceAccountName"] == "existing"
