"""OpenVINO: blocks of the CPU plugin's compiled inputs, and what GenAI books for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import synthetic

from golden.common import Outcome, figures, refusal
from kvplan.plan import PlanRequest, make_plan
from kvplan.plan.types import EngineSummary
from kvplan.specs.model import ModelSpec

FORMATS = {"KV_CACHE_PRECISION": "kv", "KEY_CACHE_PRECISION": "k", "VALUE_CACHE_PRECISION": "v"}
"""Property to the field of a request."""


def claims(data: dict[str, Any]) -> bool:
    """Whether the file is OpenVINO's."""
    meta = data["meta"]
    return "openvino" in meta.get("meta", meta)


def outcomes(data: dict[str, Any]) -> Iterator[Outcome]:
    """Every measured setting, then every refused one."""
    for record in data["records"]:
        name = f"{record['kv_heads']}x{record['head_dim']} {record['setting']}"
        if "error" in record:
            yield refusal(name, record["error"], lambda r=record: _blocks(r, r.get("props") or props(r["setting"])))
        else:
            yield figures(name, _expected(record), lambda r=record: _blocks(r, r["props"]))
    for failure in data["meta"].get("failures", ()):
        record = {"kv_heads": failure["kvh"], "head_dim": failure["hd"], "layers": 1}
        name = f"{failure['kvh']}x{failure['hd']} {failure['setting']}"
        yield refusal(name, failure["error"], lambda r=record, s=failure["setting"]: _blocks(r, props(s)))


def props(setting: str) -> dict[str, Any]:
    """The properties that a setting's name stands for: `u4 key BY_TOKEN gs32`, `K u8/V u4`, `u8 perf-mode accuracy`."""
    if setting == "default":
        return {}
    if setting.startswith("K "):
        k, v = setting.removeprefix("K ").split("/V ")
        return {"KEY_CACHE_PRECISION": k, "VALUE_CACHE_PRECISION": v}
    precision, *words = setting.split()
    found: dict[str, Any] = {"KV_CACHE_PRECISION": precision}
    for word in words:
        if word.startswith("BY_"):
            found["KEY_CACHE_QUANT_MODE"] = word
        elif word.startswith("gs"):
            size = word.removeprefix("gs")
            found |= {"KEY_CACHE_GROUP_SIZE": size, "VALUE_CACHE_GROUP_SIZE": size}
        elif word == "accuracy":
            found["EXECUTION_MODE_HINT"] = "ACCURACY"
    return found


def _expected(record: dict[str, Any]) -> dict[str, Any]:
    wanted: dict[str, Any] = {"bytes per block": record["total_block_bytes"]}
    for name, tensor in record["inputs"].items():
        wanted[f"{name} shape"] = tensor["partial_shape"]
        wanted[f"{name} element"] = tensor["element"]
        wanted[f"{name} bytes per block"] = tensor["bytes_per_block"]
        wanted[f"{name} booked bytes per block"] = tensor["genai_accounted_bytes_per_block"]
    wanted["booked bytes per block"] = sum(t["genai_accounted_bytes_per_block"] for t in record["inputs"].values())
    return wanted


def _blocks(record: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """What kvplan says of every layer's tensors; all layers of a record are alike."""
    layers = record["layers"]
    summary = _engine(synthetic.make(layers, _group(record)), given)
    found: dict[str, Any] = {}
    for figure in summary.figures:
        _, colon, what = figure.name.partition(": ")
        if not colon:
            found[figure.name] = figure.value
            continue
        tensor, _, rest = what.partition(" ")
        found |= {f"{tensor}.{layer} {rest}": figure.value for layer in range(layers)}
    return found


def _group(record: dict[str, Any]) -> dict[str, Any]:
    return synthetic.attention(range(record["layers"]), record["kv_heads"], record["head_dim"])


def _engine(spec: ModelSpec, given: dict[str, Any]) -> EngineSummary:
    formats = {field: given[name] for name, field in FORMATS.items() if name in given}
    options = tuple(f"{name}={value}" for name, value in given.items() if name not in FORMATS)
    request = PlanRequest(model=spec.id, context=64, engine="openvino", engine_options=options, **formats)
    summary = make_plan(request, spec).engine
    assert summary is not None
    return summary
