"""`hf_golden.json`: tensors of transformers' caches, of tiny models with random weights."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any

from golden.common import Outcome, figures, out_of_scope, refusal
from kvplan.engines.transformers.states import OUTSIDE
from kvplan.memory.parts import total
from kvplan.plan import PlanRequest
from kvplan.plan.resolve import resolve
from kvplan.specs.importers.config import import_config
from kvplan.specs.model import ModelSpec

COUNTERS = ("_sliding_window_tensor", "cumulative_length")
"""Not counted by the file's totals either."""
OUTSIDE_LAYERS = "state held outside cache.layers"
UNRECORDED: dict[str, tuple[tuple[str, str, str, int], ...]] = {
    # Field, tensor, part of the layer's class, and axis of the tensor's shape.
    "gemma4_text": (("global_head_dim", "keys", "full", -1), ("num_global_key_value_heads", "keys", "full", 1)),
    "kimi_linear": (
        ("linear_num_heads", "recurrent_states.0", "", 1), ("linear_head_dim", "recurrent_states.0", "", 2),
    ),
    "mimo_v2_flash": (
        ("swa_num_key_value_heads", "keys", "Sliding", 1), ("swa_head_dim", "keys", "Sliding", -1),
        ("swa_v_head_dim", "values", "Sliding", -1),
    ),
    "mpt": (("n_heads", "keys", "", 1),),
}  # fmt: skip
"""Sizes that the tiny models had and the recorded configs leave out, with the tensor that shows each."""
ONLY_LINEAR = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
"""A tiny model, for failures that record no config but say that all layers are linear attention."""


def claims(data: dict[str, Any]) -> bool:
    """Whether transformers made this file; OpenVINO's names the version that exported its models."""
    meta = data.get("meta", {})
    named = meta.get("meta", meta)
    return "transformers" in named and "openvino" not in named


def outcomes(data: dict[str, Any]) -> Iterator[Outcome]:
    """Every record, then every failure."""
    for record in data["records"]:
        name = f"{record['id']} {record['arch']} {record['cache_kind']}"
        yield figures(name, expected(record), lambda r=record: found(r))
    meta = data["meta"]
    for i, failure in enumerate(meta.get("failures", data.get("failures", []))):
        yield failed(f"failure {i} {failure['arch']} {failure['stage']}", failure, data["records"])


def spec_of(record: dict[str, Any]) -> ModelSpec:
    """The record's model by kvplan's own importer."""
    config = {**record["config"], "dtype": record["model_dtype"]}
    for field, tensor, where, axis in UNRECORDED.get(config["model_type"], ()):
        shape = _shape(record, tensor, where)
        if field not in config and shape:
            config[field] = shape[axis]
    if config["model_type"] == "mpt" and "n_layers" not in config:
        config["n_layers"] = sum(len(g["layers"]) for g in record["layer_groups"])
    spec = import_config(config, record["arch"]).spec
    if "encoder_positions" not in record:
        return spec
    body = spec.model_dump()
    for group in body["layer_groups"]:
        if group["kind"] == "cross":
            group["encoder_tokens"]["count"] = record["encoder_positions"]
    return ModelSpec.model_validate(body)


def _shape(record: dict[str, Any], tensor: str, where: str) -> list[int]:
    for group in record.get("layer_groups", ()):
        sliding = "Sliding" in group["class"]
        if tensor in group["tensors"] and (not where or sliding == (where == "Sliding")):
            return list(group["tensors"][tensor]["shape"])
    return []


def calls(record: dict[str, Any]) -> tuple[int, ...]:
    """Forward passes: the prompt and single tokens, or chunks up to the snapshot's positions."""
    prompt = record["prefill_tokens"]
    if isinstance(prompt, int):
        return (prompt, *(1 for _ in range(record["decode_tokens"])))
    made: list[int] = []
    for size in re.findall(r"\d+", prompt.split("(")[0]):
        if sum(made) < record["cached_positions"]:
            made.append(int(size))
    assert sum(made) == record["cached_positions"], record
    return tuple(made)


def cache_of(record: dict[str, Any], spec: ModelSpec) -> Any:
    """kvplan's cache of the record's run."""
    given = calls(record)
    options = {"decode_tokens": record["decode_tokens"], **record.get("quant_options", {})}
    backend = record["cache_kind"].partition("[")[2].rstrip("]")
    nbits = options.pop("nbits", 4)
    if "max_cache_len" in record:
        options |= {"cache_implementation": "static", "max_cache_len": record["max_cache_len"]}
    request = PlanRequest(
        model=spec.id, engine="transformers", context=sum(given), batch=record["batch"], beyond_max=True,
        kv=f"{backend}-int{nbits}" if backend in ("quanto", "hqq") else backend or None,
        engine_options=tuple(f"{name}={value}" for name, value in options.items()),
    )  # fmt: skip
    rank: Any = resolve(request, spec).ranks[0]
    return rank.cache


def expected(record: dict[str, Any]) -> dict[str, Any]:
    """Bytes of the tensors of every layer, of every role, and of all; and the storage behind them, where given."""
    layers: dict[int, dict[str, int]] = {}
    storage: dict[int, dict[str, int]] = {}
    for name, tensor in record.get("tensors", {}).items():
        layer = int(re.findall(r"\d+", name)[0])
        layers.setdefault(layer, {})[_state_name(name)] = tensor["bytes"]
    for group in record.get("layer_groups", ()):
        for name, tensor in group["tensors"].items():
            for layer in group["layers"] if name not in COUNTERS else ():
                layers.setdefault(layer, {})[plain(name)] = tensor["bytes"]
                if "storage_bytes" in tensor:
                    storage.setdefault(layer, {})[plain(name)] = tensor["storage_bytes"]
    made: dict[str, Any] = {"total_bytes": record["total_bytes"]}
    if record["cache_kind"].endswith("(list)"):
        # One list of five tensors, each over all layers.
        return made | {"by_role": dict(enumerate(record["bytes_by_role"].values()))}
    if record["cache_kind"] != OUTSIDE_LAYERS:
        made["by_role"] = {plain(name): nbytes for name, nbytes in record["bytes_by_role"].items()}
    return made | {"layers": layers} | ({"storage": storage} if storage else {})


def found(record: dict[str, Any]) -> dict[str, Any]:
    """The same by kvplan."""
    spec = spec_of(record)
    cache, batch = cache_of(record, spec), record["batch"]
    layers: dict[int, dict[str, int]] = {}
    storage: dict[int, dict[str, int]] = {}
    roles: dict[str, int] = {}
    for group, stored in cache.tensors(calls(record), batch):
        part = spec.group(group.name)
        if not _asked(record, part):
            continue
        positions = spec.positions(part)
        for tensor in stored:
            if tensor.name in COUNTERS:
                continue
            whole, behind = tensor.tensor(group, batch), tensor.storage(group, batch)
            roles[tensor.name] = roles.get(tensor.name, 0) + whole.nbytes
            label = tensor.name
            if tensor.name.startswith(("buffer", "compressed", "overlap")):
                label += ".indexer" if part.role == "index" else ".compressor"
            for layer in positions:
                layers.setdefault(layer, {})[label] = _of_one(whole)
                storage.setdefault(layer, {})[label] = _of_one(behind)
    made: dict[str, Any] = {"total_bytes": sum(roles.values())}
    if record["cache_kind"].endswith("(list)"):
        return made | {"by_role": dict(enumerate(roles.values()))}
    if record["cache_kind"] != OUTSIDE_LAYERS:
        made["by_role"] = roles
    given = any("storage_bytes" in t for g in record.get("layer_groups", ()) for t in g["tensors"].values())
    return made | {"layers": layers} | ({"storage": storage} if given else {})


def _of_one(whole: Any) -> int:
    """Bytes in one layer: a product without its layers."""
    layer = type(whole)(whole.label, tuple(f for f in whole.factors if f.name != "layers"), whole.basis)
    return int(layer.nbytes)


def _asked(record: dict[str, Any], part: Any) -> bool:
    """Whether a record is about this layer group: it may hold self- or cross-attention, or states, apart."""
    kind = record["cache_kind"]
    if kind.startswith("EncoderDecoderCache"):
        return (part.kind == "cross") == ("cross_attention" in kind)
    outside = part.kind == "state" and part.state.type in OUTSIDE
    return outside == (kind == OUTSIDE_LAYERS)


def plain(name: str) -> str:
    """A tensor's path in the file as kvplan calls it."""
    first, _, rest = name.partition("/")
    if not rest:
        return first.removesuffix(".0")
    for word in ("scale", "shift", "zero"):
        if rest.endswith(word):
            return f"{first} {word}"
    return f"{first} scale" if rest == "1" else first


def _state_name(path: str) -> str:
    return "conv_states" if "conv" in path else "recurrent_states"


def failed(name: str, failure: dict[str, Any], records: Sequence[dict[str, Any]]) -> Outcome:
    """A run that failed: refused by kvplan too, where a rule of the cache was the reason."""
    arch, stage, error = failure["arch"], failure["stage"], failure["error"]
    if "only contain LinearAttention" in error:
        linear = ["linear_attention" for _ in range(ONLY_LINEAR["num_hidden_layers"])]
        config = {"model_type": arch, **ONLY_LINEAR, "layer_types": linear}
        return refusal(name, error, lambda: _all(_runs([config], stage)))
    if stage == "build" or stage.startswith("forward") or not any(r["arch"] == arch for r in records):
        rule = "the model could not be built or run for another reason than its cache"
        return out_of_scope(name, rule, "refusal")
    mine = [r for r in records if r["arch"] == arch]
    quantised = [r for r in mine if stage.startswith("quantized") and "quant_options" in r]
    # The file does not say which of the architecture's configs failed: one of them must be refused.
    return refusal(name, error, lambda: _all(_runs([r["config"] for r in quantised or mine], stage)))


def _runs(configs: list[dict[str, Any]], stage: str) -> list[dict[str, Any]]:
    """Records as the failed run would have made them, one for each config."""
    words = re.fullmatch(r"quantized (\w+) (\{.*\}) \((\d+), (\d+)\)", stage)
    run: dict[str, Any] = {"batch": 1, "prefill_tokens": 7, "decode_tokens": 1, "cache_kind": "default"}
    if words:
        run |= {"cache_kind": f"QuantizedCache[{words[1]}]", "quant_options": ast.literal_eval(words[2])}
        run |= {"batch": int(words[3]), "prefill_tokens": int(words[4])}
    elif stage == "static":
        run |= {"max_cache_len": 64}
    unique = {str(config): config for config in configs}
    return [{**run, "config": c, "model_dtype": "bfloat16", "arch": c["model_type"]} for c in unique.values()]


def _all(runs: list[dict[str, Any]]) -> int:
    """Plan every run; an error of one of them is the answer."""
    held = [cache_of(run, spec_of(run)).after(calls(run), run["batch"]) for run in runs]
    return sum(total(part.allocated) for parts in held for part in parts)
