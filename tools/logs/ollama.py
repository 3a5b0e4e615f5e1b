"""Cache sizes that Ollama printed: its own estimate, to one decimal of the printed unit."""

from __future__ import annotations

from typing import Any

import synthetic

from kvplan.plan import PlanRequest, make_plan
from kvplan.specs.model import ModelSpec
from kvplan.units import parse_bytes
from logs.common import Compared, Finding, finding

ENGINES = ("Ollama",)
UNITS = {"mib": "MiB", "gib": "GiB"}
HALF = "0.05"
TYPES = ("f16", "q8_0", "q4_0")
LOCAL_LAYERS = ("local_layers", "swa_layers", "local")
LOCAL_ROWS = ("local_rows", "swa_rows", "local_ctx")
"""Names under which a check may have its layers with a window, and their rows."""


def check(record: dict[str, Any]) -> Finding:
    """Every check of one log; ratios of printed figures are compared where they are bytes of the cache."""
    compared: list[Compared] = []
    for one in record["checks"]:
        if one["f"] == "ollama_kv":
            compared += printed(one, record)
        elif one["f"] == "ratio" and one.get("what") == "bytes" and record["model_params"] and record["max_model_len"]:
            compared.append(whole(one, record))
    return finding(record, compared, "" if record["status"] == "explained" else record["derivation"])


def printed(one: dict[str, Any], record: dict[str, Any]) -> list[Compared]:
    """A size in MiB or GiB."""
    found = estimate(one, record)
    made = []
    for key, unit in UNITS.items():
        if key in one:
            size, half = (parse_bytes(f"{text}{unit}", "size") for text in (one[key], HALF))
            made.append(Compared(f"cache, {one[key]} {unit}", size, found - half, found + half))
    return made


def whole(one: dict[str, Any], record: dict[str, Any]) -> Compared:
    """Bytes of all layers, from the record's own dimensions."""
    dims = record["model_params"]
    like = {"layers": dims["layers"], "kv_heads": dims["kv_heads"], "dk": dims["head_dim"]}
    found = estimate(like | {"ctx": record["max_model_len"]}, record)
    return Compared("cache bytes", one["printed"], found, found)


def estimate(one: dict[str, Any], record: dict[str, Any]) -> int:
    """Ollama's estimate of the cache; `ctx` counts all parallel requests."""
    local = next((one[name] for name in LOCAL_LAYERS if name in one), 0)
    rows = next((one[name] for name in LOCAL_ROWS if name in one), None)
    spec = model(one, record, local, rows)
    parallel = one.get("parallel", record["printed"].get("parallel", 1)) if local and rows is None else 1
    options = (f"num_batch={0 if rows is not None else one.get('batch', 512)}", f"num_parallel={parallel}")
    # The printed context is that of all requests together: each has its share.
    context = one["ctx"] if parallel == 1 else one.get("num_ctx", record["max_model_len"])
    request = PlanRequest(
        model=spec.id, engine="ollama", kv=cache_type(one, record), context=context, batch=parallel,
        engine_options=options, beyond_max=True,
    )  # fmt: skip
    plan = make_plan(request, spec)
    assert plan.engine is not None
    return int(next(f.value for f in plan.engine.figures if f.name == "estimated bytes"))


def model(one: dict[str, Any], record: dict[str, Any], local: int, rows: int | None) -> ModelSpec:
    """Full layers, and behind them those with a window (Gemma 3)."""
    total = (
        one["layers"] if not local or one["layers"] == record["model_params"].get("layers") else one["layers"] + local
    )
    full = total - local
    heads, k, v = one["kv_heads"], one["dk"], one.get("dv", one["dk"])
    groups = [synthetic.attention(range(full), heads, k, v, name="full")]
    if local:
        window = {"window": rows or one.get("window", 1024)}
        groups.append(synthetic.attention(range(full, total), heads, k, v, name="sliding", retain=window))
    return synthetic.make(total, *groups, native="fp16", model_type="gemma3" if local else "llama")


def cache_type(one: dict[str, Any], record: dict[str, Any]) -> str:
    """The cache type that the check or the record names; f16 unless it is one of Ollama's."""
    named = one.get("type", record["kv_dtype"])
    return named if named in TYPES else "f16"
