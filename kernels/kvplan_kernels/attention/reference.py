"""Reference attention in float64 and the error of a format, one request and KV head at a time.

K and V are given as a tensor `(B, HKV, T, D)` or as a function of the request that returns `(HKV, T, D)`, so that a
dequantised cache need never exist whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvplan_kernels.attention.variant import PLAIN, Variant

LOG2_E = 1.4426950408889634

Rows = Tensor | Callable[[int], Tensor]


@dataclass(frozen=True)
class Spread:
    """One error over all rows, a row being one query head of one request.

    `worst_head` is the largest mean over requests of any query head, `head` is that head.
    """

    mean: float
    p99: float
    worst_head: float
    head: int


@dataclass(frozen=True)
class VersionError:
    """What replacing K, V or both by their stored version does to decode attention.

    Attributes:
        logit: standard deviation over keys of the logit error (a shift common to all keys is harmless), natural units.
        total_variation: of the softmax, half the sum of |p - p_hat|, 0 to 1.
        output: ||o_hat - o|| / ||o|| row by row.
        relative: ||o_hat - o|| / ||o|| over all rows together.
        max_ratio: max |o_hat - o| / max |o|.
    """

    logit: Spread
    total_variation: Spread
    output: Spread
    relative: float
    max_ratio: float


@dataclass(frozen=True)
class FormatError:
    """Error of a format against the originals: K only, V only, both."""

    k: VersionError
    v: VersionError
    both: VersionError


def rows_of(source: Rows, request: int) -> Tensor:
    """K or V of one request, `(HKV, T, D)`."""
    return source[request] if isinstance(source, Tensor) else source(request)


def softmax_logits(q: Tensor, k: Tensor, sm_scale: float) -> tuple[Tensor, Tensor]:
    """Logits and softmax of one head group in float64: q `(g, D)`, k `(T, D)` -> two `(g, T)`."""
    logits = q.double() @ k.double().T * sm_scale
    return logits, torch.softmax(logits, -1)


def attention_reference(
    q: Tensor, k: Rows, v: Rows, lengths: Tensor, sm_scale: float, variant: Variant = PLAIN, *, fp8_domain: bool = False
) -> Tensor:
    """Attention of the last R rows of each request over its first `lengths[b]` rows of K and V.

    Args:
        q: `(B, R, HQ, Dk)`, or `(B, HQ, Dk)` for R = 1; query head i reads KV head i // (HQ // HKV). Row r stands at
            position lengths[b] - R + r and sees the rows up to it.
        k, v: `(B, HKV, T, Dk)` and `(B, HKV, T, Dv)`, or functions of the request.
        lengths: integers `(B,)`.
        fp8_domain: queries and probabilities are rounded to e4m3 where the kernels do it: see `round_queries` and
            `masked_softmax`.

    Returns:
        float64, q's shape with Dv; zeros where a row sees nothing.
    """
    rows = q if q.dim() == 4 else q[:, None]
    outputs = []
    for b, length in enumerate(lengths.tolist()):
        kb, vb = rows_of(k, b), rows_of(v, b)
        out = q.new_zeros((*rows.shape[1:3], vb.shape[-1]), dtype=torch.float64)
        visible = visible_rows(rows.shape[1], length, variant.window, q.device)
        b_rows = round_queries(rows[b], kb.shape[0]) if fp8_domain else rows[b]
        for head in range(rows.shape[2] if length else 0):
            h = head // _group(rows[:, 0], kb)
            p = masked_softmax(b_rows[:, head], kb[h, :length], visible, head, sm_scale, variant, fp8_domain)
            out[:, head] = p @ torch.where(visible.any(0)[:, None], vb[h, :length].double(), 0.0)
        outputs.append(out)
    return torch.stack(outputs).view(*q.shape[:-1], -1)


def round_queries(q: Tensor, kv_heads: int) -> Tensor:
    """Queries `(R, HQ, D)` of one request in e4m3, scaled by a power of two per KV head so that the largest uses the
    upper half of the range: float64."""
    rows = q.double().unflatten(1, (kv_heads, -1))
    scale = 2.0 ** (7 - torch.floor(torch.log2(rows.abs().amax((0, 2, 3), keepdim=True).clamp_min(1e-300))))
    return _e4m3(rows * scale).div(scale).flatten(1, 2)


def visible_rows(num_rows: int, length: int, window: int | None, device: torch.device) -> Tensor:
    """Which of `length` stored rows each of the last `num_rows` queries sees: bool `(num_rows, length)`."""
    position = torch.arange(length - num_rows, length, device=device)[:, None]
    stored = torch.arange(length, device=device)[None, :]
    visible = stored <= position
    return visible if window is None else visible & (stored > position - window)


def masked_softmax(
    q: Tensor, k: Tensor, visible: Tensor, head: int, sm_scale: float, variant: Variant, fp8_domain: bool = False
) -> Tensor:
    """Softmax in float64 of query head `head`: q `(R, D)`, k `(T, D)`, visible `(R, T)` -> `(R, T)`; rows that see
    nothing are zeros.

    With `fp8_domain` the exponentials are rounded to e4m3, their sum is not: of base 2, relative to the next whole
    number above the largest logit and times 256, so that no order of tiles changes the rounding.
    """
    logits = q.double() @ k.double().T * sm_scale
    if variant.softcap is not None:
        logits = variant.softcap * torch.tanh(logits / variant.softcap)
    logits = (logits * LOG2_E).masked_fill(~visible, -torch.inf)
    top = torch.ceil(logits.amax(1, keepdim=True)).nan_to_num(neginf=0.0, nan=torch.nan)
    grown = torch.exp2(logits - top)
    total = grown.sum(1, keepdim=True)
    if variant.sinks is not None:
        total = total + torch.exp2(variant.sinks[head].double() * LOG2_E - top)
    if fp8_domain:
        grown = _e4m3(grown * 256) / 256
    return torch.where(visible.any(1)[:, None], grown / total, 0.0)


def _e4m3(x: Tensor) -> Tensor:
    """The nearest e4m3 values, in float64."""
    return x.float().to(torch.float8_e4m3fn).double()


def format_error(
    q: Tensor, k: Rows, v: Rows, k_hat: Rows, v_hat: Rows, lengths: Tensor, sm_scale: float
) -> FormatError:
    """Compare decode attention on the originals with that on the stored versions, all in float64.

    Args:
        q, k, v, lengths, sm_scale: as in `attention_reference`, R = 1; requests of length 0 are left out.
        k_hat, v_hat: the dequantised K and V, shaped like k and v.

    Raises:
        ValueError: no request has a row.
    """
    stats: dict[str, list[Tensor]] = {"logit": [], "tv": [], "o": [], "o_k": [], "o_v": [], "o_both": []}
    for b, length in enumerate(lengths.tolist()):
        if not length:
            continue
        kb, vb, kb_hat, vb_hat = (rows_of(x, b) for x in (k, v, k_hat, v_hat))
        group = _group(q, kb)
        heads = []
        for h in range(kb.shape[0]):
            rows = q[b, h * group : (h + 1) * group]
            heads.append(_head_stats(rows, *(x[h, :length] for x in (kb, vb, kb_hat, vb_hat)), sm_scale))
        for name, parts in stats.items():
            parts.append(torch.cat([head[name] for head in heads]))
    if not stats["o"]:
        raise ValueError("format_error needs at least one request with rows")
    table = {name: torch.stack(parts) for name, parts in stats.items()}
    none = torch.zeros_like(table["logit"])
    return FormatError(
        k=_version(table["logit"], table["tv"], table["o"], table["o_k"]),
        v=_version(none, none, table["o"], table["o_v"]),
        both=_version(table["logit"], table["tv"], table["o"], table["o_both"]),
    )


def _head_stats(q: Tensor, k: Tensor, v: Tensor, k_hat: Tensor, v_hat: Tensor, sm_scale: float) -> dict[str, Tensor]:
    """Statistics of one head group: `logit` and `tv` (g,), outputs (g, Dv) of the four versions."""
    logits, p = softmax_logits(q, k, sm_scale)
    logits_hat, p_hat = softmax_logits(q, k_hat, sm_scale)
    v, v_hat = v.double(), v_hat.double()
    return {
        "logit": (logits_hat - logits).std(-1, correction=0),
        "tv": (p_hat - p).abs().sum(-1) / 2,
        "o": p @ v,
        "o_k": p_hat @ v,
        "o_v": p @ v_hat,
        "o_both": p_hat @ v_hat,
    }


def _version(logit: Tensor, tv: Tensor, o: Tensor, o_hat: Tensor) -> VersionError:
    """Summaries of `(requests, HQ)` statistics and `(requests, HQ, Dv)` outputs."""
    tiny = torch.finfo(torch.float64).tiny
    diff = o_hat - o
    return VersionError(
        logit=_spread(logit),
        total_variation=_spread(tv),
        output=_spread(diff.norm(dim=-1) / o.norm(dim=-1).clamp_min(tiny)),
        relative=float(diff.norm() / o.norm().clamp_min(tiny)),
        max_ratio=float(diff.abs().amax() / o.abs().amax().clamp_min(tiny)),
    )


def _spread(rows: Tensor) -> Spread:
    """Mean, 99th percentile and worst head of `(requests, HQ)` values."""
    heads = rows.mean(0)
    worst = int(heads.argmax())
    return Spread(float(rows.mean()), float(torch.quantile(rows.flatten(), 0.99)), float(heads[worst]), worst)


def _group(q: Tensor, k: Tensor) -> int:
    if q.shape[1] % k.shape[0]:
        raise ValueError(f"{q.shape[1]} query heads are no multiple of {k.shape[0]} KV heads")
    return q.shape[1] // k.shape[0]
