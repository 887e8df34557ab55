"""Every switch of the chart, rendered by Helm's engine and held against Kubernetes' own schemas."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_validate import utils

from gpu_bottleneck_exporter import __version__
from helm import chart, earlier
from helm.chart import Object, each_case, rendered, rendered_for
from support.offenders import each
from support.rows import rows

VERSIONS = ("1.25", "1.29", "1.30", "1.33", "1.37")
"""The oldest that the chart takes, to the newest."""
CUSTOM = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
WARNING = 2
LONGEST_NAME = 63


# It would read all of a version's definitions again for each object.
utils.schema_contents = functools.cache(utils.schema_contents)


@functools.cache
def validate(text: str, version: str) -> None:
    """Raises where Kubernetes would refuse the object, unknown fields included."""
    utils.validate(json.loads(text), version, strict=True)


def assert_valid(found: Object, version: str) -> None:
    if found["kind"] not in CUSTOM:
        validate(json.dumps(found, sort_keys=True), version)


@each_case
def test_helm_finds_nothing_to_complain_about(case: Path) -> None:
    report = chart.helm.lint(chart.CHART, dict(chart.loaded(case)), strict=True)
    assert report["errors"] == []
    assert [message for message in report["messages"] if message["severity"] >= WARNING] == []


@each(product(chart.CASES, VERSIONS))
def test_kubernetes_takes_it(of: tuple[Path, str]) -> None:
    case, version = of
    for result in rendered_for(version, chart.loaded(case)).objects:
        assert_valid(result, version)


@each_case
def test_objects_are_distinct_and_name_their_release(case: Path) -> None:
    objects = rendered(chart.loaded(case)).objects
    names = [(o["kind"], o["metadata"]["namespace"], o["metadata"]["name"]) for o in objects]
    assert len(names) == len(set(names))
    for result in objects:
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", result["metadata"]["name"])
        assert len(result["metadata"]["name"]) <= LONGEST_NAME
        labels = result["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == chart.RELEASE
        assert labels["app.kubernetes.io/managed-by"] == "Helm"


def test_chart_and_package_have_one_version_and_a_digest_wins_over_a_tag() -> None:
    metadata = chart.chart().metadata
    assert metadata["appVersion"] == metadata["version"] == __version__
    assert rendered().container["image"].endswith(f":{__version__}")
    digest = "sha256:" + "a" * 64
    assert rendered(image={"tag": "x", "digest": digest}).container["image"].endswith(f"@{digest}")
    assert rendered(image={"tag": "x"}).container["image"].endswith(":x")


PLAIN = f"gpu-bottleneck-exporter/gpu-bottleneck-exporter:{__version__}"


@rows(
    "values, image",
    {
        "as it is": ({}, f"ghcr.io/{PLAIN}"),
        "mirror": ({"image": {"registry": "mirror:5000"}}, f"mirror:5000/{PLAIN}"),
        "parent's": (
            {"global": {"imageRegistry": "b.example.org/"}, "image": {"registry": "a"}},
            f"b.example.org/{PLAIN}",
        ),
        "none before": (
            {"image": {"registry": "a.example.org", "repository": "gpu/exporter", "tag": "1"}},
            "a.example.org/gpu/exporter:1",
        ),
        "local": (
            {"image": {"registry": "a.b", "repository": "localhost/gpu", "tag": "1"}},
            "a.b/gpu:1",
        ),
    },
)
def test_a_registry_replaces_that_of_the_repository(values: Mapping[str, Any], image: str) -> None:
    containers = [pod["containers"] for pod in rendered(values).pods]
    assert [c["image"] for (c,) in containers] == [image, image]


def test_pull_secrets_of_the_chart_and_its_parent() -> None:
    release = rendered(chart.case("newer"), imagePullSecrets=[{"name": "own"}, {"name": "other"}])
    names = ["own", "other", "mirror"]
    expected = [[{"name": name} for name in names]] * 2
    assert [pod["imagePullSecrets"] for pod in release.pods] == expected


def test_another_namespace_is_that_of_every_object() -> None:
    release = rendered(chart.case("newer"), networkPolicy={"enabled": True})
    assert {o["metadata"]["namespace"] for o in release.objects} == {"gpu-exporters"}
    for kind in ("ServiceMonitor", "PodMonitor"):
        names = release.one(kind)["spec"]["namespaceSelector"]["matchNames"]
        assert names == ["gpu-exporters"]
    (container,) = release.one("Pod")["spec"]["containers"]
    assert "-test.gpu-exporters:" in container["args"][1]
    assert "-n gpu-exporters" in release.notes
    assert chart.NAMESPACE not in release.notes


@pytest.mark.parametrize("text", ["123", "true", "null", "0x1f"])
def test_names_that_yaml_takes_for_other_types_stay_strings(text: str) -> None:
    values: Mapping[str, Any] = {
        "nameOverride": text,
        "fullnameOverride": "gpu",
        "priorityClassName": text,
        "gpu": {"runtimeClassName": text},
        "serviceAccount": {"name": text},
        "serviceMonitor": {"enabled": True, "jobLabel": text},
        "podMonitor": {"enabled": True, "jobLabel": text},
    }
    parts = {name: {"enabled": True} for name in ("prometheusRule", "dashboards", "networkPolicy")}
    templates = chart.chart().render({**values, **parts}, name=text, namespace=text)
    release = chart.parsed(templates)
    for result in release.objects:
        assert result["metadata"]["namespace"] == text
        assert result["metadata"]["labels"]["app.kubernetes.io/instance"] == text
        assert_valid(result, VERSIONS[-1])
    for kind in ("ServiceMonitor", "PodMonitor"):
        spec = release.one(kind)["spec"]
        assert (spec["jobLabel"], spec["namespaceSelector"]["matchNames"]) == (text, [text])


class Strict(yaml.CSafeLoader):
    """A loader that refuses a key that is there twice, as kustomize and Flux do."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - the base's
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), keys
        return dict(super().construct_mapping(node, deep))


def test_a_label_that_is_set_twice_is_there_once_and_pods_are_still_selected() -> None:
    labels = {"app.kubernetes.io/component": "monitoring", "app.kubernetes.io/name": "gpu"}
    values: dict[str, Any] = {
        name: {"enabled": True, "labels": {**labels, "team": "a"}}
        for name in ("service", "serviceMonitor", "podMonitor", "prometheusRule", "dashboards")
    }
    values |= {"commonLabels": {**labels, "team": "b"}, "podLabels": {**labels, "team": "a"}}
    templates = chart.chart().render(values, name=chart.RELEASE, namespace=chart.NAMESPACE)
    texts = [text for path, text in templates.items() if not path.endswith("NOTES.txt")]
    assert len([result for text in texts for result in yaml.load_all(text, Strict) if result]) > 10
    release = chart.parsed(templates)
    selector = release.one("DaemonSet")["spec"]["selector"]["matchLabels"]
    assert release.labels.items() >= {**selector, "team": "a"}.items()
    assert release.service["metadata"]["labels"].items() >= selector.items()
    (pod,) = release.of("Pod")
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "test"


def test_the_daemon_set_itself() -> None:
    changed, default = rendered(chart.case("newer")).one("DaemonSet"), rendered().one("DaemonSet")
    assert changed["metadata"]["annotations"] == {"example.org/owner": "platform"}
    assert changed["spec"]["revisionHistoryLimit"] == 3
    assert "annotations" not in default["metadata"]
    assert default["spec"]["revisionHistoryLimit"] == 10


@pytest.mark.parametrize("release", ["gpu", "gpu-bottleneck-exporter", "r" * 53])
def test_names_follow_the_release(release: str) -> None:
    templates = chart.chart().render(
        {"dashboards": {"enabled": True}, **chart.case("web-config")}, name=release
    )
    names = {o["metadata"]["name"] for o in chart.parsed(templates).objects}
    assert all(name.startswith(release[:30]) and len(name) <= LONGEST_NAME for name in names)
    assert any(name.endswith("-test") for name in names)
    boards = [*(chart.ROOT / "grafana").glob("*.json")]
    assert sum("-dashboard-" in name for name in names) == len(boards)


@pytest.mark.parametrize("release", dict(earlier.releases()))
def test_kubernetes_takes_it_with_the_values_of_an_earlier_chart(
    release: str, tmp_path: Path
) -> None:
    """Objects as `helm upgrade --reuse-values` renders them: without the new defaults."""
    with chart.over(dict(earlier.releases())[release], tmp_path) as mixed:
        for case, version in product(chart.CASES, (VERSIONS[0], VERSIONS[-1])):
            for result in rendered_for(version, chart.loaded(case), of=mixed).objects:
                assert_valid(result, version)
