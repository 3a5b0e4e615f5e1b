"""The plan object: echo, figures, breakdown, gains, notes; written, read back, and refused when tampered with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvplan.breakdown import from_dict
from kvplan.errors import InputError, KvplanError, UsageError
from kvplan.plan import Plan, PlanRequest, ladder_lengths, legal_tps, make_plan
from kvplan.specs.load import list_models, load_model
from kvplan.specs.model import ModelSpec
from kvplan.texts import field_text


def plan(model: str = "llama-3.1-8b", **fields: Any) -> Plan:
    return make_plan(PlanRequest(model=model, **fields))


def states_only() -> ModelSpec:
    state = {"type": "mamba2", "heads": 64, "head_dim": 64, "d_state": 128, "n_groups": 1, "conv_kernel": 4}
    group = {"kind": "state", "layers": 8, "state": state, "dtype": {"recurrent": "float32", "conv": "model"}}
    common = {
        "kvplan_spec": 1,
        "id": "ssm",
        "params": {"total": 10**9},
        "max_context": 4096,
        "native_dtype": "bfloat16",
    }
    return ModelSpec.model_validate({**common, "layers": 8, "layer_groups": [group]})


CASES: list[dict[str, Any]] = [
    {"context": 32768, "kv": "int8", "gpu": "h200", "batch": 4},
    {"context": 1000, "k": "int8:channel/32", "v": "int8:group/32,asym,recent=64", "gpu": "l4", "tp": 2},
    {"kv": "fp8_e4m3:head", "gpu": "rtx-4090", "weights_dtype": "int4"},
    {"model": "gemma-3-27b", "kv": "int8:channel/48,asym"},
    {"model": "deepseek-v3.2", "context": 100_000, "kv": "fp8_e4m3", "tp": 8, "gpu": "b200"},
    {"model": "deepseek-v3", "kv": "int8", "latent": "fp8_e4m3:token", "context": 5},
    {"model": "qwen3-next-80b-a3b", "kv": "int8:head", "context": 262144, "batch": 5, "gpu": "l40s"},
    {"model": "gpt-oss-120b", "gpu_memory": 24 * 2**30, "bandwidth": 936 * 10**9, "util": 0.85},
    {"model": "mistral-7b-v0.1", "context": 100_000, "beyond_max": True, "page_size": 16},
    {"model": "gemma-3-27b", "context": 70_000, "pp": 4, "dp": 2, "batch": 5, "gpu": "h200", "kv": "int8"},
    {"model": "deepseek-v3.2", "context": 5000, "tp": 16, "dcp": 4, "mtp": True, "layers": ("last=3:fp8_e4m3",)},
    {"model": "deepseek-v3", "tp": 8, "dp_attention": True, "gpu": "h200", "pp": 2},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_dumped_plan_loads_again(case: dict[str, Any]) -> None:
    made = plan(**case)
    text = made.to_json()
    assert Plan.load(text) == Plan.load(json.loads(text)) == made
    assert made.to_dict() == json.loads(text) == made.model_dump(mode="json", by_alias=True)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_echo_gives_the_same_plan(case: dict[str, Any]) -> None:
    made = plan(**case)
    assert make_plan(made.request) == made


def test_the_echo_fills_in_every_default() -> None:
    echo = plan(context=100, kv=" INT8:token ").request
    assert (echo.kv, echo.k, echo.v, echo.latent, echo.index) == ("int8", "int8", "int8", None, None)
    assert (echo.page_size, echo.tp, echo.batch, echo.util, echo.weights_dtype) == (128, 1, 1, 0.9, "bf16")
    assert plan(kv="int8:channel/48").request.page_size == 384
    assert plan("gpt-oss-120b").request.weights_dtype == "published"


def test_the_top_level_keys() -> None:
    data = plan(context=100).to_dict()
    assert data["schema"] == "kvplan.plan/1"
    assert list(data) == ["schema", "request", "model", "device", "kv", "ladder", "breakdown", "capacity", "verdict",
                          "gain", "notes", "versions", "sharding", "engine"]  # fmt: skip
    assert list(data["kv"]) == [
        "context", "batch", "payload_bytes", "metadata_bytes", "residual_bytes", "state_bytes", "logical_bytes",
        "reserved_bytes", "allocated_bytes", "padding_bytes", "engine_saves_bytes", "constant_bytes",
        "replicated_bytes", "bytes_per_token", "fixed_bytes_per_sequence", "by_group",
    ]  # fmt: skip
    assert list(data["kv"]["by_group"][0])[:4] == ["name", "role", "layers", "formats"]


@pytest.mark.parametrize("model", list_models())
@pytest.mark.parametrize("fmt", ["bf16", "int8", "int8:channel/32,asym", "fp8_e4m3:head"])
def test_figures_and_trees_agree(model: str, fmt: str) -> None:
    data = plan(model, context=3000, batch=2, beyond_max=True, k=fmt, v=fmt, latent=fmt, index=fmt).to_dict()
    kv, trees = data["kv"], data["breakdown"]
    assert from_dict(trees["logical"]).nbytes == kv["logical_bytes"]
    assert from_dict(trees["allocated"]).nbytes == kv["allocated_bytes"]
    assert from_dict(trees["constant"]).nbytes == kv["constant_bytes"]
    slope = kv["bytes_per_token"]
    assert from_dict(trees["growth"]).nbytes * slope["denominator"] == slope["numerator"] * trees["growth_tokens"]


def test_the_scratch_of_a_prefix_hit_stands_apart() -> None:
    """By hand: 1,000 rows of 8 KV heads, K and V of 128 channels, 2 bytes; halved by tp 2."""
    for tp in (1, 2):
        made = plan(context=1000, kv="int8", tp=tp)
        scratch = made.breakdown.prefix_scratch
        assert scratch is not None and scratch.nbytes == 1000 * 8 // tp * 2 * 128 * 2
    assert plan(context=1000, kv="bf16").breakdown.prefix_scratch is None
    assert plan(context=1000, kv="fp8_e4m3", engine="vllm").breakdown.prefix_scratch is None


def test_without_a_context_there_is_a_ladder() -> None:
    made = plan("gemma-3n-e4b")
    assert (made.kv, made.verdict, made.gain) == (None, None, None)
    assert [kv.context for kv in made.ladder] == [1024, 2048, 4096, 8192, 16384, 32768]
    assert made.ladder[1] == plan("gemma-3n-e4b", context=2048).kv
    assert made.breakdown.growth.nbytes == 8192
    assert ladder_lengths(448) == (448,)
    assert ladder_lengths(1024) == (1024,)
    assert ladder_lengths(163_840)[-2:] == (131_072, 163_840)


def _set(data: Any, path: str, value: Any) -> None:
    *path_to, last = path.split(".")
    for key in path_to:
        data = data[int(key)] if isinstance(data, list) else data[key]
    assert data[last] != value
    data[last] = value


@pytest.mark.parametrize(
    "path",
    [
        *(
            f"kv.{name}_bytes"
            for name in ("payload", "metadata", "residual", "state", "logical", "reserved", "padding")
        ),
        *(
            f"kv.{name}"
            for name in ("allocated_bytes", "constant_bytes", "replicated_bytes", "fixed_bytes_per_sequence")
        ),
        "kv.bytes_per_token.numerator",
        "kv.by_group.0.payload_bytes",
        "kv.by_group.0.allocated_bytes",
        "breakdown.logical.nbytes",
        "breakdown.logical.children.0.children.0.children.0.nbytes",
        "breakdown.allocated.children.0.nbytes",
        "breakdown.growth_tokens",
        "capacity.weights.nbytes",
        "capacity.pool_bytes",
        "capacity.usable_bytes",
        "gain.fixed_requests.after_bytes",
        "gain.fixed_requests.before_bytes",
        "sharding.sequences",
        "sharding.stage",
        "sharding.stages.0.held_bytes",
    ],
)
def test_a_tampered_number_is_refused(path: str) -> None:
    data = plan(context=1000, kv="int8:channel/32", gpu="h200").to_dict()
    _set(data, path, 12345)
    with pytest.raises(InputError):
        Plan.load(data)


def test_consistent_tampering_is_refused_by_the_breakdown() -> None:
    data = plan(context=1000, kv="int8").to_dict()
    for part in (data["kv"], data["kv"]["by_group"][0]):
        part["payload_bytes"] += 8
        part["logical_bytes"] += 8
        part["padding_bytes"] -= 8
    with pytest.raises(InputError, match="payload"):
        Plan.load(data)
    data = plan(context=1000, kv="int8:channel/32").to_dict()
    for part in (data["kv"], data["kv"]["by_group"][0]):
        part["reserved_bytes"] += 8
        part["padding_bytes"] -= 8
    with pytest.raises(InputError, match="reserved"):
        Plan.load(data)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": "kvplan.plan/2"}', b"\xff\xfe", "[" * 100_000])
def test_what_is_no_plan_is_refused(text: str | bytes) -> None:
    with pytest.raises(InputError):
        Plan.load(text)


def test_both_gains_are_apart() -> None:
    gain = plan(context=32768, kv="int8", gpu="h200").gain
    assert gain is not None and gain.preallocated_pool is not None
    fixed, pool = gain.fixed_requests, gain.preallocated_pool
    assert (fixed.before_bytes, fixed.after_bytes) == (4 * 2**30, 32 * 8 * 32768 * 260)
    assert (fixed.ratio.numerator, fixed.ratio.denominator) == (128, 65)
    assert pool.requests_before < pool.requests_after
    assert pool.tokens_before < pool.tokens_after
    without = plan(context=32768, kv="int8").gain
    assert without is not None and without.preallocated_pool is None


def test_what_kv_means_for_a_latent() -> None:
    assert plan("deepseek-v3", kv="fp8_e4m3").request.latent == "fp8_e4m3"
    assert plan("deepseek-v3", kv="bf16").request.latent == "bf16"
    with pytest.raises(UsageError) as refused:
        plan("deepseek-v3", kv="int8")
    assert "--latent" in refused.value.hint
    assert plan("deepseek-v3.2", kv="int8", latent="bf16").request.index == "bf16"
    assert plan("deepseek-v3", kv="fp8_ds_mla").request.latent == "fp8_ds_mla"


def test_a_model_of_states_only() -> None:
    made = make_plan(PlanRequest(model="ssm", context=100, kv="int8", gpu="h200"), states_only())
    assert made.request.k is made.request.latent is None
    assert any("has no effect" in note for note in made.notes)
    assert made.kv is not None and made.kv.logical_bytes == made.kv.state_bytes
    assert legal_tps(states_only())[:3] == (1, 2, 4)
    assert Plan.load(made.to_json()) == made


def test_options_without_effect_are_noted() -> None:
    assert "--index has no effect: llama-3.1-8b has no index keys." in plan(index="int8").notes
    assert any("prediction" in note for note in plan("deepseek-v3").notes)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kv": "int8", "k": "bf16"}, "contradict"),
        ({"context": 0}, "context must be at least 1"),
        ({"context": 10**12}, "out of range"),
        ({"context": 131_073}, "above the maximum"),
        ({"batch": -1}, "batch"),
        ({"tp": 3}, "query heads"),
        ({"tp": 64}, "query heads"),
        ({"util": 0.0}, "util"),
        ({"util": float("nan")}, "util"),
        ({"util": 1.5}, "util"),
        ({"page_size": 0}, "page size"),
        ({"kv": "int8:channel/32", "page_size": 100}, "page size 100"),
        ({"kv": "int8:group/48"}, "do not divide"),
        ({"kv": "fp8_ds_mla"}, "for a latent"),
        ({"weights_dtype": "fp5"}, "weights dtype"),
        ({"weights_dtype": "published"}, "published"),
        ({"gpu": "h200", "gpu_memory": 1}, "both given"),
        ({"gpu_memory": 2**30}, "bandwidth"),
        ({"gpu": "h9000"}, "h9000"),
        ({"model": "lama"}, "lama"),
    ],
)
def test_impossible_requests(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(KvplanError, match=words) as refused:
        plan(**fields)
    assert refused.value.hint


def test_legal_tp_is_named() -> None:
    with pytest.raises(UsageError) as refused:
        plan(tp=3)
    assert refused.value.hint == "legal values: 1, 2, 4, 8, 16, 32"
    assert legal_tps(load_model("smollm2-135m")) == (1, 3, 9)
    assert legal_tps(load_model("deepseek-v3"))[-1] == 128


def test_every_field_of_a_request_has_a_text() -> None:
    texts = {name: field_text(PlanRequest, name) for name in PlanRequest.model_fields}
    assert all(text.endswith(".") or text.endswith("`") for text in texts.values()), texts
    assert texts["layers"].endswith("the last wins.") and "\n" not in texts["layers"]
    assert field_text(PlanRequest, "no_field") == ""
