"""SGLang's options that change cache bytes, and its rules in a sentence each."""

from __future__ import annotations

from kvplan.engines.shared.types import EngineOption, EngineRule

_S = "SGLang 0.5.23, srt/"
_FIELDS = _S + "arg_groups/fields/"
_CONFIGURATOR = _S + "mem_cache/kv_cache_configurator.py:"
_POOLS = _S + "model_executor/pool_configurator.py:"

BACKENDS = (
    "aiter", "cutedsl_mla", "cutlass_mla", "dsa", "fa3", "fa4", "flashinfer", "flashmla", "flex_attention", "hpc_ops",
    "torch_native", "triton", "trtllm_mha", "trtllm_mla",
)  # fmt: skip
SPARSE_BACKENDS = ("fa3", "flashinfer_sparse_mla", "flashmla_kv", "flashmla_sparse", "tilelang", "trtllm")

OPTIONS = (
    EngineOption(name="page_size", source=_S + "arg_groups/overrides.py:1146-1363",
                 text="Tokens per page; 1, or what the attention backend asks for."),
    EngineOption(name="attention_backend", kind=str, choices=BACKENDS, source=_S + "arg_groups/overrides.py:1146-1296",
                 text="Attention backend, as far as it decides the page size; by default from the GPU."),
    EngineOption(name="max_total_tokens", source=_CONFIGURATOR + "3094-3117",
                 text="Tokens of the pool at most; changes what is reported for a budget."),
    EngineOption(name="max_running_requests", source=_CONFIGURATOR + "3119-3180", text="Requests at once at most."),
    EngineOption(name="chunked_prefill_size", source=_S + "arg_groups/memory_hook.py:89-170",
                 text="Tokens of a prefill chunk; it counts where windows are sized by requests."),
    EngineOption(name="disable_radix_cache", kind=bool, default=False, source=_FIELDS + "memory.py",
                 text="No prefix cache: one state slot per request; windows by requests with max_running_requests."),
    EngineOption(name="disable_overlap_schedule", kind=bool, default=False, source=_FIELDS + "schedule.py",
                 text="No overlap of scheduling and computing: one tracking slot of a state less, one chunk less."),
    EngineOption(name="swa_full_tokens_ratio", kind=float, source=_FIELDS + "schedule.py:150",
                 text="Window-pool tokens for each full-pool token; 0.8, Inkling 0.1."),
    EngineOption(name="disable_hybrid_swa_memory", kind=bool, default=False, source=_POOLS + "1715-1725",
                 text="Windowed layers keep all rows."),
    EngineOption(name="mamba_full_memory_ratio", kind=float, default=0.9, source=_CONFIGURATOR + "3305-3340",
                 text="Bytes of states for each byte of rows in the budget."),
    EngineOption(name="mamba_radix_cache_strategy", kind=str, default="auto", source=_FIELDS + "exec_.py:512",
                 choices=("auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"),
                 text="Which states a prefix cache can go back to: 3 slots per request, 5, or 4 (lazy)."),
    EngineOption(name="mamba_ssm_dtype", kind=str, choices=("float32", "bfloat16", "float16"),
                 source=_S + "configs/mamba_utils.py:46-92",
                 text="Number type of recurrent states; else the config's mamba_ssm_dtype, else float32."),
    EngineOption(name="max_mamba_cache_size", source=_CONFIGURATOR + "3256-3280", text="State slots."),
    EngineOption(name="dsa_prefill_backend", kind=str, choices=SPARSE_BACKENDS,
                 source=_S + "arg_groups/overrides.py:588-735", text="Sparse attention: kernel of the prefill."),
    EngineOption(name="dsa_decode_backend", kind=str, choices=SPARSE_BACKENDS,
                 source=_S + "arg_groups/overrides.py:588-735",
                 text="Sparse attention: kernel of decoding; it decides the fp8 row (656 or 576 bytes)."),
    EngineOption(name="prefill_kv_cache_dequant_dtype", kind=str, default="auto", choices=("auto", "fp8_e4m3", "nvfp4"),
                 source=_S + "arg_groups/kv_cache_hook.py:33-90", text="What the prefill reads NVFP4 rows as."),
    EngineOption(name="dequant_workspace", kind=str, choices=("none", "fp8_e4m3", "bf16"),
                 source=_S + "layers/quantization/fp4_kv_cache_quant_method.py:212-230",
                 text="Number type of one layer of dequantised 4-bit rows; by default from the backends."),
)  # fmt: skip

RULES = (
    EngineRule(name="cell", source=_POOLS + "366-640", text="A token takes the bytes of all layers of the stage, also "
               "of those without rows of their own; tokens = budget // cell // page x page."),
    EngineRule(name="heads", source=_S + "configs/model_config.py:1700", text="KV heads of a rank: total // attention "
               "ranks, at least 1; latents and index keys are copied to every rank."),
    EngineRule(name="extra page", source=_S + "mem_cache/memory_pool.py:2260", text="Every buffer has size + page_size "
               "rows; the budget does not know of them."),
    EngineRule(name="two pools", source=_POOLS + "656-905", text="Listed models have a pool for windows: "
               "swa_full_tokens_ratio x the full pool's tokens. All others keep all rows of windowed layers."),
    EngineRule(name="windows by requests", source=_POOLS + "924-1042", text="Without radix cache and with "
               "max_running_requests: window + 128 + two pages each, two chunks and a page."),
    EngineRule(name="states", source=_CONFIGURATOR + "3229-3410", text="Slots + 1; a request takes 3, 5 where states "
               "are tracked, 1 without radix cache. Recurrent states in fp32, convolution rows in bf16."),
    EngineRule(name="index", source=_POOLS + "560-635", text="Index keys take 132 bytes whatever the cache dtype, and "
               "are not shared by decode context parallel."),
    EngineRule(name="4 bits", source=_S + "layers/quantization/fp4_kv_cache_quant_method.py:728-768", text="NVFP4 with "
               "a dequantising prefill adds one layer of fp8 rows; with native decoding also second scales."),
    EngineRule(name="host cache", source=_FIELDS + "memory.py:100-120", text="HiCache (hicache_ratio 2.0) lies in "
               "host memory and changes nothing here."),
)  # fmt: skip
