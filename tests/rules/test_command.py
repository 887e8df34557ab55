"""The command `rules`: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from gpu_bottleneck_exporter import rulepack
from gpu_bottleneck_exporter.commands.rules import Wanted, printed
from gpu_bottleneck_exporter.errors import ExporterError
from rules.parsed import check, groups, rules
from support.command import run

ROOT = Path(__file__).parents[2]
PACK = rulepack.for_dialect(rulepack.files(), "exporter")
MERGED = [group for text in PACK.values() for group in groups(text)]


def said(result: subprocess.CompletedProcess[str]) -> str:
    """The only line of an error."""
    line = result.stderr.removesuffix("\n")
    assert "\n" not in line
    return line.removeprefix("gpu-bottleneck-exporter: ")


def for_try_outs(scale: float) -> Callable[[str], str]:
    return lambda text: rulepack.without_keep_firing(rulepack.scaled(text, scale))


@pytest.mark.parametrize(
    ("flags", "change"),
    [
        ((), str),
        (("--for-scale", "20", "--no-keep-firing-for"), for_try_outs(20)),
        (("--for-scale", "100", "--no-keep-firing-for"), for_try_outs(100)),
        (("--no-prescriptions",), rulepack.without_prescriptions),
    ],
)
def test_it_prints_one_valid_rule_file(
    tmp_path: Path, flags: Sequence[str], change: Callable[[str], str]
) -> None:
    result = run(tmp_path, "rules", *flags)
    assert (result.returncode, result.stderr) == (0, "")
    found = [group for text in PACK.values() for group in groups(change(text))]
    assert groups(result.stdout) == found
    assert bool(flags) == (found != MERGED)
    check(tmp_path, result.stdout)


def test_it_prints_a_prometheusrule(tmp_path: Path) -> None:
    flags = ("--name", "gpu", "--namespace", "monitoring")
    labels = ("--label", "release=prometheus", "--label", "example.org/team=")
    result = run(tmp_path, "rules", "--prometheusrule", *flags, *labels)
    assert (result.returncode, result.stderr) == (0, "")
    found = yaml.safe_load(result.stdout)
    assert found["metadata"] == {
        "name": "gpu",
        "namespace": "monitoring",
        "labels": {"release": "prometheus", "example.org/team": ""},
    }
    assert found["spec"] == {"groups": MERGED}


def test_dashboards_are_where_grafana_is() -> None:
    text = printed(Wanted(grafana_url="https://grafana.example.org/"))
    links = {
        urlsplit(rule.annotations["dashboard_url"])[:2]
        for rule in rules({"": text})
        if rule.is_alert
    }
    assert links == {("https", "grafana.example.org")}


def test_alerts_of_a_job_may_have_its_namespace() -> None:
    def told(*, ours: bool) -> list[tuple[str, str]]:
        text = printed(Wanted(workload_namespace=ours))
        alerts = [rule for rule in rules({"": text}) if rule.is_alert]
        return [(rule.labels["owner"], rule.labels.get("namespace", "")) for rule in alerts]

    assert {namespace for _, namespace in told(ours=False)} == {""}
    of_pods = "{{ or $labels.workload_namespace $labels.namespace }}"
    assert set(told(ours=True)) == {("job", of_pods), ("platform", "")}


def test_it_writes_the_files_once(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    for wrote in ([f"wrote {folder / name}" for name in PACK], []):
        result = run(tmp_path, "rules", "--output", f"{folder}")
        assert (result.returncode, result.stdout) == (0, "")
        assert result.stderr.splitlines() == wrote
        assert {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()} == PACK


def test_it_writes_the_prometheusrule(tmp_path: Path) -> None:
    run(tmp_path, "rules", "--output", f"{tmp_path / 'out'}", "--prometheusrule", "--name", "gpu")
    (path,) = (tmp_path / "out").iterdir()
    assert path.name == "gpu.yml"
    assert yaml.safe_load(path.read_text())["kind"] == "PrometheusRule"


def test_it_overwrites_nothing_silently_but_with_force(tmp_path: Path) -> None:
    tuned = tmp_path / "thresholds.yml"
    tuned.write_text("groups: []\n")
    result = run(tmp_path, "rules", "--output", f"{tmp_path}")
    assert result.returncode == 1
    assert said(result) == (
        f"--output: thresholds.yml in {tmp_path} would change; --force overwrites"
    )
    assert tuned.read_text() == "groups: []\n"
    assert not (tmp_path / "alerts.yml").exists()
    assert run(tmp_path, "rules", "--output", f"{tmp_path}", "--force").returncode == 0
    assert tuned.read_text(encoding="utf-8") == PACK["thresholds.yml"]


@pytest.mark.parametrize(
    ("flags", "status", "sentence"),
    [
        (("--for-scale", "0"), 2, "--for-scale must be 0.01 to 10000, not 0"),
        (("--for-scale", "nan"), 2, "--for-scale must be 0.01 to 10000, not nan"),
        (("--name", "a", "--label", "b=c"), 2, "--name and --label: only with --prometheusrule"),
        (("--output", "/proc/gpu"), 1, "--output: cannot write /proc/gpu: No such file"),
        (("--runbook-base", "ftp://x"), 2, "Invalid value for '--runbook-base': 'ftp://x' is not"),
        (("--runbook-base", "https://{{x}}"), 2, "Invalid value for '--runbook-base'"),
        (("--grafana-url", "a b"), 2, "Invalid value for '--grafana-url': 'a b' is not like http"),
        (("--dialect", "zabbix"), 2, "Invalid value for '--dialect'"),
        (("--for-scale", "fast"), 2, "Invalid value for '--for-scale'"),
    ],
)
def test_errors_are_one_line(
    tmp_path: Path, flags: tuple[str, ...], status: int, sentence: str
) -> None:
    result = run(tmp_path, "rules", *flags)
    assert (result.returncode, result.stdout) == (status, "")
    assert said(result).startswith(sentence)


@pytest.mark.parametrize("label", ["a", "a=b=c"])
def test_labels_that_are_none(label: str) -> None:
    with pytest.raises(ExporterError, match="--label must be like release=prometheus"):
        Wanted(prometheusrule=True, labels=(label,))


def test_the_dialect_of_dcgm() -> None:
    assert "DCGM_FI_" in printed(Wanted(dialect="dcgm"))


def test_the_packages_have_the_rules(tmp_path: Path) -> None:
    """Built of a copy, since setuptools leaves folders beside the sources."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("exporter", "rules"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True)
    paths = [*tmp_path.glob("rules/*.yml"), *tmp_path.glob("rules/runbooks/*.md")]
    shipped = {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in paths}
    command = [sys.executable, "-m", "build", "-q", "--no-isolation", "--skip-dependency-check"]
    subprocess.run([*command, "-o", tmp_path / "dist", tmp_path], check=True)
    (path,) = tmp_path.glob("dist/*.whl")
    with zipfile.ZipFile(path) as wheel:
        prefix = "gpu_bottleneck_exporter/"
        there = [name for name in wheel.namelist() if name.startswith(f"{prefix}rules/")]
        assert {name.removeprefix(prefix): wheel.read(name) for name in there} == shipped
    (path,) = tmp_path.glob("dist/*.tar.gz")
    with tarfile.open(path) as sdist:
        names = {"/".join(name.split("/")[3:]) for name in sdist.getnames() if "/rules/" in name}
    assert set(shipped) <= names


def test_the_packages_rules_are_a_link_not_a_copy() -> None:
    link = ROOT / "exporter" / "gpu_bottleneck_exporter" / "rules"
    assert link.is_symlink()
    assert link.resolve() == ROOT / "rules"
