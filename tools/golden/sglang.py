"""Golden figures of SGLang: cell sizes and tokens, state slots, and buffers allocated on CPU.

Each record's shapes become a spec of one model, the record's settings become options, and the engine's cache answers:
its figures for a budget, or its buffers for a number of tokens. The spec of a hybrid model is that of one rank, because
a record states the state shapes of a rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import lcm
from typing import Any

from synthetic import attention, latent, make, state

from golden.common import Outcome, figures, refusal
from kvplan.engines.sglang.cache import SglangCache
from kvplan.engines.sglang.report import buffers
from kvplan.memory.groups import CacheFormats, cache_groups
from kvplan.plan import PlanRequest
from kvplan.plan.engine import EngineRank
from kvplan.plan.resolve import resolve
from kvplan.specs.model import ModelSpec
from kvplan.units import parse_bytes

TWO_POOLS = "gpt_oss"
"""A model type with a pool for windows."""
DTYPES = {
    "torch.bfloat16": "auto", "torch.float16": "auto", "torch.float8_e4m3fn": "fp8_e4m3",
    "torch.float8_e5m2": "fp8_e5m2", "torch.float4_e2m1fn_x2": "fp4_mx_block16",
}  # fmt: skip
STORAGES = {"torch.float32": "float32", "torch.bfloat16": "bfloat16", "torch.float16": "float16"}
SCALE_LAYOUTS = {
    (True, False): ("rtx-5090", "fp8_e4m3"), (False, True): ("b200", "nvfp4"), (True, True): ("b200", "fp8_e4m3"),
}  # fmt: skip
"""(linear, native) NVFP4 scales to the GPU and the prefill that keep these."""


def claims(data: dict[str, Any]) -> bool:
    """Files of SGLang; their meta lies in a further `meta`."""
    meta = data["meta"]
    return bool(meta.get("meta", meta).get("engine") == "sglang")


def outcomes(data: dict[str, Any]) -> Iterator[Outcome]:
    """Every record of a file."""
    for record in data["records"]:
        given, expected = record["inputs"], record.get("outputs")
        kind = record["kind"]
        if not expected or "error" in expected:
            message = str(record.get("error") or (expected or {}).get("error"))
            yield refusal(record["id"], message, lambda kind=kind, given=given: KINDS[kind](given, {}))  # type: ignore[misc]
            continue
        yield figures(
            record["id"],
            expected,
            lambda kind=kind, given=given, expected=expected: KINDS[kind](given, expected),  # type: ignore[misc]
        )


def ask(spec: ModelSpec, options: Mapping[str, Any], **request: Any) -> SglangCache:
    """The cache of rank 0 for a spec, engine options (None: left out) and the rest of a request."""
    texts = tuple(f"{name}={value}" for name, value in options.items() if value is not None)
    made = resolve(PlanRequest(model=spec.id, engine="sglang", engine_options=texts, **request), spec)
    rank = made.ranks[0]
    assert isinstance(rank, EngineRank) and isinstance(rank.cache, SglangCache)
    return rank.cache


def reported(cache: SglangCache, context: int, budget: int | None = None) -> dict[str, Any]:
    """The engine's figures by name."""
    return {figure.name: figure.value for figure in cache.figures(context, budget)}


def cell_size(given: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, Any]:
    """Bytes per token, and tokens for each budget."""
    dtype = given["kv_cache_dtype"]
    options: dict[str, Any] = {
        "swa_full_tokens_ratio": given.get("swa_full_tokens_ratio"),
        "dsa_decode_backend": given.get("dsa_decode_backend"),
        "dsa_prefill_backend": given.get("dsa_prefill_backend"),
    }
    gpu = None
    if "dequant_workspace" in given:
        number = {"None": "none", "torch.float8_e4m3fn": "fp8_e4m3", "torch.bfloat16": "bf16"}
        options["dequant_workspace"] = number[given["dequant_workspace"]]
    if "linear_scales" in given:
        layouts = (given["linear_scales"], given["native_scales"])
        gpu, options["prefill_kv_cache_dequant_dtype"] = SCALE_LAYOUTS[layouts]
    tp, page = given.get("attn_tp", 1), given.get("page_size")
    cache = ask(_model(given), options, kv=dtype, tp=tp, page_size=page, gpu=gpu)
    plain = reported(cache, 1)
    found: dict[str, Any] = {"cell_size_bytes": plain["cell_size"]}
    if "swa_layers" in given:
        found |= {
            "full_per_token_per_layer": plain["full bytes per token and layer"],
            "swa_per_token_per_layer": plain["swa bytes per token and layer"],
            "full_layers": sum(held.layers for held in cache.pools.of("full")),
            "swa_layers": sum(held.layers for held in cache.pools.of("swa")),
            "swa_full_tokens_ratio": cache.settings.swa_ratio,
        }
    if "pool" in expected:
        found["pool"] = [_pool(cache, budget["available_bytes"]) for budget in expected["pool"]]
    return found


def _pool(cache: SglangCache, budget: int) -> dict[str, Any]:
    sizes = reported(cache, 1, budget)
    return {
        "available_bytes": budget,
        "page_size": cache.page_size,
        "max_total_num_tokens": sizes["max_total_num_tokens"],
        "full": sizes.get("full_layer_tokens"),
        "swa": sizes.get("swa_layer_tokens"),
    }


def _model(given: Mapping[str, Any]) -> ModelSpec:
    """A spec of the record's shapes. Query heads, which no record has: the least that KV heads and ranks divide."""
    queries = lcm(given.get("total_kv_heads", 1), given.get("swa_kv_heads", 1), given.get("attn_tp", 1))
    if "swa_layers" in given:
        full, swa = range(given["full_layers"]), given["swa_layers"]
        count = len(full) + swa
        heads, dim = given["total_kv_heads"], given["head_dim"]
        v_dim = given.get("v_head_dim")
        window = {"window": given["sliding_window"]}
        swa_heads, swa_dim = given.get("swa_kv_heads", heads), given.get("swa_head_dim", dim)
        return make(
            count,
            attention(full, heads, dim, v_dim, name="full", q_heads=queries),
            attention(
                "rest",
                swa_heads,
                swa_dim,
                given.get("swa_v_head_dim", v_dim),
                name="swa",
                retain=window,
                q_heads=queries,
            ),
            model_type=TWO_POOLS,
        )
    layers = given["layers"]
    if given.get("mla"):
        nope, rope = given.get("kv_lora_rank", 512), given.get("qk_rope_head_dim", 64)
        groups = [latent("rest", nope, rope)]
        if given.get("dsa"):
            width = given.get("index_head_dim", 128)
            groups.append(latent(range(layers), width, 0, name="index", role="index", overlay=True))
        return make(layers, *groups, model_type="deepseek_v3")
    if "kv_heads" in given:
        return make(layers, attention("rest", given["kv_heads"], given["head_dim"], given.get("v_head_dim")))
    heads = given["total_kv_heads"]
    return make(layers, attention("rest", heads, given["head_dim"], given.get("v_head_dim"), q_heads=queries))


def mamba_hybrid(given: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, Any]:
    """State slots and tokens of a budget. Shapes are a rank's, so the heads of a rank are asked for first."""
    whole = make(1, attention("rest", given["total_kv_heads"], given["head_dim"]))
    heads = cache_groups(whole, CacheFormats.native(whole), given["attn_tp"])[0].layout.heads
    rows, states = given["attn_layers"], given["mamba_layers"]
    v_heads, v_dim, k_dim = given["temporal"]
    recurrent = {"type": "gated_deltanet", "k_heads": 1, "v_heads": v_heads, "k_dim": k_dim, "v_dim": v_dim,
                 "conv_kernel": 1}  # fmt: skip
    layers = range(rows, rows + states)
    convs = [
        state(
            layers, {"type": "short_conv", "dim": dim, "conv_kernel": kept + 1}, name=f"conv-{i}", overlay=True
        )
        for i, (dim, kept) in enumerate(given["conv"])
    ]  # fmt: skip
    spec = make(
        rows + states, attention(range(rows), heads, given["head_dim"]), state(layers, recurrent, name="recurrent"),
        *convs,
    )  # fmt: skip
    options = {
        "mamba_full_memory_ratio": given["mamba_full_memory_ratio"],
        "mamba_ssm_dtype": STORAGES[given["ssm_dtype"]],
        "mamba_radix_cache_strategy": "extra_buffer" if given["extra_buffer"] else "no_buffer",
        "disable_radix_cache": given.get("disable_radix_cache"),
        "max_mamba_cache_size": given.get("max_mamba_cache_size"),
        "max_running_requests": given.get("max_running_requests"),
    }
    budget = parse_bytes(f"{given['rest_gib']}GiB", "rest_gib")
    conv = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}[STORAGES[given["conv_dtype"]]]
    cache = ask(spec, options, page_size=given.get("page_size", 1), conv_dtype=conv)
    found = reported(cache, given["context_len"], budget)
    names = {"remaining_kv_bytes": "bytes left for rows", "cell_size_bytes": "cell_size",
             "slots_per_request": "state slots per request"}  # fmt: skip
    return {name: found[names.get(name, name)] for name in expected}


def pool_alloc(given: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, Any]:
    """Buffers of a pool of `size` tokens, extra page included."""
    layers, size, page = given["layers"], given["size"], given["page_size"]
    kv, options = DTYPES[given["dtype"]], {}
    if "kv_lora_rank" in given:
        groups = [latent("rest", given["kv_lora_rank"], given["qk_rope_head_dim"])]
        if "index_head_dim" in given:
            groups.append(
                latent(range(layers), given["index_head_dim"], 0, name="index", role="index", overlay=True)
            )  # fmt: skip
            raw = given["kv_cache_dim"] == given["kv_lora_rank"] + given["qk_rope_head_dim"]
            options = {"dsa_decode_backend": "trtllm" if raw else "flashmla_kv"}
    else:
        groups = [attention("rest", given["head_num"], given["head_dim"], given.get("v_head_dim"))]
        kv = "mxfp8" if given["pool"].endswith("MXFP8") else kv
    cache = ask(make(layers, *groups), options, kv=kv, page_size=page)
    taken = buffers(cache.pools, size)
    everything = sum(taken.values())
    found = {"slots": size + cache.page_size, "all_kv_and_scale_buffer_bytes": everything}
    if "K" in taken:
        found |= {"k_bytes": taken["K"], "v_bytes": taken["V"], "total": taken["K"] + taken["V"]}
        held = cache.pools.of("full")[0]
        return found | {"bytes_per_slot_per_layer": held.layout.page_bytes(1)}
    index = taken.get("index", 0)
    found |= {"kv_bytes": taken["latent"] + index, "total": taken["latent"] + index}
    if "index" in taken:
        found |= {"index_k_bytes": index, "all_kv_and_scale_buffer_bytes": everything - index}
    return found


KINDS = {"cell_size": cell_size, "mamba_hybrid": mamba_hybrid, "pool_alloc": pool_alloc}
