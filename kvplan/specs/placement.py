"""Which layers a group has, and how many rows its cache keeps."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Tag, model_serializer, model_validator

from kvplan.specs.base import LENIENT, Index, Layers, Spec, Tokens, by_shape, problem


def _ascending(indices: tuple[int, ...]) -> tuple[int, ...]:
    if not indices:
        raise problem("order", "expected at least one layer index")
    for before, after in pairwise(indices):
        if after <= before:
            raise problem("order", f"expected ascending indices without repeats, got {after} after {before}")
    return indices


Indices = Annotated[tuple[Index, ...], LENIENT, AfterValidator(_ascending)]
"""Layer indices, ascending, at least one."""


class Every(Spec):
    """A repeating pattern of layers: of every `every` layers, those `at` these offsets."""

    every: Layers
    """Period of the pattern, in layers."""
    at: Indices
    """Offsets inside one period, ascending, each below `every`."""
    upto: Layers | None = None
    """Only layers below this index (default: all layers of the model)."""

    @model_validator(mode="after")
    def _check_offsets(self) -> Self:
        if self.at[-1] >= self.every:
            raise problem("place", f"expected offsets below every = {self.every}, got {self.at[-1]}", at=("at",))
        return self


Placement = Annotated[
    Annotated[Layers, Tag("number")]
    | Annotated[Indices, Tag("list")]
    | Annotated[Every, Tag("mapping")]
    | Annotated[Literal["rest"], Tag("word")],
    by_shape("a number of layers, a list of indices, {every: N, at: [...]} or rest", word="rest"),
]
"""Which layers: see `ModelSpec.positions`."""


class Retain(Spec):
    """How many rows stay: all of them, or the named law. In YAML `all` or a mapping with exactly one key."""

    window: Tokens | None = None
    """Sliding window: the last W tokens."""
    chunk: Tokens | None = None
    """Chunked attention: at most the C tokens of the current chunk."""
    ring: Tokens | None = None
    """A constant number of rows, whatever the context."""

    @model_validator(mode="after")
    def _check_given(self) -> Self:
        if len(self.model_fields_set) > 1:
            raise problem("spelling", "expected exactly one of window, chunk and ring")
        # An explicit null would silently read as `all`.
        for key in self.model_fields_set:
            if getattr(self, key) is None:
                raise problem("place", "expected a number of tokens", at=(key,))
        return self

    @property
    def law(self) -> Literal["all", "window", "chunk", "ring"]:
        """Name of the row law."""
        if self.window is not None:
            return "window"
        if self.chunk is not None:
            return "chunk"
        return "all" if self.ring is None else "ring"

    @property
    def rows(self) -> int | None:
        """The law's number of rows or tokens; None for `all`."""
        return self.window or self.chunk or self.ring

    @model_serializer
    def _write(self) -> str | dict[str, int]:
        return "all" if self.rows is None else {self.law: self.rows}


def _read_retain(value: Any) -> Any:
    if value == "all":
        return Retain()
    if isinstance(value, Retain) or (isinstance(value, dict) and value):
        return value
    raise problem("spelling", "expected all, {window: W}, {chunk: C} or {ring: R}")


Retention = Annotated[Retain, BeforeValidator(_read_retain)]
"""A `Retain`, as YAML spells it."""
