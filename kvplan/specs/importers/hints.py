"""Remarks for the reader, never a size: what a config says about quantisation, and what it says in vain."""

from __future__ import annotations

from typing import Any

from kvplan.specs.importers.attention import WINDOW_NAMES
from kvplan.specs.importers.fields import Fields
from kvplan.specs.yamlfile import one_line

_STRUCTURAL = (
    "attention_chunk_size attention_window_size attn_type_list block_configs cla_share_factor compress_ratios "
    "conv_L_cache cross_attention_layers global_head_dim hybrid_layer_pattern hybrid_override_pattern index_head_dim "
    "kv_lora_rank kv_source_layers layer_types layers_block_type linear_attn_config linear_num_value_heads lru_width "
    "mamba_d_state num_global_key_value_heads num_key_value_heads_per_layer num_kv_heads num_kv_shared_layers "
    "sliding_window sliding_window_size ssm_state_size swa_num_key_value_heads use_cla"
)
"""Fields that decide structure in some architecture."""


def unused_notes(cfg: Fields) -> tuple[str, ...]:
    """Structural fields that this architecture does not read: they change no byte, and the reader should know."""
    found = []
    for name in _STRUCTURAL.split():
        value = cfg.data.get(name)
        if name in WINDOW_NAMES and cfg.used & set(WINDOW_NAMES):
            continue
        if name not in cfg.used and value:
            shown = f" = {value}" if isinstance(value, int) and abs(value) < 2**62 else ""
            found.append(f"{cfg.prefix}{name}{shown} has no effect: model_type {cfg.model_type} does not use it here.")
    return tuple(found)


def quantization_notes(cfg: Fields) -> tuple[str, ...]:
    """How the weights are published, and which cache format the publisher intends."""
    found = []
    for data in (cfg.data, cfg.top):
        for name in ("quantization_config", "compression_config"):
            given = data.get(name)
            if isinstance(given, dict):
                found += _read(given)
    return tuple(dict.fromkeys(found))


def _read(given: dict[str, Any]) -> list[str]:
    notes = []
    method = given.get("quant_algo") or given.get("quant_method")
    if isinstance(method, str):
        notes.append(f"The weights are quantised ({one_line(method, 40)}); this changes no cache byte.")
    scheme = given.get("kv_cache_scheme") or given.get("kv_cache_quant_algo")
    if isinstance(scheme, dict):
        bits, kind = scheme.get("num_bits"), scheme.get("type")
        notes.append(f"The publisher intends a cache of {bits} bits ({one_line(str(kind), 40)}): see --kv.")
    elif isinstance(scheme, str):
        notes.append(f"The publisher intends the cache format {one_line(scheme, 40)}: see --kv.")
    return notes
