"""What a config says about quantisation: remarks for the reader, never a size."""

from __future__ import annotations

from typing import Any

from kvplan.specs.importers.fields import Fields
from kvplan.specs.yamlfile import one_line


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
