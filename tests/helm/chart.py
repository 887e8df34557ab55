"""The chart, rendered by Helm's own engine, as objects."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.offenders import each

helm = pytest.importorskip("helm_python", reason="pip install helm-python-sdk")

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm/gpu-bottleneck-exporter"
CASES = sorted((CHART / "ci").glob("*-values.yaml"))
"""One file of values for each switch."""
RELEASE = "gpu"
NAMESPACE = "gpu-monitoring"

Object = dict[str, Any]

each_case = each(CASES)


@dataclass(frozen=True, slots=True)
class Rendered:
    """The objects of a release."""

    objects: Sequence[Object]
    notes: str

    def of(self, kind: str) -> list[Object]:
        return [result for result in self.objects if result["kind"] == kind]

    def one(self, kind: str) -> Object:
        (result,) = self.of(kind)
        return result

    @property
    def service(self) -> Object:
        """The Service of the release, not that of `helm test`."""
        services = self.of("Service")
        (service,) = (s for s in services if not s["metadata"]["name"].endswith("-test"))
        return service

    @property
    def pod(self) -> Object:
        """The pod of the DaemonSet."""
        return dict(self.one("DaemonSet")["spec"]["template"]["spec"])

    @property
    def container(self) -> Object:
        (container,) = self.pod["containers"]
        return dict(container)

    @property
    def environment(self) -> dict[str, str]:
        """The container's variables."""
        return {v["name"]: v["value"] for v in self.container["env"] if "value" in v}

    @property
    def hosts_folders(self) -> dict[str, str]:
        """Mount path in the container by path on the node."""
        mounted = {
            item["name"]: item["mountPath"] for item in self.container.get("volumeMounts", [])
        }
        volumes = [volume for volume in self.pod.get("volumes", []) if "hostPath" in volume]
        return {volume["hostPath"]["path"]: mounted[volume["name"]] for volume in volumes}

    @property
    def labels(self) -> Object:
        """Labels of the DaemonSet's pods."""
        return dict(self.one("DaemonSet")["spec"]["template"]["metadata"]["labels"])

    @property
    def pods(self) -> list[Object]:
        """Also that of `helm test`."""
        return [self.pod, *(pod["spec"] for pod in self.of("Pod"))]


def loaded(path: Path) -> Mapping[str, Any]:
    """The values in a file."""
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


def leaves(values: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:  # noqa: ANN401
    """Paths and values of what is no map, and of empty maps."""
    if isinstance(values, dict) and values:
        for key, value in values.items():
            yield from leaves(value, (*above, key))
    else:
        yield above, values


def below(path: tuple[str, ...], value: object) -> dict[str, Any]:
    """`value` as values, at a path."""
    for key in reversed(path):
        value = {key: value}
    assert isinstance(value, dict)
    return value


@functools.cache
def chart() -> Any:  # noqa: ANN401 - the engine's own class
    """The chart as Helm reads it."""
    return helm.Chart.load(CHART)


def rendered(values: Mapping[str, Any] | None = None, **more: Any) -> Rendered:  # noqa: ANN401
    """The chart with `values` over its own.

    Raises HelmError as `helm install` does.
    """
    return _rendered(json.dumps({**(values or {}), **more}))


def rendered_for(
    version: str,
    values: Mapping[str, Any] | None = None,
    *,
    of: Any = None,  # noqa: ANN401 - a chart of the engine
) -> Rendered:
    """The chart, or another, as Helm renders it for a cluster of that version of Kubernetes."""
    options = {"name": RELEASE, "namespace": NAMESPACE, "kube_version": version}
    arguments = [json.dumps(each) for each in (values or {}, options)]
    # Chart.render leaves out this one of the engine's options.
    text = helm._native.call_string("helm_render", (of or chart())._raw(), *arguments)
    return parsed(json.loads(text))


def over(defaults: Mapping[str, Any], folder: Path) -> Any:  # noqa: ANN401 - the engine's own class
    """The chart with other default values, as `helm upgrade --reuse-values` renders it."""
    copied = Path(chart().save_dir(folder))
    (copied / "values.yaml").write_text(yaml.safe_dump(dict(defaults)), encoding="utf-8")
    return helm.Chart.load(copied)


def case(name: str) -> Mapping[str, Any]:
    """The values of a switch's file."""
    return loaded(CHART / "ci" / f"{name}-values.yaml")


@functools.cache
def _rendered(values: str) -> Rendered:
    return parsed(chart().render(json.loads(values), name=RELEASE, namespace=NAMESPACE))


def parsed(templates: Mapping[str, str]) -> Rendered:
    """Rendered templates as objects; those that gave nothing are left out."""
    notes = next((text for path, text in templates.items() if path.endswith("NOTES.txt")), "")
    texts = [text for path, text in templates.items() if not path.endswith("NOTES.txt")]
    return Rendered(
        [o for text in texts for o in yaml.load_all(text, yaml.CSafeLoader) if o], notes
    )
