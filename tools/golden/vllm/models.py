"""Records of whole models: the planner's groups, blocks and log line against a resolved plan."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import lcm
from typing import Any

from synthetic import named_model

from golden.common import DIFFERENT, EQUAL, Outcome, figures, refusal
from kvplan.engines.vllm.cache import VllmCache
from kvplan.engines.vllm.options import OPTIONS
from kvplan.memory.parts import total
from kvplan.plan.engine import EngineRank
from kvplan.plan.resolve import resolve
from kvplan.plan.types import PlanRequest
from kvplan.specs.load import load_device
from kvplan.specs.model import ModelSpec, Mtp

GPUS = {(9, 0): "h100-80gb", (10, 0): "b200"}
"""The GPU that each faked capability stands for (`meta.real_model_method`)."""
CLASSES = {
    "mamba": "MambaSpec", "full_attention": "FullAttentionSpec", "sliding_window": "SlidingWindowSpec",
    "mla_attention": "MLAAttentionSpec", "chunked_local_attention": "ChunkedLocalAttentionSpec",
}  # fmt: skip
STATES = ("aligned_attention_block_size", "mamba_page_size_padded", "mamba_unpadded_bytes")
"""Inputs of a hybrid's record that its generator took from vLLM: the engine must find them."""


def engine_caches(spec: ModelSpec, options: dict[str, Any], **request: Any) -> list[VllmCache]:
    """vLLM's cache of every pipeline stage; options that are None are left to it."""
    texts = tuple(f"{name}={value}" for name, value in options.items() if value is not None)
    gpu = request.pop("gpu", None)
    asked = PlanRequest(model=spec.id, engine="vllm", engine_options=texts, beyond_max=True, **request)
    ranks = resolve(asked, spec, load_device(gpu) if gpu else None).ranks
    found = [r.cache for r in ranks if isinstance(r, EngineRank)]
    return [c for c in found if isinstance(c, VllmCache)]


def _model_spec(name: str) -> tuple[ModelSpec, bool, dict[str, str]]:
    """(model, whether it drafts, options) of `X + 1 full-attention draft layer` or `X (--option value: why)`."""
    plain, bracket, flags = name.partition(" (--")
    model, plus, draft = plain.partition(" + ")
    spec = named_model(model)
    if plus:
        count, kind = draft.split()[:2]
        like = next(g.name for g in spec.layer_groups if g.name == kind.partition("-")[0])
        spec = spec.model_copy(update={"mtp": Mtp(layers=int(count), cache_like=(like,))})
    options = {}
    if bracket:
        option, value = flags.partition(":")[0].rstrip(")").split()[:2]
        options[option.replace("-", "_")] = value
    return spec, bool(plus), options


def _with_query_heads(spec: ModelSpec, tp: int) -> ModelSpec:
    """The model with as many query heads as `tp` divides: the planner's figures know KV heads only."""
    body = spec.model_dump()
    for group in body["layer_groups"]:
        if group["kind"] == "attention":
            group["q_heads"] = lcm(group["q_heads"], tp)
    return ModelSpec.model_validate(body)


def model(record: dict[str, Any]) -> Outcome:
    """A whole model: what the planner said, and what the record says of its states."""
    i, expected = record["inputs"], record["outputs"]
    if "error" in expected:
        return _refused(record)
    states = {key: i[key] for key in STATES if key in i}

    def compute() -> dict[str, Any]:
        caches = _model_caches(i)
        found = _pool(caches, i["available_bytes"], i["max_model_len"]) | (_states(caches[0]) if states else {})
        return {key: value for key, value in found.items() if key in wanted}

    # The length after planning is the length asked for: none of these lets vLLM choose it.
    wanted = {key: value for key, value in expected.items() if key != "max_model_len_after"} | states
    return figures(record["id"], wanted, compute)


def _model_caches(i: dict[str, Any]) -> list[VllmCache]:
    spec, draft, options = _model_spec(i["model"])
    spec, pp = _with_query_heads(spec, i["tp"]), i.get("pp", 1)
    options |= {
        "attention_backend": i["backend"], "max_num_batched_tokens": i["max_num_batched_tokens"],
        "kv_cache_layout": i["layout"], "num_gpu_blocks_override": i["num_gpu_blocks_override"],
        "disable_hybrid_kv_cache_manager": i["disable_hybrid_kv_cache_manager"],
        "async_scheduling": i["max_concurrent_batches"] > pp,
    }  # fmt: skip
    if "n_attn" in i:
        options["mamba_cache_mode"] = i["mamba_cache_mode"]
    else:
        options["block_size"] = i["block_size"]
    if draft:
        # One drafted token's states and windows are not part of these records.
        options["num_speculative_tokens"] = 0
    return engine_caches(
        spec, options, kv=i["kv_cache_dtype"], context=i["max_model_len"], tp=i["tp"], pp=pp, dcp=i["dcp"], mtp=draft
    )


def _pool(caches: list[VllmCache], available: list[int], length: int) -> dict[str, Any]:
    pool, buckets = caches[0].pool, caches[0].pool.buckets
    pool.check(available)
    groups = [b for b in buckets for _ in range(b.groups)]
    num_blocks = pool.num_blocks(available)
    *_, null = caches[0].parts(length, 0)
    return {
        "num_groups": len(groups),
        "layers_per_group": [n for b in buckets for n in b.layers_per_group()],
        "group_kind": [b.kind for b in groups],
        "group_block_size": [b.block_size for b in groups],
        "group_page_size_bytes": [b.page_bytes for b in groups],
        "bytes_per_block": [pool.block_bytes(stage) for stage in range(pool.stages)],
        "num_blocks": num_blocks,
        "allocated_bytes": list(pool.allocated_bytes(num_blocks)),
        "blocks_per_max_len_request": list(pool.blocks_per_group(length)),
        "max_concurrency": pool.max_concurrency(num_blocks),
        "kv_cache_size_tokens": pool.printed_tokens(num_blocks),
        "log_line": " ".join(pool.log_lines(num_blocks)),
        # What a plan allocates for one request beside the null block.
        "request_bytes_at_max_len": caches[0].held(length, 1) - total(null.allocated),
    }


def _states(cache: VllmCache) -> dict[str, Any]:
    state = next(m.spec for m in cache.declared.layers if m.spec.kind == "mamba")
    return dict(zip(STATES, (cache.declared.block_size, state.page_bytes, state.unpadded), strict=True))


def _refused(record: dict[str, Any]) -> Outcome:
    """A pool too small for one request: refused with vLLM's own numbers."""
    i, message = record["inputs"], record["outputs"]["message"]
    made = refusal(record["id"], message, lambda: _model_caches(i)[0].pool.check(i["available_bytes"]))
    same = made.verdict == EQUAL and message.startswith(made.found)
    return made if same else replace(made, verdict=DIFFERENT)


def instantiated(record: dict[str, Any]) -> Outcome:
    """A model whose real classes the generator built on a faked GPU: backend, block size and planner."""
    i, expected = record["inputs"], record["outputs"]
    known = {option.name for option in OPTIONS}

    def compute() -> dict[str, Any]:
        (cache,) = engine_caches(
            named_model(i["model"]), {key: value for key, value in i["extra"].items() if key in known},
            kv=i["kv_cache_dtype_arg"], context=i["max_model_len"], gpu=GPUS[tuple(i["capability"])],
        )  # fmt: skip
        layers = cache.declared.layers
        states = [m.spec.page_bytes for m in layers if m.spec.kind == "mamba"]
        pool = _pool([cache], [i["available_bytes"]], i["max_model_len"])
        return pool | {
            "backends": set(cache.backends),
            "layout": cache.layout,
            "block_size": cache.declared.block_size,
            "mamba_page_size_padded": states[0] if states else None,
            "mamba_cache_mode": cache.settings.mode.mode,
            "hma_off": not cache.settings.hybrid,
            "num_layers_with_kv": sum(m.total for m in layers),
            "spec_types": dict(Counter(CLASSES[m.spec.kind] for m in layers for _ in range(m.total))),
            "bytes_per_block": pool["bytes_per_block"][0],
            "max_in_flight_tokens": cache.settings.in_flight,
            "max_num_batched_tokens": cache.settings.batched_tokens,
        }

    wanted = {key: value for key, value in expected.items() if not key.startswith("cross_check")}
    wanted |= {key: i[key] for key in ("max_in_flight_tokens", "max_num_batched_tokens")}
    wanted["backends"] = set(wanted["backends"])
    return figures(record["id"], wanted, lambda: {k: v for k, v in compute().items() if k in wanted})
