"""Log lines of TensorRT-LLM, from 0.5 to 1.4.

Sources name files of NVIDIA/TensorRT-LLM: cpp/ is its C++ runtime, tensorrt_llm/ its Python.
"""

from __future__ import annotations

from kvplan.reconcile.rules import Figure, LogFormat, Rule

_KEYS = (
    "tensor_parallel_size", "pipeline_parallel_size", "max_batch_size", "max_num_tokens", "max_seq_len",
    "free_gpu_memory_fraction", "tokens_per_block", "max_tokens", "enable_block_reuse", "kv_cache_dtype",
    "mamba_ssm_cache_dtype", "kv_cache_free_gpu_memory_fraction",
)  # fmt: skip
_MANAGER = "cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp"
_UTIL = "tensorrt_llm/_torch/pyexecutor/_util.py"

FIGURES = {
    "pool": Figure("KV cache", "GiB", 2),
    "pool_bytes": Figure("KV cache", "bytes"),
    "tokens": Figure("tokens in the KV cache", "tokens"),
    "blocks": Figure("blocks of the primary pool", "blocks"),
    "host_blocks": Figure("blocks of the secondary pool", "blocks"),
    "block_size": Figure("tokens per block", "tokens"),
    "blocks_per_sequence": Figure("blocks of a sequence at most", "blocks"),
    "total_memory": Figure("GPU memory", "GiB", 2),
    "free": Figure("memory that the KV cache is a share of", "GiB", 2),
    "available": Figure("memory for the KV cache", "GiB", 2),
    "peak": Figure("peak of the profiled forward pass", "GiB", 2),
    "fraction": Figure("share of the free memory"),
    "token_bytes": Figure("bytes per token", "bytes"),
    "max_sequence": Figure("sequence length at most", "tokens"),
    "window_bound": Figure("window that the blocks allow", "tokens"),
    "weights": Figure("engine", "MiB"),
    "buffers": Figure("runtime buffers", "*", 2),
    "decoder": Figure("decoder", "*", 2),
    "execution": Figure("execution context", "*", 2),
}

RULES = (
    Rule("TensorRT-LLM version", r"TensorRT-LLM version:? (?P<version>\d[\w.+]*)", "tensorrt_llm/_common.py",
         effect="start"),
    Rule("engine args", r"engine args: \{", "tensorrt_llm/commands/serve.py", keys=_KEYS),
    Rule("LLM args", r"LLM Args?:", "tensorrt_llm/llmapi/llm.py", keys=_KEYS),
    Rule("KvCacheConfig(", r"KvCacheConfig\(", "tensorrt_llm/llmapi/llm_args.py", keys=_KEYS),
    Rule("Loaded engine size", r"Loaded engine size: {weights} MiB", "cpp/tensorrt_llm/runtime"),
    Rule("runtime buffers", r"Allocated {buffers} (?P<unit>\w+) GPU memory for runtime buffers", _MANAGER),
    Rule("for decoder", r"Allocated {decoder} (?P<unit>\w+) GPU memory for decoder", _MANAGER),
    Rule("execution context memory", r"Allocated {execution} (?P<unit>\w+) for execution context memory", _MANAGER),
    Rule("calculating max tokens in paged", r"Memory usage when calculating max tokens in paged kv cache:"
         r" total: {total_memory} GiB, available: {free} GiB", _MANAGER),
    Rule("Peak memory during", r"profiling \(torch \+ non-torch\): {peak} GiB, available KV cache memory when"
         r" calculating max tokens: {available} GiB", _UTIL),
    Rule("kv size is", r"fraction is set {fraction}, kv size is {token_bytes}", _UTIL),
    Rule("device total memory", r"device total memory {total_memory} GiB", _UTIL),
    Rule("primary pool", r"Number of blocks in KV cache primary pool: {blocks}", _MANAGER),
    Rule("secondary pool", r"Number of blocks in KV cache secondary pool: {host_blocks}", _MANAGER),
    Rule("per sequence", r"Max KV cache (?:pages|blocks) per sequence: {blocks_per_sequence}", _MANAGER),
    Rule("tokens per block", r"Number of tokens per block: {block_size}", _MANAGER),
    Rule("paged KV cache", r"Allocated {pool} GiB for max tokens in paged KV cache \({tokens}\)", _MANAGER),
    Rule("for max tokens (", r"Allocated {pool} GiB for max tokens \({tokens}\)", _MANAGER),
    Rule("bytes for k/v cache", r"Allocated {pool_bytes} bytes for k/v cache", _MANAGER, until="0.8"),
    Rule("paged KV cache", r"Using {tokens} (?:total )?tokens in paged KV cache", _MANAGER, until="0.8"),
    Rule("exceeds upper bound", r"exceeds upper bound {window_bound} for available blocks", _MANAGER),
    Rule("max_seq_len=", r"max_seq_len={max_sequence}, max_num_requests=", "tensorrt_llm/_torch/pyexecutor",
         keys=("max_num_requests", "max_num_tokens", "max_batch_size")),
)  # fmt: skip

FORMAT = LogFormat(
    engine="trtllm",
    title="TensorRT-LLM",
    figures=FIGURES,
    rules=RULES,
    capacity=frozenset({"pool", "pool_bytes", "tokens", "blocks"}),
    capacity_lines=(
        "Allocated X GiB for max tokens in paged KV cache (N)", "Number of blocks in KV cache primary pool: N",
        "Allocated N bytes for k/v cache",
    ),
    expected=(
        (("pool", "pool_bytes"), "Allocated X GiB for max tokens in paged KV cache (N)"),
        (("tokens",), "Allocated X GiB for max tokens in paged KV cache (N)"),
        (("block_size", "pool_bytes"), "Number of tokens per block: N"),
    ),
)  # fmt: skip
