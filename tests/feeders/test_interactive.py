"""Command lines and terminals of notebooks, shells and training jobs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_bottleneck_exporter.host.programs import has_terminal, runs_notebook

KERNEL = "/root/.local/share/jupyter/runtime/kernel-6f1c.json"
SESSION = ["-f", KERNEL]

NOTEBOOKS = [
    ["/opt/conda/bin/python", "-m", "ipykernel_launcher", *SESSION],
    ["/usr/bin/python3.11", "-Xfrozen_modules=off", "-m", "ipykernel_launcher", *SESSION],
    ["python3", "-X", "frozen_modules=off", "-W", "ignore", "-m", "ipykernel_launcher", *SESSION],
    ["python", "-m", "ipykernel", *SESSION],
    ["python", "-mipykernel", *SESSION],
    ["python", "-um", "ipykernel.kernelapp", *SESSION],
    ["/usr/bin/python3", "-m", "colab_kernel_launcher", *SESSION],
    ["python", "/usr/lib/python3/dist-packages/ipykernel_launcher.py", *SESSION],
    ["/usr/bin/python3", "/usr/local/bin/jupyter-notebook", "--no-browser"],
    ["/usr/local/bin/jupyter-lab"],
    ["/usr/bin/python", "-Es", "/usr/bin/jupyter", "console"],
]
OTHERS = [
    [""],
    ["python"],
    ["python", "-"],
    ["python", "train.py"],
    ["python", "train.py", "--data", "/data/jupyter", "-m", "ipykernel"],
    ["python", "-m", "torch.distributed.run", "--", "jupyter"],
    ["python", "-c", "ipykernel_launcher"],
    ["python", "-uc", "import ipykernel"],
    ["python", "-W", "ipykernel"],
    ["python", "-m"],
    ["python", "-X"],
    ["/home/jupyter/bin/python3", "/home/jupyter/ipykernel/train.py"],
    ["/opt/ipykernel/bin/server", "-m", "jupyter"],
    ["tritonserver", "--model-repository=/models/jupyter"],
    ["jupyterhub"],
]


@pytest.mark.parametrize("words", NOTEBOOKS + OTHERS, ids=" ".join)
def test_notebooks_are_recognized_by_their_command_lines(words: list[str]) -> None:
    assert runs_notebook("\0".join(words) + "\0") is (words in NOTEBOOKS)


@pytest.mark.parametrize(
    ("stat", "expected"),
    [
        ("7 (python) S 1 7 7 34816 7 0", True),
        ("7 (python) S 1 7 7 0 -1 4194560", False),
        ("7 (a) b) 5 5 5 5 5 (c) S 1 7 7 1025 7 0", True),
        ("7 (a 1 2 3 4 5) S 1 7 7 0 7 0", False),
        ("7 (python) S 1 7 7", False),
        ("", False),
    ],
)
def test_terminals(stat: str, expected: bool) -> None:  # noqa: FBT001 - a parameter
    assert has_terminal(stat) is expected


@given(st.text(st.characters() | st.sampled_from("\0-m ()0")))
def test_no_text_is_too_strange(text: str) -> None:
    assert runs_notebook(text) in (True, False)
    assert has_terminal(text) in (True, False)
