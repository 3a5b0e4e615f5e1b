"""Every model type that can be imported, and its family. The only table of architectures."""

from __future__ import annotations

from kvplan.specs.importers import (
    attention,
    blocks,
    compressed,
    conv,
    cross,
    linear,
    mamba,
    mla,
    rules,
    sharing,
    special,
)
from kvplan.specs.importers.aliases import ALIASES
from kvplan.specs.importers.family import (
    CHUNKED,
    CONV,
    FULL,
    HYBRID,
    INDEXED,
    LINEAR,
    NO_CACHE,
    NONE,
    SLIDING,
    Family,
    Maker,
    Part,
)
from kvplan.specs.importers.fields import Fields


def _no_cache(cfg: Fields, layer: int) -> tuple[Part, ...]:
    return (NO_CACHE,)


_WINDOWED: dict[str, Maker] = {FULL: attention.full, SLIDING: attention.sliding}
_LINEAR_HYBRID: dict[str, Maker] = {FULL: attention.full, LINEAR: linear.gated_deltanet}
_LATENT: dict[str, Maker] = {FULL: mla.latent}
_INDEXED: dict[str, Maker] = {INDEXED: mla.indexed_latent}
_MAMBA2: dict[str, Maker] = {FULL: attention.full, LINEAR: mamba.mamba2, NONE: _no_cache}
_MIMO: dict[str, Maker] = {FULL: special.k_and_v_full, SLIDING: special.k_and_v_sliding}
_GEMMA4: dict[str, Maker] = {FULL: special.gemma4_full, SLIDING: attention.sliding}
_STEP: dict[str, Maker] = {FULL: attention.full, SLIDING: special.step_sliding}
_INKLING: dict[str, Maker] = {HYBRID: conv.inkling_full, "hybrid_sliding": conv.inkling_sliding}
_V4: dict[str, Maker] = {
    SLIDING: compressed.window_only,
    compressed.SPARSE: compressed.sparse,
    compressed.HEAVY: compressed.heavy,
}
_V41: dict[str, Maker] = {
    SLIDING: compressed.window_only,
    compressed.SPARSE: compressed.stored,
    compressed.REUSED: compressed.window_only,
}
_PERIOD = ("sliding_window_pattern", "_sliding_window_pattern")
_BLOCK_LISTS = ("layer_types", "layers_block_type")


def _all(maker: Maker) -> Family:
    """Every layer alike, full attention."""
    return Family(rules.all_full, {FULL: maker})


FULL_ATTENTION = _all(attention.full)
MULTI_HEAD = _all(special.one_kv_head_per_query_head)
ONE_WINDOW = Family(rules.every_window, _WINDOWED)
LATER_WINDOW = Family(rules.gated_later_window, _WINDOWED)
LATENT = Family(rules.all_full, _LATENT)
INDEXED_LATENT = Family(
    rules.constant(INDEXED),
    _INDEXED,
    sharing=mla.reused_latents,
    shared_by="kv_source_layers",
    renames={"full_attention": INDEXED},
)
DELTA_HYBRID = Family(rules.every(4, "full_attention_interval", other=LINEAR), _LINEAR_HYBRID)
BAILING = Family(linear.grouped_words, {FULL: mla.latent, LINEAR: linear.bailing})
MINIMAX = Family(linear.typed_words, {FULL: attention.full, LINEAR: linear.lightning})
GEMMA4 = Family(rules.every(6), _GEMMA4, sharing=sharing.last_layers, shared_by="num_kv_shared_layers", ends_full=True)
PATTERN_OF_2 = Family(rules.every(2, *_PERIOD), _WINDOWED)
PATTERN_OF_4 = Family(rules.every(4, *_PERIOD), _WINDOWED)
FIRST_OF_4 = Family(rules.first_of(4), _WINDOWED)
MIMO = Family(rules.flagged("hybrid_layer_pattern", otherwise=rules.first_and_every(6)), _MIMO)
STEP = Family(rules.needed("layer_types"), _STEP, tail=True)
SPARSE = Family(mla.sparse_words, {FULL: attention.full, INDEXED: mla.sparse_attention})
INKLING = Family(
    rules.listed("local_layer_ids", "hybrid_sliding", HYBRID, rules.every(6, other="hybrid_sliding", word=HYBRID)),
    _INKLING,
)
TEXT_DECODER = Family(rules.all_full, {FULL: cross.text_decoder}, count=cross.decoder_count)
MUSE = Family(rules.last_is_full(4), _WINDOWED)
LFM2 = Family(conv.lfm_words, {FULL: attention.full, CONV: conv.short_conv})
AUDIO_DECODER = Family(rules.all_full, {FULL: cross.audio_decoder}, count=cross.decoder_count)
SEARCHED = Family(rules.all_full, {FULL: blocks.searched}, count=blocks.block_count)

_BY_NAMES: tuple[tuple[Family, str], ...] = (
    (
        FULL_ATTENTION,
        "apertus apertus1p5_text arcee aria_text aquila bailing_moe bailing_moe_v2 bitnet chameleon cohere "
        "cosmos3_edge_text csm deepseek deepseek_ocr2_text diffllama emu3_text_model ernie4_5 ernie4_5_moe "
        "ernie4_5_vl_moe_text exaone flex_olmo gemma glm glm4 glm4_moe glm4v_moe_text glm4v_text glm_image_text "
        "glm_ocr_text granite granite4_vision_text granite_docling_text granitemoe granitemoeshared helium "
        "hunyuan_v1_dense hunyuan_v1_moe hunyuan_vl_text hy_v3 hyperclovax internlm internlm2 internlm3 iquestcoder "
        "jais2 llama minicpm minimax_m2 molmo2_text nanochat nemotron olmo olmo2 olmoe orion paddleocr_vl_text phi "
        "phi3small phi-msft qwen3_omni_moe_text qwen3_vl_moe_text qwen3_vl_text sarvam_moe seed_oss skywork solar "
        "solar_open stablelm stablelm_epoch xverse",
    ),
    (
        MULTI_HEAD,
        "baichuan biogpt bloom codegen ctrl gpt2 gpt_neox gpt_neox_japanese gptj jais openai-gpt opt persimmon qwen "
        "xglm",
    ),
    (
        ONE_WINDOW,
        "doge ministral ministral3 mistral mixtral moshi phi3 phi4_multimodal phimoe starcoder2 voxtral_realtime_text",
    ),
    (LATER_WINDOW, "mimo qwen2 qwen2_5_omni_text qwen2_5_vl_text qwen2_vl_text qwen3"),
    (LATENT, "axk1 deepseek_v2 deepseek_v3 glm4_moe_lite kimi_k2 minicpm3 mistral4 sarvam_mla youtu"),
    (INDEXED_LATENT, "axk2 deepseek_v32 glm_moe_dsa hy_v4 hy_v4_vl_text mistral_large4_text"),
    (DELTA_HYBRID, "olmo_hybrid qwen3_5_moe_text qwen3_5_text qwen3_next"),
    (BAILING, "bailing_hybrid bailing_moe_v2_5"),
    (MINIMAX, "minimax minimax_m1 minimax_text_01"),
    (GEMMA4, "gemma4_text gemma4_unified_text"),
    (PATTERN_OF_2, "gemma2 gpt_oss vaultgemma"),
    (PATTERN_OF_4, "cohere2 cohere_compass_text exaone4 exaone4_5_text exaone_moe olmo3"),
    (FIRST_OF_4, "cwm granite_swa granitemoe_swa"),
    (MIMO, "mimo_v2 mimo_v2_flash"),
    (STEP, "step3p5 step3p7"),
    (SPARSE, "minimax_m3 minimax_m3_vl_text"),
    (INKLING, "inkling2_text inkling_text"),
    (MUSE, "muse_glimmer_text muse_spark_text"),
    (LFM2, "lfm2 lfm2_moe"),
    (
        TEXT_DECODER,
        "bart bigbird_pegasus blenderbot blenderbot-small fsmt led longt5 m2m_100 marian mbart mt5 mvp nllb-moe "
        "pegasus plbart switch_transformers t5 umt5",
    ),
    (AUDIO_DECODER, "speech_to_text whisper"),
    (SEARCHED, "deci nemotron-nas"),
)

_SINGLE: dict[str, Family] = {
    "afmoe": Family(rules.every(4, "global_attn_every_n_layers"), _WINDOWED),
    "baichuan_m1": Family(
        rules.listed("sliding_window_layers", SLIDING, FULL), {FULL: conv.dual_full, SLIDING: conv.dual_sliding}
    ),
    "bailing_moe_linear": Family(linear.grouped_words, {FULL: mla.latent_or_full, LINEAR: linear.bailing}),
    "bamba": Family(mamba.indexed_words, _MAMBA2),
    "chatglm": _all(special.chatglm),
    "cohere2_moe": Family(rules.dense_prefix, _WINDOWED),
    "dbrx": _all(special.inner_config),
    "deepseek_v4": Family(compressed.ratio_words, _V4, tail=True),
    "deepseek_v41_text": Family(compressed.source_words, _V41, lists=()),
    "dots1": Family(rules.later_window, _WINDOWED),
    "falcon": _all(special.falcon),
    "falcon_h1": Family(rules.constant(HYBRID), {HYBRID: mamba.attention_and_mamba2}),
    "falcon_mamba": Family(rules.constant(LINEAR), {LINEAR: mamba.mamba1}),
    "gemma3_text": Family(rules.every(6, *_PERIOD), _WINDOWED),
    "gemma3n_text": Family(rules.every(5), _WINDOWED, sharing=sharing.last_layers, shared_by="num_kv_shared_layers"),
    "glm5_next_text": Family(
        rules.every(4, other=LINEAR, word=INDEXED), {**_INDEXED, LINEAR: linear.kda}, renames={FULL: INDEXED}
    ),
    "gpt_bigcode": _all(special.big_code),
    "gpt_neo": Family(
        rules.local_pairs,
        {FULL: special.one_kv_head_per_query_head, SLIDING: special.local_multi_head},
        lists=("attention_layers",),
        renames={"global": FULL, "local": SLIDING},
    ),
    "granitemoehybrid": Family(rules.needed("layer_types"), _MAMBA2),
    "hunyuan": Family(
        rules.all_full, {FULL: attention.full}, sharing=sharing.cross_layer, shared_by="cla_share_factor"
    ),
    "jamba": Family(mamba.periodic_words, {FULL: attention.full, LINEAR: mamba.mamba1}, lists=_BLOCK_LISTS),
    "jetmoe": _all(special.jetmoe),
    "kimi_linear": Family(linear.kimi_words, {FULL: mla.latent, LINEAR: linear.kda}),
    "laguna": Family(rules.all_full, {FULL: special.laguna_full, SLIDING: special.laguna_sliding}),
    "lara_mini": Family(rules.needed("layer_types"), {**_WINDOWED, **_LINEAR_HYBRID}),
    "lfm3": Family(conv.lfm3_words, {**_WINDOWED, CONV: conv.short_conv}),
    "llama4_text": Family(rules.chunked, {FULL: attention.full, CHUNKED: attention.in_chunks}),
    "longcat_flash": Family(rules.all_full, _LATENT, count=mla.twice_per_layer, lists=()),
    "mamba": Family(rules.constant(LINEAR), {LINEAR: mamba.mamba1}),
    "mamba2": Family(rules.constant(LINEAR), {LINEAR: mamba.pure_mamba2}),
    "mellum": Family(rules.all_full, _WINDOWED),
    "mllama_text_model": Family(cross.image_words, {FULL: attention.full, cross.CROSS: cross.image_layer}),
    "mpt": _all(special.inner_config),
    "nemotron_h": Family(mamba.pattern_words, _MAMBA2, count=mamba.pattern_length, lists=_BLOCK_LISTS),
    "openelm": Family(rules.all_full, {FULL: blocks.counted}, count=blocks.transformer_count),
    "phi4flash": Family(
        sharing.decoder_decoder,
        {
            FULL: attention.full,
            SLIDING: sharing.flash_sliding,
            LINEAR: mamba.mamba1,
            NONE: _no_cache,
            sharing.SHARED: _no_cache,
        },
        sharing=sharing.reads_full,
        shared_by="mb_per_layer",
        lists=(),
    ),
    "qwen2_moe": Family(rules.gated_early_window, _WINDOWED),
    "qwen3_moe": Family(rules.gated_window, _WINDOWED),
    "qwen4_exp_text": Family(
        rules.every(4, "full_attention_interval", other=LINEAR, word=INDEXED),
        {INDEXED: mla.indexed_if_given, LINEAR: linear.gated_deltanet},
        renames={FULL: INDEXED},
    ),
    "recurrent_gemma": Family(conv.block_words, {SLIDING: attention.sliding, LINEAR: conv.rg_lru}, lists=()),
    "rwkv": Family(rules.constant(LINEAR), {LINEAR: linear.rwkv4}),
    "rwkv7": Family(rules.constant(LINEAR), {LINEAR: linear.rwkv7}),
    "smollm3": Family(rules.rope_free_window, _WINDOWED),
    "step3_text": _all(special.step3),
    "zamba": Family(
        rules.needed("layers_block_type"),
        {LINEAR: mamba.mamba1, HYBRID: mamba.mamba1_and_attention},
        lists=("layers_block_type",),
    ),
    "zamba2": Family(
        mamba.shared_block_words,
        {LINEAR: mamba.mamba2, HYBRID: mamba.mamba2_and_attention},
        lists=("layers_block_type",),
    ),
    "zaya": Family(rules.constant(HYBRID), {HYBRID: conv.cca, "hybrid_sliding": conv.cca_sliding}),
}

FAMILIES: dict[str, Family] = {name: family for family, names in _BY_NAMES for name in names.split()} | _SINGLE


def canonical(model_type: str) -> str | None:
    """The name under which a model type stands in `FAMILIES`, or None if it is unknown."""
    name = model_type.lower()
    for candidate in (name, ALIASES.get(name, ""), f"{name}_text"):
        if candidate in FAMILIES:
            return candidate
    return None
