"""The device nodes of claimed devices, from the files that DRA drivers write for runtimes (CDI).

A driver describes the devices of a claim in a file of its own, `VENDOR-CLASS_CLAIM.yaml` or
`.json`, and names them `VENDOR/CLASS=CLAIM-DEVICE` (Container Device Interface, transient specs).
"""

from __future__ import annotations

import re
from pathlib import Path

from gpu_bottleneck_exporter.host.files import MAX_TABLE_BYTES, read_owned

_NAME = re.compile(r"([a-z0-9.-]+)/([a-z]+)=([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-.+")
_MOST_NODES = 32
"""Per device."""


def device_nodes(folder: Path, name: str) -> tuple[str, ...]:
    """Paths of the device nodes of CDI device `name`; empty if no file in `folder` has them.

    Only what root wrote is read, and nothing in it is believed to have the right form.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return ()
    stem = f"{found[1]}-{found[2]}_{found[3]}"
    texts = (read_owned(folder / f"{stem}.{kind}", MAX_TABLE_BYTES) for kind in ("yaml", "json"))
    text = next((text for text in texts if text), "")
    return _nodes(text, name.partition("=")[2])[:_MOST_NODES] if text else ()


def _nodes(text: str, name: str) -> tuple[str, ...]:
    import yaml  # noqa: PLC0415 - takes a MiB, and few nodes have such files

    # JSON is YAML, too. The base loader makes texts, lists and mappings of anything.
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        devices = yaml.load(text, Loader=loader)["devices"]  # noqa: S506
        (device,) = (one for one in devices if one["name"] == name)
        return tuple(f"{node['path']}" for node in device["containerEdits"]["deviceNodes"])
    except (yaml.YAMLError, ValueError, TypeError, KeyError, RecursionError):
        return ()
