"""A small YAML file as plain mappings, lists and strings; every fault is one sentence.

PyYAML comes with an extra: import this module only where a file is read.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Union

import yaml

from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.web.files import read_regular, shown

MAX_BYTES = 256 * 1024
Value = Union[str, Sequence["Value"], Mapping[str, "Value"]]  # noqa: UP007 - evaluated


def read(path: Path) -> Mapping[str, Value]:
    """Read a file whose top level is a mapping; an empty file gives an empty one.

    Scalars stay text, so that a user may be called 007 or yes. A duplicate key is an error, as it
    is for Prometheus' own programs.

    Raises:
        SettingsError: If the file cannot be read or is not such YAML.
    """
    text = _text(path)
    try:
        value = yaml.load(text, Loader=_Plain)  # noqa: S506 - as safe as SafeLoader
    except yaml.YAMLError as error:
        raise SettingsError(_sentence(error)) from error
    except RecursionError:
        raise SettingsError("it is nested too deeply") from None
    except (ValueError, OverflowError):  # escapes and directives that PyYAML does not check
        raise SettingsError("it contains an escape or a number that YAML does not have") from None
    if value in (None, ""):
        return {}
    if not isinstance(value, Mapping):
        raise SettingsError("it is not a mapping")
    return value


class _Plain(yaml.BaseLoader):
    """Builds texts, lists and mappings, whatever the tags; refuses what YAML leaves undefined."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: ANN401, FBT001, FBT002 - PyYAML's
        if node in self.recursive_objects:
            raise _fault(node, "a part contains itself")
        return super().construct_object(node, deep)

    def construct_mapping(
        self,
        node: yaml.MappingNode,
        deep: bool = False,  # noqa: FBT001, FBT002 - PyYAML's
    ) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _fault(key, "a key is not a plain string")
            if key.value in seen:
                raise _fault(key, f"{shown(key.value)} occurs twice")
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_scalar(self, node: yaml.ScalarNode) -> str:
        text = str(super().construct_scalar(node))
        if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
            raise _fault(node, "a string contains a character that is not allowed")
        return text


def _fault(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _text(path: Path) -> str:
    try:
        data = read_regular(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot be read: {getattr(error, 'strerror', error)}") from error
    if len(data) > MAX_BYTES:
        raise SettingsError(f"it is larger than {MAX_BYTES // 1024} KiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SettingsError("it is not UTF-8 text") from None


def _sentence(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "no YAML"
    where = f"line {mark.line + 1}: " if mark else ""
    return f"{where}{' '.join(str(problem).split())}"
