"""Names of containers by the links to their logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_bottleneck_exporter.workload.kubelet import container_names, names_trouble
from gpu_bottleneck_exporter.workload.podresources import ContainerName

ID, OTHER = "a1" * 32, "b2" * 32


def link(folder: Path, name: str) -> None:
    (folder / name).symlink_to("/var/log/pods/gone/0.log")


def test_names_by_id(tmp_path: Path) -> None:
    link(tmp_path, f"train-7f9c.v2-0_team-a_side-car-{ID}.log")
    link(tmp_path, f"other_team-b_main-{OTHER}.log")
    result = container_names(tmp_path, {ID})
    assert result == {ID: ContainerName("team-a", "train-7f9c.v2-0", "side-car")}


def test_other_files_name_nothing(tmp_path: Path) -> None:
    names = [f"{ID}.log", f"pod_ns-{ID}.log", f"pod_ns_main-{ID}.log.gz", f"pod_ns_main-{ID}"]
    names += [f"pod_ns_main-{ID[:63]}.log", f"pod_ns_main-{ID.upper()}.log", "README"]
    names += [f"{odd}_ns_main-{ID}.log" for odd in ("a_pod", "pod\n", "pod{x=1}")]
    for name in names:
        link(tmp_path, name)
    assert container_names(tmp_path, {ID}) == {}


@pytest.mark.parametrize("name", ["missing", "file"])
def test_without_a_folder_there_is_trouble(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    trouble = names_trouble(tmp_path / name)
    assert trouble is not None
    assert f"{tmp_path / name}: No" in trouble.sentence
    assert "/var/log/containers" in trouble.remedy
    assert names_trouble(tmp_path) is None
