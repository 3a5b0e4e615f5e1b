"""What llama.cpp refuses, and what kvplan has no rule for; its golden file and logs through the adapters."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvplan.errors import KvplanError, UnsupportedError, UsageError
from kvplan.plan import PlanRequest, make_plan
from kvplan.specs.model import ModelSpec, Mtp

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def spec_of(model_type: str | None = "llama", dim: int = 128, kind: str = "attention", **more: Any) -> ModelSpec:
    width = {"width": {"nope": 512, "rope": 64}} if kind == "latent" else {"kv_heads": 4, "head_dim": dim}
    group = {"kind": kind, "layers": 1, "q_heads": 8, **width, **more}
    return ModelSpec.model_validate({
        "kvplan_spec": 1, "id": "made", "max_context": 8192, "layers": 1, "native_dtype": "bfloat16",
        "model_type": model_type, "layer_groups": [group],
    })  # fmt: skip


def states(model_type: str = "mamba2", **shape: Any) -> ModelSpec:
    shape = shape or {"type": "mamba2", "heads": 8, "head_dim": 64, "d_state": 64, "n_groups": 1, "conv_kernel": 4}
    group = {"kind": "state", "layers": 1, "state": shape, "dtype": {"recurrent": "float32", "conv": "model"}}
    return ModelSpec.model_validate({
        "kvplan_spec": 1, "id": "made", "max_context": 8192, "layers": 1, "native_dtype": "bfloat16",
        "model_type": model_type, "layer_groups": [group],
    })  # fmt: skip


def refused(spec: ModelSpec, *options: str, kind: type[KvplanError] = UsageError, **fields: Any) -> str:
    request = PlanRequest.model_validate(
        {"model": "made", "engine": "llamacpp", "context": 1024, "engine_options": options, **fields}
    )
    with pytest.raises(kind) as caught:
        make_plan(request, spec)
    assert caught.value.hint and "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("spec", [spec_of(), states()], ids=["attention", "states only"])
def test_quantised_v_needs_flash_attention(spec: ModelSpec) -> None:
    assert "needs flash attention for V in q8_0" in refused(spec, "flash_attn=off", k="f16", v="q8_0")
    make_plan(
        PlanRequest(model="made", engine="llamacpp", context=1024, k="q8_0", engine_options=("flash_attn=off",)), spec
    )


def test_grok_has_no_flash_attention() -> None:
    assert "does not have" in refused(spec_of("grok-1"), kv="q8_0")


@pytest.mark.parametrize("fields", [{"kv": "q8_0"}, {"k": "q4_0", "v": "f16"}, {"k": "f16", "v": "iq4_nl"}])
@pytest.mark.parametrize("flash", ["auto", "on"])
def test_blocks_divide_the_head_dimension(fields: dict[str, str], flash: str) -> None:
    assert "do not divide the head dimension 80" in refused(spec_of(dim=80), f"flash_attn={flash}", **fields)
    make_plan(PlanRequest(model="made", engine="llamacpp", context=1024, **fields), spec_of(dim=96))  # type: ignore[arg-type]


def test_without_flash_attention_such_a_k_aborts() -> None:
    assert "head dimension 80" in refused(spec_of(dim=80), "flash_attn=off", k="q8_0", v="f16")


@pytest.mark.parametrize("fields", [{"k": "q8_0"}, {"v": "q8_0"}, {"k": "q8_0", "v": "q4_0"}])
def test_latents_need_one_type(fields: dict[str, str]) -> None:
    spec = spec_of("deepseek_v3", kind="latent")
    assert "one cache type" in refused(spec, **fields)
    assert "one cache type" in refused(spec, "flash_attn=off", **fields)


@pytest.mark.parametrize("text", ["q4_K", "q6_K", "mxfp4", "nvfp4", "q8_1", "fp8", "int8"])
def test_other_types_are_refused(text: str) -> None:
    refused(spec_of(), kind=KvplanError, kv=text)


def test_gpus_share_layers_only() -> None:
    assert "split_mode tensor" in refused(spec_of(), kind=UnsupportedError, tp=2)
    assert "split_mode tensor" in refused(spec_of(), "split_mode=tensor", kind=UnsupportedError)
    assert "needs flash attention" in refused(spec_of(), "split_mode=tensor", "flash_attn=off")
    assert "context parallel" in refused(spec_of(kind="latent", model_type="deepseek_v3"), tp=2, dcp=2)


def test_slots_and_states() -> None:
    assert "2 slots do not run 3 sequences" in refused(spec_of(), "n_parallel=2", batch=3)
    assert "states in fp32" in refused(states(), state_dtype="bf16")
    kimi = states("kimi_linear", type="kda", heads=4, head_dim=64, conv_kernel=4)
    assert "3 slots do not divide a batch of 512" in refused(kimi, batch=3)
    make_plan(PlanRequest(model="made", engine="llamacpp", context=1024, batch=4), kimi)


def test_what_kvplan_has_no_rule_for() -> None:
    cross = spec_of(kind="cross", encoder_tokens={"per": "audio", "count": 1500})
    assert "no rule for group cross" in refused(cross, kind=UnsupportedError)
    assert "no rule for group latent" in refused(spec_of("minicpm3", kind="latent"), kind=UnsupportedError)
    assert "covers only" in refused(states(), kind=UnsupportedError, engine_version="b5937")
    nextn = spec_of().model_copy(update={"mtp": Mtp(layers=1, cache_like=("attention",))})
    assert "prediction layers" in refused(nextn, kind=UnsupportedError, mtp=True, kv="q8_0")
    assert "no rule for group attention" in refused(spec_of(retain={"ring": 16}), kind=UnsupportedError)
    group = {"kind": "attention", "q_heads": 8, "kv_heads": 4, "head_dim": 128}
    windows = [{**group, "name": f"w{n}", "layers": [i], "retain": {"window": n}} for i, n in enumerate((512, 1024))]
    two = ModelSpec.model_validate(spec_of("gemma3").model_dump() | {"layers": 2, "layer_groups": windows})
    assert "512 and 1,024" in refused(two, kind=UnsupportedError)


@pytest.fixture
def tools() -> Iterator[None]:
    sys.path.insert(0, str(TOOLS))
    yield
    sys.path.remove(str(TOOLS))


def test_every_golden_record(shared: Path, tools: None) -> None:
    from golden import llamacpp as adapter

    data = json.loads((shared / "data" / "llamacpp_golden.json").read_text(encoding="utf-8"))
    found = list(adapter.outcomes(data))
    assert adapter.claims(data) and len(found) > 500
    assert [o for o in found if o.verdict != "equal"] == []
    assert sum(o.kind == "refusal" for o in found) > 30


def test_a_wrong_golden_figure_differs(shared: Path, tools: None) -> None:
    from golden import llamacpp as adapter

    data = json.loads((shared / "data" / "llamacpp_golden.json").read_text(encoding="utf-8"))
    record = next(r for r in data["records"] if r["ok"])
    for change in ({"n_ctx": record["n_ctx"] + 256}, {"total_bytes": record["total_bytes"] + 1}, {"log": []}):
        (outcome, *_) = adapter.outcomes({**data, "records": [record | change]})
        assert outcome.verdict == "different"


@pytest.mark.parametrize("name", ["llamacpp", "ollama"])
def test_independent_logs_are_reproduced(shared: Path, tools: None, name: str) -> None:
    from importlib import import_module

    reader = import_module(f"logs.{name}")
    records = json.loads((shared / "data" / "engine_logs.json").read_text(encoding="utf-8"))["records"]
    found = [reader.check(r) for r in records if r["engine"] in reader.ENGINES]
    assert {f.verdict for f in found if f.strength == "independent"} == {"reproduced"}
    assert all(f.verdict != "different" for f in found)


def test_a_log_with_another_size_differs(tools: None) -> None:
    from logs import llamacpp as reader

    line = {"f": "ggml_kv", "cells": 4096, "layers": 61, "k_el": 576, "v_el": 512, "k_type": "f16", "v_type": "f16"}
    sizes = {"size": 518.5, "K": 274.5, "V": 244.0}
    record = {
        "id": "made", "engine": "llama.cpp", "evidence_strength": "independent", "status": "explained",
        "derivation": "", "deviations": ["mla"],
    }  # fmt: skip
    assert reader.check({**record, "checks": [line | sizes]}).verdict == "reproduced"
    assert reader.check({**record, "checks": [line | sizes | {"K": 274.52}]}).verdict == "different"
    assert reader.check({**record, "checks": [line | sizes | {"k_type": "q9"}]}).verdict == "different"
