"""Log lines of vLLM, from 0.2 to 0.33.

Sources name files of vllm-project/vllm; wordings that only logs show name the log's place.
"""

from __future__ import annotations

from kvplan.reconcile.rules import Figure, LogFormat, Rule

_KEYS = (
    "max_model_len", "max_seq_len", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
    "decode_context_parallel_size", "kv_cache_dtype", "dtype", "block_size", "gpu_memory_utilization", "max_num_seqs",
    "max_num_batched_tokens", "enable_prefix_caching", "enforce_eager", "num_gpu_blocks_override",
    "disable_hybrid_kv_cache_manager", "mamba_cache_mode", "mamba_ssm_cache_dtype", "mamba_cache_dtype",
    "num_speculative_tokens", "num_spec_tokens", "kv_cache_memory_bytes", "enable_expert_parallel", "quantization",
    "async_scheduling",
)  # fmt: skip
_NAME = r"['\"]?\bmodel['\"]?\s*[:=]\s*['\"](?P<model>[^'\"]+)['\"]"
_STARTING = r"Initializing an? (?:V[01] )?LLM engine(?: \(v(?P<version>[\w.+]+)\))?"
_UTILS = "vllm/v1/core/kv_cache_utils.py"
_WORKER = "vllm/v1/worker/gpu_worker.py"
_RUNNER = "vllm/v1/worker/gpu_model_runner.py"
_OLD_WORKER = "vllm/worker/worker.py"

FIGURES = {
    "tokens": Figure("GPU KV cache size", "tokens"),
    "blocks": Figure("GPU blocks", "blocks"),
    "cpu_blocks": Figure("CPU blocks", "blocks"),
    "per_request": Figure("tokens per request of the concurrency", "tokens"),
    "concurrency": Figure("maximum concurrency", "x", 2),
    "available": Figure("available KV cache memory", "GiB", 2),
    "weights": Figure("model weights", "GiB", 2),
    "graphs": Figure("CUDA graphs", "GiB", 2),
    "graph_estimate": Figure("estimated CUDA graphs", "GiB", 2),
    "total_memory": Figure("GPU memory", "GiB", 2),
    "utilization": Figure("GPU memory utilization", "", 2),
    "budget": Figure("GPU memory that vLLM may use", "GiB", 2),
    "non_torch": Figure("memory outside PyTorch", "GiB", 2),
    "activation": Figure("PyTorch activation peak", "GiB", 2),
    "block_size": Figure("attention block size", "tokens"),
    "mamba_padding": Figure("padding of the state page", "%", 2),
    "padding_layers": Figure("padding layers", "layers"),
    "padding_waste": Figure("KV cache memory that padding layers may waste", "%", 2),
    "asked_length": Figure("length asked for", "tokens"),
    "needed": Figure("KV cache needed for one request", "GiB", 2),
    "refused_available": Figure("KV cache memory at the refusal", "GiB", 2),
    "estimated_length": Figure("estimated maximum length", "tokens"),
    "blocks_measured": Figure("blocks before the override", "blocks"),
    "blocks_override": Figure("blocks by the override", "blocks"),
    "context_ranks": Figure("context-parallel ranks that share the cache", "ranks"),
    "max_length": Figure("maximum model length", "tokens"),
    "batched_tokens": Figure("batched tokens", "tokens"),
    "initial_free": Figure("free memory at the start", "GiB", 2),
}

RULES = (
    Rule("vLLM API server version", r"vLLM API server version (?P<version>\d[\w.+]*)",
         "vllm/entrypoints/openai/api_server.py", effect="start"),
    Rule("█", r"█\s+version (?P<version>\d[\w.+]*)", "vllm/entrypoints/utils.py, the banner", since="0.15",
         effect="start"),
    Rule("LLM engine", _STARTING + r" with config: .*?" + _NAME,
         "vllm/v1/engine/core.py; until 0.10 vllm/engine/llm_engine.py", keys=_KEYS, effect="start"),
    Rule("LLM engine", _STARTING, "as above, where the configuration follows on other lines", effect="start"),
    Rule("default args:", r"non-default args: \{.*?" + _NAME, "vllm/entrypoints/utils.py", keys=_KEYS),
    Rule("args: Namespace(", r"args: Namespace\(.*?\b" + _NAME, "vllm/entrypoints/openai/api_server.py",
         keys=_KEYS),
    Rule("num_spec_tokens", r"num_spec_tokens=(?P<o_num_spec_tokens>\d+)", "vllm/config/speculative.py"),
    Rule("Using max model len", r"Using max model len {max_length}", "vllm/config/model.py"),
    Rule("max_num_batched_tokens=", r"Chunked prefill is enabled with max_num_batched_tokens={batched_tokens}",
         "vllm/config/scheduler.py"),
    Rule("to store kv cache", r"Using (?P<o_kv_cache_dtype>\w+) data type to store kv cache", "vllm/config/cache.py"),
    Rule("attention backend out of", r"Using (?P<o_attention_backend>[A-Z0-9_]+) attention backend out of",
         "vllm/platforms/cuda.py"),
    Rule(" backend", r"Using (?:AttentionBackendEnum\.)?(?P<o_attention_backend>FLASH_ATTN|FLASHINFER|TRITON_ATTN"
         r"|FLASHMLA|FLASHINFER_MLA|CUTLASS_MLA|TRITON_MLA|FLASH_ATTN_MLA|FLASHMLA_SPARSE|XFORMERS|Flash Attention"
         r"|FlashInfer|Triton|XFormers)(?:_VLLM_V1)? backend", "vllm/platforms/cuda.py"),
    Rule("oading", r"Model loading took {weights} Gi?B", _RUNNER),
    Rule("weights took", r"Loading model weights took {weights} Gi?B", "vllm/worker/model_runner.py"),
    Rule("total_gpu_memory", r"total_gpu_memory \({total_memory} ?GiB\) x gpu_memory_utilization \({utilization}\)"
         r" = {budget} ?GiB", _OLD_WORKER),
    Rule("model weights take", r"model weights take {weights} ?GiB", _OLD_WORKER),
    Rule("non_torch_memory", r"non_torch_memory takes {non_torch} ?GiB", _OLD_WORKER),
    Rule("activation peak", r"activation peak memory takes {activation} ?GiB", _OLD_WORKER),
    Rule("reserved for KV Cache is", r"the rest of the memory reserved for KV Cache is {available} ?GiB", _OLD_WORKER),
    Rule("Initial free memory", r"Initial free memory: {initial_free} GiB", _WORKER + ", at debug level"),
    Rule("Available KV cache memory", r"Available KV cache memory: {available} GiB", _WORKER),
    Rule("blocks: ", r"# (?!CPU)\w+ blocks: {blocks}(?:, # CPU blocks: {cpu_blocks})?",
         "vllm/executor/executor_base.py; vllm/v1/core/kv_cache_utils.py in 0.7"),
    Rule("GPU KV cache size", r"GPU KV cache size: {tokens} tokens", _UTILS),
    Rule("Maximum concurrency", r"Maximum concurrency for {per_request} tokens per request: {concurrency}x", _UTILS),
    Rule("num_gpu_blocks=", r"Overriding num_gpu_blocks={blocks_measured} with"
         r" num_gpu_blocks_override={blocks_override}", _UTILS),
    Rule("cp_world_size", r"Multiplying the GPU KV cache size by the (?:dcp|cp)_world_size {context_ranks}", _UTILS),
    Rule("attention block size", r"Setting attention block size to {block_size} tokens",
         "vllm/platforms/interface.py; until 0.17 vllm/model_executor/models/config.py"),
    Rule("mamba page size by", r"Padding mamba page size by {mamba_padding}%",
         "vllm/platforms/interface.py; until 0.17 vllm/model_executor/models/config.py"),
    Rule("padding layers", r"Add {padding_layers} padding layers, may waste at most {padding_waste}%", _UTILS),
    Rule("CUDA graph memory", r"Estimated CUDA graph memory: {graph_estimate} GiB", _RUNNER),
    Rule("without CUDA graph", r"gpu-memory-utilization={utilization} is equivalent", _WORKER, since="0.21"),
    Rule("Graph capturing", r"Graph capturing finished in [\d.]+ secs?, took {graphs} GiB", _RUNNER),
    Rule("max seq len", r"max seq len \({asked_length}\)", _UTILS + ", the refusal"),
    Rule("KV cache is needed", r"\(?{needed} ?GiB KV cache is needed", _UTILS + ", the refusal"),
    Rule("KV cache memory", r"available KV cache memory \({refused_available} ?GiB\)", _UTILS + ", the refusal"),
    Rule("model length is", r"estimated maximum model length is {estimated_length}", _UTILS + ", the refusal"),
    Rule("stored in KV cache", r"maximum number of tokens that can be stored in KV cache \({tokens}\)",
         "vllm/worker/worker.py, the refusal of V0"),
)  # fmt: skip

FORMAT = LogFormat(
    engine="vllm",
    title="vLLM",
    figures=FIGURES,
    rules=RULES,
    capacity=frozenset({"tokens", "blocks", "available", "needed", "refused_available"}),
    capacity_lines=(
        "GPU KV cache size: N tokens", "# GPU blocks: N", "Available KV cache memory: X GiB",
        "To serve at least one request ... X GiB KV cache is needed",
    ),
    expected=(
        (("available", "refused_available"), "Available KV cache memory: X GiB"),
        (("tokens", "blocks", "estimated_length"), "GPU KV cache size: N tokens"),
        (("concurrency", "needed"), "Maximum concurrency for N tokens per request: Cx"),
        (("weights",), "Model loading took X GiB"),
    ),
    once=frozenset({"available"}),
    latest=frozenset({"needed", "refused_available", "estimated_length", "asked_length", "max_length",
                      "batched_tokens", "weights", "utilization"}),
)  # fmt: skip
