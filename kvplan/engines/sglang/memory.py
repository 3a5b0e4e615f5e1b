"""The share of GPU memory that SGLang takes for weights and cache, and its chunk sizes, by GPU memory.

Source: SGLang 0.5.23, srt/arg_groups/memory_hook.py:89-343, read. SGLang counts in MiB here.
"""

from __future__ import annotations

from kvplan.units import MIB

SOURCE = "SGLang 0.5.23, srt/arg_groups/memory_hook.py:281-343"

_BY_MEMORY = (
    (20 * 1024, 2048, 8, 8), (35 * 1024, 4096, 48, 160), (60 * 1024, 4096, 32, 160), (160 * 1024, 8192, 256, 512),
)  # fmt: skip
"""(below this many MiB, chunked_prefill_size, largest decode graph with tp < 4, with tp >= 4)."""
_LARGEST = (16384, 512, 512)


def _defaults(memory_bytes: int | None) -> tuple[int, int, int]:
    if memory_bytes is None:
        # Without a GPU: as for 60 to 160 GiB, the cards of most servers.
        return _BY_MEMORY[-1][1:]
    memory = memory_bytes // MIB
    return next((rest for below, *rest in _BY_MEMORY if memory < below), _LARGEST)  # type: ignore[return-value]


def default_chunked_prefill(memory_bytes: int | None) -> int:
    """Tokens of a prefill chunk without `--chunked-prefill-size`; None: a GPU of 60 to 160 GiB."""
    return _defaults(memory_bytes)[0]


def default_graph_batch(memory_bytes: int | None, tp: int) -> int:
    """Largest batch of the decode graphs without `--cuda-graph-max-bs`."""
    _, small, large = _defaults(memory_bytes)
    return large if tp >= 4 else small


def default_mem_fraction(
    memory_bytes: int, *, tp: int = 1, pp: int = 1, chunked_prefill_size: int | None = None,
    graph_batch: int | None = None, prefill_graphs_mib: int = 0, dp_attention: int = 0,
) -> float:  # fmt: skip
    """`--mem-fraction-static` as SGLang sets it on CUDA for a model without vision.

    Args:
        memory_bytes: of the GPU, as the driver states it.
        prefill_graphs_mib: 8 MiB for each prefill graph of a model without latents, 1536 MiB with them; 0: no graphs.
        dp_attention: replicas with DP attention; 0: without.

    Returns:
        Weights and cache over GPU memory, to three decimals.
    """
    memory = memory_bytes // MIB
    chunk = chunked_prefill_size or default_chunked_prefill(memory_bytes)
    batch = graph_batch or default_graph_batch(memory_bytes, tp)
    reserve = 512 + max(chunk, 2048) * 1.5 + tp * pp / 8 * 1024
    reserve += batch * 2 + prefill_graphs_mib
    if dp_attention:
        reserve += batch * dp_attention * 3 + (batch * dp_attention * 1.5 if batch > 300 else 0)
    if memory > 60 * 1024:
        reserve = max(reserve, 10 * 1024)
    return round((memory - reserve) / memory, 3)
