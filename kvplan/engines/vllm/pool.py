"""The pool of blocks: how many fit, how many requests they serve, what vLLM prints, and when it refuses to start.

Source: vLLM 0.33.0, v1/core/kv_cache_planning.py and kv_cache_utils.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvplan.engines.vllm.blocks import request_blocks
from kvplan.engines.vllm.buckets import Bucket
from kvplan.engines.vllm.groups import bytes_per_block
from kvplan.engines.vllm.versions import PROJECT, Rules
from kvplan.errors import UsageError
from kvplan.units import GIB, cdiv

UTILS = PROJECT + "v1/core/kv_cache_utils.py:1061-1147"


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether one request of the maximum length fits.

    Attributes:
        needed, available: bytes that vLLM compares, on the stage where it first does not fit.
        longest: the longest length that fits, 0 if none.
    """

    fits: bool
    needed: int
    available: int
    longest: int


@dataclass(frozen=True)
class Pool:
    """The page groups of a model and their shared blocks.

    Attributes:
        stages: pipeline stages.
        in_flight, retained: see `options.Settings`.
        max_model_len: length that the engine is started for.
        ranks: decode context parallel.
        override: num_gpu_blocks_override.
        notes: see `EngineCache`.
    """

    buckets: tuple[Bucket, ...]
    rules: Rules
    stages: int
    in_flight: int
    retained: int
    max_model_len: int
    ranks: int = 1
    block_outer: bool = False
    override: int | None = None

    def bucket_blocks(self, bucket: Bucket, tokens: int) -> int:
        """Blocks of one request in each page group of a bucket."""
        return max(request_blocks(m.spec, tokens, self.in_flight, self.retained).total for m in bucket.members)

    def blocks_per_group(self, tokens: int) -> tuple[int, ...]:
        """Blocks of one request in every page group."""
        return tuple(self.bucket_blocks(b, tokens) for b in self.buckets for _ in range(b.groups))

    def blocks_per_request(self, tokens: int) -> int:
        """Blocks of one request, all page groups together."""
        return sum(self.blocks_per_group(tokens))

    def block_bytes(self, stage: int = 0) -> int:
        """Bytes of one block on a stage."""
        return bytes_per_block(self.buckets, stage, self.block_outer)

    def request_bytes(self, tokens: int, stage: int = 0) -> int:
        """Bytes of one request's blocks on a stage."""
        return self.blocks_per_request(tokens) * self.block_bytes(stage)

    def num_blocks(self, pools: Sequence[int]) -> int:
        """Blocks of the engine: of the stage with fewest.

        Args:
            pools: bytes of the pool on every stage.
        """
        if self.override is not None:
            return self.override
        return min(pool // self.block_bytes(stage) for stage, pool in enumerate(pools))

    def allocated_bytes(self, num_blocks: int) -> tuple[int, ...]:
        """Bytes of all blocks, by stage."""
        return tuple(num_blocks * self.block_bytes(stage) for stage in range(self.stages))

    def max_concurrency(self, num_blocks: int, tokens: int | None = None) -> float:
        """Requests of the maximum length that the blocks serve; the null block is not taken off."""
        return num_blocks / self.blocks_per_request(tokens or self.max_model_len)

    def printed_tokens(self, num_blocks: int) -> int:
        """The figure that the version prints as the size of the cache, in tokens."""
        if self.rules.tokens == "capacity":
            return printed_capacity(self.max_concurrency(num_blocks), self.max_model_len)
        sizes = [m.spec.block_size for b in self.buckets for m in b.members]
        return num_blocks // len(self.blocks_per_group(1)) * min(sizes) * self.ranks

    def blocks_printing(self, tokens: int) -> int:
        """The least number of blocks for which at least `tokens` is printed."""
        low, high = 0, 1
        while self.printed_tokens(high) < tokens:
            low, high = high, high * 2
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.printed_tokens(middle) >= tokens else (middle + 1, high)
        return low

    def log_lines(self, num_blocks: int) -> tuple[str, ...]:
        """What the version prints about its blocks."""
        length, tokens = f"{self.max_model_len:,}", f"{self.printed_tokens(num_blocks):,}"
        rate = f"{self.max_concurrency(num_blocks):.2f}x"
        if self.rules.tokens == "blocks":
            return (
                f"# GPU blocks: {num_blocks}",
                f"Maximum concurrency for {self.max_model_len} tokens per request: {rate}",
            )
        size, many = (
            f"GPU KV cache size: {tokens} tokens",
            f"Maximum concurrency for {length} tokens per request: {rate}",
        )
        return (f"{size}, {many}",) if self.rules.one_line else (size, many)

    def fit(self, pools: Sequence[int]) -> Fit:
        """The check of one request at start-up; from 0.26 on it holds the null block back.

        Source: vLLM v1/core/kv_cache_planning.py:1533-1543; vllm-project/vllm#47272.
        """
        made = []
        for stage, pool in enumerate(pools):
            block = self.block_bytes(stage)
            planned = pool if self.override is None else self.override * block
            free = planned - block if self.rules.checks_null_block else planned
            needed = self.request_bytes(self.max_model_len, stage)
            made.append(Fit(needed <= free, needed, free, self.longest(free, stage)))
        return next((f for f in made if not f.fits), made[0])

    def longest(self, available: int, stage: int = 0) -> int:
        """The longest length up to the maximum whose blocks fit into `available` bytes; 0 if none."""
        low, high = 0, self.max_model_len
        while low < high:
            middle = cdiv(low + high, 2)
            if self.request_bytes(middle, stage) <= available:
                low = middle
            else:
                high = middle - 1
        return low

    def check(self, pools: Sequence[int]) -> None:
        """Refuse a pool in which one request of the maximum length does not fit.

        Raises:
            UsageError: in vLLM's words.
        """
        found = self.fit(pools)
        if found.fits:
            return
        raise UsageError(
            f"To serve at least one request with the model's max seq len ({self.max_model_len}), "
            f"({gib(found.needed)} GiB KV cache is needed, which is larger than the available KV cache memory "
            f"({gib(found.available)} GiB). Based on the available memory, the estimated maximum model length is "
            f"{found.longest}.",
            f"raise gpu_memory_utilization, or use max_model_len {found.longest}",
        )


def printed_capacity(max_concurrency: float, max_model_len: int) -> int:
    """Tokens as versions from 0.21 on print them: concurrency times length, the fraction dropped."""
    return int(max_concurrency * max_model_len)


def capacity_near(tokens: int, blocks_per_request: int, max_model_len: int) -> int:
    """The printed figure nearest to `tokens`, not below it unless equal, that whole blocks give."""
    blocks = cdiv(tokens * blocks_per_request, max_model_len)
    return printed_capacity(blocks / blocks_per_request, max_model_len)


def gib(nbytes: int) -> str:
    """GiB to two decimals at most, as vLLM prints them."""
    return str(round(nbytes / GIB, 2))
