"""Turn a schema error into one line that names file, line, key and expectation, and a hint with the nearest key."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError

from kvplan.errors import InputError, nearest
from kvplan.specs.base import CAPABILITY_PATTERN, HF_PATTERN, NAME_PATTERN
from kvplan.specs.yamlfile import Path_, YamlFile, one_line

_EXPECTED = {
    "int_type": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_type": "expected a number",
    "finite_number": "expected a finite number",
    "string_type": "expected text",
    "bool_type": "expected true or false",
    "tuple_type": "expected a list",
    "model_type": "expected a mapping (key: value)",
    "model_attributes_type": "expected a mapping (key: value)",
    "string_unicode": "expected plain text",
    "missing": "this key is required",
}
_PATTERNS = {
    NAME_PATTERN: "a lower-case name (letters, digits, dot, dash, underscore)",
    HF_PATTERN: "a Hugging Face id, owner/name",
    CAPABILITY_PATTERN: 'a quoted version such as "9.0"',
}
_QUOTED = re.compile(r"'([^']*)'")


def schema_error(file: YamlFile, error: ValidationError) -> InputError:
    """The first problem in the file's order, how many more there are, and the fix."""
    found = [(_keys(file.data, item), item) for item in error.errors(include_url=False)]
    found.sort(key=lambda pair: _line(file, pair[0]))
    keys, item = found[0]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    text = f"{file.place(keys)}: {_spell(keys)}: {_describe(item)}{more}"
    return InputError(one_line(text, 600), one_line(_hint(keys, item), 600))


def _line(file: YamlFile, keys: Path_) -> tuple[int, int]:
    while keys and keys not in file.marks:
        keys = keys[:-1]
    return file.marks.get(keys, (0, 0))


def _keys(data: Any, item: Any) -> Path_:
    """The key path as the file has it: pydantic puts names of union members in between."""
    keys: list[str | int] = []
    place = data
    steps = [*item["loc"], *item.get("ctx", {}).get("at", ())]
    for number, step in enumerate(steps):
        inside = step in place if isinstance(place, dict) else isinstance(place, list) and isinstance(step, int)
        if inside:
            keys.append(step)
            place = place[step]
        elif number == len(steps) - 1 and item["type"] == "missing":
            keys.append(step)
    if item["type"] in ("union_tag_invalid", "union_tag_not_found"):
        keys.append(item["ctx"]["discriminator"].strip("'"))
    return tuple(keys)


def _spell(keys: Path_) -> str:
    text = ""
    for key in keys:
        text += f"[{key}]" if isinstance(key, int) else f".{one_line(key, 60)}"
    return text.removeprefix(".") or "the file"


def _describe(item: Any) -> str:
    kind, context = item["type"], item.get("ctx", {})
    if kind == "unknown_key":
        return f"unknown key, expected one of {', '.join(context['known'])}"
    if kind == "union_tag_not_found":
        return "this key is required"
    if "text" in context:
        return str(context["text"])
    got = f", got {_show(item['input'])}"
    if kind == "missing":
        return _EXPECTED[kind]
    if kind == "union_tag_invalid":
        return f"expected {_choices(context['expected_tags'])}, got {context['tag']!r}"
    if kind == "literal_error":
        return f"expected {_choices(context['expected'])}{got}"
    if kind == "string_pattern_mismatch":
        return f"expected {_PATTERNS.get(context['pattern'], 'text like ' + context['pattern'])}{got}"
    for limit, word in (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than")):
        if limit in context:
            return f"expected a number {word} {context[limit]}{got}"
    message = str(item["msg"]).replace("Input should be", "expected")
    return _EXPECTED.get(kind, message[:1].lower() + message[1:]) + got


def _hint(keys: Path_, item: Any) -> str:
    kind, context = item["type"], item.get("ctx", {})
    last = keys[-1] if keys else ""
    if "known" in context:
        near = nearest(str(context.get("name", last)), context["known"])
        return f"did you mean {near}?" if near else "model_specs/README.md shows a whole spec"
    if kind in ("union_tag_invalid", "literal_error"):
        options = _QUOTED.findall(context.get("expected_tags") or context["expected"])
        near = nearest(str(context.get("tag", item["input"])), options)
        if near:
            return f"did you mean {near}?"
    if kind in ("missing", "union_tag_not_found"):
        return f"add {last}: see model_specs/README.md"
    return "correct this line; model_specs/README.md shows a whole spec"


def _choices(text: str) -> str:
    return ", ".join(_QUOTED.findall(text)) or text


def _show(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    return one_line(repr(value), 60)
