"""Records of single layers: bytes of a page and blocks of a request.

A layer is resolved as a plan of a small model; what a record sets by hand, such as a window's in-flight tokens, is
given to the same functions of `kvplan.engines.vllm`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from synthetic import attention, latent, make, named_model

from golden.common import Outcome, figures
from golden.vllm.models import engine_caches
from kvplan.engines.vllm import blocks
from kvplan.engines.vllm.blocks import LayerSpec
from kvplan.engines.vllm.states import StateMode, raw_state, state_blocks, state_layout
from kvplan.errors import KvplanError
from kvplan.formats.grammar import parse_any
from kvplan.formats.grid import Tensor, bind
from kvplan.memory.groups import CacheFormats, cache_groups
from kvplan.memory.rows import RowLaw
from kvplan.memory.sharding import Sharding
from kvplan.specs.model import ModelSpec
from kvplan.specs.states import State

STORAGES = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}
ROPE = 64
"""Rope channels of an MLA row, of which a record gives only the whole width."""
RAW = {1: "fp8_e4m3", 2: "bf16", 4: "fp32"}
"""A format by the bytes of its items, for rows that a record gives as bytes."""
LAYERS = 9
"""So many that some stay quantised where vLLM keeps the first and last two in the model's dtype."""


def _one_layer(spec: ModelSpec, role: str, options: dict[str, Any], **request: Any) -> LayerSpec:
    """The spec of the layers of one role, of those that most have."""
    (cache,) = engine_caches(spec, options, **request)
    fits = [m for m in cache.declared.layers if cache.case.groups[m.index].role == role]
    return max(fits, key=lambda m: m.total).spec


def attention_layer(i: dict[str, Any]) -> LayerSpec:
    """Full attention of the record's heads, with its cache dtype and backend if it has them."""
    spec = make(LAYERS, attention(range(LAYERS), i["num_kv_heads"], i["head_size"], i.get("head_size_v")))
    options = {"block_size": i["block_size"], "attention_backend": i.get("backend")}
    return _one_layer(spec, "kv", options, kv=i.get("kv_cache_dtype", "auto"))


def mla_layer(i: dict[str, Any], role: str = "latent") -> LayerSpec:
    """A latent, or the index keys beside one."""
    rows = latent(range(LAYERS), i.get("head_size", 576) - ROPE, ROPE)
    keys = latent(range(LAYERS), i.get("index_head_dim", 128), 0, name="index", role="index", overlay=True)
    sparse = role == "index" or "SPARSE" in i["backend"]
    options = {"block_size": i["block_size"], "attention_backend": i.get("backend")}
    return _one_layer(
        make(LAYERS, rows, *([keys] if sparse else [])), role, options, kv=i.get("kv_cache_dtype", "auto")
    )


def _page(spec: LayerSpec) -> dict[str, Any]:
    return {
        "page_size_bytes": spec.page_bytes,
        "unpadded_page_size_bytes": spec.unpadded,
        "num_head_slots": spec.head_slots,
        "num_states": spec.states_per_block,
        "state_content_size_bytes": spec.state_content,
        "bytes_per_token_per_layer": spec.bytes_per_token,
        "block_stride_alignment_bytes": spec.alignment,
        "layer_outer_block_stride": spec.layer_outer_stride,
    }


def layer(made: Callable[[dict[str, Any]], LayerSpec]) -> Callable[[dict[str, Any]], Outcome]:
    """A record of one layer: its page and, where given, the bytes of a request."""

    def outcome(record: dict[str, Any]) -> Outcome:
        i, expected = record["inputs"], record["outputs"]

        def compute() -> dict[str, Any]:
            spec = made(i)
            in_flight = blocks.in_flight_tokens(i.get("max_concurrent_batches", 0), i.get("max_num_batched_tokens", 0))
            tokens, retained = i.get("max_model_len", 1), i.get("extra_retained_tokens", 0)
            more = {
                "max_memory_usage_bytes": spec.request_bytes(tokens, in_flight, retained),
                "blocks": blocks.request_blocks(spec, tokens, in_flight, retained).total,
            }
            return _page(spec) | {key: value for key, value in more.items() if key in expected}

        return figures(record["id"], expected, compute)

    return outcome


def full(i: dict[str, Any]) -> LayerSpec:
    """Full attention; rows shared by context parallel ranks, or several for each token."""
    spec = replace(attention_layer(i), ranks=i.get("dcp", 1))
    many = i.get("states_per_token", 1)
    return blocks.layer_spec(spec.kind, spec.layout, spec.law, spec.block_size, per_token=many) if many > 1 else spec


def limited(kind: str, key: str, law: str) -> Callable[[dict[str, Any]], LayerSpec]:
    """A layer of `kind` whose window, chunk or encoder tokens are the record's `key`."""

    def made(i: dict[str, Any]) -> LayerSpec:
        return replace(attention_layer(i), kind=kind, limit=i.get(key, 0), law=RowLaw(law, i.get(key, 0)))

    return made


def compressed(i: dict[str, Any]) -> LayerSpec:
    """One row of so many bytes for several tokens."""
    layout = bind([Tensor("latent", parse_any(RAW[i["itemsize"]]), i["head_size"])], 1, "bf16")
    law = RowLaw(stride=i["tokens_per_state"])
    return blocks.layer_spec(blocks.MLA, layout, law, i["block_size"], page_alignment=i["alignment"] or 1)


def mamba(record: dict[str, Any]) -> Outcome:
    """A state by vLLM's own shapes, and by the dimensions of the shipped model that it is named after."""
    i = record["inputs"]

    def compute() -> dict[str, Any]:
        checkpoints = i["num_prefill_checkpoint_blocks"] or None
        mode = StateMode(i["mamba_cache_mode"], i["num_speculative_blocks"], checkpoints)
        storages = [STORAGES[d] for d in i["dtypes"]]
        spec = blocks.state_spec(raw_state(i["shapes"], storages), 1, state_blocks(mode))
        named = _named_state(i["state"])
        derived = state_layout(named, i["tp"], storages[-1], storages[0]).fixed_bytes("state") if named else None
        return {
            "page_size_bytes": spec.page_bytes,
            "max_memory_usage_bytes": spec.request_bytes(1),
            "by the model's dimensions": derived or spec.unpadded,
        }

    expected = record["outputs"]
    return figures(record["id"], expected | {"by the model's dimensions": expected["page_size_bytes"]}, compute)


def _named_state(name: str) -> State | None:
    """The state of the shipped model that a record's name begins with, or None."""
    try:
        groups = named_model(name).layer_groups
    except KvplanError:
        return None
    return next((g.state for g in groups if g.kind == "state"), None)


def heads(record: dict[str, Any]) -> Outcome:
    """KV heads of a rank."""
    i = record["inputs"]
    spec = make(1, attention([0], i["total_kv_heads"], 128))

    def compute() -> dict[str, Any]:
        return {"kv_heads": cache_groups(spec, CacheFormats.native(spec), i["tp"])[0].layout.heads}

    return figures(record["id"], record["outputs"], compute)


def stages(record: dict[str, Any]) -> Outcome:
    """Layers of every pipeline stage."""
    i = record["inputs"]

    def compute() -> dict[str, Any]:
        sharding = Sharding(pp=i["pp"])
        return {"layers_per_stage": [len(sharding.stage_layers(i["layers"], s)) for s in range(i["pp"])]}

    return figures(record["id"], record["outputs"], compute)
