"""Tensors of one layer: what the tensor has, and the storage behind it."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.breakdown import Factor, Product
from kvplan.formats.layout import Layout
from kvplan.memory.groups import CacheGroup


@dataclass(frozen=True)
class Stored:
    """One tensor of a layer.

    Attributes:
        name: as the cache class calls it.
        units: rows, groups or whole states that the tensor has, for one sequence or (not `batched`) for the batch.
        held: those in the storage behind it; more where the tensor is a view.
        width: bytes of a unit.
        alias: the storage is an earlier tensor's.
        constant: one scalar of the layer (a scale, a counter), which no sum of an allocation counts.
    """

    name: str
    units: Factor
    held: Factor
    width: Factor
    batched: bool = True
    alias: bool = False
    constant: bool = False

    def tensor(self, group: CacheGroup, sequences: int) -> Product:
        """Bytes of the tensor in all layers of the group: elements x their size."""
        return self._product(group, sequences, self.units)

    def storage(self, group: CacheGroup, sequences: int) -> Product:
        """Bytes of the storage behind it, whoever else uses it."""
        return self._product(group, sequences, self.held)

    def _product(self, group: CacheGroup, sequences: int, units: Factor) -> Product:
        layers = Factor("layers", group.layers, group.origin.layers)
        batch = (Factor("sequences", sequences, group.origin.sequences),) if self.batched else ()
        return Product(self.name, (layers, *batch, units, self.width), "engine rule", SOURCE)


SOURCE = "transformers 5.24.0, src/transformers/cache_utils.py"


def rows(name: str, kept: int, held: int, width: Factor, *, alias: bool = False, why: str = "") -> Stored:
    """A tensor with one row for each of some tokens."""
    return Stored(name, Factor("rows", kept, why), Factor("rows", held, why), width, alias=alias)


def row_width(layout: Layout, tensor: str, origin: str) -> Factor:
    """Bytes of one token's row of a tensor, all heads of the rank."""
    nbytes = sum(
        p.heads(layout.heads) * f.unit_bytes for p in layout.scoped("page") for f in p.fields if f.tensor == tensor
    )
    return Factor("bytes", nbytes, origin)
