"""JSON schemas of the results, made from their own classes."""

from __future__ import annotations

from typing import Any

from kvplan.errors import UsageError, did_you_mean
from kvplan.memory.figures import GroupFigures, KvFigures
from kvplan.plan.answers import Tree
from kvplan.plan.types import PlanRequest
from kvplan.report.answers import ANSWERS
from kvplan.report.stored import KINDS, kind, result_class
from kvplan.texts import field_text

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_TREE: dict[str, Any] = {
    "description": "Where bytes come from: a sum of nodes, or a product of named whole numbers.",
    "type": "object",
    "properties": {
        "label": {"type": "string"},
        "nbytes": {"type": "integer", "description": "Follows from the children or factors."},
        "children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
        "formula": {"type": "string"},
        "factors": {"type": "array", "items": {"$ref": "#/$defs/Factor"}},
        "basis": {"enum": ["exact", "engine rule", "estimate", "measured"]},
        "source": {"type": "string"},
    },
    "required": ["label", "nbytes"],
    "additionalProperties": False,
}
_FACTOR: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "value": {"type": "integer"}, "source": {"type": "string"}},
    "required": ["name", "value", "source"],
    "additionalProperties": False,
}


def result_schema(name: str) -> dict[str, Any]:
    """The JSON schema of one kind of result.

    Raises:
        UsageError: there is no such kind.
    """
    from pydantic import TypeAdapter

    schema, cls, command = ANSWERS[name] if name in ANSWERS else _of_stored(name)
    made = TypeAdapter(cls).json_schema(by_alias=True, mode="serialization")
    _trees(made, TypeAdapter(Tree).json_schema(mode="serialization"))
    _describe(made)
    # Dataclasses have no field for the schema; the commands write it first.
    made["properties"] = {"schema": {"const": schema}} | {
        key: value for key, value in made["properties"].items() if key != "schema"
    }
    made["required"] = sorted({"schema", *made.get("required", ())})
    title = f"{name} of kvplan: what `kvplan {command} --json` prints"
    return {"$schema": DRAFT, "$id": schema, **made, "title": title}


def schema_names() -> tuple[str, ...]:
    """Kinds of results that have a schema."""
    return (*KINDS, *ANSWERS)


def _of_stored(name: str) -> tuple[str, Any, str]:
    """Schema, the class whose fields are those of the JSON, and command."""
    if name not in KINDS:
        raise UsageError(f"unknown kind of result {name!r}", did_you_mean(name, schema_names()))
    found = kind(name)
    if name != "reconciliation":
        return found.schema, result_class(found), found.command
    from kvplan.reconcile.stored import Stored

    return found.schema, Stored, found.command


def _trees(made: dict[str, Any], opaque: dict[str, Any]) -> None:
    """pydantic cannot see into a tree; say what it is."""

    def walk(node: Any) -> Any:
        if isinstance(node, dict):
            bare = {key: value for key, value in node.items() if key not in ("title", "default")}
            if bare == opaque:
                found.append(True)
                return {"$ref": "#/$defs/Tree"}
            return {key: walk(value) for key, value in node.items()}
        return [walk(each) for each in node] if isinstance(node, list) else node

    found: list[bool] = []
    changed = walk(made)
    made.clear()
    made.update(changed)
    if found:
        made["$defs"] |= {"Tree": _TREE, "Factor": _FACTOR}


def _describe(made: dict[str, Any]) -> None:
    """The texts of fields that pydantic does not collect."""
    for cls in (PlanRequest, KvFigures, GroupFigures):
        fields = made.get("$defs", {}).get(cls.__name__, {}).get("properties", {})
        for field, schema in fields.items():
            text = field_text(cls, field)
            if text:
                schema.setdefault("description", text)
