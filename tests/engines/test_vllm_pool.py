"""vLLM: the pool, what is printed, when it refuses to start, by version; the pool's budget and the launch command."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from kvplan.engines import load_engine
from kvplan.engines.shared.memory import GpuMemory, Started
from kvplan.engines.vllm.pool import capacity_near, printed_capacity
from kvplan.engines.vllm.versions import VERSIONS, available_bytes, rules_of
from kvplan.errors import UsageError

sys.path.insert(0, str(Path(__file__).parent))

from vllm_specs import DENSE, GIB, attention, cache, chunked, hybrid, make, shown, windowed

LLAMA = make(32, attention("rest", 8, 128))
"""32 x 16 x 8 x 256 x 2 bytes: 2 MiB a block."""


def test_what_is_printed_of_a_uniform_model() -> None:
    """40 GiB are 20,480 blocks of 2 MiB; a request of 131,072 tokens takes 8,192: 2.5 of them, 327,680 tokens."""
    found = shown(LLAMA, context=131072, pool=40 * GIB)
    assert found["num_gpu_blocks"] == 20480 and found["max concurrency"] == 2.5
    assert found["kv_cache_size_tokens"] == 327680
    assert found["log line"] == (
        "GPU KV cache size: 327,680 tokens, Maximum concurrency for 131,072 tokens per request: 2.50x"
    )
    assert "num_gpu_blocks" not in shown(LLAMA, context=131072)


def test_a_pool_too_small_for_one_request() -> None:
    """8 GiB are 4,096 blocks of which 4,095 are free: 65,520 tokens."""
    pool = cache(LLAMA, context=131072).pool
    with pytest.raises(UsageError) as caught:
        pool.check([8 * GIB])
    assert "(16.0 GiB KV cache is needed" in caught.value.message
    assert "(8.0 GiB)" in caught.value.message and "model length is 65520." in caught.value.message
    assert shown(LLAMA, context=131072, pool=8 * GIB)["estimated maximum model length"] == 65520
    # Exactly the blocks of one request are one short, for the null block; one more is enough.
    assert not pool.fit([8192 * 2 * 2**20]).fits and pool.fit([8193 * 2 * 2**20]).fits
    assert pool.longest(0) == 0


def test_an_override_replaces_the_pool() -> None:
    """9,000 blocks whatever the memory: 9000 / 8192 requests, 144,000 tokens."""
    options = ("num_gpu_blocks_override=9000",)
    found = shown(LLAMA, *options, context=131072, pool=GIB)
    assert found["num_gpu_blocks"] == 9000 and found["kv_cache_size_tokens"] == 144000
    pool = cache(LLAMA, *options, context=131072).pool
    assert pool.num_blocks([GIB]) == 9000 and pool.fit([GIB]).fits
    assert pool.allocated_bytes(9000) == (9000 * 2 * 2**20,)


def test_the_printed_tokens_of_a_hybrid_changed_their_meaning() -> None:
    """4 groups: once the blocks of one group x block size, since 0.21 concurrency x length."""
    spec, pool = hybrid(model_type="qwen3_5"), 10 * GIB
    new = shown(spec, "mamba_cache_mode=align", context=262144, pool=pool, engine_version="0.21")
    old = shown(spec, "mamba_cache_mode=align", context=262144, pool=pool, engine_version="0.18")
    blocks, block = old["num_gpu_blocks"], old["block_size"]
    assert (new["num_gpu_blocks"], new["block_size"]) == (blocks, block)
    request = -(-262144 // block) + 3 * 2
    assert old["blocks per request"] == new["blocks per request"] == request
    assert old["kv_cache_size_tokens"] == blocks // 4 * block
    assert new["kv_cache_size_tokens"] == int(blocks / request * 262144)


def test_log_lines_by_version() -> None:
    def lines(version: str) -> list[str]:
        found = cache(LLAMA, context=20000, engine_version=version).figures(20000, 1952 * 2 * 2**20)
        return [str(f.value) for f in found if f.name == "log line"]

    assert lines("0.6") == ["# GPU blocks: 1952", "Maximum concurrency for 20000 tokens per request: 1.56x"]
    assert lines("0.11") == [
        "GPU KV cache size: 31,232 tokens",
        "Maximum concurrency for 20,000 tokens per request: 1.56x",
    ]
    assert len(lines("0.26")) == 2 and len(lines("0.33")) == 1


def test_a_window_keeps_one_batch_before_0_26() -> None:
    spec = windowed(1, 1)
    for version, batches in (("0.33", 2), ("0.26", 2), ("0.21", 1), ("0.11", 1)):
        made = cache(spec, "max_num_batched_tokens=1024", context=65536, engine_version=version)
        assert made.pool.blocks_per_group(65536)[0] == -(-(127 + batches * 1024) // 16) + 1


def test_windows_and_chunks_keep_every_token_in_0_8() -> None:
    for spec in (windowed(1, 1), chunked()):
        assert cache(spec, context=65536, engine_version="0.8").pool.blocks_per_group(65536) == (4096,)


def test_states_by_version() -> None:
    """One without prefix caching in 0.11, two with it, three with a checkpoint inside the prefill in 0.33."""
    for version, copies in (("0.11", 1), ("0.18", 2), ("0.26", 2), ("0.33", 3)):
        made = cache(hybrid(), context=1000, engine_version=version, gpu="h100-80gb")
        assert made.pool.blocks_per_group(1000)[0] == copies


def test_the_null_block_is_not_in_the_v0_engine() -> None:
    assert cache(DENSE, context=100, engine_version="0.6").held(100, 0) == 0
    assert cache(DENSE, context=100, engine_version="0.8").held(100, 0) == 4 * 16 * 8 * 512
    pools = [8192 * 2 * 2**20]
    assert cache(LLAMA, context=131072, engine_version="0.21").pool.fit(pools).fits


def test_versions_are_named_and_known() -> None:
    engine = load_engine("vllm")
    assert engine.versions is VERSIONS and all(v.source and rules_of(v.name) for v in VERSIONS)
    with pytest.raises(UsageError) as caught:
        cache(DENSE, context=100, engine_version="0.9")
    assert "0.8.3" in caught.value.hint


def test_capacity_near_gives_whole_blocks() -> None:
    assert printed_capacity(332 / 170, 131072) == 255975
    assert capacity_near(255975, 170, 131072) == 255975
    assert capacity_near(255900, 170, 131072) == 255975


@pytest.mark.parametrize("tokens", [1, 16, 1000, 327680, 327681])
def test_blocks_that_print_a_figure(tokens: int) -> None:
    pool = cache(LLAMA, context=131072).pool
    blocks = pool.blocks_printing(tokens)
    assert pool.printed_tokens(blocks) >= tokens > pool.printed_tokens(blocks - 1)


def test_what_a_prefix_shares() -> None:
    """Whole blocks of the full layer's group; windows and states are each request's own."""
    assert cache(DENSE, context=1000).shared_bytes(1000) == 62 * 4 * 16 * 8 * 512
    made = cache(windowed(1, 2), "max_num_batched_tokens=1024", context=5000)
    assert made.shared_bytes(1000) == 62 * made.pool.block_bytes()


def test_the_budget_subtracts_graphs_from_0_21_on() -> None:
    """A printed line of 0.11: 0.9 x 79.18 - 13.47 - 7.38 - 0.13 = 50.28 GiB."""
    assert available_bytes("0.11.2", 79.18, 0.9, 13.47, 7.38, 0.13, 1.0) == pytest.approx(50.282)
    assert available_bytes("0.21.0", 79.18, 0.9, 13.47, 7.38, 0.13, 1.0) == pytest.approx(49.282)
    rule = load_engine("vllm").pool
    assert rule.default_share("0.33.0", 0, 1) == Fraction(92, 100)
    assert rule.default_share("0.21.0", 0, 1) == Fraction(9, 10)
    memory = GpuMemory(
        total=80 * GIB, share=Fraction(9, 10), weights=16 * GIB, activations=GIB, graphs=GIB, framework=GIB,
        vocab_size=128256, version="0.33.0", options={},
    )  # fmt: skip
    assert rule.pool(memory) == (72 - 16 - 3) * GIB


def busiest(
    total: int, capability: tuple[int, int], version: str = "0.33.0", context: int = 8192, **options: int
) -> Any:
    given = {"max_num_seqs": None, "max_num_batched_tokens": None} | options
    started = Started(version=version, options=given, total=total, capability=capability, context=context)
    return load_engine("vllm").pool.busiest(started)


def test_the_largest_step() -> None:
    assert busiest(192 * GIB, (10, 0)) == (1024, 16384)
    assert busiest(80 * GIB, (9, 0)) == (1024, 8192)
    # The A100 has the defaults of a small card, whatever its memory.
    assert busiest(80 * GIB, (8, 0)) == busiest(24 * GIB, (8, 9)) == (256, 2048)
    assert busiest(80 * GIB, (9, 0), max_num_seqs=8, max_num_batched_tokens=4096) == (8, 4096)
    # The first engine ran whole prompts at start-up, and chunks beyond 32,768 tokens.
    old = [busiest(24 * GIB, (8, 6), "0.6.6", context) for context in (1000, 20000, 29000, 35000)]
    assert old == [(256, 2048), (256, 20000), (256, 29000), (256, 512)]


def test_the_launch_command() -> None:
    from kvplan.plan import PlanRequest, make_plan

    options = ("max_num_batched_tokens=4096", "async_scheduling=off")
    request = PlanRequest(
        model="llama-3.1-8b", engine="vllm", engine_options=options, kv="fp8", context=8192, batch=4, tp=2,
        gpu="h100-80gb",
    )  # fmt: skip
    summary = make_plan(request).engine
    assert summary is not None
    launch = summary.launch
    assert launch is not None
    for word in (
        "vllm serve meta-llama/Llama-3.1-8B-Instruct", "--max-model-len 8192", "--tensor-parallel-size 2",
        "--kv-cache-dtype fp8", "--max-num-batched-tokens 4096", "--no-async-scheduling",
        "--gpu-memory-utilization 0.92",
    ):  # fmt: skip
        assert word in launch.text
