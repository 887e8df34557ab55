"""The `dashboards` command: prints or writes the packaged Grafana dashboards unchanged."""

from __future__ import annotations

from importlib.resources import files as resources

from gpu_bottleneck_exporter.errors import ExporterError

_ENDING = ".json"


def files() -> dict[str, str]:
    """Name and text of each file."""
    folder = resources("gpu_bottleneck_exporter") / "dashboards"
    there = sorted(one.name for one in folder.iterdir() if one.name.endswith(_ENDING))
    return {name: (folder / name).read_text(encoding="utf-8") for name in there}


def names() -> list[str]:
    """Names of the dashboards."""
    return [name.removesuffix(_ENDING) for name in files()]


def printed(name: str) -> str:
    """One dashboard. Raises ExporterError, which lists the names, for an unknown one."""
    try:
        return files()[f"{name}{_ENDING}"]
    except KeyError:
        raise ExporterError(f"there is no dashboard {name!r}, only {', '.join(names())}") from None
