"""How a latent decode launch is shaped: columns of a block, tile, warps, stages.

From instruction counts, not yet from a GPU. On sm_90 64 tokens make both products warp-group ones, which read the
values from shared memory; fp8 is decoded there once per tile, and wider blocks of it run out of registers in the loop.
Elsewhere 32 tokens are for the products of single warps, and for 99 KiB of shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from kvplan.errors import UnsupportedError
from kvplan.formats.ds_mla import LatentView
from kvplan_kernels.attention.config import DecodeConfig


@dataclass(frozen=True)
class LatentConfig(DecodeConfig):
    """Shape of a latent decode launch.

    Attributes:
        columns: query heads of all rows that one program takes at most; each block of them reads the rows again.
    """

    columns: int = 16

    def block(self, columns: int) -> int:
        """Columns of a block: the largest divisor of `columns` that a program takes."""
        return max(n for n in range(1, min(columns, self.columns) + 1) if columns % n == 0)


def latent_config(view: LatentView, page_size: int, columns: int, capability: int) -> LatentConfig:
    """Shape of the launch for `columns` query heads of all rows on a GPU of `capability` (10 * major + minor).

    Raises:
        UnsupportedError: pages whose size is no multiple of 16 tokens.
    """
    tokens = gcd(page_size, 64 if capability == 90 else 32)
    if tokens < 16:
        raise UnsupportedError(f"page size {page_size} is no multiple of 16", "use pages of 16, 32, 64 or 128 tokens")
    if columns <= 16 or capability != 90:
        return LatentConfig(tokens, num_warps=4, num_stages=2, ctas_per_sm=1, columns=16)
    if view.quantised or columns <= 32:
        return LatentConfig(tokens, num_warps=4, num_stages=2, ctas_per_sm=1, columns=32)
    return LatentConfig(tokens, num_warps=8, num_stages=2, ctas_per_sm=1, columns=64)
