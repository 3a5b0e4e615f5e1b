"""The cache as a log states it, in few numbers: bytes, tokens and blocks of the rank that decides."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.reconcile.llamacpp import CACHES
from kvplan.reconcile.sizes import interval
from kvplan.reconcile.types import Printed, StartUp


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a log says of its cache.

    Attributes:
        low_bytes, high_bytes: of the cache on one rank (llama.cpp, Ollama: on all devices), by the rounding of what
            is printed; None where the log prints no size.
        tokens, blocks: None where the log prints none.
    """

    low_bytes: int | None
    high_bytes: int | None
    tokens: int | None
    blocks: int | None


def summary(start: StartUp) -> Summary:
    """The cache of a start: sums of its parts where an engine prints parts."""
    parts = _parts(start)
    low, high = interval((1, p) for p in parts) if parts else (None, None)
    tokens = start.least("tokens") or start.last("max_tokens") or start.last("session")
    if start.engine == "sglang":
        tokens = start.least("max_tokens") or start.last("full_tokens") or start.last("tokens")
    elif start.engine in ("trtllm", "lmdeploy"):
        # A small pool for measuring comes first.
        tokens = start.last("tokens") or start.last("session")
    blocks = start.last("blocks_override") or start.last("blocks")
    if start.engine == "lmdeploy" and low is not None and high is not None and blocks and not start.last("pool"):
        low, high = low * int(blocks.value), high * int(blocks.value)
    return Summary(
        low_bytes=low,
        high_bytes=high,
        tokens=int(tokens.value) if tokens else None,
        blocks=int(blocks.value) if blocks else None,
    )


def _parts(start: StartUp) -> list[Printed]:
    """The printed sizes that make the cache together."""
    if start.engine == "vllm":
        return [p for p in (start.least("available") or start.last("refused_available"),) if p]
    if start.engine == "sglang":
        least = start.least("max_tokens") or start.last("tokens")
        return [p for p in start.all("k", "v", "kv", "conv", "ssm", "draft_ssm", "draft_conv")
                if least is None or p.rank == least.rank]  # fmt: skip
    if start.engine in ("llamacpp", "ollama"):
        return _llama_parts(start)
    for name in ("pool", "pool_bytes", "block_bytes", "block_bytes_floor"):
        if printed := start.last(name):
            return [printed]
    return []


def _llama_parts(start: StartUp) -> list[Printed]:
    """Tensors of every cache; else whole caches, else buffers, else what Ollama says."""
    for names in (CACHES, ("kv_self", "size"), ("kv_buffer", "rs_buffer"), ("kv_device",), ("kv_estimate",)):
        if found := list(start.all(*names)):
            return found
    return []
