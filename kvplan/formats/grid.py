"""Every number x granularity: binds a format to a geometry, giving the planes of a layer.

A value is `scale * code + zero`, zero stored like the scale. A spelling without a layout yet is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvplan.errors import UnsupportedError, UsageError
from kvplan.formats.grammar import PLAIN, Format, Named
from kvplan.formats.layout import BoundTensor, Field, Layout, Plane

_BUILT = ("int8", "int2", "fp8_e4m3", "fp8_e5m2")
_SCALES = ("fp16", "bf16", "fp32", "model")


@dataclass(frozen=True)
class Tensor:
    """One tensor to be stored: its role (k, v, latent, index), format and channels per head."""

    role: str
    format: Format | Named
    dim: int


def bind(tensors: Iterable[Tensor], heads: int, model_dtype: str) -> Layout:
    """Make the layout of one layer group on one rank.

    Args:
        tensors: k and v, or one latent, or one index.
        heads: KV heads on this rank, after sharding; 1 for latents and index keys.
        model_dtype: the 16- or 32-bit dtype of unquantised rows: fp16, bf16 or fp32.

    Raises:
        UnsupportedError: a spelling without a layout yet.
        UsageError: a group that does not divide the head dimension.
    """
    fields: list[Field] = []
    static: list[tuple[Field, bool]] = []
    residual: list[Plane] = []
    bound: list[BoundTensor] = []
    for t in tensors:
        f = _built(t)
        scale = model_dtype if f.scale == "model" else f.scale
        fields.append(Field(t.role, "codes", f.number, t.dim))
        fields += _row_metadata(t.role, f, t.dim, scale)
        static += _static_metadata(t.role, f, t.dim, scale)
        if f.recent:
            rows = Field(t.role, "recent", model_dtype, t.dim)
            residual.append(Plane(f"{t.role}_recent", (rows,), "residual", capacity=f.recent))
        bound.append(
            BoundTensor(t.role, f.spelling, t.dim, f.number, f.granularity, f.group, f.asym, scale, f.recent, f.flush)
        )
    planes = [Plane(f"{x.tensor}_codes", (x,), "page") for x in fields if x.role == "payload"]
    planes += _side_by_side([x for x in fields if x.role == "metadata"])
    planes += residual
    planes += [Plane(f"{x.tensor}_static_{x.name}", (x,), "layer", per_head=per_head) for x, per_head in static]
    return Layout(heads, tuple(bound), tuple(planes))


def _built(t: Tensor) -> Format:
    """The format, if its layout exists; otherwise refused by name."""
    f = t.format
    if isinstance(f, Named):
        raise UnsupportedError(f"format {f.spelling} has no layout yet", "use a 16-bit, int8 or fp8 format")
    if f.number in PLAIN:
        return f
    odd = f.number not in _BUILT or f.row or f.global_scale or f.pack or f.rot or f.rope or f.scale not in _SCALES
    odd = odd or (f.number == "int2" and f.granularity != "token")
    odd = odd or (f.number.startswith("fp8") and f.granularity not in ("tensor", "head", "token"))
    if odd:
        raise UnsupportedError(
            f"format {f.spelling} has no layout yet",
            "built: int8 at every granularity, int2:token, fp8_e4m3 and fp8_e5m2 by tensor, head and token",
        )
    if f.granularity == "group" and t.dim % f.group:
        fits = [n for n in (16, 32, 64, 128) if t.dim % n == 0] or [t.dim]
        raise UsageError(
            f"format {f.spelling}: groups of {f.group} channels do not divide head_dim {t.dim}",
            "group sizes that do: " + ", ".join(map(str, fits)),
        )
    return f


def _row_metadata(role: str, f: Format, dim: int, scale: str) -> list[Field]:
    """Scales (and zeros) stored with the rows."""
    if not f.granularity or f.is_static:
        return []
    items, tokens = 1, 1
    if f.by_channel:
        items, tokens = dim, f.group
    elif f.group:
        items = dim // f.group
    names = ("scale", "zero") if f.asym else ("scale",)
    return [Field(role, name, scale, items, tokens, "metadata") for name in names]


def _static_metadata(role: str, f: Format, dim: int, scale: str) -> list[tuple[Field, bool]]:
    """Static scales, one set per layer, with whether they are per head."""
    if not f.is_static:
        return []
    items = dim if f.granularity == "channel" else 1
    names = ("scale", "zero") if f.asym else ("scale",)
    return [(Field(role, name, scale, items, role="metadata"), f.granularity != "tensor") for name in names]


def _side_by_side(metadata: list[Field]) -> list[Plane]:
    """One plane for all metadata of equal token count and storage: K's and V's scales share a word per token."""
    planes: dict[tuple[int, str], list[Field]] = {}
    for field in metadata:
        planes.setdefault((field.tokens, field.storage), []).append(field)
    named = []
    for (tokens, storage), fields in planes.items():
        suffix = "" if tokens == 1 else f"_per_{tokens}"
        named.append(Plane(f"meta_{storage}{suffix}", tuple(fields), "page"))
    return named


def _bytes_per_token(k: str, v: str, dim: int) -> int:
    """Bytes of one token of one head, for the assertions below."""
    from kvplan.formats.grammar import parse_any

    layout = bind([Tensor("k", parse_any(k), dim), Tensor("v", parse_any(v), dim)], 1, "fp16")
    return layout.page_bytes(128) // 128


# Sizes asserted where they are declared: bytes of K + V of one (token, head) at head_dim 128.
for _spelling, _size in {
    "fp16": 512, "fp32": 1024, "int8": 260, "int8:token,asym": 264, "int8:tensor": 256, "int8:channel": 256,
    "int8:head,asym": 256, "int8:group/32": 272, "int8:group/32,asym": 288, "int8:channel/128": 260, "int2": 68,
    "fp8_e4m3": 256, "fp8_e5m2:head": 256, "fp8_e4m3:token": 260,
}.items():  # fmt: skip
    assert _bytes_per_token(_spelling, _spelling, 128) == _size, _spelling
