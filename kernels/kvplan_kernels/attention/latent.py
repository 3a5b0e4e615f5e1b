"""The launcher of the decode attention over an MLA latent (latent_kernel.py, then combine.py)."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from kvplan.errors import UnsupportedError
from kvplan.formats.ds_mla import LatentView, latent_view
from kvplan_kernels.attention.combine import combine
from kvplan_kernels.attention.door import check_rows, check_scratch
from kvplan_kernels.attention.latent_config import LatentConfig, latent_config
from kvplan_kernels.attention.latent_kernel import latent_decode_kernel
from kvplan_kernels.attention.mode import Mode
from kvplan_kernels.attention.reference import LOG2_E
from kvplan_kernels.attention.variant import PLAIN, Variant
from kvplan_kernels.attention.work import SCAN, tile_starts
from kvplan_kernels.attention.workspace import Workspace
from kvplan_kernels.cache import Cache
from kvplan_kernels.codecs.ds_mla import slot_views
from kvplan_kernels.dialect import LEAST_COLUMNS, capability_of, dependent_launch, has_dependent_launch


def latent_constants(
    view: LatentView, page_size: int, rows: int, heads: int, config: LatentConfig, capability: int
) -> dict[str, object]:
    """Constexprs of `latent_decode_kernel` for `rows` query rows of `heads` heads."""
    group = config.block(rows * heads)
    return {
        "L": view,
        "BLOCKS": rows * heads // group,
        "G": group,
        "HEADS": max(LEAST_COLUMNS, triton.next_power_of_2(group)),
        "HQ": heads,
        "R": rows,
        "PAGE": page_size,
        "BN": config.block_tokens,
        "NATIVE_FP8": capability >= 89,
        "STAGES": config.num_stages,
        "SCAN": SCAN,
        "PDL": has_dependent_launch(capability),
    }


def latent_decode(
    q: Tensor,
    cache: Cache,
    *,
    sm_scale: float,
    variant: Variant = PLAIN,
    out: Tensor | None = None,
    work: Tensor | None = None,
    workspace: Workspace | None = None,
    config: LatentConfig | None = None,
) -> Tensor:
    """MLA attention of the last rows of each request over its latent rows, in the latent's own space.

    Keys are the whole rows (nope and rope), values their nope part; the caller has absorbed the up-projections.

    Args:
        q: fp16 or bf16 `(B, HQ, D)`, or `(B, R, HQ, D)` for R rows, row r at position lengths[b] - R + r; D is nope +
            rope channels, 576 in DeepSeek.
        cache: the latent of one layer; `cache.lengths[b]` rows of request b are read, 0 gives zeros.
        sm_scale: factor on the logits; it belongs to the model's heads before absorption, not to D.
        variant: PLAIN; no MLA model needs another.
        out: q's shape with the nope channels, fp16, bf16 or fp32; allocated in q's dtype if not given.
        work: `tile_starts(cache.lengths, config.block_tokens, latent_view(cache.layout))`, once per step for all
            layers; made here if not given.
        workspace: from `make_latent_workspace`; allocated here if not given.

    Returns:
        `out`. Nothing waits for the device, so the call can be captured in a CUDA graph.

    Raises:
        UnsupportedError: a format or a variant without a kernel.
        ValueError: a shape, dtype or stride that does not fit the layout.
    """
    view = latent_view(cache.layout)
    rows, heads = _check_query(q, cache, view, variant)
    config = config or latent_config(view, cache.page_size, rows * heads, capability_of(q.device))
    mode = _mode(rows, heads, config)
    if out is None:
        out = torch.empty((*q.shape[:-1], view.nope), dtype=q.dtype, device=q.device)
    if workspace is None:
        workspace = make_latent_workspace(q, cache, config)
    # All query heads read the one latent.
    check_scratch(cache, config, mode, 1, out, (*q.shape[:-1], view.nope), work, workspace)
    programs = config.num_programs(q.device)
    if work is None:
        work = tile_starts(cache.lengths, config.block_tokens, view, workspace.tile_starts)
    constants = latent_constants(view, cache.page_size, rows, heads, config, capability_of(q.device))
    latent_decode_kernel[(programs,)](
        q,
        *slot_views(cache),
        workspace.part_out,
        workspace.part_lse,
        cache.page_table,
        cache.lengths,
        work,
        sm_scale * LOG2_E,
        cache.num_sequences,
        cache.page_table.shape[1],
        **constants,
        **config.options,
        **dependent_launch(bool(constants["PDL"])),
    )
    combine(workspace.part_out, workspace.part_lse, out, work, programs, 1, mode, pdl=bool(constants["PDL"]))
    return out


def _mode(rows: int, heads: int, config: LatentConfig) -> Mode:
    """All query heads read the one latent, in blocks of columns."""
    return Mode(rows, heads, config.block(rows * heads))


def make_latent_workspace(q: Tensor, cache: Cache, config: LatentConfig | None = None) -> Workspace:
    """Scratch memory for `latent_decode` with these shapes, to be kept and reused."""
    view = latent_view(cache.layout)
    rows, heads = (q.shape[1] if q.dim() == 4 else 1), q.shape[-2]
    config = config or latent_config(view, cache.page_size, rows * heads, capability_of(q.device))
    mode = _mode(rows, heads, config)
    return Workspace.allocate(config.num_programs(q.device), q.shape[0], 1, mode, view.nope, q.device)


def _check_query(q: Tensor, cache: Cache, view: LatentView, variant: Variant) -> tuple[int, int]:
    """The door for queries, pages, table and lengths; returns (rows, heads)."""
    named = {"window": variant.window, "softcap": variant.softcap, "sinks": variant.sinks}
    asked = [name for name, value in named.items() if value is not None]
    if asked:
        raise UnsupportedError(f"the latent kernel has no {', '.join(asked)}", "no MLA model needs them")
    cache.check()
    requests = cache.num_sequences
    if q.dim() not in (3, 4) or q.shape[0] != requests or q.shape[-1] != view.dim or not q[0].numel():
        raise ValueError(f"q is {tuple(q.shape)}, expected ({requests}, heads, {view.dim}) or ({requests}, R, ...)")
    check_rows(q, cache)
    return (q.shape[1] if q.dim() == 4 else 1), q.shape[-2]
