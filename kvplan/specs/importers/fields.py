"""Read a config's fields: by any of their names, checked, with their origin; refused by the name that is wrong."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from kvplan.errors import InputError
from kvplan.specs.importers.figure import Fallback, Figure
from kvplan.specs.yamlfile import one_line

YAML_HINT = "write the model as a YAML spec: model_specs/README.md shows one"
_MISSING: Any = object()


@cache
def class_defaults() -> dict[str, dict[str, int | None]]:
    """Model type to the fields that its transformers config class fills in (5.24.0); layer counts are left out.

    A number of layers, a hidden size or a latent rank belongs to one checkpoint: a file without it is incomplete.
    """
    text = Path(__file__).with_name("class_defaults.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, int | None]] = json.loads(text)
    return found


class Fields:
    """One level of a config: the text model's, one of its sub-mappings, or that of one layer."""

    def __init__(
        self,
        data: dict[str, Any],
        where: str,
        model_type: str,
        *,
        prefix: str = "",
        top: dict[str, Any] | None = None,
        notes: list[str] | None = None,
        used: set[str] | None = None,
    ) -> None:
        self.data = data
        self.where = where
        self.model_type = model_type
        self.prefix = prefix
        self.top = data if top is None else top
        self.notes: list[str] = [] if notes is None else notes
        self.used: set[str] = set() if used is None else used
        self._layers: dict[int, Fields] | None = None

    def refuse(self, name: str, text: str, hint: str = YAML_HINT) -> NoReturn:
        """Raise the error that names the field."""
        raise InputError(one_line(f"{self.where}: {self.prefix}{name}: {text}", 600), one_line(hint, 600))

    def note(self, text: str) -> None:
        """Tell the reader, once."""
        if text not in self.notes:
            self.notes.append(text)

    def has(self, *names: str) -> bool:
        """Whether any of the names is given and not null."""
        self.used.update(names)
        return any(self.data.get(name) is not None for name in names)

    def whole(
        self,
        *names: str,
        low: int = 1,
        high: int,
        null: Fallback | None = None,
        absent: Fallback | None = None,
        default: bool = True,
    ) -> Figure:
        """A whole number under the first of the names that has one.

        Args:
            null: what an explicit null means; without it null is refused.
            absent: what a missing field means where the model type's class has no default.
            default: whether the class's default may stand in.
        """
        for name in names:
            if self.data.get(name) is not None:
                self.used.add(name)
                return Figure(self._number(name, self.data[name], low, high), "read", self.prefix + name)
        for name in names:
            if name in self.data:
                return null() if null else self.refuse(name, "null, expected a whole number")
        known = class_defaults().get(self.model_type, {}) if default else {}
        for name in names:
            value = known.get(name, _MISSING)
            if value is not _MISSING and value is not None:
                return Figure(value, "defaulted", f"{self.model_type}'s config class: {name}")
            if value is None and null:
                return null()
        if absent:
            return absent()
        also = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
        return self.refuse(names[0], f"this field is missing{also}", f"add {names[0]}, or {YAML_HINT}")

    def maybe(self, *names: str, low: int = 0, high: int, default: bool = True) -> Figure | None:
        """Like `whole`, but null, zero and absent are None: the feature is off."""
        zero = Figure(0, "defaulted", "off")
        found = self.whole(*names, low=low, high=high, null=lambda: zero, absent=lambda: zero, default=default)
        return found or None

    def flag(self, name: str, default: bool) -> bool:
        """A boolean; null and absent are the default."""
        self.used.add(name)
        value = self.data.get(name)
        if value is not None and not isinstance(value, bool):
            self.refuse(name, f"expected true or false, got {_show(value)}")
        return default if value is None else bool(value)

    def word(self, name: str) -> str | None:
        """Text, or None for null and absent."""
        self.used.add(name)
        value = self.data.get(name)
        if value is not None and not isinstance(value, str):
            self.refuse(name, f"expected text, got {_show(value)}")
        return value

    def items(self, name: str) -> list[Any] | None:
        """A list, or None for null and absent."""
        self.used.add(name)
        value = self.data.get(name)
        if value is not None and not isinstance(value, list):
            self.refuse(name, f"expected a list, got {_show(value)}")
        return value

    def words(self, name: str) -> list[str] | None:
        """A list of words."""
        found = self.items(name)
        for i, item in enumerate(found or ()):
            if not isinstance(item, str):
                self.refuse(f"{name}[{i}]", f"expected a word, got {_show(item)}")
        return found

    def numbers(self, name: str, *, low: int = 0, high: int) -> list[int] | None:
        """A list of whole numbers."""
        found = self.items(name)
        return None if found is None else [self._number(f"{name}[{i}]", v, low, high) for i, v in enumerate(found)]

    def child(self, name: str) -> Fields | None:
        """A mapping below this one, or None for null and absent."""
        self.used.add(name)
        value = self.data.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.refuse(name, f"expected a mapping, got {_show(value)}")
        return self._below(value, f"{name}.")

    def layer(self, index: int) -> Fields:
        """This level as layer `index` sees it: `per_layer_config` overrides fields of single layers."""
        if self._layers is None:
            self._layers = self._overrides()
        return self._layers.get(index, self)

    def _overrides(self) -> dict[int, Fields]:
        given = self.child("per_layer_config")
        found: dict[int, Fields] = {}
        for key in given.data if given else ():
            assert given is not None
            if not key.isdecimal():
                given.refuse(key, "expected a layer index")
            override = given.child(key)
            if override:
                data = {**self.data, **override.data}
                found[int(key)] = self._below(data, f"per_layer_config[{key}].")
        return found

    def _below(self, data: dict[str, Any], prefix: str) -> Fields:
        return self.like(data, self.prefix + prefix)

    def like(self, data: dict[str, Any], prefix: str) -> Fields:
        """Other data of the same file and model type; what it notes and uses counts for the whole file."""
        return Fields(data, self.where, self.model_type, prefix=prefix, top=self.top, notes=self.notes, used=self.used)

    def _number(self, name: str, value: Any, low: int, high: int) -> int:
        # type() and not isinstance: true is an int to Python.
        if type(value) is not int:
            self.refuse(name, f"expected a whole number, got {_show(value)}")
        if not low <= value <= high:
            self.refuse(name, f"expected a number from {low:,} to {high:,}, got {_show(value)}")
        return value


def _show(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else f"a number of {len(str(value))} digits"
    return one_line(text, 60)
