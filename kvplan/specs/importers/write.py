"""An imported spec as YAML: each number with its origin behind it, and the same spec when loaded again."""

from __future__ import annotations

import json
import re
from typing import Any

from kvplan.specs.importers.result import Imported, Origin
from kvplan.specs.model import ModelSpec

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_WORDS = frozenset(["true", "false", "null", "yes", "no", "on", "off", "y", "n"])


def spec_yaml(spec: ModelSpec) -> str:
    """A spec as its file would have it, defaults left out."""
    return _document(spec, {})


def imported_yaml(imported: Imported) -> str:
    """Likewise, with the origin of every number as a comment."""
    return _document(imported.spec, {origin.field: origin for origin in imported.origins})


def _document(spec: ModelSpec, origins: dict[str, Origin]) -> str:
    data = spec.model_dump(mode="json", exclude_defaults=True)
    data = {"kvplan_spec": spec.kvplan_spec, **{key: value for key, value in data.items() if key != "kvplan_spec"}}
    lines = []
    for key, value in data.items():
        if key == "layer_groups":
            lines.append("layer_groups:")
            lines += [line for group in value for line in _group(group, origins)]
        elif isinstance(value, list) and value:
            lines += [f"{key}:", *(f"  - {_flow(item)}" for item in value)]
        else:
            lines.append(f"{key}: {_flow(value)}" + _comment(_under(key, origins)))
    return "\n".join(lines) + "\n"


def _group(group: dict[str, Any], origins: dict[str, Origin]) -> list[str]:
    at = f"layer_groups.{group.get('name', group['kind'])}"
    lines = []
    first = [key for key in ("name", "kind", "layers") if key in group]
    for i, key in enumerate([*first, *(key for key in group if key not in first)]):
        value = group[key]
        lead = "  - " if i == 0 else "    "
        lines.append(f"{lead}{key}: {_flow(value)}" + _comment(_under(f"{at}.{key}", origins)))
    return lines


def _under(at: str, origins: dict[str, Origin]) -> list[tuple[str, Origin]]:
    """The origins of a key and of what is inside its value, under the name inside."""
    found = []
    for name, origin in origins.items():
        if name == at or name.startswith(f"{at}."):
            found.append((name.removeprefix(at).lstrip("."), origin))
    return found


def _comment(found: list[tuple[str, Origin]]) -> str:
    texts = [f"{name + ' ' if name else ''}{origin.how}: {origin.source}" for name, origin in found]
    return f"  # {'; '.join(texts)}" if texts else ""


def _flow(value: Any) -> str:
    """One value on one line. JSON's quoted strings are YAML's too."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=True)
