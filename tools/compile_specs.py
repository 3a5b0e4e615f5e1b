"""Write model_specs/compiled.json from the YAML files. Run it after every change of a spec; a test fails until then."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from kvplan.specs.compiled import COMPILED, FOLDERS, checksum  # noqa: E402
from kvplan.specs.device import DeviceSpec  # noqa: E402
from kvplan.specs.model import ModelSpec  # noqa: E402
from kvplan.specs.yamlfile import read_yaml  # noqa: E402

KINDS = {"models": ModelSpec, "devices": DeviceSpec}


def compile_specs(root: Path) -> str:
    """The file's text: one line for each spec, so that a change of one spec is a change of one line.

    Raises:
        InputError: a file is no plain YAML.
        pydantic.ValidationError: a file breaks the schema.
    """
    folders = []
    for folder in FOLDERS:
        lines = [_line(path, KINDS[folder]) for path in sorted((root / folder).glob("*.yaml"))]
        folders.append(f'"{folder}": {{\n' + ",\n".join(lines) + "\n}")
    return "{" + ",\n".join(folders) + "}\n"


def _line(path: Path, kind: Any) -> str:
    data = read_yaml(path).data
    kind.model_validate(data)
    entry = {"checksum": checksum(path.read_bytes()), "data": data}
    return f"{json.dumps(path.stem)}: {json.dumps(entry, separators=(',', ':'))}"


if __name__ == "__main__":
    made = REPO / "model_specs" / COMPILED
    made.write_text(compile_specs(made.parent), encoding="utf-8")
    print(f"wrote {made.relative_to(REPO)}, {made.stat().st_size:,} bytes")
