"""How Prometheus finds the exporters, and what may reach them."""

from __future__ import annotations

from typing import Any

from helm import chart
from helm.chart import Object, rendered
from support.offenders import each


def endpoint(monitor: Object) -> dict[str, Any]:
    spec = monitor["spec"]
    (result,) = spec.get("endpoints") or spec["podMetricsEndpoints"]
    return dict(result)


def test_a_service_monitor() -> None:
    values = chart.case("service-monitor")["serviceMonitor"]
    result = rendered(chart.case("service-monitor"))
    monitor, service = result.one("ServiceMonitor"), result.service
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
    result = rendered(chart.case("pod-monitor"))
    monitor = result.one("PodMonitor")
    assert all(service["metadata"]["name"].endswith("-test") for service in result.of("Service"))
    assert monitor["spec"]["selector"]["matchLabels"].items() <= result.labels.items()
    assert monitor["spec"]["jobLabel"] in result.labels
    assert endpoint(monitor)["port"] == result.container["ports"][0]["name"]
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
    result = rendered({name: {"enabled": True} for name in monitors})
    kinds = [o["kind"] for o in result.objects if o["kind"].endswith("Monitor")]
    assert sorted(kinds) == sorted(name[0].upper() + name[1:] for name in monitors)
    assert ("Nothing scrapes it yet" in result.notes) is (monitors == [])
    assert ("scraped twice" in result.notes) is (len(monitors) > 1)


def test_one_path_for_all() -> None:
    values = {"exporter": {"telemetryPath": "/gpu"}, "serviceMonitor": {"enabled": True}}
    result = rendered(values)
    assert endpoint(result.one("ServiceMonitor"))["path"] == "/gpu"
    assert result.one("Pod")["spec"]["containers"][0]["args"][1].endswith("/gpu")


def test_the_service_stands_for_no_single_exporter() -> None:
    assert rendered().service["spec"]["clusterIP"] == "None"
    spec = rendered(chart.case("everything-else")).service["spec"]
    assert "clusterIP" not in spec
    assert spec["ports"][0]["port"] == 80


def test_a_network_policy_lets_scrapes_in_and_nothing_out() -> None:
    result = rendered(chart.case("network-policy-open"))
    spec = result.one("NetworkPolicy")["spec"]
    assert spec["podSelector"]["matchLabels"].items() <= result.labels.items()
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["ingress"] == [{"ports": [{"port": "metrics", "protocol": "TCP"}]}]
    assert spec["egress"] == []


def test_a_network_policy_for_some() -> None:
    values = chart.case("network-policy")
    result = rendered(values)
    spec = result.one("NetworkPolicy")["spec"]
    (rule,) = spec["ingress"]
    (tests,) = [source for source in rule["from"] if source not in values["networkPolicy"]["from"]]
    labels = result.one("Pod")["metadata"]["labels"]
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
