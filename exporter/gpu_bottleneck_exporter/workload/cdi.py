"""Device nodes of claimed devices, from the CDI files of DRA drivers.

A claim has a file `VENDOR-CLASS_CLAIM.yaml` or `.json` with devices `VENDOR/CLASS=CLAIM-DEVICE`
(transient specs).
"""

from __future__ import annotations

import re
from pathlib import Path

from gpu_bottleneck_exporter.host.files import MAX_TABLE_BYTES, read_owned


def device_nodes(folder: Path, name: str) -> tuple[str, ...]:
    """Paths of the device nodes of CDI device `name`, or empty.

    Only files of root are read; their form is not trusted.
    """
    claimed = r"([a-z0-9.-]+)/([a-z]+)=([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-.+"
    match = re.fullmatch(claimed, name)
    if match is None:
        return ()
    stem = f"{match[1]}-{match[2]}_{match[3]}"
    texts = (read_owned(folder / f"{stem}.{kind}", MAX_TABLE_BYTES) for kind in ("yaml", "json"))
    text = next((text for text in texts if text), "")
    return _nodes(text, name.partition("=")[2])[:32] if text else ()


def _nodes(text: str, name: str) -> tuple[str, ...]:
    import yaml  # noqa: PLC0415 - takes a MiB, and few nodes have such files

    # JSON is YAML, too; the base loader builds plain values.
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        devices = yaml.load(text, Loader=loader)["devices"]  # noqa: S506
        (device,) = (d for d in devices if d["name"] == name)
        return tuple(f"{node['path']}" for node in device["containerEdits"]["deviceNodes"])
    except (yaml.YAMLError, ValueError, TypeError, KeyError, RecursionError):
        return ()
