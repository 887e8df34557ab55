"""Names of containers by the links to their logs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.workload.kubelet import (
    KubeletWatch,
    Pace,
    container_names,
    names_trouble,
)
from gpu_bottleneck_exporter.workload.podresources import Holder

ID, OTHER = "a1" * 32, "b2" * 32


class Names:
    """Those that a watch has found by a time, in seconds."""

    def __init__(self, folder: Path) -> None:
        places = Settings(container_logs=folder)
        self._watch = KubeletWatch(places, lambda: (), Pace(), expected=False)

    def of(self, ids: set[str], now: float) -> Mapping[str, Holder]:
        self._watch._name(ids, now)
        return self._watch._names


def link(folder: Path, name: str) -> None:
    (folder / name).symlink_to("/var/log/pods/gone/0.log")


def test_names_by_id(tmp_path: Path) -> None:
    link(tmp_path, f"train-7f9c.v2-0_team-a_side-car-{ID}.log")
    link(tmp_path, f"other_team-b_main-{OTHER}.log")
    found = container_names(tmp_path, {ID})
    assert found == {ID: Holder("team-a", "train-7f9c.v2-0", "side-car")}


@pytest.mark.parametrize(
    "name",
    [
        f"{ID}.log",
        f"pod_ns-{ID}.log",
        f"pod_ns_main-{ID}.log.gz",
        f"pod_ns_main-{ID}",
        f"pod_ns_main-{ID[:63]}.log",
        f"pod_ns_main-{ID.upper()}.log",
        f"a_pod_ns_main-{ID}.log",
        "README",
        f"pod\n_ns_main-{ID}.log",
        f"pod{{x=1}}_ns_main-{ID}.log",
    ],
)
def test_other_files_name_nothing(tmp_path: Path, name: str) -> None:
    link(tmp_path, name)
    assert container_names(tmp_path, {ID}) == {}


@pytest.mark.parametrize("name", ["missing", "file"])
def test_without_a_folder_there_are_no_names(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / name
    names = Names(folder)
    assert names.of({ID}, 0.0) == {}
    trouble = names_trouble(folder)
    assert trouble is not None
    assert f"{folder}: No" in trouble.sentence
    assert "/var/log/containers" in trouble.remedy


def test_an_empty_folder_is_no_trouble(tmp_path: Path) -> None:
    assert names_trouble(tmp_path) is None


def test_a_container_that_is_not_known_is_looked_for_now_and_then(tmp_path: Path) -> None:
    names = Names(tmp_path)
    assert names.of({ID}, 0.0) == {}
    link(tmp_path, f"pod_ns_main-{ID}.log")
    assert names.of({ID}, 9.0) == {}, "not at every look"
    assert names.of({ID}, 10.0) == {ID: Holder("ns", "pod", "main")}
    (tmp_path / f"pod_ns_main-{ID}.log").unlink()
    assert names.of({ID}, 100.0) == {ID: Holder("ns", "pod", "main")}, "an id has one name"
    assert names.of({OTHER}, 200.0) == {}
