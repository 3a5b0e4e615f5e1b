"""The cache in memory: allocates the planes of a layout and checks them at the launchers' door.

This is the only file that creates cache tensors. Codes are addressed by the kernels as 16-bit words; a plane's tensor
keeps the dtype of its storage (`int8` also for the unsigned codes of asymmetric formats).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from kvplan.formats.layout import STORAGE_BITS, Field, Layout, Plane
from kvplan.units import cdiv

DTYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "int8": torch.int8,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


def field_shape(field: Field) -> tuple[int, torch.dtype]:
    """Elements of one unit of a field in its plane's tensor, and their dtype; codes below a byte are bytes."""
    dtype = DTYPES.get(field.storage, torch.uint8)
    return field.unit_bytes // dtype.itemsize, dtype


def plane_dtype(plane: Plane) -> torch.dtype:
    """Element dtype of a plane's tensor; packed planes and storages without a dtype are bytes."""
    return DTYPES.get(plane.storage, torch.uint8)


def plane_shape(plane: Plane, layout: Layout, num_pages: int, num_sequences: int, page_size: int) -> tuple[int, ...]:
    """Shape of a plane's tensor, see `Plane`; the last axis counts elements of `plane_dtype`."""
    heads = plane.heads(layout.heads)
    if plane.pack == "page":
        return (num_pages, plane.page_bytes(page_size, layout.heads))
    # A packed plane counts its slot in bytes already; storages without a dtype are bytes, several items in each.
    as_bytes = not plane.pack and plane.storage not in DTYPES
    items = plane.items * STORAGE_BITS[plane.storage] // 8 if as_bytes else plane.items
    if plane.scope == "page":
        return (num_pages, heads, page_size // plane.tokens, items)
    if plane.scope == "residual":
        return (num_sequences, heads, plane.capacity, items)
    if plane.scope == "state":
        return (num_sequences, items)
    return (heads, items)


@dataclass
class Cache:
    """One layer's cache of one rank.

    Attributes:
        planes: plane name to tensor, shapes as in `plane_shape`.
        page_table: int32 [num_sequences, max_pages], page of each `page_size` tokens of a sequence.
        lengths: int32 [num_sequences], tokens stored.
    """

    layout: Layout
    page_size: int
    planes: dict[str, torch.Tensor]
    page_table: torch.Tensor
    lengths: torch.Tensor
    num_pages: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_pages = next(t.shape[0] for p, t in self._pairs() if p.scope == "page")

    @property
    def num_sequences(self) -> int:
        return int(self.lengths.shape[0])

    @property
    def nbytes(self) -> int:
        """Bytes of all planes, from the tensors' storages."""
        return sum(t.untyped_storage().nbytes() for t in self.planes.values())

    def codes(self, role: str) -> torch.Tensor:
        """Codes of `role`, `(num_pages, heads, page_size, dim)` in the storage's dtype; below 8 bits a row's bytes."""
        return self.planes[self.layout.plane(role, "codes").name]

    def words(self, role: str) -> torch.Tensor:
        """Codes of `role` as int16 words, `(num_pages, heads, page_size, words)`; 16-bit rows stay as they are."""
        codes = self.codes(role)
        return codes if codes.element_size() == 2 else codes.view(torch.int16)

    def meta(self, role: str) -> torch.Tensor | None:
        """The plane with the row scales of `role`, `(num_pages, heads, slots, items)`; None without row scales."""
        return self._find(role, "scale", "page")

    def static(self, role: str, name: str = "scale") -> torch.Tensor | None:
        """Static scales (or zeros) of `role`, `(heads, items)`; None without static scales."""
        return self._find(role, name, "layer")

    def residual(self, role: str) -> torch.Tensor | None:
        """The newest rows of `role`, unquantised: token t in slot t % capacity of `(num_sequences, heads, capacity,
        dim)`; None without a residual."""
        return self._find(role, "recent", "residual")

    @property
    def max_tokens(self) -> int:
        """Tokens per sequence that the page table and the residuals hold together."""
        paged = int(self.page_table.shape[1]) * self.page_size
        return min(t.holds(paged) for t in self.layout.tensors)

    def check(self) -> None:
        """The door: every plane has exactly the declared shape, dtype and dense strides.

        Raises:
            ValueError: naming the plane and what differs.
        """
        for plane, tensor in self._pairs():
            want = plane_shape(plane, self.layout, self.num_pages, self.num_sequences, self.page_size)
            if tuple(tensor.shape) != want or tensor.dtype != plane_dtype(plane) or not tensor.is_contiguous():
                got = f"{tuple(tensor.shape)} {tensor.dtype} strides {tensor.stride()}"
                raise ValueError(f"plane {plane.name}: layout declares {want} {plane_dtype(plane)}, got {got}")

    def clone(self) -> Cache:
        """A copy with its own planes (the table and lengths are shared): for rotating caches when timing."""
        planes = {name: t.clone() for name, t in self.planes.items()}
        return Cache(self.layout, self.page_size, planes, self.page_table, self.lengths)

    def _find(self, role: str, name: str, scope: str) -> torch.Tensor | None:
        for plane, tensor in self._pairs():
            if plane.scope == scope and any((f.tensor, f.name) == (role, name) for f in plane.fields):
                return tensor
        return None

    def _pairs(self) -> list[tuple[Plane, torch.Tensor]]:
        return [(p, self.planes[p.name]) for p in self.layout.planes]


def make_planes(
    layout: Layout, num_pages: int, num_sequences: int, page_size: int, device: torch.device | str
) -> dict[str, torch.Tensor]:
    """One uninitialised tensor per plane, by name; on the `meta` device it costs nothing and still has its bytes."""
    return {
        p.name: torch.empty(
            plane_shape(p, layout, num_pages, num_sequences, page_size), dtype=plane_dtype(p), device=device
        )
        for p in layout.planes
    }


def allocate(
    layout: Layout,
    *,
    num_sequences: int,
    max_tokens: int,
    page_size: int,
    device: torch.device | str,
    num_pages: int | None = None,
    shuffle: torch.Generator | None = None,
) -> Cache:
    """Allocate an empty cache: pages for `max_tokens` per sequence, consecutive or shuffled by `shuffle`'s generator.

    Tokens that wait in a residual need no page yet, so there may be none at all.

    Args:
        num_pages: pages in the pool, default exactly the ones needed.
    """
    layout.check_page_size(page_size)
    per_sequence = cdiv(max(t.split(max_tokens)[0] for t in layout.tensors), page_size)
    need = num_sequences * per_sequence
    pages = need if num_pages is None else num_pages
    if pages < need:
        raise ValueError(f"{need} pages needed, {pages} given")
    planes = make_planes(layout, pages, num_sequences, page_size, device)
    order = torch.arange(pages) if shuffle is None else torch.randperm(pages, generator=shuffle)
    table = order[:need].view(num_sequences, per_sequence).to(torch.int32).to(device)
    lengths = torch.zeros(num_sequences, dtype=torch.int32, device=device)
    cache = Cache(layout, page_size, planes, table, lengths)
    cache.check()
    return cache
