"""The launcher of the fused dequantise + decode attention (kernel.py, then combine.py)."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from kvplan.formats.layout import Layout
from kvplan_kernels.attention.combine import combine
from kvplan_kernels.attention.config import DecodeConfig, count_sms, default_config, padded_words, part_tokens
from kvplan_kernels.attention.door import check_fp8_domain, check_memory, check_query, check_supported, check_variant
from kvplan_kernels.attention.kernel import decode_kernel
from kvplan_kernels.attention.mode import Mode, block_columns, window_reach
from kvplan_kernels.attention.reference import LOG2_E
from kvplan_kernels.attention.variant import PLAIN, Variant
from kvplan_kernels.attention.work import RECENT_TOKENS, SCAN, tile_starts
from kvplan_kernels.attention.workspace import Workspace
from kvplan_kernels.cache import Cache
from kvplan_kernels.codecs.grid_tiles import unit_log2
from kvplan_kernels.codecs.rotation import rotate
from kvplan_kernels.dialect import LEAST_COLUMNS, capability_of, dependent_launch, has_dependent_launch


def decode_constants(
    layout: Layout, page_size: int, mode: Mode, config: DecodeConfig, capability: int
) -> dict[str, Any]:
    """Constexprs of `decode_kernel`; `capability` is 10 * major + minor (the interpreter uses 90)."""
    k, v = layout.view("k"), layout.view("v")
    keys, values = layout.tensor("k"), layout.tensor("v")
    native = capability >= 89
    return {
        "K": k,
        "V": v,
        "MODE": mode,
        "HKV": layout.heads,
        "HEADS": max(LEAST_COLUMNS, triton.next_power_of_2(mode.columns)),
        "PAGE": page_size,
        "BN": config.block_tokens,
        "PART": part_tokens(layout, config.block_tokens),
        "KW": padded_words(k.stripe_words),
        "VW": padded_words(v.stripe_words),
        "K_UNIT": unit_log2(k, native),
        "V_UNIT": unit_log2(v, native),
        "ONE_META": k.meta_stride > 0
        and v.meta_stride > 0
        and layout.plane("k", "scale") is layout.plane("v", "scale"),
        # Whether keys may be packed where values wait, and the other way round.
        "EARLY_KEYS": not values.waits_at_most_like(keys),
        "LATE_KEYS": not keys.waits_at_most_like(values),
        "MIXED_KEYS": k.recent > 0 and not (k.by_channel and k.group % RECENT_TOKENS.value == 0),
        "NATIVE_FP8": native,
        "STAGES": config.num_stages,
        "SCAN": SCAN,
        "PDL": has_dependent_launch(capability),
    }


def decode(
    q: Tensor,
    cache: Cache,
    *,
    sm_scale: float | None = None,
    variant: Variant = PLAIN,
    own: tuple[Tensor, Tensor] | None = None,
    fp8_domain: bool = False,
    out: Tensor | None = None,
    work: Tensor | None = None,
    workspace: Workspace | None = None,
    config: DecodeConfig | None = None,
) -> Tensor:
    """Attention of the newest query rows of each request, usually one, over its cached rows.

    Args:
        q: fp16 or bf16 `(B, HQ, Dk)`, or `(B, R, HQ, Dk)` for R rows; query head i reads KV head i // (HQ // HKV). Row
            r of request b stands at position lengths[b] - R + r and sees the rows up to it.
        cache: K and V of one layer; `cache.lengths[b]` rows of request b are read.
        sm_scale: factor on the logits, default Dk ** -0.5.
        variant: window, softcap and sinks.
        own: fp32 (out `(B, R, HQ, Dv)`, lse `(B, R, HQ)` in base 2) of the rows over keys that are not in the cache:
            the rows then stand at lengths[b] + r, and the two results are merged. Sinks are counted here, not in `own`.
        fp8_domain: also round queries and probabilities to e4m3 (K and V `fp8_e4m3` by tensor or head).
        out: q's shape with Dv, fp16, bf16 or fp32; allocated in q's dtype if not given.
        work: `tile_starts(cache.lengths, config.block_tokens, layout.view("v"), reach=window_reach(...))`, once per
            step for all layers; made here if not given.
        workspace: from `make_workspace`; allocated here if not given.
        config: shape of the launch, by default the table's entry on every GPU; `tuned_config` finds another.

    Returns:
        `out`; zeros for rows that see nothing. Nothing waits for the device, so the call can be captured in a graph.

    Raises:
        UnsupportedError: a format without a kernel.
        ValueError: a shape, dtype or stride that the layout does not declare.
    """
    layout, requests = cache.layout, cache.num_sequences
    check_supported(layout)
    mode = launch_mode(q, cache, variant, own=own is not None, fp8_domain=fp8_domain)
    check_variant(q, variant, own, layout.view("v").dim)
    config = config or launch_config(q, cache, mode)
    k, v = layout.view("k"), layout.view("v")
    if out is None:
        out = torch.empty((*q.shape[:-1], v.dim), dtype=q.dtype, device=q.device)
    if workspace is None:
        workspace = make_workspace(q, cache, config)
    check_memory(cache, config, mode, q, out, work, workspace)
    programs = config.num_programs(q.device)
    reach = window_reach(mode.rows, variant.window, mode.own)
    if work is None:
        work = tile_starts(cache.lengths, config.block_tokens, v, workspace.tile_starts, reach)
    constants = decode_constants(layout, cache.page_size, mode, config, capability_of(q.device))
    scale = (k.dim**-0.5 if sm_scale is None else sm_scale) * LOG2_E
    decode_kernel[(programs,)](
        rotate(q, workspace.query.view(q.shape)) if k.rot else q,
        cache.words("k"),
        cache.words("v"),
        _or(cache.high("k"), q),
        _or(cache.high("v"), q),
        _words(cache.meta_start("k"), q),
        _words(cache.meta_start("v"), q),
        _or(cache.layer_scale("k"), q),
        _or(cache.layer_scale("v"), q),
        _or(cache.static("k", "zero"), q),
        _or(cache.static("v", "zero"), q),
        _or(cache.residual("k"), q),
        _or(cache.residual("v"), q),
        workspace.part_out,
        workspace.part_lse,
        cache.page_table,
        cache.lengths,
        work,
        scale,
        requests,
        cache.page_table.shape[1],
        reach or 0,
        variant.softcap or 0.0,
        **constants,
        **config.options,
        **dependent_launch(constants["PDL"]),
    )
    combine(
        workspace.part_out, workspace.part_lse, out, work, programs, layout.heads, mode,
        pdl=constants["PDL"], rotated=v.rot, own=own, sinks=variant.sinks,
    )  # fmt: skip
    return out


def launch_mode(
    q: Tensor, cache: Cache, variant: Variant = PLAIN, *, own: bool = False, fp8_domain: bool = False
) -> Mode:
    """The constants of a launch with these shapes.

    Raises:
        UnsupportedError: `fp8_domain` with a format that has other scales or numbers.
        ValueError: a query or cache that the layout does not declare.
    """
    rows, group = check_query(q, cache)
    if fp8_domain:
        check_fp8_domain(cache.layout)
    return Mode(
        rows, group, block_columns(rows, group, max(cache.layout.tensor(role).dim for role in "kv")),
        own=own, windowed=variant.window is not None, softcap=variant.softcap is not None,
        sinks=variant.sinks is not None, fp8=fp8_domain,
    )  # fmt: skip


def launch_config(q: Tensor, cache: Cache, mode: Mode | None = None) -> DecodeConfig:
    """The launch that `decode` takes for these shapes if it is given none."""
    mode = mode or launch_mode(q, cache)
    return default_config(cache.layout, cache.page_size, mode.columns, count_heads(cache, mode), count_sms(q.device))


def count_heads(cache: Cache, mode: Mode) -> int:
    """KV heads of all requests, times blocks of columns."""
    return cache.num_sequences * cache.layout.heads * mode.blocks


def make_workspace(q: Tensor, cache: Cache, config: DecodeConfig | None = None) -> Workspace:
    """Scratch memory for `decode` with these shapes, to be kept and reused."""
    layout, mode = cache.layout, launch_mode(q, cache)
    config = config or launch_config(q, cache, mode)
    turned = layout.view("k").dim if layout.view("k").rot else 0
    return Workspace.allocate(
        config.num_programs(q.device), q.shape[0], layout.heads, mode, layout.view("v").dim, q.device, turned
    )


def _words(meta: Tensor | None, q: Tensor) -> Tensor:
    """Metadata as the int32 words that the kernel reads; any tensor where the format has none."""
    return q if meta is None else meta.view(torch.int32)


def _or(tensor: Tensor | None, q: Tensor) -> Tensor:
    return q if tensor is None else tensor
