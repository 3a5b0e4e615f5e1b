"""TensorRT-LLM: pools of blocks by window and head count, latents once, states in slots of their own.

Sources: stored versions of tensorrt_llm/_torch/pyexecutor up to 1.4.0rc4 and of the C++ KV cache manager, read; none of
it was run. Pools printed by versions from 0.5 on have the same bytes.
"""

from __future__ import annotations

from kvplan.engines.shared.scope import check_scope
from kvplan.engines.shared.types import (
    NATIVE,
    Case,
    Engine,
    EngineCache,
    EngineFormat,
    EngineOption,
    EngineRule,
    EngineVersion,
)
from kvplan.engines.trtllm.cache import BLOCKS, EXTRA_BLOCK, LINEAR, MANAGER, PROJECT, TrtLlmCache
from kvplan.engines.trtllm.start import LAUNCH, POOL
from kvplan.engines.trtllm.windows import read_shares, read_windows
from kvplan.errors import UnsupportedError, UsageError

_CONFIG = PROJECT + "tensorrt_llm/llmapi/llm_args.py, KvCacheConfig"
_UTIL = PROJECT + "tensorrt_llm/_torch/pyexecutor/_util.py, _cal_max_memory"
_TITLE = "TensorRT-LLM"
_INDEX = "fp8_e4m3:group/128,scale=fp32,pack=page"


def cache(case: Case) -> EngineCache:
    """Lay out a case.

    Raises:
        UsageError: a block size, window list or dtype that TensorRT-LLM refuses.
        UnsupportedError: strided rows and rings, windows or states under the second manager.
    """
    check_scope(case, _TITLE, ("kv", "latent", "index", "cross", "state"), fp32=True)
    options = case.options
    tokens = options["tokens_per_block"]
    if tokens < 2 or tokens & (tokens - 1):
        raise UsageError(f"tokens_per_block {tokens} is no power of two above 1", "the default is 32")
    if "int8" in case.chosen.values() and options["backend"] != "tensorrt":
        raise UsageError(
            "int8 is a cache dtype of TensorRT engines, not of the PyTorch backend",
            "give --kv fp8, or --engine-option backend=tensorrt",
        )
    fraction = options["cross_kv_cache_fraction"]
    if not 0 < fraction < 1:
        raise UsageError(f"cross_kv_cache_fraction {fraction} is no share of the pool", "the default is 0.5")
    windows = read_windows(options["max_attention_window"])
    if options["TRTLLM_WINDOW_SIZE_SHARES"]:
        read_shares(options["TRTLLM_WINDOW_SIZE_SHARES"], len({min(w, case.context) for w in windows}) or 1)
    if options["use_kv_cache_manager_v2"]:
        _check_second_manager(case, len(set(windows)))
    return TrtLlmCache(case)


def _check_second_manager(case: Case, windows: int) -> None:
    """The second manager has the same blocks; how it sizes windows and states kvplan has not read."""
    if windows > 1 or any(g.role == "state" for g in case.groups):
        raise UnsupportedError(
            "kvplan has no rule for windows and states of TensorRT-LLM's KVCacheManagerV2",
            "give --engine-option use_kv_cache_manager_v2=off",
        )


ENGINE = Engine(
    name="trtllm",
    title=_TITLE,
    flag=("kv_cache_config.dtype",),
    versions=(EngineVersion(name="1.4.0rc4", note="newest stored source; printed pools agree from 0.5 on"),),
    formats=(
        EngineFormat(option="auto", k=NATIVE, v=NATIVE, latent=NATIVE, index=_INDEX, nbytes=512, source=MANAGER),
        EngineFormat(option="float16", k="fp16", v="fp16", latent="fp16", index=_INDEX, nbytes=512, source=MANAGER),
        EngineFormat(option="bfloat16", k="bf16", v="bf16", latent="bf16", index=_INDEX, nbytes=512, source=MANAGER),
        EngineFormat(option="fp8", k="fp8_e4m3", v="fp8_e4m3", latent="fp8_e4m3", index=_INDEX, nbytes=256,
                     source=MANAGER),
        EngineFormat(option="nvfp4", k="nvfp4", v="nvfp4", index=_INDEX, nbytes=144,
                     needs="head_dim divisible by 16", source=MANAGER + ".calculate_scaling_factor_size_bytes"),
        EngineFormat(option="int8", k="int8:tensor", v="int8:tensor", nbytes=256, needs="TensorRT engine",
                     launchable=False,
                     source=PROJECT + "docs, KV cache of TensorRT engines"),
    ),
    options=(
        EngineOption(name="tokens_per_block", default=32, text="Tokens per block, a power of two above 1.",
                     source=_CONFIG),
        EngineOption(name="backend", kind=str, default="pytorch", choices=("pytorch", "tensorrt"),
                     text="What runs the model; int8 caches need tensorrt.", source=_CONFIG),
        EngineOption(name="max_attention_window", kind=str,
                     text="Windows of the layers, such as 1024,1024,32768, repeated; default: every row.",
                     source=_CONFIG),
        EngineOption(name="TRTLLM_WINDOW_SIZE_SHARES", kind=str,
                     text="Share of the pool for each window, smallest first (environment); default: equal.",
                     source=MANAGER),
        EngineOption(name="max_tokens", text="Tokens of the pool, in whole blocks; ignored with several windows.",
                     source=_CONFIG),
        EngineOption(name="max_batch_size", text="Requests at once: state slots; default the request's.",
                     source=LINEAR),
        EngineOption(name="max_draft_len", default=0, text="Draft tokens: as many state slots more.", source=LINEAR),
        EngineOption(name="enable_block_reuse", kind=bool, default=True,
                     text="Reuse of blocks, which also takes snapshots of states.", source=_CONFIG),
        EngineOption(name="mamba_state_cache_interval", default=256,
                     text="Tokens between two snapshots of states; 0: none.", source=_CONFIG),
        EngineOption(name="mamba_ssm_cache_dtype", kind=str, default="auto",
                     choices=("auto", "float16", "bfloat16", "float32"),
                     text="Number type of recurrent states; auto: the model's.", source=_CONFIG),
        EngineOption(name="cross_kv_cache_fraction", kind=float, default=0.5,
                     text="Share of the pool for encoder rows.", source=_CONFIG),
        EngineOption(name="use_kv_cache_manager_v2", kind=bool, default=False,
                     text="The second manager; kvplan covers it without windows and states.", source=_CONFIG),
    ),
    rules=(
        EngineRule(name="blocks", text="Whole blocks of min(tokens, window); beyond a window one block more. Without "
                   "max_attention_window every layer keeps every row.", source=f"{BLOCKS}; {EXTRA_BLOCK}"),
        EngineRule(name="bytes", text="K and V; a latent is stored once (kv_factor 1). nvfp4 has an e4m3 scale for 16 "
                   "elements, index keys fp8 with an fp32 scale for 128.", source=MANAGER),
        EngineRule(name="pools", text="One pool for each window and head count. Several windows share the memory "
                   "equally, or by TRTLLM_WINDOW_SIZE_SHARES, and max_tokens is ignored.", source=MANAGER),
        EngineRule(name="states", text="max_batch_size x pp slots, one for padding, max_draft_len more; with block "
                   "reuse a snapshot for every mamba_state_cache_interval tokens of the pool.", source=LINEAR),
        EngineRule(name="budget", text="free_gpu_memory_fraction (0.9) is a share of what a dummy forward leaves, not "
                   "of the whole GPU.", source=_UTIL),
        EngineRule(name="managers", text="KVCacheManagerV2 has the same blocks but sizes windows and states by other "
                   "rules, which kvplan does not cover.", source=PROJECT + "kv_cache/kv_cache_manager_v2.py"),
    ),
    cache=cache,
    pool=POOL,
    launch=LAUNCH,
    page_option="tokens_per_block",
)  # fmt: skip
