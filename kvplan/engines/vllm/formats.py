"""Values of vLLM's --kv-cache-dtype, the rows they store, and what vLLM makes of them for a model and GPU.

Source: vLLM 0.33.0, config/cache.py:44-67 (values), utils/torch_utils.py:40-66, the backends' files (rows).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvplan.engines.shared.types import NATIVE, EngineFormat
from kvplan.engines.vllm.backends import BACKENDS, E4M3, TURBOQUANT, choose_backend, gpus_with, resolved_dtype
from kvplan.engines.vllm.layers import model_kind
from kvplan.engines.vllm.versions import PROJECT
from kvplan.errors import UnsupportedError, UsageError
from kvplan.memory.groups import DTYPES
from kvplan.specs.groups import AttentionGroup, StateGroup

if TYPE_CHECKING:
    from kvplan.engines.shared.types import Case
    from kvplan.specs.model import ModelSpec

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


_FORMATS = (
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
_ON_CHIP = "16 bit, codes converted on chip"
_COMPUTE = {
    "auto": "the model's dtype",
    "float16": "fp16",
    "bfloat16": "bf16",
    # vLLM blog of 2026-04-22 on fp8 caches: FlashAttention 3 takes K, V and Q in e4m3.
    "fp8": "fp8 with FLASH_ATTN, which quantises Q too; else 16 bit, codes converted on chip",
    "fp8_e5m2": _ON_CHIP,
    "nvfp4": "fp8 where the backend takes a quantised Q (SM100); else 16 bit, codes converted on chip",
    **dict.fromkeys(
        (*sorted(TURBOQUANT), "int8_per_token_head", "fp8_per_token_head", "int4_per_token_head"), _ON_CHIP
    ),
}
"""In which type attention multiplies, where a source says so."""
FORMATS = tuple(replace(f, capabilities=gpus_with(f.option), compute=_COMPUTE.get(f.option, "")) for f in _FORMATS)
FOUR_BIT_DENSE = TURBOQUANT | {"ultraquant_4bit"}
"""Options for which vLLM keeps the first and last two layers of dense models in the model's own dtype."""


NVFP4 = frozenset({"nvfp4", "nvfp4_4over6"})


def tailor(
    spec: ModelSpec, version: str, options: Mapping[str, Any], capability: tuple[int, int] | None
) -> tuple[EngineFormat, ...]:
    """The formats as a model has them: rows of sparse MLA and DeepSeek-V4, and layers that stay unquantised."""
    native = DTYPES[spec.native_dtype]
    dense = not any(isinstance(g, StateGroup) for g in spec.layer_groups)
    rows = _latent_rows(spec, options, capability)
    made = []
    for f in FORMATS:
        skips = (f"first=2:{native}", f"last=2:{native}") if dense and f.option in FOUR_BIT_DENSE else ()
        latent = rows.get(f.option, f.latent)
        changed = skips != f.skips or latent != f.latent
        made.append(replace(f, skips=skips, latent=latent) if changed else f)
    return tuple(made)


def _latent_rows(
    spec: ModelSpec, options: Mapping[str, Any], capability: tuple[int, int] | None
) -> dict[str, str]:  # fmt: skip
    """Options whose latent rows differ for this model, as its backend stores them (mla_attention.py:359-376)."""
    try:
        kind = model_kind(spec)
    except UnsupportedError:
        # The engine itself says so when it lays out the cache.
        return {}
    if kind == "v4":
        return dict.fromkeys(BACKENDS["DEEPSEEK_V4"].dtypes, V4_ROWS)
    rows: dict[str, str] = {}
    for option in ("auto", "fp8") if kind == "sparse" else ():
        dtype = resolved_dtype(spec.model_type, option, capability)
        try:
            backend = choose_backend(kind, dtype, capability, options["attention_backend"])
        except UsageError:
            continue
        scaled = {"FLASHMLA_SPARSE": E4M3, "FLASHINFER_MLA_SPARSE_SM120": E4M3 | {"auto"}}.get(backend, frozenset())
        if dtype in scaled:
            rows[option] = "fp8_ds_mla"
        elif dtype != option:
            rows[option] = "fp8_e4m3"
    return rows


def check_formats(case: Case) -> None:
    """Refuse options that the model or GPU cannot have.

    Raises:
        UsageError: Gaudi's fp8_inc, a 16-bit type that is not the model's, nvfp4 where no kernel has it.
    """
    native = DTYPES[case.spec.native_dtype]
    for role, option in case.chosen.items():
        if option == "fp8_inc":
            raise UsageError("no backend of vLLM itself stores fp8_inc: it is Gaudi's, out of tree", "use fp8")
        if {"bfloat16": "bf16", "float16": "fp16"}.get(option, native) != native:
            raise UsageError(
                f"vLLM stores {role} as {option} only for a model of that dtype; this one has {native}", "use auto"
            )
    groups = [g for g in case.spec.layer_groups if isinstance(g, AttentionGroup)]
    if case.chosen.get("k") not in NVFP4:
        return
    # FlashInfer's kernels (flashinfer.py:652-690).
    if any(g.k_dim != g.v_dim for g in groups):
        raise UsageError("vLLM stores nvfp4 only where K and V have the same head_dim", "use fp8")
    blackwell = case.capability is None or case.capability[0] in (10, 11)
    if not blackwell and any(g.k_dim == 64 or g.sinks for g in groups):
        raise UsageError("vLLM has nvfp4 with head_dim 64 or attention sinks on SM100 only", "use fp8")
