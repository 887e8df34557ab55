"""The command `rules`: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_bottleneck_exporter import rulepack
from gpu_bottleneck_exporter.commands.rules import RuleOptions, printed
from rules.parsed import check, groups
from support.applied import MOST_APPLIED_BYTES, applied_bytes
from support.command import run

ROOT = Path(__file__).parents[2]
PACK = rulepack.adapted(rulepack.files(), rulepack.Changes())


def said(result: subprocess.CompletedProcess[str]) -> str:
    """The only line of an error."""
    line = result.stderr.removesuffix("\n")
    assert "\n" not in line
    return line.removeprefix("gpu-bottleneck-exporter: ")


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ((), {}),
        (("--for-scale", "20", "--no-keep-firing-for"), {"scale": 20, "without_keep_firing": True}),
        (("--jobstats",), {"jobstats": True}),
        (("--opencost",), {"opencost": True}),
        (("--owner-label", "label_ray_io_cluster"), {"owner_label": "label_ray_io_cluster"}),
        (("--budget", "a=1.5", "--budget", 'b="=2000'), {"budgets": {"a": 1.5, 'b="': 2000}}),
        (("--group-size", "20"), {"group_size": 20}),
        (("--alert", "GpuNearOom=off"), {"severities": {"GpuNearOom": "off"}}),
        (("--no-prescriptions",), {"without_prescriptions": True}),
        (("--workload-namespace",), {"workload_namespace": True}),
        (("--grafana-url", "https://g.example"), {"grafana_url": "https://g.example"}),
        (("--runbook-base", "https://r.example"), {"runbook_base": "https://r.example"}),
    ],
)
def test_it_prints_one_valid_rule_file(
    tmp_path: Path, flags: Sequence[str], wanted: Mapping[str, Any]
) -> None:
    """What each flag changes is in test_rulepack and test_texts."""
    result = run(tmp_path, "rules", *flags)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == printed(RuleOptions(**wanted))
    merged = [group for text in PACK.values() for group in groups(text)]
    assert (groups(result.stdout) == merged) == (not flags)
    check(tmp_path, result.stdout)


def test_it_prints_a_prometheusrule(tmp_path: Path) -> None:
    flags = ("--name", "gpu", "--namespace", "monitoring")
    labels = ("--label", "release=prometheus", "--label", "example.org/team=")
    result = run(tmp_path, "rules", "--prometheusrule", *flags, *labels)
    assert (result.returncode, result.stderr) == (0, "")
    given = {"release": "prometheus", "example.org/team": ""}
    recording = groups(PACK["thresholds.yml"]) + groups(PACK["recording.yml"])
    expected = {"gpu": recording, "gpu-inputs": groups(PACK["serving.yml"])}
    expected["gpu-alerts"] = groups(PACK["alerts.yml"]) + groups(PACK["reclaim.yml"])
    texts = [
        rulepack.as_prometheusrule(found, name, "monitoring", given)
        for name, found in expected.items()
    ]
    assert result.stdout == "---\n".join(texts)


def test_client_side_apply_can_annotate_each_object() -> None:
    """With everything that flags add; `applied_bytes` of each, against half of the limit."""
    options = RuleOptions(
        prometheusrule=True,
        dialect="both",
        jobstats=True,
        opencost=True,
        owner_label="label_team",
        budgets={"vision": 400},
        workload_namespace=True,
    )
    objects = [*yaml.load_all(printed(options), yaml.CSafeLoader)]
    assert len({item["metadata"]["name"] for item in objects}) == len(objects)
    assert [item for item in objects if applied_bytes(item) > MOST_APPLIED_BYTES] == []


def test_it_writes_the_files_once(tmp_path: Path) -> None:
    folder, whole = tmp_path / "a" / "b", PACK | rulepack.routes()
    for wrote in ([f"wrote {folder / name}" for name in whole], []):
        result = run(tmp_path, "rules", "--output", f"{folder}")
        assert (result.returncode, result.stdout) == (0, "")
        assert result.stderr.splitlines() == wrote
        found = [path for path in folder.rglob("*") if path.is_file()]
        texts = {f"{path.relative_to(folder)}": path.read_text("utf-8") for path in found}
        assert texts == whole
        assert {path.name for path in folder.glob("*.yml")} == {*PACK}, "what Prometheus loads"
    (routes,) = (folder / name for name in rulepack.routes())
    routes.write_text("mine")
    for force in ((), ("--force",)):
        result = run(tmp_path, "rules", "--output", f"{folder}", *force)
        assert (result.returncode, result.stderr, routes.read_text()) == (0, "", "mine")


def test_it_overwrites_nothing_silently_but_with_force(tmp_path: Path) -> None:
    tuned = tmp_path / "thresholds.yml"
    tuned.write_text("groups: []\n")
    result = run(tmp_path, "rules", "--output", f"{tmp_path}")
    told = f"--output: thresholds.yml in {tmp_path} would change; --force overwrites"
    assert (result.returncode, said(result)) == (1, told)
    assert tuned.read_text() == "groups: []\n"
    assert not (tmp_path / "alerts.yml").exists()
    assert run(tmp_path, "rules", "--output", f"{tmp_path}", "--force").returncode == 0
    assert tuned.read_text(encoding="utf-8") == PACK["thresholds.yml"]


@pytest.mark.parametrize(
    ("flags", "status", "sentence"),
    [
        ("--name a --label b=c", 2, "--name and --label: only with --prometheusrule"),
        ("--prometheusrule --label a", 2, "--label must be like release=prometheus, not 'a'"),
        ("--prometheusrule --label a=b=c", 2, "--label must be like release=prometheus"),
        ("--owner-label team", 2, "--owner-label must be one that kube-state-metrics shows"),
        ("--owner-label label_a.b", 2, "--owner-label must be one that kube-state-metrics shows"),
        (
            "--alert GpuNearOom",
            2,
            "--alert must be an alert and one of critical, warning",
        ),
        ("--alert GpuNearOom=page", 2, "--alert must be an alert and one of critical"),
        ("--alert GpuIdle2=off", 2, "--alert: unknown alert GpuIdle2"),
        ("--budget \udcff=4", 2, "'\\udcff' has characters that cannot be printed"),
        (
            "--grafana-url http://g\udcff",
            2,
            "'http://g\\udcff' has characters that cannot be printed",
        ),
        ("--budget vision", 2, "--budget must be an owner and GPU-hours a month"),
        ("--budget =4", 2, "--budget must be an owner and GPU-hours a month"),
        ("--budget a=0", 2, "--budget must be an owner and GPU-hours a month"),
        ("--budget a=nan", 2, "--budget must be an owner and GPU-hours a month"),
        ("--budget a=1e99", 2, "--budget must be an owner and GPU-hours a month"),
        ("--budget a=1 --budget a=2", 2, "--budget: 'a' has two budgets"),
        ("--runbook-base https://{{x}}", 2, "Invalid value for '--runbook-base'"),
    ],
)
def test_errors_are_one_line(tmp_path: Path, flags: str, status: int, sentence: str) -> None:
    result = run(tmp_path, "rules", *flags.split())
    assert (result.returncode, result.stdout) == (status, "")
    assert said(result).startswith(sentence)


def test_the_packages_have_rules_and_dashboards_and_not_what_builds_them(tmp_path: Path) -> None:
    """Built of a copy, since setuptools leaves folders beside the sources."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("exporter", "rules", "grafana"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True)
    paths = [*tmp_path.glob("rules/*.yml"), *tmp_path.glob("rules/runbooks/*.md")]
    shipped = {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in paths}
    shipped |= {f"dashboards/{p.name}": p.read_bytes() for p in tmp_path.glob("grafana/*.json")}
    command = [sys.executable, "-m", "build", "-q", "--no-isolation", "--skip-dependency-check"]
    subprocess.run([*command, "-o", tmp_path / "dist", tmp_path], check=True)
    (path,) = tmp_path.glob("dist/*.whl")
    with zipfile.ZipFile(path) as wheel:
        inside = (name.partition("/")[2] for name in wheel.namelist())
        there = [name for name in inside if name.startswith(("rules/", "dashboards/"))]
        assert {n: wheel.read(f"gpu_bottleneck_exporter/{n}") for n in there} == shipped
    (path,) = tmp_path.glob("dist/*.tar.gz")
    with tarfile.open(path) as sdist:
        names = {"/".join(name.split("/")[3:]) for name in sdist.getnames()}
    assert shipped.keys() <= names
    for name, source in (("rules", "rules"), ("dashboards", "grafana")):
        link = ROOT / "exporter/gpu_bottleneck_exporter" / name
        assert link.is_symlink()
        assert link.resolve() == ROOT / source
