"""Files that commands write, and packaged dashboards and runbooks."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files as resources
from pathlib import Path

import click

from gpu_bottleneck_exporter.errors import ExporterError, SettingsError
from gpu_bottleneck_exporter.flags import nearest


def dashboards() -> dict[str, str]:
    """Grafana's JSON by the dashboard's name."""
    return _packaged("dashboards", "json")


def runbooks() -> dict[str, str]:
    """Markdown by the alert's name."""
    return _packaged("rules/runbooks", "md")


def select(texts: Mapping[str, str], kind: str, name: str | None) -> str:
    """The text with `name`, or all names. Raises SettingsError if unknown."""
    if name is None:
        return "".join(f"{key}\n" for key in texts)
    if name not in texts:
        raise SettingsError(f"There is no {kind} {name!r}.{nearest(name, texts)}")
    return texts[name]


def write(folder: Path, files: Mapping[str, str], *, force: bool) -> None:
    """Write files that are missing or differ.

    Raises ExporterError before any, if one would be overwritten without `force`.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = {folder / name: text for name, text in files.items()}
        missing = {path: text for path, text in paths.items() if _differs(path, text)}
        others = [path.name for path in missing if path.exists()]
        if others and not force:
            raise ExporterError(
                f"--output: {', '.join(others)} in {folder} would change; --force overwrites"
            )
        for path, text in missing.items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            click.echo(f"wrote {path}", err=True)
    except OSError as error:
        raise ExporterError(
            f"--output: cannot write {error.filename or folder}: {error.strerror}"
        ) from error


def write_examples(folder: Path, files: Mapping[str, str]) -> None:
    """Write missing examples; existing ones may have been edited."""
    missing = {name: text for name, text in files.items() if not (folder / name).exists()}
    write(folder, missing, force=False)


def _packaged(folder: str, suffix: str) -> dict[str, str]:
    paths = Path(f"{resources('gpu_bottleneck_exporter')}", folder).glob(f"*.{suffix}")
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(paths)}


def _differs(path: Path, text: str) -> bool:
    return not path.exists() or path.read_bytes() != text.encode()
