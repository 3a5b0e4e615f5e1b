"""`mlx_golden.json`: one cache object of MLX-LM, the calls that filled it, and the bytes of its arrays."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import synthetic

from golden.common import Outcome, figures, refusal
from kvplan.engines.mlx.rows import array_bytes, chunked_rows
from kvplan.memory.parts import total
from kvplan.plan import PlanRequest
from kvplan.plan.resolve import Resolved, resolve

DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


def claims(data: dict[str, Any]) -> bool:
    """Whether MLX-LM made this file."""
    meta = data.get("meta", {})
    return "mlx_lm" in meta.get("meta", meta)


def outcomes(data: dict[str, Any]) -> Iterator[Outcome]:
    """Every record of the file."""
    for i, record in enumerate(data["records"]):
        name = f"{i} {record['cache']}"
        if "error" in record:
            yield refusal(name, record["error"], lambda r=record: resolved(r))
        else:
            yield figures(name, _bytes(record), lambda r=record: found(r))


def calls(record: dict[str, Any]) -> tuple[int, ...]:
    """The calls; `[300, "...11 chunks"]` stands for 300 and ten single tokens."""
    given = record["chunks"]
    short = re.fullmatch(r"\.\.\.(\d+) chunks", str(given[-1]))
    made = given if short is None else [given[0], *(1 for _ in range(int(short[1]) - 1))]
    assert "tokens" not in record or sum(made) == record["tokens"], record
    return tuple(made)


def resolved(record: dict[str, Any]) -> Resolved:
    """The cache of a model with one such layer."""
    cache = record["cache"]
    windows = {"RotatingKVCache": ("window", "max_size"), "ChunkedKVCache": ("chunk", "chunk_size")}
    law = windows.get(cache)
    retain: Any = {law[0]: record[law[1]]} if law else "all"
    # Refused records name no shape: kvplan refuses the bits before it needs one.
    layer = synthetic.attention("rest", record.get("kv_heads", 8), record.get("head_dim", 128), retain=retain)
    spec = synthetic.make(1, layer, native=DTYPES[record["dtype"]])
    options = ["quantized_kv_start=0", f"kv_group_size={record['group_size']}"] if "bits" in record else []
    request = PlanRequest(
        model=spec.id, engine="mlx", kv=str(record["bits"]) if "bits" in record else None, context=sum(calls(record)),
        batch=record.get("batch", 1), engine_options=tuple(options),
    )  # fmt: skip
    return resolve(request, spec)


def found(record: dict[str, Any]) -> dict[str, Any]:
    """The same figures by kvplan: bytes of each array, and of all."""
    made = resolved(record)
    cache: Any = made.ranks[0].cache  # type: ignore[union-attr]
    group, batch = cache.case.groups[0], record["batch"]
    alone = record["cache"] == "ChunkedKVCache"
    # A chunked cache without the model that cuts its front.
    rows = chunked_rows(calls(record), record["chunk_size"], cut=False) if alone else cache.rows(group, calls(record))
    held = {
        name: list(array_bytes(group.layout, role, rows, batch).values())
        for name, role in (("keys", "k"), ("values", "v"))
    }
    whole = sum(sum(arrays) for arrays in held.values())
    if not alone:
        whole = total(cache.after(calls(record), batch)[0].allocated)
    return {**held, "total_bytes": whole}


def _bytes(record: dict[str, Any]) -> dict[str, Any]:
    """Bytes of each array, in order, and of all."""
    made: dict[str, Any] = {"total_bytes": record["total_bytes"]}
    for name in ("keys", "values"):
        arrays = record[name] if isinstance(record[name], list) else [record[name]]
        made[name] = [array["bytes"] for array in arrays]
    return made
