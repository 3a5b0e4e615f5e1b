"""LMDeploy's PyTorch engine: one pool per kind of tensor, each tensor's share of a block rounded up to 256 bytes.

Source: the LMDeploy 0.18.0 wheel, read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan.engines.lmdeploy_pytorch.cache import PyTorchCache
from kvplan.engines.lmdeploy_pytorch.rules import (
    BLOCK_TOKENS,
    EXECUTOR,
    MESSAGES,
    SCHEMA,
    STATES,
    TITLE,
    WINDOW,
)
from kvplan.engines.shared.lmdeploy import PYTORCH_POOL, launch
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
from kvplan.errors import UnsupportedError, UsageError

_HINT = "plan without --engine"


def respell(spelled: Mapping[str, str], chosen: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, str]:
    """fp8 of a latent with index keys is FlashMLA's 656-byte record.

    Raises:
        UsageError: another policy for such a latent.
    """
    made = dict(spelled)
    if "index" in spelled and "latent" in spelled and chosen["latent"] != "0":
        if chosen["latent"] != "16":
            raise UsageError(f"{TITLE} stores a sparse latent as policy 0 or 16 only", "give --kv 16")
        made["latent"] = "fp8_ds_mla"
    return made


def _check_layers(case: Case) -> None:
    """One shape of K and V for all layers, none that reads another's, and states of a gated DeltaNet only."""
    if any(g.kind == "none" and g.reads for g in case.spec.layer_groups):
        raise UnsupportedError(f"kvplan has no rule for layers without a cache of their own in {TITLE}", _HINT)
    shapes = {(g.layout.heads, g.layout.tensors) for g in case.groups if g.role in ("kv", "latent")}
    if len(shapes) > 1:
        raise UnsupportedError(f"kvplan has no rule for layers of several shapes in {TITLE}", _HINT)
    for group in case.groups:
        spec = case.spec.group(group.name) if group.role == "state" else None
        if spec is not None and (spec.kind != "state" or spec.state.type != "gated_deltanet"):
            raise UnsupportedError(f"kvplan has no rule for the states of {group.name} in {TITLE}", _HINT)


def cache(case: Case) -> EngineCache:
    """Lay out a case.

    Raises:
        UsageError: a policy or block size that the device or kernel refuses.
        UnsupportedError: encoder and strided rows, layers of several shapes, states other than a gated DeltaNet's.
    """
    check_scope(case, TITLE, ("kv", "latent", "index", "state"), pp=False, mtp=False)
    device, policies = case.options["device_type"], {o for o in case.chosen.values() if o != "0"}
    if policies and device not in ("cuda", "ascend"):
        raise UsageError(f"{TITLE} quantises a cache on cuda and ascend only, not on {device}", "give --kv 0")
    if device != "cuda" and policies & {"16", "17"}:
        raise UsageError(f"{TITLE} stores fp8 on cuda only", "give --kv 8")
    if device != "cuda" and any(g.role in ("index", "latent") for g in case.groups):
        raise UnsupportedError(f"kvplan has no rule for latents of {TITLE} on {device}", "plan for cuda")
    _check_layers(case)
    return PyTorchCache(case)


_INDEX = "fp8_e4m3:token,scale=fp32,pack=page"

ENGINE = Engine(
    name="lmdeploy-pytorch",
    title=TITLE,
    flag=("--quant-policy",),
    versions=(EngineVersion(name="0.18.0", note="the wheel, read"),),
    formats=(
        EngineFormat(option="0", k=NATIVE, v=NATIVE, latent=NATIVE, index=_INDEX, nbytes=512, source=SCHEMA),
        EngineFormat(option="8", k="int8,asym,scale=model", v="int8,asym,scale=model", index=_INDEX, nbytes=264,
                     needs="CUDA or Ascend", source=SCHEMA),
        EngineFormat(option="4", k="int4,asym,scale=model", v="int4,asym,scale=model", index=_INDEX, nbytes=136,
                     needs="CUDA or Ascend", source=SCHEMA),
        EngineFormat(option="16", k="fp8_e4m3", v="fp8_e4m3", latent="fp8_e4m3", index=_INDEX, nbytes=256, needs="CUDA",
                     source=SCHEMA),
        EngineFormat(option="17", k="fp8_e5m2", v="fp8_e5m2", latent="fp8_e5m2", index=_INDEX, nbytes=256, needs="CUDA",
                     source=SCHEMA),
        EngineFormat(option="42", k="int4,asym,scale=model", v="int2,scale=model", index=_INDEX, nbytes=102,
                     needs="CUDA or Ascend", source=SCHEMA + ", TurboQuant"),
    ),
    options=(
        EngineOption(name="block_size", default=BLOCK_TOKENS, text="Tokens per block.", source=MESSAGES),
        EngineOption(name="kernel_block_size", text="Tokens of a block as kernels see it; default block_size.",
                     source=MESSAGES),
        EngineOption(name="device_type", kind=str, default="cuda", choices=("cuda", "ascend", "maca", "camb"),
                     text="Kind of device; camb has blocks of 16 tokens.", source=MESSAGES),
        EngineOption(name="max_prefill_token_num", default=8192,
                     text="Tokens of one prefill; blocks of a window are dropped only after it.", source=MESSAGES),
        EngineOption(name="max_batch_size", text="Sequences that have a state slot; default the request's.",
                     source=MESSAGES),
        EngineOption(name="LMDEPLOY_FP32_MAMBA_SSM_DTYPE", kind=bool, default=False,
                     text="Recurrent states in fp32 instead of 16 bit (environment).", source=STATES),
        EngineOption(name="prefix_cache_state_budget", default=0, text="State slots for prefix caching.",
                     source=EXECUTOR),
    ),
    rules=(
        EngineRule(name="alignment", text="Payload and scales of K and of V are four tensors; the bytes of each in a "
                   "kernel block of a layer are rounded up to 256.", source=SCHEMA),
        EngineRule(name="latent", text="A latent has one head for K and none for V; fp8 with index keys is a record of "
                   "656 bytes, without them 576.", source=SCHEMA),
        EngineRule(name="blocks", text="One block is never handed out; heads of 512 channels and more have blocks of "
                   "32 tokens, FlashMLA needs 64.", source=EXECUTOR),
        EngineRule(name="window", text="A window of the whole model drops blocks behind it, after each prefill step; "
                   "gemma and gpt-oss keep every row.", source=WINDOW),
        EngineRule(name="states", text="max_batch_size + 2 slots in 16 bit; the convolution keeps kernel rows.",
                   source=EXECUTOR),
        EngineRule(name="budget", text="cache_max_entry_count (0.8) of what is free after states and prefill buffers; "
                   "the prefill budget is halved until 16 blocks fit.", source=EXECUTOR),
    ),
    cache=cache,
    pool=PYTORCH_POOL,
    launch=launch("pytorch", "block_size"),
    page_option="block_size",
    respell=respell,
)  # fmt: skip
