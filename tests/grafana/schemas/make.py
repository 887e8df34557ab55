"""Makes the JSON schemas beside it anew: `python tests/grafana/schemas/make.py`, with npm.

Each is of one release of Grafana, from the types that Grafana publishes with it as the npm package
`@grafana/schema` (Apache-2.0); boards.ts puts them together. They are kept, so that no test needs
npm. A newer Grafana is another line in VERSIONS.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
VERSIONS = ("11.0.0", "11.6.16", "12.4.11", "13.2.3")
"""The first that is served, and the last of each major one when this was run."""
TOOLS = ("ts-json-schema-generator@2.4.0", "typescript@5.9.3")
PANELS = ("bargauge", "stat", "statetimeline", "table", "timeseries")
_LARGE = 120
"""Characters of a part of a schema from which it is written once and referred to."""

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
        + ",\n".join(f'"{key}": {_text(inner)}' for key, inner in value.items())
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
    raw = next(path for path in sorted(package.rglob("raw"), reverse=True) if _typed(path))
    yield "dashboard", next(raw.glob("dashboard/x/*types.gen.d.ts"))
    for name in PANELS:
        yield name, next(raw.glob(f"composable/{name}/panelcfg/x/*types.gen.d.ts"))
    roots = (raw.parent, *raw.parents)
    yield "@grafana/schema", next(root / "index.d.ts" for root in roots if _has_index(root))


def _typed(raw: Path) -> bool:
    return any(raw.glob("dashboard/x/*types.gen.d.ts"))


def _has_index(root: Path) -> bool:
    return (root / "index.d.ts").is_file()


def by_type(schema: Json) -> Json:
    """The dashboard's own schema, that of each type of panel, and the parts they share."""
    panels = schema["properties"]["panels"]["items"].pop("anyOf")
    del schema["definitions"]
    for panel in panels:
        fields = panel["properties"]
        if fields["type"]["const"] != "row":
            # Grafana puts its defaults where an option is not given.
            _optional(fields["options"])
            _optional(fields["fieldConfig"]["properties"]["defaults"]["properties"]["custom"])
    whole = {
        "board": schema,
        "panels": {panel["properties"]["type"]["const"]: panel for panel in panels},
    }
    return _shared(whole)


def _optional(schema: Json) -> None:
    for part in _parts(schema):
        part.pop("required", None)


def _parts(schema: Json) -> Iterator[dict[str, Any]]:
    """All schemas within: a dict may also hold properties, one of which may be called `type`."""
    if isinstance(schema, dict):
        if isinstance(schema.get("type"), str | list) or isinstance(schema.get("anyOf"), list):
            yield schema
        for inner in schema.values():
            yield from _parts(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _parts(inner)


def _shared(whole: Json) -> Json:
    """The same with what stands in it several times under `$defs`, once."""
    times = Counter(_text(part) for part in _parts(whole))
    names: dict[str, str] = {}
    definitions: dict[str, Json] = {}

    def written(value: Json) -> Json:
        if isinstance(value, list):
            return [written(one) for one in value]
        if not isinstance(value, dict):
            return value
        text = _text(value)
        if times[text] < 2 or len(text) < _LARGE:
            return {key: written(one) for key, one in value.items()}
        if text not in names:
            names[text] = f"{len(names) + 1}"
            definitions[names[text]] = {key: written(one) for key, one in value.items()}
        return {"$ref": f"#/$defs/{names[text]}"}

    return {**written(whole), "$defs": definitions}


def _text(value: Json) -> str:
    return json.dumps(value, sort_keys=True)


if __name__ == "__main__":
    main()
