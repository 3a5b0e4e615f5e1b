"""Rows and queries of a case: one generator for each kind of data that has broken a quantiser."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kvplan.formats.layout import TensorView
from kvplan_kernels.attention.variant import Variant
from kvplan_kernels.codecs.limits import grid_of
from kvplan_kernels.matrix.cases import Case

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
FACTORS = {"unit": 1.0, "tiny": 1e-4, "large": 1e4, "sharp": 1.0}
SHARPNESS = 100.0
# The largest fp16 would round up to infinity on its way through bf16.
FP16_MAX = 60000.0


def make_rows(case: Case, device: str, seed: int) -> tuple[Tensor, Tensor]:
    """K and V `(B, T, HKV, D)` of the case's dtype; rows beyond a request's count are NaN, nothing may read them."""
    draw = torch.Generator().manual_seed(seed)
    batch, tokens = len(case.counts), max(1, *case.counts)
    made = []
    for role, dim in zip("kv", case.dims, strict=True):
        view = case.layout.view(role)
        x = torch.randn(batch, tokens, case.heads, dim, generator=draw)
        x = KINDS[case.data](x + 0.3 if role == "v" else x, view)
        if "fp16" in (view.number, view.recent_storage):
            x = x.clamp(-FP16_MAX, FP16_MAX)
        for b, count in enumerate(case.counts):
            x[b, count:] = torch.nan
        made.append(x.to(DTYPES[case.dtype]).to(device))
    if case.write == "fused":
        # Slices of one projection, as models produce them: rows lie further apart than their channels.
        joint = torch.cat(made, -1)
        made = [joint[..., : case.dims[0]], joint[..., case.dims[0] :]]
    return made[0], made[1]


def make_queries(case: Case, device: str, seed: int) -> Tensor:
    """`(B, HQ, Dk)` of the case's dtype, `(B, R, HQ, Dk)` with several rows."""
    draw = torch.Generator().manual_seed(seed + 1)
    q = torch.randn(len(case.counts), case.rows, case.heads * case.group, case.dims[0], generator=draw)
    q = q[:, 0] if case.rows == 1 else q
    return (q * FACTORS[case.queries]).to(DTYPES[case.dtype]).to(device)


def make_chunk(case: Case, device: str, seed: int) -> tuple[Tensor, Tensor]:
    """K and V `(B, R, HKV, D)` of the case's kind and dtype: a chunk's own rows, which are never stored."""
    draw = torch.Generator().manual_seed(seed + 3)
    made = []
    for role, dim in zip("kv", case.dims, strict=True):
        x = torch.randn(len(case.counts), case.rows, case.heads, dim, generator=draw)
        x = KINDS[case.data](x, case.layout.view(role))
        made.append((x.clamp(-FP16_MAX, FP16_MAX) if case.dtype == "fp16" else x).to(DTYPES[case.dtype]).to(device))
    return made[0], made[1]


def make_variant(case: Case, device: str, seed: int) -> Variant:
    sinks = torch.randn(case.heads * case.group, generator=torch.Generator().manual_seed(seed + 2)).to(device)
    return Variant(
        window=case.window,
        softcap=2.0 if case.variant in ("softcap", "all three") else None,
        sinks=sinks if case.variant in ("sinks", "all three") else None,
    )


def softmax_scale(case: Case, k: Tensor) -> float:
    """A scale that gives logits a spread of about 1 (`sharp`: 100), so that the softmax says something about K.

    With keys of 1e8 and the usual Dk ** -0.5, one rounding of a logit would decide the output alone. Keys whose spread
    is below the least range of their format count as spread by that range.
    """
    view = case.layout.view("k")
    least = grid_of(view).scale_min * grid_of(view).divisor if view.by_channel else 0.0
    rows = [k[b, :count].float().cpu() for b, count in enumerate(case.counts) if count]
    spread = max(float(x.std(0, correction=0).max()) for x in rows) or max(float(x.abs().max()) for x in rows)
    spread = max(spread, least)
    factor = SHARPNESS if case.queries == "sharp" else 1.0
    return factor * case.dims[0] ** -0.5 / FACTORS[case.queries] / (spread if spread > 0 else 1.0)


def _equal(x: Tensor, view: TensorView) -> Tensor:
    return torch.full_like(x, 1.7)


def _outlier(x: Tensor, view: TensorView) -> Tensor:
    x[:, x.shape[1] // 2, 0, 3] = 1e4
    return x


def _ties(x: Tensor, view: TensorView) -> Tensor:
    """Values halfway between two codes at a scale of 1, with the largest magnitude in every 16 channels and tokens."""
    pattern = x.new_tensor(tie_pattern(view))
    at = torch.arange(x.shape[1])[:, None, None] + torch.arange(x.shape[3])
    return pattern[at % 16].expand_as(x).clone()


def tie_pattern(view: TensorView) -> list[float]:
    """16 values: the ends of the code range, then halves between codes."""
    if view.number == "fp4_e2m1":
        ends, halves = [6.0, -6.0], [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    elif view.number.startswith("fp8"):
        # Halfway between two neighbours of e4m3 (spacing 2) and of e5m2 (spacing 4).
        ends, halves = ([448.0, -448.0], [17.0, 19.0]) if view.number == "fp8_e4m3" else ([57344.0, 0.0], [18.0, 22.0])
    else:
        top = 2.0 ** (view.bits if view.asym else view.bits - 1) - 1 if view.is_int else 7.0
        ends = [top, 0.0 if view.asym else -top]
        halves = [ends[1] + 0.5 + i for i in range(max(1, min(14, int(top - ends[1]))))]
    return (ends + halves * 14)[:16]


KINDS: dict[str, Callable[[Tensor, TensorView], Tensor]] = {
    "normal": lambda x, view: x,
    "equal": _equal,
    "zeros": lambda x, view: torch.zeros_like(x),
    "outlier": _outlier,
    # A range of 4e8 over 255 codes is beyond fp16.
    "overflow": lambda x, view: x * 1e8,
    "denormal": lambda x, view: x * 2e-8,
    "negative": lambda x, view: -x.abs() - 0.1,
    "offset": lambda x, view: x.abs() + 100,
    "ties": _ties,
}
