"""vllm_golden.json: figures of vLLM's own planner against kvplan's engine; single layers and whole models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from golden.common import Outcome, out_of_scope
from golden.vllm.layers import attention_layer, compressed, full, heads, layer, limited, mamba, mla_layer, stages
from golden.vllm.models import instantiated, model
from kvplan.engines.vllm import blocks


def claims(data: dict[str, Any]) -> bool:
    """Whether this is vLLM's file."""
    meta = data.get("meta", {})
    return "vllm" in (meta.get("engine"), meta.get("meta", {}).get("engine"))


def outcomes(data: dict[str, Any]) -> Iterator[Outcome]:
    """One outcome per record."""
    for record in data["records"]:
        compare = KINDS.get(record["kind"])
        yield compare(record) if compare else out_of_scope(record["id"], f"kind {record['kind']} is not known here")


KINDS: dict[str, Callable[[dict[str, Any]], Outcome]] = {
    "full_attention": layer(full),
    "sink_full_attention": layer(full),
    "rswa": layer(full),
    "mla": layer(mla_layer),
    "mla_indexer": layer(lambda i: mla_layer(i, "index")),
    "mla_compressed": layer(compressed),
    "sliding_window": layer(limited(blocks.SLIDING, "sliding_window", "window")),
    "chunked_local": layer(limited(blocks.CHUNKED, "attention_chunk_size", "chunk")),
    "cross_attention": layer(limited(blocks.CROSS, "max_num_encoder_input_tokens", "encoder")),
    "encoder_only": layer(lambda i: replace(attention_layer(i), kind=blocks.ENCODER)),
    "mamba": mamba,
    "kv_heads_per_rank": heads,
    "pp_partition": stages,
    "model": model,
    "model_instantiated": instantiated,
}
