"""Whether a run fits: its memory, counted before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvplan.errors import InputError
from kvplan.units import MIB, format_bytes


def memory_needed(
    parameters: int, vocab: int, layers: int, row_bytes: int, tokens: int, longest: int, gguf: bool
) -> int:
    """Bytes at the peak on the CPU in fp32: weights (twice while GGUF is unpacked), two sets of logits, one layer.

    Args:
        row_bytes: fp32 bytes of K and V of one token in one layer.
        tokens: positions whose logits are kept.
        longest: positions of the longest pass.
    """
    weights = 4 * parameters * (2 if gguf else 1)
    logits = 3 * 4 * tokens * vocab
    attention = 4 * longest * longest * 4 + 8 * longest * row_bytes
    return weights + logits + attention + 64 * layers * 1024


def parameters(config: Any) -> int:
    """Number of parameters, counted without allocating any."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(p.numel() for p in model.parameters())


def check_memory(need: int, device: str) -> None:
    """Refuse before anything is loaded.

    Raises:
        InputError: with both sizes.
    """
    free = _free_bytes(device)
    if free is not None and need > free:
        raise InputError(
            f"this run needs about {format_bytes(need)} of memory, {format_bytes(free)} are free",
            "use fewer --tokens, a smaller model, or a machine with more memory",
        )


def _free_bytes(device: str) -> int | None:
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    kib = next((int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)
    return None if kib is None else kib * MIB // 1024
