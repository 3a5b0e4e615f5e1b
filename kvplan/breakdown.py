"""Where a number comes from: trees of sums and products of named integer factors.

`nbytes` is computed from the factors and stored nowhere, so a printed formula cannot disagree with its number.
A tree read back from JSON is recomputed; a number that differs is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from kvplan.errors import InputError

BASES = ("exact", "engine rule", "estimate", "measured")


@dataclass(frozen=True, slots=True)
class Factor:
    """A named whole number, such as 32 layers; the name is a plural that reads well after the value.

    Attributes:
        source: the spec field or option that the value comes from, with its arithmetic.
    """

    name: str
    value: int
    source: str = ""


@dataclass(frozen=True, slots=True)
class Product:
    """A leaf: bytes as a product of factors.

    Attributes:
        basis: exact | engine rule | estimate | measured.
        source: the spec field, rule or measurement that the factors come from.
    """

    label: str
    factors: tuple[Factor, ...]
    basis: str = "exact"
    source: str = ""

    @property
    def nbytes(self) -> int:
        return prod(f.value for f in self.factors)

    @property
    def formula(self) -> str:
        """One line such as `32 layers x 8 kv heads x 32,768 tokens x 512 bytes`; factors of one are left out."""
        shown = [f for f in self.factors if f.value != 1] or list(self.factors[-1:])
        return " x ".join(f"{f.value:,} {f.name}" for f in shown)


@dataclass(frozen=True, slots=True)
class Sum:
    """A labelled sum of nodes; without children it is 0 bytes."""

    label: str
    children: tuple[Product | Sum, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(c.nbytes for c in self.children)

    def child(self, label: str) -> Product | Sum | None:
        """The first child of that label, or None."""
        return next((c for c in self.children if c.label == label), None)


Node = Product | Sum


def leaves(node: Node) -> Iterator[Product]:
    """Every product of a tree, in order."""
    if isinstance(node, Product):
        yield node
    else:
        for child in node.children:
            yield from leaves(child)


def to_dict(node: Node) -> dict[str, Any]:
    """The JSON form of a tree; `nbytes` and `formula` are derived and stand there for readers."""
    if isinstance(node, Sum):
        return {"label": node.label, "nbytes": node.nbytes, "children": [to_dict(c) for c in node.children]}
    return {
        "label": node.label,
        "nbytes": node.nbytes,
        "formula": node.formula,
        "factors": [{"name": f.name, "value": f.value, "source": f.source} for f in node.factors],
        "basis": node.basis,
        "source": node.source,
    }


def from_dict(data: Any) -> Node:
    """Read a tree back, recomputing every number.

    Raises:
        InputError: the shape is wrong, or a stored `nbytes` or `formula` differs from what the factors give.
    """
    try:
        node = _read(data)
        stored = (data["nbytes"], data.get("formula", ""))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as broken:
        raise InputError(f"the breakdown cannot be read ({type(broken).__name__}: {broken})", _HINT) from None
    formula = node.formula if isinstance(node, Product) else ""
    if type(stored[0]) is not int or stored != (node.nbytes, formula):
        raise InputError(
            f"breakdown {node.label!r} says {stored[0]!r} bytes ({stored[1]}), its factors give {node.nbytes}", _HINT
        )
    return node


_HINT = "write the plan again with kvplan estimate --json"


def _read(data: Any) -> Node:
    if "children" in data:
        return Sum(str(data["label"]), tuple(from_dict(c) for c in data["children"]))
    factors = tuple(Factor(str(f["name"]), f["value"], str(f.get("source", ""))) for f in data["factors"])
    if not factors or any(type(f.value) is not int or f.value < 0 for f in factors):
        raise ValueError("factors must be whole numbers")
    if data["basis"] not in BASES:
        raise ValueError(f"unknown basis {data['basis']!r}")
    return Product(str(data["label"]), factors, data["basis"], str(data["source"]))
