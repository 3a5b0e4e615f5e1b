"""How SGLang is started, and how it sizes its pool on a GPU."""

from __future__ import annotations

from fractions import Fraction

from kvplan.engines.sglang.memory import SOURCE, default_chunked_prefill, default_graph_batch, default_mem_fraction
from kvplan.engines.shared.launch import Flag, LaunchSpec
from kvplan.engines.shared.memory import GpuMemory, PoolRule, Started

_ARGUMENTS = "SGLang documentation, advanced_features/server_arguments"
_PREFILL_GRAPHS_MIB = 8 * 58
"""58 prefill graphs of 8 MiB: what an H100 with default settings captures for a model without latents."""


def _share(_version: str, total: int, ranks: int) -> Fraction:
    return Fraction(str(default_mem_fraction(total, tp=ranks, prefill_graphs_mib=_PREFILL_GRAPHS_MIB)))


def _pool(memory: GpuMemory) -> int:
    """Free memory after loading, less the part of what was free before that the share leaves out.

    Activations and graphs live in that part: they take nothing from the pool.
    """
    before = memory.total - memory.framework
    return before - memory.weights - int(before * (1 - memory.share))


def _busiest(started: Started) -> tuple[int, int]:
    options, total = started.options, started.total
    requests = options["max_running_requests"] or default_graph_batch(total, 1)
    return requests, options["chunked_prefill_size"] or default_chunked_prefill(total)


POOL = PoolRule(
    share_name="mem_fraction_static",
    default_share=_share,
    busiest=_busiest,
    pool=_pool,
    text="Free memory after loading, less (1 - share) of what was free before, where activations and graphs lie.",
    source=SOURCE + "; srt/mem_cache/kv_cache_configurator.py:2990-3060",
)


def _flag(field: str, text: str) -> Flag:
    return Flag(field=field, text=text, source=_ARGUMENTS)


LAUNCH = LaunchSpec(
    command="python -m sglang.launch_server --model-path {model}",
    flags=(
        _flag("context", "--context-length {value}"),
        _flag("batch", "--max-running-requests {value}"),
        _flag("tp", "--tp-size {value}"),
        _flag("pp", "--pp-size {value}"),
        _flag("dp", "--dp-size {value}"),
        _flag("dp_attention", "--enable-dp-attention"),
        _flag("share", "--mem-fraction-static {value}"),
        _flag("kv", "--kv-cache-dtype {value}"),
        _flag("page_size", "--page-size {value}"),
        _flag("attention_backend", "--attention-backend {value}"),
        _flag("max_total_tokens", "--max-total-tokens {value}"),
        _flag("chunked_prefill_size", "--chunked-prefill-size {value}"),
        _flag("disable_radix_cache", "--disable-radix-cache"),
        _flag("disable_overlap_schedule", "--disable-overlap-schedule"),
        _flag("swa_full_tokens_ratio", "--swa-full-tokens-ratio {value}"),
        _flag("disable_hybrid_swa_memory", "--disable-hybrid-swa-memory"),
        _flag("mamba_full_memory_ratio", "--mamba-full-memory-ratio {value}"),
        _flag("mamba_ssm_dtype", "--mamba-ssm-dtype {value}"),
        _flag("max_mamba_cache_size", "--max-mamba-cache-size {value}"),
    ),
    source=_ARGUMENTS,
)
