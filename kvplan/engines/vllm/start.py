"""How vLLM is started, and how it sizes its pool on a GPU."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Any

from kvplan.engines.shared.launch import Flag, LaunchSpec
from kvplan.engines.shared.memory import GpuMemory, PoolRule, Started
from kvplan.engines.shared.select import number_of
from kvplan.engines.vllm.options import default_batched_tokens, default_requests
from kvplan.engines.vllm.versions import PROJECT, available_bytes, rules_of

_SERVE = "vLLM documentation, cli/serve; " + PROJECT + "engine/arg_utils.py"
_ENVIRONMENT = PROJECT + "envs.py"
_MEMORY = PROJECT + "v1/worker/gpu_worker.py:641-820, config/cache.py:215"


CHUNKED_BEYOND = 32768


def _share(version: str, _total: int, _ranks: int) -> Fraction:
    """0.92 in 0.33, 0.9 in the logs before."""
    return Fraction(92, 100) if number_of(version) >= (0, 33) else Fraction(9, 10)


def _pool(memory: GpuMemory) -> int:
    """The share of the driver's total, rounded up, less everything that the dummy run showed."""
    requested = ceil(memory.total * memory.share)
    return int(
        available_bytes(
            memory.version, requested, 1, memory.weights, memory.activations, memory.framework, memory.graphs
        )
    )


def _busiest(started: Started) -> tuple[int, int]:
    """Requests at once, and the tokens of the dummy run.

    The first engine ran whole prompts up to 32,768 tokens, and chunks of 512 beyond (vllm-project/vllm#10517).
    """
    total, capability = started.total, started.capability
    requests = started.options["max_num_seqs"] or default_requests(total, capability)
    tokens = default_batched_tokens(total, capability)
    if rules_of(started.version).whole_prompts:
        requests, tokens = started.options["max_num_seqs"] or 256, max(started.context, 2048)
        if started.context > CHUNKED_BEYOND:
            tokens = 512
    return requests, started.options["max_num_batched_tokens"] or tokens


POOL = PoolRule(
    share_name="gpu_memory_utilization",
    default_share=_share,
    busiest=_busiest,
    pool=_pool,
    text="The share of the driver's total, less weights, the activations of a dummy run of max_num_batched_tokens, "
    "what torch does not see, and from 0.21 on the estimate of CUDA graphs.",
    source=_MEMORY,
)


def _flag(field: str, text: str, **more: Any) -> Flag:
    return Flag(field=field, text=text, source=_SERVE, **more)


LAUNCH = LaunchSpec(
    command="vllm serve {model}",
    flags=(
        _flag("context", "--max-model-len {value}"),
        _flag("max_num_seqs", "--max-num-seqs {value}"),
        _flag("tp", "--tensor-parallel-size {value}"),
        _flag("pp", "--pipeline-parallel-size {value}"),
        _flag("dp", "--data-parallel-size {value}", since="0.9.0"),
        _flag("dcp", "--decode-context-parallel-size {value}", since="0.11.0"),
        _flag("share", "--gpu-memory-utilization {value}"),
        _flag("kv", "--kv-cache-dtype {value}"),
        _flag("block_size", "--block-size {value}"),
        _flag("attention_backend", "--attention-backend {value}", since="0.18.0"),
        _flag("max_num_batched_tokens", "--max-num-batched-tokens {value}"),
        _flag("async_scheduling", "--async-scheduling", off="--no-async-scheduling", since="0.11.0"),
        _flag("enable_prefix_caching", "--enable-prefix-caching", off="--no-enable-prefix-caching"),
        _flag("mamba_cache_mode", "--mamba-cache-mode {value}", since="0.18.0"),
        _flag("mamba_block_size", "--mamba-block-size {value}", since="0.11.0"),
        _flag("mamba_cache_dtype", "--mamba-cache-dtype {value}", since="0.11.0"),
        _flag("mamba_ssm_cache_dtype", "--mamba-ssm-cache-dtype {value}", since="0.11.0"),
        _flag("gdn_prefill_backend", "--gdn-prefill-backend {value}", since="0.20.0"),
        _flag("disable_hybrid_kv_cache_manager", "--disable-hybrid-kv-cache-manager", since="0.11.0"),
        _flag("num_gpu_blocks_override", "--num-gpu-blocks-override {value}"),
        _flag(
            "num_speculative_tokens",
            "--speculative-config.method mtp --speculative-config.num_speculative_tokens {value}",
            since="0.11.0",
        ),
        Flag(
            field="kv_cache_layout", text="VLLM_KV_CACHE_LAYOUT={value}", source=_ENVIRONMENT, environment=True,
            since="0.33.0",
        ),
    ),
    source=_SERVE,
)  # fmt: skip
