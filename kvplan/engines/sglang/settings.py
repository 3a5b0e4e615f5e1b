"""What SGLang makes of its options for a model and a GPU: page size, backends, formats, pools, slots.

Source: SGLang 0.5.23, srt/arg_groups/overrides.py and srt/mem_cache/kv_cache_configurator.py, read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvplan.engines.sglang import models
from kvplan.engines.sglang.memory import default_chunked_prefill
from kvplan.engines.shared.types import Case
from kvplan.errors import UsageError
from kvplan.units import align_up

if TYPE_CHECKING:
    from kvplan.specs.model import ModelSpec

EVICTION_INTERVAL = 128
"""Decode steps between two evictions from the window pool (SGLANG_SWA_EVICTION_INTERVAL)."""
PAGES = {
    "flashmla": ((64,), 64), "trtllm_mla": ((32, 64), 64), "cutedsl_mla": ((32, 64), 64),
    "trtllm_mha": ((16, 32, 64, 128), 64), "hpc_ops": ((64,), 64),
}  # fmt: skip
"""Attention backend to the page sizes that it takes, and the one that replaces any other (overrides.py:1146-1197)."""
STATE_NUMBERS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}

Capability = tuple[int, int] | None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that decides bytes.

    Attributes:
        two_pools: whether windowed layers have a pool of their own.
        swa_ratio: window-pool tokens for each full-pool token.
        swa_cap: tokens of the window pool where it is sized by requests; None: by the ratio.
        attention_dp: replicas inside the server among which request and slot limits are divided.
        slots_per_request: state slots that one request takes.
        least_slots: state slots that an option asks for; None: the budget decides.
        recurrent, conv: storages of states; None: the model's own (`recurrent`: fp32 where the model says `model`).
        workspace: number type of FP4 rows dequantised for one layer; None: no workspace.
        two_scale_layouts: whether NVFP4 scales are kept twice.
    """

    page_size: int
    two_pools: bool
    swa_ratio: float
    swa_cap: int | None
    attention_dp: int
    slots_per_request: int
    least_slots: int | None
    recurrent: str | None
    conv: str
    workspace: str | None
    two_scale_layouts: bool
    notes: tuple[str, ...]


def settle(case: Case) -> Settings:
    """The settings of a case.

    Raises:
        UsageError: options that SGLang refuses.
    """
    spec, options = case.spec, case.options
    ratio = options["swa_full_tokens_ratio"]
    if ratio is None:
        ratio = 0.1 if models.is_one_of(spec, ("inkling",)) else 0.8
    if not 0 < ratio <= 1:
        raise UsageError(f"swa_full_tokens_ratio {ratio} is not above 0 and up to 1", "give a share such as 0.8")
    chosen = set(case.chosen.values())
    backend = attention_backend(spec, options, case.capability, chosen)
    page, notes = page_size(spec, options, backend, case.capability)
    two_pools = models.two_pools(spec) and not options["disable_hybrid_swa_memory"]
    dp = case.sharding.dp if case.sharding.dp_attention else 1
    workspace, twice = fp4(options, case.capability, chosen)
    recurrent = options["mamba_ssm_dtype"]
    return Settings(
        page_size=page,
        two_pools=two_pools,
        swa_ratio=ratio,
        swa_cap=_swa_cap(case, page, dp) if two_pools else None,
        attention_dp=dp,
        slots_per_request=slots_per_request(spec, options),
        least_slots=_least_slots(options, dp),
        recurrent=STATE_NUMBERS[recurrent] if recurrent else case.formats.recurrent,
        conv=case.formats.conv or "bf16",
        workspace=workspace,
        two_scale_layouts=twice,
        notes=notes + _notes(case, two_pools),
    )


def attention_backend(
    spec: ModelSpec, options: Mapping[str, Any], capability: Capability, chosen: set[str]
) -> str | None:
    """The backend that decides the page size; None where the GPU is not known or none of them sets one."""
    if options["attention_backend"]:
        return str(options["attention_backend"])
    if "nvfp4" in chosen:
        return "trtllm_mha"
    if capability is None or capability[0] != 10:
        return None
    if models.is_latent(spec):
        # The DeepSeek-V3 family only; other latents run on flashinfer, with pages of one token.
        return "trtllm_mla" if models.is_one_of(spec, ("deepseekv3", "kimik2", "mistrallarge3")) else None
    if models.is_one_of(spec, ("step3p5", "step3p7")):
        return "fa4"
    equal = all(g.k_dim == g.v_dim for g in spec.layer_groups if g.kind == "attention")
    return "trtllm_mha" if equal else "fa4"


def page_size(
    spec: ModelSpec, options: Mapping[str, Any], backend: str | None, capability: Capability
) -> tuple[int, tuple[str, ...]]:
    """Tokens per page: as asked, or 1, then what the backend makes of it."""
    asked = options["page_size"]
    page = asked or 1
    if models.has_index(spec):
        # 1 stays possible: on ROCm without preshuffled keys (model_overrides/deepseek_v2.py:155-173).
        page = 1 if asked == 1 else 64
    elif backend in PAGES:
        fits, otherwise = PAGES[backend]
        page = page if page in fits else otherwise
    elif backend == "fa4" and not models.is_latent(spec) and (capability is None or capability[0] == 10):
        page = 128
    if asked is None or page == asked:
        return page, ()
    return page, (f"SGLang changes page_size {asked} to {page} for its attention backend.",)


def slots_per_request(spec: ModelSpec, options: Mapping[str, Any]) -> int:
    """State slots of a request: 1 without radix cache, else 3, and those that track states (:3062-3088).

    Raises:
        UsageError: tracking slots for a model that SGLang cannot track.
    """
    if options["disable_radix_cache"]:
        return 1
    overlap = not options["disable_overlap_schedule"]
    paged = (options["page_size"] or 1) > 1
    strategy = options["mamba_radix_cache_strategy"]
    if strategy == "auto":
        strategy = "extra_buffer" if models.extra_buffer(spec) and (overlap or paged) else "no_buffer"
    elif strategy != "no_buffer" and models.has_states(spec) and not models.extra_buffer(spec):
        raise UsageError(f"SGLang has no {strategy} for {spec.id}", "use mamba_radix_cache_strategy=no_buffer")
    tracking = {"no_buffer": 0, "extra_buffer": 2 if overlap else 1, "extra_buffer_lazy": 1}
    return 3 + tracking[strategy]


def fp4(options: Mapping[str, Any], capability: Capability, chosen: set[str]) -> tuple[str | None, bool]:
    """(number type of the workspace, whether scales are kept in two layouts) of 4-bit rows.

    NVFP4 is read natively on SM100; else its prefill dequantises to fp8. SM120 needs one layout of scales for both,
    SM100 with a dequantising prefill keeps two (fp4_kv_cache_quant_method.py:476-485, kv_cache_hook.py:47-69).

    Raises:
        UsageError: native prefill where the GPU has none.
    """
    prefill = options["prefill_kv_cache_dequant_dtype"]
    if "nvfp4" not in chosen:
        if prefill != "auto":
            raise UsageError("prefill_kv_cache_dequant_dtype is for nvfp4 only", "use --kv nvfp4, or drop it")
        number, twice = None, False
    else:
        native = capability is None or capability[0] == 10
        if prefill == "nvfp4" and not native:
            raise UsageError("native NVFP4 prefill needs SM100", "use prefill_kv_cache_dequant_dtype=fp8_e4m3")
        dequantises = prefill == "fp8_e4m3" or (prefill == "auto" and not native)
        number, twice = "fp8_e4m3" if dequantises else None, native and dequantises
    given = options["dequant_workspace"]
    if given and chosen & {"nvfp4", "fp4_mx_block16"}:
        number = None if given == "none" else given
    return number, twice


def _least_slots(options: Mapping[str, Any], dp: int) -> int | None:
    """max_mamba_cache_size, or max_running_requests without radix cache (:3256-3292)."""
    if options["max_mamba_cache_size"] is not None:
        return int(options["max_mamba_cache_size"]) // dp
    if options["disable_radix_cache"] and options["max_running_requests"] is not None:
        return max(1, int(options["max_running_requests"]) // dp)
    return None


def window_rows(window: int, page: int) -> int:
    """Rows of the window pool that one decoding request may hold (pool_configurator.py:924-965)."""
    return window + EVICTION_INTERVAL + page + page


def _swa_cap(case: Case, page: int, dp: int) -> int | None:
    """Tokens of the window pool by requests: no radix cache, explicit max_running_requests, some full layers."""
    options = case.options
    windows = [g.law.limit for g in case.groups if g.law.law in ("window", "chunk")]
    full = any(g.law.law == "all" and g.layers for g in case.groups if g.role in ("kv", "latent"))
    if not (options["disable_radix_cache"] and options["max_running_requests"] and windows and full):
        return None
    chunk = options["chunked_prefill_size"] or default_chunked_prefill(case.memory_bytes)
    chunks = 1 if options["disable_overlap_schedule"] else 2
    requests = max(1, options["max_running_requests"] // dp)
    return align_up(window_rows(max(windows), page) * requests + chunks * chunk + page, page)


def _notes(case: Case, two_pools: bool) -> tuple[str, ...]:
    made = []
    spec = case.spec
    if models.has_windows(spec) and not two_pools:
        made.append(
            f"SGLang keeps all rows of windowed layers of {spec.model_type or 'this model'}: "
            "only models in its list have a pool for windows."
            if not case.options["disable_hybrid_swa_memory"]
            else "disable_hybrid_swa_memory: windowed layers keep all rows."
        )
    if models.has_states(spec):
        made.append(
            "States: the least slots that serve the requests. SGLang itself divides its budget, "
            f"{case.options['mamba_full_memory_ratio']} bytes of states for every byte of rows, unless "
            "max_mamba_cache_size is given."
        )
        if spec.model_type is None and case.options["mamba_radix_cache_strategy"] == "auto":
            made.append("No model_type in the spec: the radix strategy is taken from the kind of state.")
    if case.capability is None and models.has_index(spec):
        made.append("No GPU is named: formats of sparse attention as on Hopper (bf16 by default, fp8 in 656 bytes).")
    elif case.capability is None and not (case.options["page_size"] or case.options["attention_backend"]):
        made.append("No GPU is named: pages of one token; by default SGLang has larger ones on SM100.")
    return tuple(made)
