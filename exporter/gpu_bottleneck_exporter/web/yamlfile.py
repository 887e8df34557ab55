"""A small YAML file as plain mappings, lists and strings; every fault is one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Union

from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.web.files import read_regular

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 256 * 1024
_SHOWN_CHARACTERS = 60
Value = Union[str, Sequence["Value"], Mapping[str, "Value"]]  # noqa: UP007 - evaluated


def read(path: Path) -> Mapping[str, Value]:
    """Reads a file whose top level is a mapping; an empty file is an empty one.

    Scalars stay the text that they are, so that a user may be called 007 or yes. A key
    that stands twice is an error, as it is for Prometheus' own programs.

    Raises:
        SettingsError: If there is no such file, it is no such YAML, or PyYAML is missing.
    """
    try:
        import yaml  # noqa: PLC0415 - comes with an extra
    except ImportError:
        raise SettingsError(
            "PyYAML is missing: pip install 'gpu-bottleneck-exporter[web-config]'"
        ) from None
    text = _text(path)
    try:
        node = yaml.compose(text, Loader=yaml.BaseLoader)
        value = _Plain().value(node) if node else {}
    except yaml.YAMLError as error:
        raise SettingsError(_sentence(error)) from error
    except RecursionError:
        raise SettingsError("it is nested too deeply") from None
    except (ValueError, OverflowError):  # escapes and directives that PyYAML does not check
        raise SettingsError("it holds an escape or a number that YAML does not have") from None
    if value == "":
        return {}
    if not isinstance(value, Mapping):
        raise SettingsError("it is not a mapping of keys to values")
    return value


def shown(text: str) -> str:
    """A text from the file, quoted, on one line and not too long."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…")


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


class _Plain:
    """Turns nodes into values; a node that has several names is turned once."""

    def __init__(self) -> None:
        self._done: dict[int, Value] = {}
        self._begun: set[int] = set()

    def value(self, node: yaml.Node) -> Value:
        if id(node) not in self._done:
            if id(node) in self._begun:
                raise SettingsError(f"line {_line(node)}: a part contains itself")
            self._begun.add(id(node))
            self._done[id(node)] = self._turned(node)
        return self._done[id(node)]

    def _turned(self, node: yaml.Node) -> Value:
        kind = node.id  # type: ignore[attr-defined] # which the stubs forgot
        if kind == "mapping":
            return self._mapping(node)
        if kind == "sequence":
            return [self.value(entry) for entry in node.value]
        return _scalar(node)

    def _mapping(self, node: yaml.Node) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for key_node, value_node in node.value:
            if key_node.id != "scalar":
                raise SettingsError(f"line {_line(key_node)}: a key is not a plain text")
            key = _scalar(key_node)
            if key in found:
                raise SettingsError(f"line {_line(key_node)}: {shown(key)} stands twice")
            found[key] = self.value(value_node)
        return found


def _scalar(node: yaml.Node) -> str:
    text = str(node.value)
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise SettingsError(f"line {_line(node)}: a text holds a character that none may hold")
    return text


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _sentence(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "no YAML"
    where = f"line {mark.line + 1}: " if mark else ""
    return f"{where}{' '.join(str(problem).split())}"
