"""Makes the JSON schemas beside it anew: `python tests/grafana/schemas/make.py`, with npm.

Each is of one release of Grafana, from the types that Grafana publishes with it as the npm package
`@grafana/schema` (Apache-2.0); boards.ts puts them together. They are kept, so that no test needs
npm. A newer Grafana is another line in VERSIONS.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
VERSIONS = ("11.0.0", "11.6.16", "12.4.11", "13.2.3")
"""The first that is served, and the last of each major one when this was run."""
TOOLS = ("ts-json-schema-generator@2.4.0", "typescript@5.9.3")
PANELS = ("bargauge", "stat", "statetimeline", "table", "timeseries")

Json = Any


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _run(folder, "npm", "install", "--silent", "--prefix", ".", *TOOLS)
        (folder / "boards.ts").write_text((HERE / "boards.ts").read_text())
        for version in VERSIONS:
            schema = by_type(_generated(folder, version))
            (HERE / f"{version}.json").write_text(_in_lines(schema))


def _in_lines(schema: Json) -> str:
    """As JSON, a line for each part: short, and a change can be read."""
    parts = (
        f'"{name}": {{\n'
        + ",\n".join(f'"{k}": {json.dumps(v, sort_keys=True)}' for k, v in value.items())
        + "\n}"
        for name, value in schema.items()
    )
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _run(folder: Path, *command: str) -> None:
    subprocess.run(command, cwd=folder, check=True)


def _generated(folder: Path, version: str) -> Json:
    """The schema of boards.ts with the types of this version."""
    package = folder / version
    package.mkdir()
    _run(folder, "npm", "pack", "--silent", f"@grafana/schema@{version}")
    _run(folder, "tar", "xzf", f"grafana-schema-{version}.tgz", "-C", version)
    options = {
        "module": "esnext",
        "moduleResolution": "bundler",
        "target": "es2022",
        "strict": True,
        "noEmit": True,
        "skipLibCheck": True,
        "types": [],
        "paths": {name: [f"{path}"] for name, path in _places(package)},
    }
    config = {"compilerOptions": options, "files": ["boards.ts"]}
    (folder / "tsconfig.json").write_text(json.dumps(config))
    _run(folder, "npx", "tsc", "-p", "tsconfig.json")
    generator = ("ts-json-schema-generator", "--path", "boards.ts", "--tsconfig", "tsconfig.json")
    how = ("--type", "Board", "--jsDoc", "none", "--expose", "none", "--no-top-ref")
    _run(folder, "npx", *generator, *how, "--no-type-check", "--out", "out.json")
    return json.loads((folder / "out.json").read_text())


def _places(package: Path) -> Iterator[tuple[str, Path]]:
    """Where the types lie; that differs from version to version."""
    typed = max(package.rglob("raw/dashboard/x/*types.gen.d.ts"))
    raw = typed.parents[2]
    yield "dashboard", typed
    for name in PANELS:
        yield name, next(raw.glob(f"composable/{name}/panelcfg/x/*types.gen.d.ts"))
    roots = (raw.parent, *raw.parents)
    indexes = (root / "index.d.ts" for root in roots)
    yield "@grafana/schema", next(index for index in indexes if index.is_file())


def by_type(schema: Json) -> Json:
    """The dashboard's own schema, and that of each type of panel."""
    panels = schema["properties"]["panels"]["items"].pop("anyOf")
    del schema["definitions"]
    for panel in panels:
        fields = panel["properties"]
        if fields["type"]["const"] != "row":
            # Grafana puts its defaults where an option is not given.
            _optional(fields["options"])
            _optional(fields["fieldConfig"]["properties"]["defaults"]["properties"]["custom"])
    by = {panel["properties"]["type"]["const"]: panel for panel in panels}
    return {"board": schema, "panels": by}


def _optional(schema: Json) -> None:
    """Nothing within is required; a property may be called so, too."""
    for inner in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(inner, (dict, list)):
            _optional(inner)
    if isinstance(schema, dict) and isinstance(schema.get("required"), list):
        del schema["required"]


if __name__ == "__main__":
    main()
