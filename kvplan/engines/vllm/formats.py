"""Values of vLLM's --kv-cache-dtype, the rows they store, and what vLLM makes of them for a model and GPU.

Source: vLLM 0.33.0, config/cache.py:44-67 (values), utils/torch_utils.py:40-66, the backends' files (rows).
"""

from __future__ import annotations

from dataclasses import replace

from kvplan.engines.shared.types import NATIVE, Adapting, EngineFormat
from kvplan.engines.vllm.backends import E4M3, TURBOQUANT, choose_backend
from kvplan.engines.vllm.layers import model_kind
from kvplan.engines.vllm.states import normal
from kvplan.engines.vllm.versions import PROJECT
from kvplan.errors import UnsupportedError, UsageError
from kvplan.specs.groups import AttentionGroup, StateGroup

CACHE = PROJECT + "config/cache.py:44-67"
REWRITE = PROJECT + "model_executor/layers/attention/mla_attention.py:359-376"
SKIPS = PROJECT + "engine/arg_utils.py:2334-2351"
INDEX = "fp8_e4m3:token,scale=fp32,pack=page"
"""The DSA indexer's keys: 128 fp8 and one fp32 scale, whatever the cache dtype (deepseek_v2.py:658-668)."""
V4_ROWS = "fp8_ds_v4"


def _slot(option: str, spelled: str, nbytes: int, since: str) -> EngineFormat:
    return EngineFormat(
        option=option, k=spelled, v=spelled, nbytes=nbytes, needs="TRITON_ATTN", since=since,
        source=PROJECT + "v1/attention/backends/triton_attn.py:308-319",
    )  # fmt: skip


FORMATS = (
    EngineFormat(option="auto", k=NATIVE, v=NATIVE, latent=NATIVE, index=INDEX, nbytes=512, source=CACHE),
    EngineFormat(
        option="bfloat16", k="bf16", v="bf16", latent="bf16", index=INDEX, nbytes=512,
        needs="a model in bfloat16", source=CACHE,
    ),
    EngineFormat(
        option="float16", k="fp16", v="fp16", latent="fp16", index=INDEX, nbytes=512,
        needs="a model in float16", source=CACHE,
    ),
    EngineFormat(
        option="fp8", k="fp8_e4m3", v="fp8_e4m3", latent="fp8_e4m3", index=INDEX, nbytes=256, aliases=("fp8_e4m3",),
        needs="one scale per tensor; FLASH_ATTN on SM90 and SM100 only; FLASHMLA_SPARSE stores it as fp8_ds_mla",
        source=PROJECT + "v1/attention/backends/fa_utils.py:282-313",
    ),
    EngineFormat(
        option="fp8_e5m2", k="fp8_e5m2", v="fp8_e5m2", nbytes=256, needs="FLASHINFER or TRITON_ATTN; no MLA",
        source=PROJECT + "v1/attention/backends/fa_utils.py:293",
    ),
    EngineFormat(
        option="fp8_inc", k="fp8_e4m3", v="fp8_e4m3", nbytes=256, needs="Gaudi, out of tree", source=CACHE
    ),
    EngineFormat(
        option="fp8_ds_mla", latent="fp8_ds_mla", index=INDEX,
        needs="sparse MLA on SM90, SM100 or SM120", since="0.11.0",
        source=PROJECT + "v1/attention/backends/mla/flashmla_sparse.py",
    ),
    EngineFormat(
        option="nvfp4_ds_mla", latent="nvfp4_ds_mla", index=INDEX, needs="FLASHMLA_SPARSE on SM100", since="0.33.0",
        source=PROJECT + "v1/attention/backends/mla/flashmla_sparse.py",
    ),
    *(
        EngineFormat(
            option=option, k=option, v=option, nbytes=nbytes, needs="TURBOQUANT", since="0.20.0",
            source=PROJECT + "model_executor/layers/quantization/turboquant/config.py:131-180",
        )
        for option, nbytes in (
            ("turboquant_k8v4", 196), ("turboquant_4bit_nc", 134), ("turboquant_k3v4_nc", 118),
            ("turboquant_3bit_nc", 102),
        )
    ),
    EngineFormat(
        option="ultraquant_4bit", k="int4:group/32,scale=e8m0,pack=slot", v="int4:group/32,scale=e8m0,pack=slot",
        nbytes=136, needs="ROCm", since="0.33.0", source=PROJECT + "ultraquant/format.py:156-202",
    ),
    *(
        EngineFormat(
            option=option, k=option, v=option, nbytes=nbytes, needs="ROCm (RDNA3, CDNA3), head_dim 128", since="0.33.0",
            source=PROJECT + "v1/attention/backends/rocm_octave.py:101-180",
        )
        for option, nbytes in (("octave_k3v4", 136), ("octave_k3v3", 120), ("octave_k3v3_compact", 100))
    ),
    # vllm-project/vllm#38378; 4 bit is named in vllm-project/vllm#47684 of 2026-07.
    _slot("int8_per_token_head", "int8,scale=fp32,pack=slot", 264, "0.20.0"),
    _slot("fp8_per_token_head", "fp8_e4m3:token,scale=fp32,pack=slot", 264, "0.20.0"),
    _slot("int4_per_token_head", "int4,scale=fp32,pack=slot,rot", 136, "0.26.0"),
    EngineFormat(
        option="nvfp4", k="nvfp4", v="nvfp4", nbytes=144, since="0.25.1",
        needs="FLASHINFER; equal head dims of K and V; outside SM100 no head_dim 64 and no sinks",
        source=PROJECT + "v1/attention/backends/flashinfer.py:558-571, 652-690",
    ),
    EngineFormat(
        option="nvfp4_4over6", k="nvfp4", v="nvfp4", nbytes=144, needs="FLASHINFER on SM100", since="0.33.0",
        source=PROJECT + "v1/attention/backends/flashinfer.py:652-690",
    ),
)  # fmt: skip
FOUR_BIT_DENSE = TURBOQUANT | {"ultraquant_4bit"}
"""Options for which vLLM keeps the first and last two layers of dense models in the model's own dtype."""


NVFP4 = frozenset({"nvfp4", "nvfp4_4over6"})
FP8_BY_DEFAULT = ("glmmoedsa",)
"""Sparse MLA architectures whose `auto` is fp8 on SM100 (models/config.py:90-146)."""


def adapt(asked: Adapting) -> Adapting:
    """What vLLM makes of the chosen options: the rows of sparse MLA and DeepSeek-V4, layers that stay unquantised.

    Raises:
        UsageError: an option that this model or GPU cannot have.
    """
    native = asked.native
    for role, option in asked.chosen.items():
        if option == "fp8_inc":
            raise UsageError("no backend of vLLM itself stores fp8_inc: it is Gaudi's, out of tree", "use fp8")
        plain = {"bfloat16": "bf16", "float16": "fp16"}.get(option, native)
        if plain != native:
            raise UsageError(
                f"vLLM stores {role} as {option} only for a model of that dtype; this one has {native}", "use auto"
            )
    if asked.chosen.get("k") in NVFP4:
        _check_nvfp4(asked)
    adapted = _latents(asked) if "latent" in asked.chosen else asked
    dense = not any(isinstance(g, StateGroup) for g in asked.spec.layer_groups)
    if dense and asked.chosen.get("k") in FOUR_BIT_DENSE:
        adapted = replace(adapted, skips=(f"first=2:{native}", f"last=2:{native}"))
    return adapted


def _check_nvfp4(asked: Adapting) -> None:
    """Refuse what FlashInfer's nvfp4 kernels do not have (flashinfer.py:652-690)."""
    groups = [g for g in asked.spec.layer_groups if isinstance(g, AttentionGroup)]
    if any(g.k_dim != g.v_dim for g in groups):
        raise UsageError("vLLM stores nvfp4 only where K and V have the same head_dim", "use fp8")
    blackwell = asked.capability is None or asked.capability[0] in (10, 11)
    if not blackwell and any(g.k_dim == 64 or g.sinks for g in groups):
        raise UsageError("vLLM has nvfp4 with head_dim 64 or attention sinks on SM100 only", "use fp8")


def _latents(asked: Adapting) -> Adapting:
    """Rows of sparse MLA and of DeepSeek-V4 as their backend stores them."""
    try:
        kind = model_kind(asked.spec)
    except UnsupportedError:
        # The engine itself says so when it lays out the cache.
        return asked
    option, spelled, chosen = asked.chosen["latent"], dict(asked.spelled), dict(asked.chosen)
    if kind == "v4":
        spelled["latent"] = V4_ROWS
    elif kind == "sparse":
        blackwell = asked.capability is not None and asked.capability[0] in (10, 11)
        if option == "auto" and blackwell and normal(asked.spec.model_type) in FP8_BY_DEFAULT:
            option = chosen["latent"] = "fp8"
            spelled["latent"] = "fp8_e4m3"
        backend = choose_backend(kind, option, asked.capability, asked.options["attention_backend"])
        rewritten = backend == "FLASHMLA_SPARSE" and option in E4M3
        if rewritten or (backend == "FLASHINFER_MLA_SPARSE_SM120" and option in E4M3 | {"auto"}):
            spelled["latent"] = chosen["latent"] = "fp8_ds_mla"
    return replace(asked, spelled=spelled, chosen=chosen)
