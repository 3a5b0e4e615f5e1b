"""The one declaration of a cache's bytes: fields, planes, layouts.

The planner, the allocator, the reference codec and the kernels all read these objects and none restates a size.
This is the only file that turns items and bits into bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd, lcm

from kvplan.errors import UnsupportedError, UsageError
from kvplan.formats.tensors import BoundTensor as BoundTensor
from kvplan.formats.tensors import TensorView as TensorView
from kvplan.units import align_up

STORAGE_BITS = {
    "fp32": 32, "int32": 32, "fp16": 16, "bf16": 16, "int8": 8, "fp8_e4m3": 8, "fp8_e5m2": 8, "e8m0": 8, "int4": 4,
    "fp4_e2m1": 4, "int2": 2, "int1": 1,
}  # fmt: skip
"""Width of one stored item. `intN` holds signed codes, or unsigned ones when the format is asymmetric (`int32` is a
word of several); `e8m0` is a power of two."""

_SPLIT_CODES = {
    "int3": (("codes", "int2"), ("high", "int1")),
    "int5": (("codes", "int4"), ("high", "int1")),
    "int6": (("codes", "int4"), ("high", "int2")),
    "int7": (("codes", "int4"), ("middle", "int2"), ("high", "int1")),
    "lm4": (("codes", "int4"),),
    "lm3": (("codes", "int2"), ("high", "int1")),
    "lm2": (("codes", "int2"),),
    "iq4_nl": (("codes", "int4"),),
}


def code_fields(number: str) -> tuple[tuple[str, str], ...]:
    """(field name, storage) of the codes of a number: widths that are no power of two are a low and a high part."""
    return _SPLIT_CODES.get(number, (("codes", number),))


def number_bits(number: str) -> int:
    """Bits of one code of a number."""
    return sum(STORAGE_BITS[storage] for _, storage in code_fields(number))


def fills_bytes(items: int, storage: str) -> bool:
    """Whether `items` items end on a byte."""
    return items * STORAGE_BITS[storage] % 8 == 0


def check_fill(what: str, number: str, channels: int, over: str) -> None:
    """Refuse a row of `channels` codes that ends inside a byte; `over` names the row.

    Raises:
        UsageError: naming the multiple of channels that it needs.
    """
    storages = [storage for _, storage in code_fields(number)]
    if not all(fills_bytes(channels, storage) for storage in storages):
        unit = max(8 // gcd(8, STORAGE_BITS[storage]) for storage in storages)
        raise UsageError(
            f"{what}: {number_bits(number)}-bit rows of {over} do not fill whole bytes",
            f"it needs a multiple of {unit} channels; 8-bit formats take any",
        )


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
        if not fills_bytes(self.items, self.storage):
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

    Scope `page`: shape `(num_pages, heads, page_size // tokens, items)`, head-major. Fields of one storage and token
    count may share a plane, side by side in each slot. Other fields share one as bytes: `pack=slot` puts them side by
    side in each slot, `pack=page` back to back in each head's part of the page, shape `(num_pages, page_bytes)`.
    Scope `residual`: `(num_sequences, heads, capacity, items)`. Scope `state`: `(num_sequences, items)`.
    Scope `layer`: `(heads, items)`. Without `per_head` the head axis has length 1 and serves the whole rank.
    """

    name: str
    fields: tuple[Field, ...]
    scope: str
    per_head: bool = True
    capacity: int = 0
    pack: str = ""
    slot_align: int = 1
    page_align: int = 1

    def __post_init__(self) -> None:
        assert self.scope in ("page", "residual", "state", "layer"), self.scope
        assert (self.capacity > 0) == (self.scope == "residual"), self
        assert self.pack in ("", "slot", "page") and (not self.pack or self.scope == "page"), self
        kinds = {(f.tokens, "" if self.pack else f.storage) for f in self.fields}
        assert self.pack == "page" or len(kinds) == 1, "fields of a slot share tokens, and storage unless packed"
        assert self.pack or self.slot_align == self.page_align == 1, "only bytes are padded"

    @property
    def storage(self) -> str:
        """Storage of the items; `bytes` for a packed plane."""
        return "bytes" if self.pack else self.fields[0].storage

    # Cached: capacity is found by search, which asks for page_bytes again and again.
    @cached_property
    def tokens(self) -> int:
        """Tokens that one slot covers."""
        return lcm(*(f.tokens for f in self.fields))

    @property
    def items(self) -> int:
        """Items of one slot, all fields together; bytes for a packed plane."""
        return self.slot_bytes if self.pack else sum(f.items for f in self.fields)

    @cached_property
    def slot_bytes(self) -> int:
        """Bytes of the `tokens` tokens of one head."""
        tokens = self.tokens
        return align_up(sum(tokens // f.tokens * f.unit_bytes for f in self.fields), self.slot_align)

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

    def offset(self, tensor: str, name: str, page_size: int = 0) -> int:
        """Position of a field, counted in items (bytes if packed), in its slot; with `pack=page` in its head's part."""
        at = 0
        for field in self.fields:
            if (field.tensor, field.name) == (tensor, name):
                return at
            units = page_size // field.tokens if self.pack == "page" else 1
            at += units * field.unit_bytes if self.pack else field.items
        raise KeyError((tensor, name))


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

    def dense_bytes(self, num_sequences: int, num_tokens: int) -> int:
        """Bytes of one layer's rows as dense 16-bit values: the scratch of a prefix hit that dequantises them once."""
        return num_sequences * num_tokens * self.heads * sum(t.dim for t in self.tensors) * STORAGE_BITS["fp16"] // 8

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
        """The kernel's view of tensor `role`.

        Raises:
            UnsupportedError: a layout whose bytes a view cannot describe yet, so that no kernel misreads it.
        """
        tensor = self.tensor(role)
        split = len(code_fields(tensor.number)) > 1 and tensor.number != "int3"
        missing = tensor.beyond_kernels or ("codes in several parts" if split else "")
        if missing:
            raise UnsupportedError(
                f"format {tensor.spelling} has no kernel yet ({missing}): it can be planned, not run",
                "use a 16-bit, int8, int4, int3, int2, fp8 or fp4 format",
            )
        names = {f.name: p for p in self.planes for f in p.fields if f.tensor == role}
        scale = names.get("scale")
        row = scale is not None and scale.scope == "page"
        static = scale if scale is not None and not row else None
        # With pack=page the scales are a block of their own behind the codes: they start at its first item.
        packed = self.plane(role, "codes") if tensor.pack else None
        stored = next((f for f in scale.fields if (f.tensor, f.name) == (role, "scale")), None) if scale else None
        return TensorView(
            number=tensor.number,
            bits=number_bits(tensor.number),
            dim=tensor.dim,
            granularity=tensor.granularity,
            group=tensor.group,
            asym=tensor.asym,
            meta_storage=stored.storage if stored is not None else "",
            meta_stride=(stored.items if packed and stored else scale.items) if scale is not None and row else 0,
            scale_at=scale.offset(role, "scale") if scale is not None and row and not packed else 0,
            zero_at=scale.offset(role, "zero") if scale is not None and row and tensor.asym else -1,
            static_items=sum(f.items for f in static.fields if f.name == "scale") if static is not None else 0,
            static_per_head=static.per_head if static is not None else False,
            recent=tensor.recent,
            flush=tensor.flush,
            recent_storage=names["recent"].storage if tensor.recent else "",
            part_bytes=packed.slot_bytes if packed else 0,
            has_global="global" in names,
            rot=tensor.rot,
        )
