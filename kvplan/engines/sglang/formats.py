"""The values of `--kv-cache-dtype`, and what they store for sparse attention.

Source: SGLang 0.5.23, read: srt/arg_groups/fields/model.py:198-222 (values), srt/mem_cache/kv_cache_dtype.py:34-110.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvplan.engines.sglang import models
from kvplan.engines.shared.types import NATIVE, EngineFormat
from kvplan.errors import UsageError

if TYPE_CHECKING:
    from kvplan.specs.model import ModelSpec

_DTYPES = "SGLang 0.5.23, srt/mem_cache/kv_cache_dtype.py:34-110"
_FP4 = "SGLang 0.5.23, srt/layers/quantization/fp4_kv_cache_quant_method.py:744-914"
_SPARSE = "SGLang 0.5.23, srt/mem_cache/kv_cache_configurator.py:3412-3475"
_RESOLVED = "SGLang 0.5.23, srt/arg_groups/overrides.py:530-541"

INDEX = "fp8_e4m3:token,scale=fp32,pack=page"
"""Index keys, whatever the cache dtype: 128 fp8 codes and one fp32 scale (pool_configurator.py:560-635)."""
SCALED = "fp8_ds_mla"
"""A latent as FlashMLA reads it: 512 fp8, 4 fp32 scales, 64 bf16."""
_BLACKWELL = (((10, 0), (12, 9)),)
_SM100_SM120 = (((10, 0), (10, 9)), ((12, 0), (12, 9)))

FORMATS = (
    EngineFormat(
        option="auto", k=NATIVE, v=NATIVE, latent=NATIVE, index=INDEX, nbytes=512, source=_DTYPES,
        needs="the model's dtype; fp8_e4m3 where the checkpoint's quantisation says so",
    ),
    EngineFormat(
        option="fp8_e4m3", k="fp8_e4m3", v="fp8_e4m3", latent="fp8_e4m3", index=INDEX, nbytes=256, source=_DTYPES,
        # srt/layers/attention/flashattention_backend.py casts Q to the cache's dtype.
        compute="fp8 with fa3, which casts Q too; else 16 bit, codes converted on chip",
    ),
    EngineFormat(
        option="fp8_e5m2", k="fp8_e5m2", v="fp8_e5m2", latent="fp8_e5m2", nbytes=256, source=_DTYPES,
        needs="not on CPU; fa3 gives way to triton",
    ),
    EngineFormat(option="bf16", aliases=("bfloat16",), k="bf16", v="bf16", latent="bf16", index=INDEX, nbytes=512,
                 source=_DTYPES),
    EngineFormat(
        option="mxfp8", k="mxfp8", v="mxfp8", nbytes=264,
        source="SGLang 0.5.23, srt/arg_groups/kv_cache_hook.py:98-108",
        needs="SM100 or newer, FA4", capabilities=_BLACKWELL,
    ),
    EngineFormat(
        option="nvfp4", k="nvfp4", v="nvfp4", nbytes=144, source=_FP4, needs="SM100 or SM120",
        capabilities=_SM100_SM120,
    ),
    EngineFormat(
        option="fp4_mx_block16", k="fp4_e2m1,scale=e8m0", v="fp4_e2m1,scale=e8m0", latent="fp4_e2m1,scale=e8m0",
        nbytes=144, source=_FP4, needs="triton, torch_native, flex_attention, trtllm_mha, or fa4 for prefill",
    ),
)  # fmt: skip


def tailor(
    spec: ModelSpec, version: str, options: Mapping[str, Any], capability: tuple[int, int] | None
) -> tuple[EngineFormat, ...]:
    """The formats for a model: sparse attention has bf16 and fp8 only, `auto` by GPU, fp8 rows by backend.

    Raises:
        UsageError: backends that SGLang does not combine.
    """
    if not models.has_index(spec) or not models.is_latent(spec):
        return FORMATS
    by_option = {f.option: f for f in FORMATS}
    latent = _fp8_latent(spec, options, capability)
    fp8 = replace(by_option["fp8_e4m3"], latent=latent, source=_SPARSE)
    # fp8 by default from SM100 on; where no GPU is named, as on Hopper (the settings say so in a note).
    blackwell = capability is not None and capability[0] >= 10
    default = fp8.latent if blackwell else "bf16"
    auto = replace(by_option["auto"], latent=default, source=_RESOLVED)
    return auto, fp8, by_option["bf16"]


def _fp8_latent(spec: ModelSpec, options: Mapping[str, Any], capability: tuple[int, int] | None) -> str:
    """Spelling of an fp8 latent under sparse attention: raw for trtllm and tilelang, with scales for the others."""
    default = "trtllm" if capability is not None and capability[0] >= 10 else "flashmla_kv"
    if capability is not None and capability[0] == 12 and models.normal(spec.model_type).startswith("glmmoedsa"):
        default = "flashinfer_sparse_mla"
    prefill, decode = (options[f"dsa_{side}_backend"] or default for side in ("prefill", "decode"))
    if (prefill == "tilelang") != (decode == "tilelang"):
        raise UsageError(
            "SGLang cannot mix tilelang with another sparse-attention backend over fp8 rows",
            "give dsa_prefill_backend and dsa_decode_backend alike",
        )
    if "trtllm" in (prefill, decode) or prefill == "tilelang":
        return "fp8_e4m3"
    widths = {(g.nope_dim, g.rope_dim) for g in spec.layer_groups if g.kind == "latent" and g.role == "kv"}
    if widths == {(512, 64)}:
        return SCALED
    rope = ",rope=bf16" if all(rope for _, rope in widths) else ""
    return f"fp8_e4m3:group/128,scale=fp32,pack=slot{rope}"


def check_capability(chosen: set[str], capability: tuple[int, int] | None) -> None:
    """Refuse a format that the GPU does not have; where the GPU is not known nothing is refused.

    Raises:
        UsageError: with what the format needs.
    """
    for f in FORMATS:
        if f.option not in chosen or not f.capabilities or capability is None:
            continue
        if not any(low <= capability <= high for low, high in f.capabilities):
            raise UsageError(f"SGLang has {f.option} on other GPUs only: {f.needs}", "use --kv fp8_e4m3")
