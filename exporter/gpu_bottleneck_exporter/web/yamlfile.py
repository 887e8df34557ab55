"""Small YAML files as plain mappings, lists and strings.

PyYAML takes a MiB of memory: import this module only where a file is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from pathlib import Path

import yaml

from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.web.files import read, shown

_Section = dict[Hashable, object]


class _Loader(yaml.BaseLoader):
    """Reads scalars as text, such as the user 007, and rejects duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> _Section:  # noqa: FBT001, FBT002 - PyYAML's
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            ((key, _),) = Counter(key.value for key, _ in node.value).most_common(1)
            problem = f"{shown(key)} occurs twice"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return mapping


def load(path: Path) -> object:
    """Parse the file; None if it is empty. Raises SettingsError with one sentence."""
    text = read("it", path, 256 * 1024)  # room for 3000 users
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - as safe as SafeLoader
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or error
        where = f"line {mark.line + 1}: " if mark else "no YAML: "
        raise SettingsError(f"{where}{' '.join(str(problem).split())}") from error
