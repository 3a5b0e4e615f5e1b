"""How a decode launch is shaped: tile, warps, stages, resident programs. One readable table.

Timed on an H200 by `python -m kvplan_kernels.bench.decode --try-configs`, but for rows at 64 and 256 that the benchmark
lacks. By channel more than one warp would exchange the query's product with the scales through shared memory. Resident
warps per SM are a multiple of 4, and the grid is SMs x programs per SM, or all heads where they nearly fill that: break
either and a kernel loses 20 to 35 percent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

import torch

from kvplan.errors import UnsupportedError
from kvplan.formats.layout import Layout
from kvplan_kernels.attention.mode import FEW_COLUMNS
from kvplan_kernels.dialect import LEAST_COLUMNS, capability_of

# Shared memory of one SM that programs may fill, bytes: 228 KiB on sm_90 less 1 KiB kept per program.
SM_BYTES = 220 * 1024
INTERPRETER_SMS = 4
# (10 * major + minor, multiprocessors) of the GPUs that the table was measured on: an H200. On others its entries are
# generic ones, and tuning/launch.py searches around them.
MEASURED = ((90, 132),)


@dataclass(frozen=True)
class DecodeConfig:
    """Shape of a decode launch.

    Attributes:
        block_tokens: tokens of a tile; divides page_size.
        ctas_per_sm: programs per SM; num_warps * ctas_per_sm is a multiple of 4.
        maxnreg: cap on registers per thread, None for the compiler's choice.
        programs: grid of the main kernel, None for all that the SMs hold.
    """

    block_tokens: int
    num_warps: int
    num_stages: int
    ctas_per_sm: int
    maxnreg: int | None = None
    programs: int | None = None

    def num_programs(self, device: torch.device) -> int:
        """Grid of the main kernel: never depends on lengths."""
        return self.programs or count_sms(device) * self.ctas_per_sm

    @property
    def options(self) -> dict[str, int]:
        """Compile options for Triton."""
        options = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        return options if self.maxnreg is None else {**options, "maxnreg": self.maxnreg}


# Rows: kind of format. Columns: the largest head dimension (beyond the last one, the last).
TABLE = {
    #                  64                           128                         256
    "16 bit":         (DecodeConfig(128, 2, 3, 2), DecodeConfig(64, 2, 3, 2),  DecodeConfig(32, 2, 3, 2)),
    "int8":           (DecodeConfig(128, 1, 3, 4), DecodeConfig(64, 1, 3, 4),  DecodeConfig(64, 4, 3, 2)),
    "fp8":            (DecodeConfig(128, 1, 3, 4), DecodeConfig(128, 4, 3, 2), DecodeConfig(64, 4, 3, 2)),
    "fp4":            (DecodeConfig(128, 1, 3, 8), DecodeConfig(64, 1, 3, 8),  DecodeConfig(32, 2, 3, 4)),
    "int4":           (DecodeConfig(128, 1, 3, 4), DecodeConfig(64, 1, 3, 8),  DecodeConfig(32, 1, 3, 8)),
    "int3":           (DecodeConfig(64, 1, 3, 8),  DecodeConfig(32, 1, 3, 8),  DecodeConfig(32, 2, 3, 4)),
    "int2":           (DecodeConfig(128, 1, 3, 8), DecodeConfig(128, 1, 3, 8), DecodeConfig(64, 1, 3, 8)),
    "groups":         (DecodeConfig(64, 1, 3, 8),  DecodeConfig(32, 1, 3, 8),  DecodeConfig(32, 1, 3, 8)),
    "8-bit groups":   (DecodeConfig(64, 1, 3, 8),  DecodeConfig(32, 1, 3, 8),  DecodeConfig(32, 2, 3, 4)),
    "channels":       (DecodeConfig(64, 1, 3, 8),  DecodeConfig(64, 1, 3, 8),  DecodeConfig(32, 1, 3, 8)),
    "8-bit channels": (DecodeConfig(64, 1, 3, 4),  DecodeConfig(64, 1, 3, 4),  DecodeConfig(32, 2, 3, 4)),
}  # fmt: skip
TABLE_DIMS = (64, 128, 256)
# Where all KV heads nearly fill four programs per SM, one program each: heads of one length are then not cut. For
# head_dim 128.
ONE_PER_HEAD = {
    "16 bit": DecodeConfig(32, 1, 3, 4),
    "int8": DecodeConfig(64, 1, 3, 4),
    "fp8": DecodeConfig(32, 1, 4, 4),
    "int4": DecodeConfig(128, 1, 3, 4),
}


def nearly_all(heads: int, places: int) -> bool:
    """Whether one program per head takes at least 95% of the SMs' places, and no more than there are."""
    return 0.95 * places <= heads <= places


def count_sms(device: torch.device) -> int:
    """Multiprocessors of a GPU; the interpreter counts as a few."""
    if device.type != "cuda":
        return INTERPRETER_SMS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def is_measured(device: torch.device) -> bool:
    """Whether the table was measured on this GPU or one with the same SMs; the interpreter has nothing to measure."""
    return device.type != "cuda" or (capability_of(device), count_sms(device)) in MEASURED


def format_class(layout: Layout) -> str:
    """Row of TABLE for the wider, then the costlier of K and V; groups inside a row cost registers at any width."""
    views = [layout.view(r) for r in ("k", "v")]
    if any(v.bits == 16 for v in views):
        return "16 bit"
    widest = max(v.bits for v in views)
    if any(v.by_channel for v in views):
        return "channels" if widest < 8 else "8-bit channels"
    if any(v.number == "fp4_e2m1" for v in views):
        return "fp4"
    if any(v.groups > 1 for v in views):
        return "groups" if widest < 8 else "8-bit groups"
    return f"int{widest}" if any(v.is_int and v.bits == widest for v in views) else "fp8"


def default_config(layout: Layout, page_size: int, columns: int, heads: int = 0, sms: int = 1) -> DecodeConfig:
    """The table's entry, fitted to the head dimension, the query columns, the page size and shared memory.

    Args:
        columns: query columns of a block, see mode.py.
        heads: KV heads of all requests, times blocks of columns, if they are known.
        sms: multiprocessors of the GPU.

    Raises:
        UnsupportedError: pages whose size is no multiple of 16 tokens.
    """
    kind, dim = format_class(layout), max(layout.view(role).dim for role in ("k", "v"))
    column = min(sum(dim > d for d in TABLE_DIMS), len(TABLE_DIMS) - 1)
    config, alone = TABLE[kind][column], ONE_PER_HEAD.get(kind)
    few = columns <= FEW_COLUMNS
    if alone and few and TABLE_DIMS[column] == 128 and nearly_all(heads, sms * alone.ctas_per_sm):
        config = replace(alone, programs=heads)
    warps, ctas, tokens = config.num_warps, config.ctas_per_sm, config.block_tokens
    if not few:
        # Scores and accumulators of 64 columns and 128 channels are some 80 registers of four warps.
        warps, ctas, tokens = (4, 2, 32) if dim <= 128 else (8, 1, 32)
    elif (max(LEAST_COLUMNS, columns) > 8 or dim > TABLE_DIMS[-1]) and warps == 1:
        # More heads, or longer rows, need more registers for queries and outputs than one warp has; more than eight
        # warps of some 200 registers each do not fit an SM.
        warps, ctas = 2, min(ctas, 4)
    if dim > TABLE_DIMS[-1]:
        tokens = min(tokens, 32)
    if max(v.stripes * v.fields_per_word for v in map(layout.view, ("k", "v"))) > 12:
        # Sixteen planes and more (int8 in 8 groups) spill at 32 tokens.
        tokens = 16
    tokens = gcd(page_size, tokens)
    if tokens < 16:
        raise UnsupportedError(f"page size {page_size} is no multiple of 16", "use pages of 16, 32, 64 or 128 tokens")
    row_bytes = sum(2 * padded_words(layout.view(role).words) for role in ("k", "v"))
    in_flight = (config.num_stages - 1) * row_bytes
    while ctas * tokens * in_flight > SM_BYTES and ctas * warps > 4:
        ctas //= 2
    while ctas * tokens * in_flight > SM_BYTES and tokens > 16:
        tokens //= 2
    programs = config.programs if ctas == config.ctas_per_sm else None
    return replace(config, block_tokens=tokens, num_warps=warps, ctas_per_sm=ctas, programs=programs)


def part_tokens(layout: Layout, block_tokens: int) -> int:
    """Tokens of a tile that share every scale: all of them, or with channel/N as many as one group has in the tile."""
    groups = [v.group for v in map(layout.view, ("k", "v")) if v.by_channel]
    return gcd(block_tokens, *groups)


def padded_words(words: int) -> int:
    """16-bit words of a row in the tile: a power of two, at least one matrix step."""
    return max(16, 1 << (words - 1).bit_length())
