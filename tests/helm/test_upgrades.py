"""Upgrades that keep the values of an earlier chart: the exporter starts and becomes ready."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_bottleneck_exporter import __version__, cli
from gpu_bottleneck_exporter.settings import Settings
from helm import chart, commented, earlier
from helm.chart import Rendered
from support.command import ANY_PORT, serving
from support.waiting import until

RELEASES = dict(earlier.releases())
SET = chart.case("newer")
"""A value for each key that the first release lacks."""
VERSION = "1.33"
STATE_FILE = "GPU_EXPORTER_JOBS_STATE_FILE"


def changes(release: str) -> Iterator[dict[str, Any]]:
    """Nothing, each key that the release lacks by itself, and all of them."""
    yield {}
    for path, value in chart.leaves(earlier.added(SET, RELEASES[release])):
        yield earlier.merged({"service": {"clusterIP": ""}}, chart.below(path, value))
    yield dict(SET)


def settings(release: Rendered, folder: Path) -> Settings:
    """The exporter's settings from the container's arguments and environment."""
    command, *arguments = release.container["args"]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in release.environment.items():
            patch.setenv(name, f"{folder / 'jobs'}" if name == STATE_FILE else value)
        params = cli.commands.commands[command].make_context(command, arguments).params
    return Settings(
        **{
            setting.name: params[setting.name]
            for setting in fields(Settings)
            if setting.name in params
        }
    )


@pytest.mark.parametrize("release", RELEASES)
def test_the_exporter_accepts_templates_rendered_from_a_releases_values(
    release: str, tmp_path: Path
) -> None:
    with chart.over(RELEASES[release], tmp_path) as mixed:
        for values in changes(release):
            whole = chart.rendered(earlier.merged(RELEASES[release], values))
            reused = chart.rendered_for(VERSION, values, of=mixed)
            assert settings(reused, tmp_path) == settings(whole, tmp_path), values


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("values", [{}, SET], ids=["as-it-was", "all-set"])
def test_the_exporter_becomes_ready(release: str, values: dict[str, Any], tmp_path: Path) -> None:
    with chart.over(RELEASES[release], tmp_path) as mixed:
        reused = chart.rendered_for(VERSION, values, of=mixed)
    variables = {
        name: v for name, v in reused.environment.items() if name.startswith("GPU_EXPORTER_")
    }
    variables |= {STATE_FILE: f"{tmp_path / 'jobs'}"} if STATE_FILE in variables else {}
    with serving(tmp_path, *reused.container["args"], *ANY_PORT, **variables) as server:
        until(lambda: server.get("/-/ready")[0] == 200, lambda: server.said)


def test_values_that_a_user_removed_stay_removed() -> None:
    """They look the same as those of an earlier chart, so only newer ones are filled in."""
    release = chart.rendered(resources={"limits": None}, updateStrategy={"rollingUpdate": None})
    assert "limits" not in release.container["resources"]
    assert release.one("DaemonSet")["spec"]["updateStrategy"] == {"type": "RollingUpdate"}


DEFAULTS = yaml.safe_load(commented.VALUES.read_text(encoding="utf-8"))
ALL_OBJECTS = {
    name: {"enabled": True}
    for name in ("serviceMonitor", "podMonitor", "prometheusRule", "dashboards", "networkPolicy")
}


@pytest.mark.parametrize(
    "path", [path for path, _ in chart.leaves(earlier.empty(DEFAULTS))], ids=".".join
)
def test_a_key_without_a_value_is_as_good_as_an_empty_value(path: tuple[str, ...]) -> None:
    """A values file often has `podAnnotations:` with nothing below, which is null."""
    values = earlier.merged(ALL_OBJECTS, chart.below(path, None))
    assert chart.rendered(values) == chart.rendered(ALL_OBJECTS)


def test_a_probe_can_be_removed() -> None:
    container = chart.rendered(probes={"liveness": None}).container
    probes = {name for name in container if name.endswith("Probe")}
    assert probes == {"startupProbe", "readinessProbe"}


def test_defaults_of_newer_values_are_in_the_chart_and_a_case_sets_each() -> None:
    assert yaml.safe_load(earlier.NEWER.read_text()) == earlier.filled(), "run `make generate`"
    set_by_it = [*chart.leaves(SET)]
    for path, _ in chart.leaves(earlier.newer()):
        assert any(leaf[: len(path)] == path for leaf, _ in set_by_it), path


def test_the_values_of_this_release_are_kept_for_later_ones() -> None:
    result = Path(__file__).with_name(f"values-{__version__}.yaml")
    assert result.read_bytes() == commented.VALUES.read_bytes(), "run `make generate`"
