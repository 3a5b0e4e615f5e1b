"""The launcher of the fused dequantise + decode attention (kernel.py, then combine.py)."""

from __future__ import annotations

import torch
import triton

from kvplan.formats.layout import Layout
from kvplan_kernels.attention.combine import combine
from kvplan_kernels.attention.config import DecodeConfig, default_config, padded_words, part_tokens
from kvplan_kernels.attention.door import check_memory, check_query, check_supported
from kvplan_kernels.attention.kernel import decode_kernel
from kvplan_kernels.attention.work import SCAN, tile_starts
from kvplan_kernels.attention.workspace import Workspace
from kvplan_kernels.cache import Cache
from kvplan_kernels.codecs.grid_tiles import unit_log2
from kvplan_kernels.codecs.rotation import rotate
from kvplan_kernels.dialect import LEAST_COLUMNS, has_dependent_launch

LOG2_E = 1.4426950408889634


def decode_constants(layout: Layout, page_size: int, group: int, config: DecodeConfig, capability: int) -> dict:
    """Constexprs of `decode_kernel`; `capability` is 10 * major + minor (the interpreter uses 90)."""
    k, v = layout.view("k"), layout.view("v")
    keys, values = layout.tensor("k"), layout.tensor("v")
    native = capability >= 89
    return {
        "K": k,
        "V": v,
        "HKV": layout.heads,
        "G": group,
        "HEADS": max(LEAST_COLUMNS, triton.next_power_of_2(group)),
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
        "NATIVE_FP8": native,
        "STAGES": config.num_stages,
        "SCAN": SCAN,
        "PDL": has_dependent_launch(capability),
    }


def decode(
    q: torch.Tensor,
    cache: Cache,
    *,
    sm_scale: float | None = None,
    out: torch.Tensor | None = None,
    work: torch.Tensor | None = None,
    workspace: Workspace | None = None,
    config: DecodeConfig | None = None,
) -> torch.Tensor:
    """Attention of one query token per request over its cached rows.

    Args:
        q: fp16 or bf16 `(B, HQ, Dk)`; query head i reads KV head i // (HQ // HKV).
        cache: K and V of one layer; `cache.lengths[b]` rows of request b are read, 0 gives zeros.
        sm_scale: factor on the logits, default Dk ** -0.5.
        out: `(B, HQ, Dv)`, fp16, bf16 or fp32; allocated in q's dtype if not given.
        work: `tile_starts(cache.lengths, config.block_tokens, layout.view("v"))`, once per step for all layers; made
            here if not given.
        workspace: from `make_workspace`; allocated here if not given.

    Returns:
        `out`. Nothing waits for the device, so the call can be captured in a CUDA graph.

    Raises:
        UnsupportedError: a format without a kernel.
        ValueError: a shape, dtype or stride that the layout does not declare.
    """
    layout, requests = cache.layout, cache.num_sequences
    check_supported(layout)
    group = check_query(q, cache)
    config = config or default_config(layout, cache.page_size, group)
    k, v = layout.view("k"), layout.view("v")
    if out is None:
        out = torch.empty((requests, q.shape[1], v.dim), dtype=q.dtype, device=q.device)
    if workspace is None:
        workspace = make_workspace(q, cache, config)
    check_memory(cache, config, out, (requests, q.shape[1], v.dim), work, workspace)
    programs = config.num_programs(q.device)
    if work is None:
        work = tile_starts(cache.lengths, config.block_tokens, v, workspace.tile_starts)
    constants = decode_constants(layout, cache.page_size, group, config, capability_of(q.device))
    scale = (k.dim**-0.5 if sm_scale is None else sm_scale) * LOG2_E
    decode_kernel[(programs,)](
        rotate(q, workspace.query) if k.rot else q,
        cache.words("k"),
        cache.words("v"),
        _or(cache.high("k"), q),
        _or(cache.high("v"), q),
        _words(cache.meta_start("k"), q),
        _words(cache.meta_start("v"), q),
        _or(cache.layer_scale("k"), q),
        _or(cache.layer_scale("v"), q),
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
        **constants,
        **config.options,
    )
    pdl = constants["PDL"]
    combine(workspace.part_out, workspace.part_lse, out, work, programs, layout.heads, pdl=pdl, rotated=v.rot)
    return out


def make_workspace(q: torch.Tensor, cache: Cache, config: DecodeConfig | None = None) -> Workspace:
    """Scratch memory for `decode` with these shapes, to be kept and reused."""
    layout = cache.layout
    group, dim_v = q.shape[1] // layout.heads, layout.view("v").dim
    config = config or default_config(layout, cache.page_size, group)
    turned = layout.view("k").dim if layout.view("k").rot else 0
    return Workspace.allocate(config.num_programs(q.device), q.shape[0], layout.heads, group, dim_v, q.device, turned)


def capability_of(device: torch.device) -> int:
    """10 * major + minor of a GPU; the interpreter uses 90."""
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_devicecapability_of(device)
    return 10 * major + minor


def _words(meta: torch.Tensor | None, q: torch.Tensor) -> torch.Tensor:
    """Metadata as the int32 words that the kernel reads; any tensor where the format has none."""
    return q if meta is None else meta.view(torch.int32)


def _or(tensor: torch.Tensor | None, q: torch.Tensor) -> torch.Tensor:
    return q if tensor is None else tensor
