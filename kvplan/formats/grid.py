"""Every number x granularity: binds formats to a geometry, giving the planes of a layer group.

A value is `scale * code + zero`, zero stored like the scale. Names (named.py, ds_mla.py) are recipes of the same
formats; turboquant.py and octave.py bind K and V at once.

`rot` and the codebooks of `lm4 lm3 lm2` take no bytes: the rotation is a Hadamard matrix with fixed random signs over
head_dim, the codebook is the Lloyd-Max one of N(0, 1). Both are the same for every layer and model, so they belong to
the codec and not to the cache; what is stored per token (or group) is the norm, as the scale.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

from kvplan.errors import UsageError
from kvplan.formats.grammar import Format, Named, parse_any
from kvplan.formats.layout import BoundTensor, Field, Layout, Plane, check_fill, code_fields

_GROUP_SIZES = (8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Tensor:
    """One tensor to be stored: its role (k, v, latent, index), format and channels per head.

    `rope_dim` of the channels, the last ones, are the rope part of a latent; 0 elsewhere.
    """

    role: str
    format: Format | Named
    dim: int
    rope_dim: int = 0


@dataclass(frozen=True)
class Recipe:
    """What a name stands for: a format, and what the grammar cannot say.

    Attributes:
        pad_bytes: unused bytes after the scales of each row.
        page_align: bytes; pages are rounded up to a multiple.
        widths: (nope, rope) of the only latent it is defined for.
    """

    format: Format
    pad_bytes: int = 0
    page_align: int = 1
    widths: tuple[int, int] | None = None


@dataclass(frozen=True)
class _Parts:
    """What one tensor brings into a layout."""

    bound: BoundTensor
    fields: tuple[Field, ...]
    static: tuple[tuple[Field, bool], ...]
    residual: tuple[Plane, ...]
    page_align: int


def bind(tensors: Iterable[Tensor], heads: int, model_dtype: str) -> Layout:
    """Make the layout of one layer group on one rank.

    Args:
        tensors: k and v, or one latent, or one index.
        heads: KV heads on this rank, after sharding; 1 for latents and index keys.
        model_dtype: the 16- or 32-bit dtype of unquantised rows: fp16, bf16 or fp32.

    Raises:
        UsageError: a format that does not fit the geometry or the tensor.
    """
    return _bind(tuple(tensors), heads, model_dtype)


@lru_cache(maxsize=4096)
def _bind(stored: tuple[Tensor, ...], heads: int, model_dtype: str) -> Layout:
    """Layouts are frozen, and a search asks for each of them in every layout of GPUs."""
    names = [t.format.name for t in stored if isinstance(t.format, Named)]
    if any(name.startswith("turboquant") for name in names):
        from kvplan.formats.turboquant import bind_joint

        return bind_joint(stored, heads)
    if any(name.startswith("octave") for name in names):
        from kvplan.formats.octave import bind_octave

        return bind_octave(stored, heads)
    parts = [_parts(t, heads, model_dtype) for t in stored]
    loose = [p for p in parts if not p.bound.pack]
    planes = [
        Plane(f"{x.tensor}_{x.name}", (x,), "page", per_head=not p.bound.row)
        for p in loose
        for x in p.fields
        if x.role == "payload"
    ]
    planes += _side_by_side([(x, not p.bound.row) for p in loose for x in p.fields if x.role == "metadata"])
    planes += [_packed(p) for p in parts if p.bound.pack]
    planes += [plane for p in parts for plane in p.residual]
    planes += [
        Plane(f"{x.tensor}_static_{x.name}", (x,), "layer", per_head=each) for p in parts for x, each in p.static
    ]
    return Layout(heads, tuple(p.bound for p in parts), tuple(planes))


def _parts(t: Tensor, heads: int, model_dtype: str) -> _Parts:
    recipe = _recipe(t)
    f, spelling = recipe.format, t.format.spelling
    scale = {"model": model_dtype, "e4m3": "fp8_e4m3"}.get(f.scale, f.scale)
    coded = t.dim - t.rope_dim if f.rope else t.dim
    channels = coded * heads if f.row or f.flat else coded
    _check(t, recipe, heads, channels)
    fields = [Field(t.role, name, storage, channels) for name, storage in code_fields(f.number)]
    if f.rope:
        fields.append(Field(t.role, "rope", f.rope, t.rope_dim))
    # Scales come before the rope part in a slot, behind all rows in a page: as the serving kernels have them.
    at = len(fields) if f.pack == "page" else len(code_fields(f.number))
    fields[at:at] = _row_metadata(t.role, f, channels, scale)
    if recipe.pad_bytes:
        fields.append(Field(t.role, "pad", "int8", recipe.pad_bytes, role="padding"))
    recent = Field(t.role, "recent", model_dtype, t.dim)
    residual = (Plane(f"{t.role}_recent", (recent,), "residual", capacity=f.recent),) if f.recent else ()
    bound = BoundTensor(
        t.role, spelling, t.dim, f.number, f.granularity, f.group, f.asym, scale, f.recent, f.flush, f.pack,
        f.row or f.flat, f.rot, f.rope, f.global_scale, f.flat, t.rope_dim,
    )  # fmt: skip
    return _Parts(bound, tuple(fields), _static_metadata(t.role, f, coded, scale), residual, recipe.page_align)


def _recipe(t: Tensor) -> Recipe:
    if isinstance(t.format, Format):
        return Recipe(t.format)
    from kvplan.formats.named import recipe_of

    return recipe_of(t.format.name)


def _check(t: Tensor, recipe: Recipe, heads: int, channels: int) -> None:
    """The refusals that need the geometry.

    Args:
        channels: of one stored row: one head's, or with `row` the rank's.
    """
    f, what = recipe.format, f"format {t.format.spelling}"
    if recipe.widths or f.rope:
        _check_latent(t, recipe, what)
    over = f"the rank's row of {heads} x {t.dim} channels" if f.row or f.flat else f"head_dim {channels}"
    if f.granularity == "group" and not f.flat and channels % f.group:
        fits = [n for n in _GROUP_SIZES if channels % n == 0] or [n for n in range(2, channels + 1) if not channels % n]
        raise UsageError(
            f"{what}: groups of {f.group} channels do not divide {over}",
            "group sizes that do: " + ", ".join(map(str, fits)),
        )
    check_fill(what, f.number, channels, over)


def _check_latent(t: Tensor, recipe: Recipe, what: str) -> None:
    """Formats with a rope part of their own fit latents only, records those of one width only."""
    if t.role != "latent":
        raise UsageError(f"{what} is for a latent and its rope part, not for {t.role}", "give it with --latent")
    if not t.rope_dim:
        raise UsageError(f"{what}: this latent of {t.dim} channels has no rope part", "drop rope=, or use fp8_e4m3")
    given = (t.dim - t.rope_dim, t.rope_dim)
    if recipe.widths and given != recipe.widths:
        want = "{} + {}".format(*recipe.widths)
        raise UsageError(
            f"{what} is a row of {want} channels; this latent has {given[0]} + {given[1]}",
            "write fp8_e4m3:group/N,rope=bf16 with an N that divides its nope part",
        )


def _row_metadata(role: str, f: Format, channels: int, scale: str) -> list[Field]:
    """Scales (and zeros) stored with the rows."""
    if not f.granularity or f.is_static:
        return []
    items, tokens = 1, 1
    if f.by_channel:
        items, tokens = channels, f.group
    elif f.flat:
        # The fewest tokens whose values fill whole groups.
        tokens = f.group // gcd(f.group, channels)
        items = tokens * channels // f.group
    elif f.group:
        items = channels // f.group
    names = ("scale", "zero") if f.asym else ("scale",)
    return [Field(role, name, scale, items, tokens, "metadata") for name in names]


def _static_metadata(role: str, f: Format, channels: int, scale: str) -> tuple[tuple[Field, bool], ...]:
    """Scales of the layer scope with whether they are per head: static ones, and the one above all row scales."""
    found: list[tuple[Field, bool]] = []
    if f.is_static:
        items = channels if f.granularity == "channel" else 1
        names = ("scale", "zero") if f.asym else ("scale",)
        found += [(Field(role, name, scale, items, role="metadata"), f.granularity != "tensor") for name in names]
    if f.global_scale:
        found.append((Field(role, "global", f.global_scale, 1, role="metadata"), False))
    return tuple(found)


def _side_by_side(metadata: list[tuple[Field, bool]]) -> list[Plane]:
    """One plane for all metadata of equal token count and storage: K's and V's scales share a word per token."""
    planes: dict[tuple[int, str, bool], list[Field]] = {}
    for field, per_head in metadata:
        planes.setdefault((field.tokens, field.storage, per_head), []).append(field)
    named = []
    for (tokens, storage, per_head), fields in planes.items():
        suffix = ("" if tokens == 1 else f"_per_{tokens}") + ("" if per_head else "_row")
        named.append(Plane(f"meta_{storage}{suffix}", tuple(fields), "page", per_head))
    return named


def _packed(p: _Parts) -> Plane:
    """Codes, scales and rope part of one tensor as bytes of one plane."""
    name = f"{p.bound.role}_{p.bound.pack}s"
    return Plane(name, p.fields, "page", not p.bound.row, pack=p.bound.pack, page_align=p.page_align)


def row_bytes(k: str, v: str | None = None, dim: int = 128, tokens: int = 1) -> int:
    """Bytes of K and V of `tokens` tokens of one head, for assertions: beside every layout stands its size."""
    layout = bind([Tensor("k", parse_any(k), dim), Tensor("v", parse_any(v or k), dim)], 1, "fp16")
    return layout.page_bytes(128) * tokens // 128


# Sizes asserted where they are declared: bytes of K + V of one (token, head) at head_dim 128.
for _spelling, _size in {
    "fp16": 512, "fp32": 1024, "int8": 260, "int8:token,asym": 264, "int8:tensor": 256, "int8:head,asym": 256,
    "int8:group/32,asym": 288, "int8:channel/128": 260, "fp8_e4m3:token": 260, "int7": 228, "int6": 196, "int5": 164,
    "int4": 132, "int3": 100, "int2": 68, "int2:channel/32,asym": 96, "fp4_e2m1": 160, "lm3,rot": 100,
    "int1:group/64,asym": 48, "int4:group/64,asym,flat": 144,
}.items():  # fmt: skip
    assert row_bytes(_spelling) == _size, _spelling
