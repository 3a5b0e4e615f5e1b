"""Ollama: what its llama-server takes, its defaults and its own estimate."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.engines.ollama import default_context
from kvplan.errors import KvplanError
from kvplan.plan import Plan, PlanRequest, make_plan
from kvplan.specs.load import load_model

GIB = 2**30


def plan(model: str, context: int = 8192, batch: int = 1, *options: str, **fields: Any) -> Plan:
    request = {"model": model, "engine": "ollama", "context": context, "batch": batch, "engine_options": options}
    return make_plan(PlanRequest.model_validate(request | fields), load_model(model))


def allocated(made: Plan) -> int:
    assert made.kv is not None
    return made.kv.allocated_bytes


def figures(made: Plan) -> dict[str, Any]:
    assert made.engine is not None
    return {f.name: f.value for f in made.engine.figures}


@pytest.mark.parametrize(("option", "row"), [("f16", 2 * 2048), ("q8_0", 2 * 32 * 34), ("q4_0", 2 * 32 * 18)])
def test_the_cache_is_llama_cpp_s(option: str, row: int) -> None:
    """Llama 3.1 8B: 32 layers, rows of 8 x 128 elements for K and for V."""
    made = plan("llama-3.1-8b", 8000, 2, kv=option)
    assert allocated(made) == 32 * 2 * 8192 * row
    other = make_plan(
        PlanRequest(model="llama-3.1-8b", engine="llamacpp", context=8000, batch=2, kv=option),
        load_model("llama-3.1-8b"),
    )
    assert allocated(made) == allocated(other)


def test_its_own_estimate_forgets_the_scales() -> None:
    elements = 32 * 8192 * 2 * 8 * 128
    for option, estimate, real in (("f16", 2, 2), ("q8_0", 1, 1.0625), ("q4_0", 0.5, 0.5625)):
        made = plan("llama-3.1-8b", kv=option)
        assert figures(made)["estimated bytes"] == elements * estimate
        assert allocated(made) == elements * real
        assert any("larger than it says" in note for note in made.notes) == (option != "f16")


def test_slots_are_not_shared_and_windows_hold_a_batch_each() -> None:
    """Gemma 3 27B: 10 full layers, 52 with a window of 1024; rows of 16 x 128."""
    row = 2 * 16 * 128 * 2
    made = plan("gemma-3-27b", 16384, 4)
    assert allocated(made) == 4 * (10 * 16384 + 52 * 1536) * row
    assert figures(made)["estimated bytes"] == (10 * 4 * 16384 + 52 * (4 * 1024 + 512)) * row
    assert allocated(plan("gemma-3-27b", 16384, 4, "num_batch=2048")) == 4 * (10 * 16384 + 52 * 3072) * row
    assert any("OLLAMA_NUM_PARALLEL" in note for note in made.notes)


def test_given_context_and_slots() -> None:
    made = plan("llama-3.1-8b", 1000, 1, "num_ctx=4096", "num_parallel=2")
    assert allocated(made) == 32 * 2 * 4096 * 4096
    assert made.kv is not None and made.kv.reserved_bytes == 32 * (2 * 4096 - 1024) * 4096


def test_states_are_estimated_for_one_request() -> None:
    made = plan("qwen3.5-9b", 8192, 2)
    state = 24 * (32 * 128 * 128 + 3 * 8192) * 4
    assert figures(made)["estimated bytes"] == 8 * 2 * 8192 * 2 * 1024 * 2 + state
    assert allocated(made) == 8 * 2 * 8192 * 2 * 1024 * 2 + 2 * state


@pytest.mark.parametrize(("gib", "context"), [(16, 4096), (23, 32768), (46, 32768), (47, 262144), (141, 262144)])
def test_the_default_context_follows_the_memory(gib: int, context: int) -> None:
    assert default_context(gib * GIB) == context


def test_the_gpu_s_default_context_is_a_figure() -> None:
    assert figures(plan("llama-3.1-8b", gpu="h200"))["default context"] == 262144
    assert "default context" not in figures(plan("llama-3.1-8b"))


def test_caches_that_the_estimate_does_not_know_have_none() -> None:
    for model in ("deepseek-v3", "gemma-3n-e4b"):
        assert "estimated bytes" not in figures(plan(model))


@pytest.mark.parametrize("text", ["q5_1", "bf16", "f32", "q4_1"])
def test_other_types_are_refused(text: str) -> None:
    with pytest.raises(KvplanError):
        plan("llama-3.1-8b", kv=text)


def test_one_type_for_both_and_flash_attention_for_it() -> None:
    with pytest.raises(KvplanError, match="one option for K and V"):
        plan("llama-3.1-8b", k="q8_0", v="f16")
    with pytest.raises(KvplanError, match="needs flash attention"):
        plan("llama-3.1-8b", 8192, 1, "flash_attention=off", kv="q8_0")
