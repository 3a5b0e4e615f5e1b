"""Read one YAML file into plain values, remembering the line of every key.

A spec needs mappings, lists, text, whole numbers, fractions, booleans and null. Everything else that YAML can do
(anchors, aliases, tags, merge keys, octal or base-60 numbers, several documents) is refused rather than interpreted.
"""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml

from kvplan.errors import InputError

MAX_FILE_BYTES = 2**20
MAX_DEPTH = 30
_WHOLE = re.compile(r"[-+]?(0|[1-9][0-9_]{0,39})")
_TAG = "tag:yaml.org,2002:"

Path_ = tuple[str | int, ...]
"""Keys and list indices from the top of the document."""


@dataclass(frozen=True)
class YamlFile:
    """The values of one file, and where each key stands."""

    path: str
    data: dict[str, Any]
    marks: dict[Path_, tuple[int, int]] = field(default_factory=dict)
    """Key path to (line, column), both from 1."""

    def place(self, keys: Path_) -> str:
        """`file:line:column` of a key, or of its nearest parent that is in the file."""
        while keys and keys not in self.marks:
            keys = keys[:-1]
        line, column = self.marks.get(keys, (1, 1))
        return f"{self.path}:{line}:{column}"


class _Refused(yaml.MarkedYAMLError):
    """A construct that specs do not use."""


class _Loader(yaml.SafeLoader):
    """Composes nodes (which carry their line); refuses aliases, which can grow without bound, and deep nesting."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise _Refused(None, None, "aliases (*name) are not allowed in a spec", event.start_mark)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise _Refused(None, None, f"nested deeper than {MAX_DEPTH} levels", event.start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def read_yaml(path: Path) -> YamlFile:
    """Read a file.

    Raises:
        InputError: it cannot be read, is not UTF-8 text, is no plain YAML, or its top level is not a mapping.
    """
    shown = one_line(str(path))
    text = _read_text(path, shown)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        found = YamlFile(shown, {})
        if node is None:
            raise InputError(f"{shown}: the file is empty", "write a spec as in model_specs/README.md")
        if not isinstance(node, yaml.MappingNode):
            _refuse("expected a mapping (key: value) at the top level", node)
        found.data.update(_mapping(node, (), found.marks))
        return found
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(shown, error) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = f"the control character U+{ord(text[error.position]):04X} is not allowed"
        raise InputError(f"{shown}:{line}: {what}", "save it as plain UTF-8 text") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # ValueError and OverflowError: escapes beyond Unicode, such as "\UFFFFFFFF".
        raise InputError(f"{shown}: not YAML text: {one_line(str(error))}", "save it as plain UTF-8 YAML") from None


def one_line(text: str, limit: int = 300) -> str:
    """Text for a message: control characters and line ends escaped, cut to `limit`."""
    flat = " ".join(text.split())
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in flat)
    return safe if len(safe) <= limit else safe[: limit - 3] + "..."


def _read_text(path: Path, shown: str) -> str:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise InputError(f"{shown} is a folder, expected a YAML file", "give the path of one .yaml file")
        if not stat.S_ISREG(mode):
            raise InputError(f"{shown} is not a regular file", "give the path of one .yaml file")
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"{shown}: no such file", "check the path, or give the id of a shipped spec") from None
    except (OSError, ValueError) as error:
        raise InputError(
            f"{shown} cannot be read: {one_line(_reason(error))}", "check the path and its rights"
        ) from None
    if len(raw) > MAX_FILE_BYTES:
        raise InputError(f"{shown} is larger than 1 MiB", "a spec is a few dozen lines of YAML")
    if b"\0" in raw:
        raise InputError(f"{shown} is a binary file, expected YAML text", "save it as UTF-8 text")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(f"{shown}:{line}: not UTF-8 text", "save it as UTF-8 text") from None


def _reason(error: Exception) -> str:
    return error.strerror or "unknown reason" if isinstance(error, OSError) else str(error)


def _syntax_error(shown: str, error: yaml.MarkedYAMLError) -> InputError:
    mark = error.problem_mark or error.context_mark
    where = f"{shown}:{mark.line + 1}:{mark.column + 1}" if mark else shown
    what = one_line(str(error.problem or error.context or "unreadable"))
    if what == "but found another document":
        what = "a second document starts here, expected one"
    kind = "" if isinstance(error, _Refused) else "not valid YAML: "
    return InputError(f"{where}: {kind}{what}", "specs are plain YAML; model_specs/README.md shows one")


def _refuse(text: str, node: yaml.Node) -> NoReturn:
    raise _Refused(None, None, text, node.start_mark)


def _value(node: yaml.Node, keys: Path_, marks: dict[Path_, tuple[int, int]]) -> Any:
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, keys, marks)
    if isinstance(node, yaml.SequenceNode):
        if node.tag != _TAG + "seq":
            _refuse(f"the tag {one_line(node.tag)} is not allowed in a spec", node)
        for i, item in enumerate(node.value):
            marks[(*keys, i)] = (item.start_mark.line + 1, item.start_mark.column + 1)
        return [_value(item, (*keys, i), marks) for i, item in enumerate(node.value)]
    return _scalar(node)


def _mapping(node: yaml.MappingNode, keys: Path_, marks: dict[Path_, tuple[int, int]]) -> dict[str, Any]:
    if node.tag != _TAG + "map":
        _refuse(f"the tag {one_line(node.tag)} is not allowed in a spec", node)
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag not in (_TAG + "str", _TAG + "merge"):
            _refuse("expected a plain word as key", key_node)
        key = key_node.value
        if key in result:
            first = marks[(*keys, key)][0]
            _refuse(f"the key {one_line(key)!r} is given twice (first in line {first})", key_node)
        marks[(*keys, key)] = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
        result[key] = _value(value_node, (*keys, key), marks)
    return result


def _scalar(node: yaml.Node) -> Any:
    text = str(node.value)
    kind = node.tag.removeprefix(_TAG)
    # An unquoted date is meant as text here.
    if kind in ("str", "timestamp"):
        return text
    if kind == "null" and text in ("", "~", "null", "Null", "NULL"):
        return None
    if kind == "bool" and text.lower() in yaml.SafeLoader.bool_values:
        return yaml.SafeLoader.bool_values[text.lower()]
    if kind == "int":
        if not _WHOLE.fullmatch(text):
            _refuse(f"expected a plain decimal number, got {one_line(text, 40)}", node)
        return int(text.replace("_", ""))
    if kind == "float":
        try:
            return float(text.replace("_", ""))
        except ValueError:
            _refuse(f"expected a plain decimal number, got {one_line(text, 40)}", node)
    return _refuse(f"the tag {one_line(node.tag)} is not allowed in a spec", node)
