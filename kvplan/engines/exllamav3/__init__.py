"""ExLlamaV3: one cache of so many tokens in pages of 256, 2 to 8 bits with an fp16 scale for 32 channels.

Source: the exllamav3 1.6.5 wheel, read (it needs CUDA to run).
"""

from __future__ import annotations

from kvplan.engines.exllamav3.cache import PAGE_SIZE, PAGES, PROJECT, RING_SPARE, SLIDING, STATES, ExLlamaCache
from kvplan.engines.exllamav3.start import LAUNCH, POOL
from kvplan.engines.shared.scope import check_scope
from kvplan.engines.shared.types import (
    Case,
    Engine,
    EngineCache,
    EngineFormat,
    EngineOption,
    EngineRule,
    EngineVersion,
)
from kvplan.errors import UnsupportedError, UsageError
from kvplan.units import align_up

_TITLE = "ExLlamaV3"
_QUANT = PROJECT + "cache/quant.py and mla.py"
_INIT = PROJECT + "model_init.py"
_STATES = ("gated_deltanet", "kda", "mamba2", "short_conv")


def cache(case: Case) -> EngineCache:
    """Lay out a case.

    Raises:
        UsageError: a cache size that is no multiple of 256 or too small for the request.
        UnsupportedError: encoder and strided rows, rings, other states, states or rings on several ranks.
    """
    check_scope(case, _TITLE, ("kv", "latent", "index", "state"), mtp=False, pp=False, fp32=True)
    for group in case.groups:
        spec = case.spec.group(group.name)
        if spec.kind == "state" and (spec.state.type not in _STATES or case.sharding.attention_tp > 1):
            where = "" if case.sharding.attention_tp == 1 else " on several ranks"
            raise UnsupportedError(
                f"kvplan has no rule for the states of {group.name} in {_TITLE}{where}", "plan without --engine"
            )
    size = case.options["cache_size"]
    if size is not None:
        _check_size(size, align_up(case.context, PAGE_SIZE) * case.sequences)
    return ExLlamaCache(case)


def _check_size(size: int, needed: int) -> None:
    if size < 1 or size % PAGE_SIZE:
        raise UsageError(
            f"a cache of {size:,} tokens is no multiple of {PAGE_SIZE}", f"use {align_up(max(size, 1), PAGE_SIZE)}"
        )
    if size < needed:
        raise UsageError(f"a cache of {size:,} tokens does not hold the request", f"use cache_size={needed}")


def _bits(number: int) -> EngineFormat:
    """Codes of `number` bits with a scale for 32 channels of the row; the rope part of a latent stays fp16."""
    return EngineFormat(
        option=str(number), k=f"int{number}:group/32,row", v=f"int{number}:group/32,row",
        latent=f"int{number}:group/32,rope=fp16", index="fp16", nbytes=32 * number + 16,
        needs="KV heads x head_dim divisible by 32", source=_QUANT,
        compute="fp16: a layer is dequantised first, or its codes are read as they lie",
    )  # fmt: skip


ENGINE = Engine(
    name="exllamav3",
    title=_TITLE,
    flag=("-cq k", "-cq v"),
    versions=(EngineVersion(name="1.6.5", note="the wheel, read"),),
    formats=(
        EngineFormat(option="16", k="fp16", v="fp16", latent="fp16", index="fp16", nbytes=512, needs="without -cq",
                     source=PAGES),
        *(_bits(number) for number in (8, 7, 6, 5, 4, 3, 2)),
    ),
    options=(
        EngineOption(name="cache_size", text="-cs: tokens of the cache, a multiple of 256, for all sequences together; "
                     "default the request's (the engine's is 8192).", source=_INIT),
        EngineOption(name="autosplit_max_batch_size",
                     text="-ambs: slots of states and rings; default the request's (the engine's is 1).", source=_INIT),
        EngineOption(name="max_history", default=0,
                     text="Draft tokens of a speculative pass that states can roll back.", source=STATES),
        EngineOption(name="recurrent_state_fp32", kind=bool, default=False,
                     text="-rs32: recurrent states in fp32 instead of fp16.", source=_INIT),
        EngineOption(name="swa_full", kind=bool, default=False,
                     text="-swa_full: pages for sliding layers instead of rings.", source=_INIT),
    ),
    rules=(
        EngineRule(name="pages", text="Whole pages of 256 tokens for each sequence, every row of every paged layer.",
                   source=PAGES),
        EngineRule(name="rows", text="Codes of 2 to 8 bits, K and V apart, with an fp16 scale for 32 channels along "
                   "the rank's row.", source=_QUANT),
        EngineRule(name="latent", text="The latent is quantised with the bits of K, its rope part is fp16; index keys "
                   "are fp16.", source=_QUANT),
        EngineRule(name="rings", text="Sliding layers of some architectures keep an fp16 ring of window + "
                   f"{RING_SPARE} rows, up to whole pages, for every slot.", source=SLIDING),
        EngineRule(name="states", text="Each slot has two recurrent states (fp16, Mamba 2 fp32), a bf16 convolution of "
                   "kernel + max_history columns and the staged inputs of a pass.", source=STATES),
        EngineRule(name="copies", text="Attention without online dequantisation copies a whole layer to fp16; "
                   "checkpoints of states lie in host memory.", source=_QUANT),
    ),
    cache=cache,
    pool=POOL,
    launch=LAUNCH,
    apart=True,
)  # fmt: skip
