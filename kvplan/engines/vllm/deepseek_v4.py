"""DeepSeek-V4 in vLLM: compressed rows, index keys, windows and compressor states, side by side in blocks.

Source: vLLM 0.33.0, v1/attention/backends/mla/flashmla_sparse.py (rows); vllm-project/vllm#54703 (0.28.1: page groups,
block sizes and page bytes of a running engine).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.engines.shared.select import number_of
from kvplan.engines.vllm.blocks import MLA, SLIDING_MLA, LayerSpec, layer_spec
from kvplan.errors import UnsupportedError
from kvplan.formats.grammar import Format
from kvplan.formats.grid import Tensor, bind
from kvplan.memory.groups import DTYPES, CacheGroup
from kvplan.specs.groups import LatentGroup

if TYPE_CHECKING:
    from kvplan.engines.shared.types import Case
    from kvplan.specs.groups import LayerGroup

PAGE_ALIGNMENT = 576
"""Bytes that all pages are rounded up to: the decode kernel's stride."""
WINDOW_BLOCK = 64
RING_BLOCKS = {8: 4, 128: 8}
"""Rows of a compressor's state to tokens of its blocks."""
SINCE = (0, 26)
"""First covered version with these page groups."""


def check_version(version: str) -> None:
    """Refuse versions whose page groups of DeepSeek-V4 are not known.

    Raises:
        UnsupportedError: before 0.26.
    """
    if number_of(version) < SINCE:
        raise UnsupportedError(f"kvplan has no rule for DeepSeek-V4 in vLLM {version}", "use 0.26.0 or a newer version")


def v4_spec(group: CacheGroup, declared: LayerGroup, block: int, case: Case) -> LayerSpec:
    """The spec of a cache group: rows and index keys in blocks of 256 tokens, windows and states in small ones."""
    assert isinstance(declared, LatentGroup)
    layout, law = group.layout, group.law
    if law.law == "all":
        return layer_spec(MLA, layout, law, block, ranks=case.sharding.dcp, page_alignment=PAGE_ALIGNMENT)
    size = WINDOW_BLOCK
    if law.law == "ring":
        if law.limit not in RING_BLOCKS:
            raise UnsupportedError(f"kvplan has no rule for group {group.name} in vLLM", "plan without --engine")
        size, number = RING_BLOCKS[law.limit], DTYPES[declared.dtype or case.spec.native_dtype]
        layout = bind((Tensor("latent", Format(number), declared.nope_dim),), 1, number)
    return layer_spec(SLIDING_MLA, layout, law, size, limit=law.limit, page_alignment=PAGE_ALIGNMENT)
