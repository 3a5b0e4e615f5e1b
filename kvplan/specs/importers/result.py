"""What an importer returns: the spec, and for each structural number where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvplan.specs.model import ModelSpec

How = Literal["read", "defaulted", "assumed"]
"""`read` from the file, `defaulted` as the model type's own config class does, or `assumed` by kvplan."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where one number of a spec comes from.

    Attributes:
        field: the spec's field, such as `layer_groups.full.kv_heads`.
        value: the number (or word) as the spec has it, spelled.
        how: read, defaulted or assumed.
        source: the key it was read from, or the class or rule that supplied it.
    """

    field: str
    value: str
    how: How
    source: str


@dataclass(frozen=True, slots=True)
class Imported:
    """An imported model.

    Attributes:
        spec: the model.
        origins: one for each structural number of the spec.
        notes: what the reader should know about the file (quantisation hints, ignored keys).
    """

    spec: ModelSpec
    origins: tuple[Origin, ...]
    notes: tuple[str, ...] = ()
