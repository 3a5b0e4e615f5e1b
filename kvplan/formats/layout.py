"""The one declaration of a cache's bytes: fields, planes, layouts.

The planner, the allocator, the reference codec and the kernels all read these objects and none restates a size.
This is the only file that turns items and bits into bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from kvplan.errors import UsageError
from kvplan.units import align_up

STORAGE_BITS = {"fp32": 32, "fp16": 16, "bf16": 16, "int8": 8, "fp8_e4m3": 8, "fp8_e5m2": 8, "int2": 2}
"""Width of one stored item. `intN` holds signed codes, or unsigned ones when the format is asymmetric."""


@dataclass(frozen=True)
class Field:
    """`items` items of `storage` for every `tokens` tokens of one head.

    `tensor` is the role it serves (k, v, latent, index, or the name of a state); `role` says how the plan counts it.
    """

    tensor: str
    name: str
    storage: str
    items: int
    tokens: int = 1
    role: str = "payload"

    def __post_init__(self) -> None:
        assert self.role in ("payload", "metadata", "padding"), self.role
        if self.items * STORAGE_BITS[self.storage] % 8:
            raise UsageError(
                f"{self.items} items of {self.storage} do not fill whole bytes ({self.tensor} {self.name})",
                "choose a format whose rows are whole bytes for this head_dim",
            )

    @property
    def unit_bytes(self) -> int:
        """Bytes of one unit: the items of `tokens` tokens (1 for static fields) of one head."""
        return self.items * STORAGE_BITS[self.storage] // 8


@dataclass(frozen=True)
class Plane:
    """One stored tensor.

    Scope `page`: shape `(num_pages, heads, page_size // tokens, items)`, head-major; several fields alternate in
    each slot. Scope `residual`: `(num_sequences, heads, capacity, items)`. Scope `state`: `(num_sequences, items)`.
    Scope `layer`: `(heads, items)`. Without `per_head` the head axis has length 1 and serves the whole rank.
    """

    name: str
    fields: tuple[Field, ...]
    scope: str
    per_head: bool = True
    capacity: int = 0
    slot_align: int = 1
    page_align: int = 1

    def __post_init__(self) -> None:
        assert self.scope in ("page", "residual", "state", "layer"), self.scope
        assert len({(f.tokens, f.storage) for f in self.fields}) == 1, "fields of a plane share tokens and storage"
        assert (self.capacity > 0) == (self.scope == "residual"), self

    @property
    def storage(self) -> str:
        return self.fields[0].storage

    @property
    def tokens(self) -> int:
        """Tokens that one slot covers."""
        return self.fields[0].tokens

    @property
    def items(self) -> int:
        """Items of one slot, all fields together."""
        return sum(f.items for f in self.fields)

    @property
    def slot_bytes(self) -> int:
        return align_up(sum(f.unit_bytes for f in self.fields), self.slot_align)

    def heads(self, heads: int) -> int:
        """Length of the head axis on a rank with `heads` KV heads."""
        return heads if self.per_head else 1

    def page_bytes(self, page_size: int, heads: int) -> int:
        """Bytes of this plane in one page of `page_size` tokens."""
        assert self.scope == "page" and page_size % self.tokens == 0
        return align_up(page_size // self.tokens * self.heads(heads) * self.slot_bytes, self.page_align)

    def fixed_bytes(self, heads: int) -> int:
        """Bytes per sequence (residual, state) or per layer (layer) of a plane that does not grow with tokens."""
        assert self.scope != "page"
        return max(self.capacity, 1) * self.heads(heads) * self.slot_bytes

    def offset(self, tensor: str, name: str) -> int:
        """Position of a field in its slot, counted in items."""
        at = 0
        for field in self.fields:
            if (field.tensor, field.name) == (tensor, name):
                return at
            at += field.items
        raise KeyError((tensor, name))


@dataclass(frozen=True)
class BoundTensor:
    """One tensor (k, v, latent, index) of a layout: its numbers and its split law.

    Attributes:
        dim: channels of one head (latent: nope + rope).
        number: the stored number, e.g. `int8`, `fp8_e4m3`, `bf16`.
        group: N of channel/N and group/N, else 0.
        recent: capacity of the unquantised residual in tokens, 0 without one.
        flush: `whole` (all `recent` tokens at once) or `oldest` (one at a time).
    """

    role: str
    spelling: str
    dim: int
    number: str
    granularity: str = ""
    group: int = 0
    asym: bool = False
    scale: str = ""
    recent: int = 0
    flush: str = ""

    def split(self, tokens: int) -> tuple[int, int]:
        """(packed, recent) tokens after `tokens` rows: which are quantised and which still wait in the residual."""
        if not self.recent:
            return tokens, 0
        waiting = tokens % self.recent if self.flush == "whole" else min(tokens, self.recent)
        return tokens - waiting, waiting


@dataclass(frozen=True)
class TensorView:
    """What a kernel needs of one tensor, as a compile key: every number that changes code is a field.

    Row metadata (scale, zero) is read at `slot * meta_stride + offset`, both in items of the plane's storage.
    Static scales have `static_items` items per head (`static_heads` 1 when one scale serves all heads).
    """

    number: str
    bits: int
    dim: int
    granularity: str
    group: int
    asym: bool
    meta_storage: str
    meta_stride: int
    scale_at: int
    zero_at: int
    static_items: int
    static_per_head: bool

    @property
    def quantised(self) -> bool:
        return self.bits < 16

    @property
    def is_int(self) -> bool:
        return self.number.startswith("int")

    @property
    def words(self) -> int:
        """16-bit words of one row of one head."""
        return self.dim * self.bits // 16

    @property
    def fields_per_word(self) -> int:
        return 16 // self.bits

    @property
    def has_row_scale(self) -> bool:
        return self.meta_stride > 0

    @property
    def has_static_scale(self) -> bool:
        return self.static_items > 0


@dataclass(frozen=True)
class Layout:
    """The planes of one layer group on one rank."""

    heads: int
    tensors: tuple[BoundTensor, ...]
    planes: tuple[Plane, ...]

    @property
    def page_multiple(self) -> int:
        """page_size must be a multiple of this: every field's `tokens` divides it."""
        return lcm(*(p.tokens for p in self.planes if p.scope == "page"), 1)

    def check_page_size(self, page_size: int) -> None:
        """Refuse a page size that cuts a group of tokens, naming the two nearest that fit."""
        unit = self.page_multiple
        if page_size % unit:
            below, above = page_size // unit * unit, align_up(page_size, unit)
            near = f"{above}" if below == 0 else f"{below} or {above}"
            raise UsageError(f"page size {page_size} is no multiple of the {unit}-token group", f"use {near}")

    def page_bytes(self, page_size: int) -> int:
        """Bytes of one page of `page_size` tokens, all page planes of one layer on this rank."""
        self.check_page_size(page_size)
        return sum(p.page_bytes(page_size, self.heads) for p in self.scoped("page"))

    def fixed_bytes(self, scope: str) -> int:
        """Bytes of one layer that do not grow with tokens: per sequence (residual, state) or per layer (layer)."""
        return sum(p.fixed_bytes(self.heads) for p in self.scoped(scope))

    def scoped(self, scope: str) -> tuple[Plane, ...]:
        return tuple(p for p in self.planes if p.scope == scope)

    def tensor(self, role: str) -> BoundTensor:
        return next(t for t in self.tensors if t.role == role)

    def plane(self, tensor: str, name: str) -> Plane:
        """The plane that holds a field, e.g. `plane("k", "codes")`."""
        for plane in self.planes:
            if any((f.tensor, f.name) == (tensor, name) for f in plane.fields):
                return plane
        raise KeyError((tensor, name))

    def view(self, role: str) -> TensorView:
        """The kernel's view of tensor `role`."""
        tensor = self.tensor(role)
        names = {f.name: p for p in self.planes for f in p.fields if f.tensor == role}
        scale = names.get("scale")
        row = scale is not None and scale.scope == "page"
        static = scale if scale is not None and not row else None
        return TensorView(
            number=tensor.number,
            bits=STORAGE_BITS[tensor.number],
            dim=tensor.dim,
            granularity=tensor.granularity,
            group=tensor.group,
            asym=tensor.asym,
            meta_storage=scale.storage if scale is not None else "",
            meta_stride=scale.items if scale is not None and row else 0,
            scale_at=scale.offset(role, "scale") if scale is not None and row else 0,
            zero_at=scale.offset(role, "zero") if scale is not None and row and tensor.asym else -1,
            static_items=sum(f.items for f in static.fields if f.name == "scale") if static is not None else 0,
            static_per_head=static.per_head if static is not None else False,
        )
