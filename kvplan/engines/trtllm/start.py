"""How TensorRT-LLM is started through its LLM API, and how it sizes its pool on a GPU."""

from __future__ import annotations

from fractions import Fraction

from kvplan.engines.shared.launch import Flag, LaunchSpec
from kvplan.engines.shared.memory import GpuMemory, PoolRule

_API = "TensorRT-LLM 1.4.0rc4, documentation: llm-api/reference (LLM, KvCacheConfig)"
_GROUP = "kv_cache_config=KvCacheConfig({inside})"


def _pool(memory: GpuMemory) -> int:
    left = memory.total - memory.framework - memory.weights - memory.activations - memory.graphs
    return int(left * memory.share)


POOL = PoolRule(
    share_name="free_gpu_memory_fraction",
    default_share=lambda _version, _total, _ranks: Fraction(9, 10),
    busiest=lambda started: (started.options["max_batch_size"] or 256, 8192),
    pool=_pool,
    text="The share of what weights, the peak of a dummy forward pass, graphs and framework leave.",
    source="TensorRT-LLM, _torch/pyexecutor/_util.py (_cal_max_memory)",
)


def _flag(field: str, text: str, group: str = "") -> Flag:
    return Flag(field=field, text=text, group=group, source=_API)


LAUNCH = LaunchSpec(
    command='LLM(model="{model}", ',
    language="python",
    closing=")",
    flags=(
        _flag("context", "max_seq_len={value}"),
        _flag("batch", "max_batch_size={value}"),
        _flag("tp", "tensor_parallel_size={value}"),
        _flag("pp", "pipeline_parallel_size={value}"),
        _flag("dp_attention", "enable_attention_dp=True"),
        _flag("kv", 'dtype="{value}"', _GROUP),
        _flag("share", "free_gpu_memory_fraction={value}", _GROUP),
        _flag("tokens_per_block", "tokens_per_block={value}", _GROUP),
        _flag("max_attention_window", "max_attention_window=[{value}]", _GROUP),
        _flag("max_tokens", "max_tokens={value}", _GROUP),
        _flag("enable_block_reuse", "enable_block_reuse={value}", _GROUP),
        _flag("mamba_state_cache_interval", "mamba_state_cache_interval={value}", _GROUP),
        _flag("mamba_ssm_cache_dtype", 'mamba_ssm_cache_dtype="{value}"', _GROUP),
        _flag("cross_kv_cache_fraction", "cross_kv_cache_fraction={value}", _GROUP),
        _flag("use_kv_cache_manager_v2", "use_kv_cache_manager_v2={value}", _GROUP),
    ),
    source=_API,
)
