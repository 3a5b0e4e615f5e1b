"""Plans over several GPUs: which stage is shown, what replicas and attention replicas do, which layouts are refused."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.errors import UsageError
from kvplan.plan import Plan, PlanRequest, legal_dcps, make_plan
from kvplan.specs.load import load_model


def plan(model: str = "llama-3.1-8b", **fields: Any) -> Plan:
    return make_plan(PlanRequest(model=model, **fields))


def logical(made: Plan) -> int:
    assert made.kv is not None
    return made.kv.logical_bytes


def test_the_fullest_stage_is_shown() -> None:
    """gemma-3-27b over 4: 15, 16, 16, 15 layers; layer 5, 11, ... 59 is global. Stage 2 has 5 11+..: 17, 23, 29."""
    made = plan("gemma-3-27b", context=100_000, pp=4)
    assert made.sharding is not None and made.kv is not None
    spans = [(s.first_layer, s.last_layer) for s in made.sharding.stages]
    assert spans == [(0, 14), (15, 30), (31, 46), (47, 61)]
    held = [s.held_bytes for s in made.sharding.stages]
    assert held[made.sharding.stage - 1] == max(held) == made.kv.allocated_bytes
    assert made.sharding.stage == 2
    per_row = 16 * 512
    assert logical(made) == per_row * (3 * 100_000 + 13 * 1024)
    assert any("stage 2 of 4 (layers 15-30)" in note for note in made.notes)
    assert made.kv.replicated_bytes == 0


def test_a_stage_without_a_group_keeps_its_name() -> None:
    made = plan("gemma-3n-e4b", context=4096, pp=7)
    assert made.kv is not None and {g.name for g in made.kv.by_group} == {"full", "sliding"}
    assert Plan.load(made.to_json()) == made
    assert any("reads another layer's cache" in note for note in made.notes)


def test_replicas_split_the_batch() -> None:
    assert logical(plan(context=1000, batch=7, dp=3)) == 3 * logical(plan(context=1000))
    one, two = plan(context=32768, gpu="h200").capacity, plan(context=32768, gpu="h200", dp=2).capacity
    assert one is not None and two is not None
    assert (two.requests, two.tokens) == (2 * (one.requests or 0), 2 * (one.tokens or 0))
    assert two.longest_request == one.longest_request
    assert any("Only 1 of 3 replicas" in note for note in plan(context=10, dp=3).notes)


def test_attention_replicas_split_latents_by_requests() -> None:
    copied = plan("deepseek-v3", context=1000, batch=16, tp=8)
    split = plan("deepseek-v3", context=1000, batch=16, tp=8, dp_attention=True)
    assert logical(copied) == 8 * logical(split) == 16 * 1000 * 61 * 1152
    assert copied.kv is not None and split.kv is not None
    assert (copied.kv.replicated_bytes, split.kv.replicated_bytes) == (7 * logical(copied), 0)
    assert split.request.dp == 8 and split.sharding is not None and split.sharding.gpus == 8
    half = plan("deepseek-v3", context=1000, batch=16, tp=8, dp=4, dp_attention=True)
    assert logical(half) == 2 * logical(split)
    assert half.kv is not None and half.kv.replicated_bytes == 16 * 1000 * 61 * 1152


def test_context_parallel() -> None:
    made = plan("deepseek-v3", context=1001, tp=8, dcp=4)
    assert logical(made) == 251 * 61 * 1152
    assert made.kv is not None and made.kv.replicated_bytes == 1001 * 61 * 1152
    assert made.kv.bytes_per_token.value == 61 * 1152 / 4
    copied = plan(context=1000, tp=8, pcp=2)
    assert copied.sharding is not None and copied.sharding.gpus == 16
    assert copied.kv is not None and copied.kv.replicated_bytes == 8 * logical(copied)
    assert any("shares work, not cache" in note for note in copied.notes)


@pytest.mark.parametrize(
    ("model", "tp", "pcp", "legal"),
    [
        ("llama-3.1-8b", 8, 1, (1,)),
        ("llama-3.1-8b", 16, 1, (1, 2)),
        ("llama-3.1-8b", 32, 1, (1, 2, 4)),
        ("llama-3.1-8b", 8, 2, (1, 2)),
        ("deepseek-v3", 8, 1, (1, 2, 4, 8)),
        ("deepseek-v3", 8, 2, (1, 2, 16)),
        ("mistral-7b-v0.1", 32, 1, (1,)),
    ],
)
def test_legal_context_parallel_sizes(model: str, tp: int, pcp: int, legal: tuple[int, ...]) -> None:
    assert legal_dcps(load_model(model), tp, pcp) == legal


@pytest.mark.parametrize(
    ("fields", "words", "hint"),
    [
        ({"pp": 33}, "more than the 32 layers", "fewer stages"),
        ({"dcp": 2}, "dcp 2 does not fit", "legal values: 1"),
        ({"tp": 16, "dcp": 3}, "dcp 3", "legal values: 1, 2"),
        ({"tp": 8, "dp": 3, "dp_attention": True}, "does not divide", "1, 2, 4, 8"),
        ({"dp": 0}, "dp must be at least 1", "positive"),
        ({"pcp": -1}, "pcp", "positive"),
    ],
)
def test_impossible_layouts(fields: dict[str, Any], words: str, hint: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        plan(**fields)
    assert hint in refused.value.hint


def test_draft_layers_are_charged_only_when_asked() -> None:
    without, charged = plan("deepseek-v3.2", context=1000), plan("deepseek-v3.2", context=1000, mtp=True)
    assert logical(charged) * 61 == logical(without) * 62
    assert charged.kv is not None
    assert [g.name for g in charged.kv.by_group] == ["latent", "indexer", "mtp-latent", "mtp-indexer"]
    assert any("not charged" in note for note in without.notes)
    assert not any("not charged" in note for note in charged.notes)
    assert "--mtp has no effect: llama-3.1-8b has no multi-token prediction layers." in plan(mtp=True).notes
    last = plan("deepseek-v3", context=1000, mtp=True, pp=61)
    assert last.sharding is not None and last.sharding.stage == 61
    spec = load_model("deepseek-v3")
    unknown = spec.model_copy(update={"mtp": spec.mtp.model_copy(update={"cache_like": ()})})
    with pytest.raises(UsageError, match="does not say which cache"):
        make_plan(PlanRequest(model=spec.id, mtp=True), unknown)


@pytest.mark.parametrize("fields", [{"pp": 2}, {"dp": 2}, {"pp": 3, "dp": 3}])
def test_the_verdict_agrees_with_the_capacity(fields: dict[str, int]) -> None:
    for context, batch in ((1000, 1), (50_000, 3), (131_072, 4), (131_072, 9)):
        made = plan(gpu="rtx-4090", context=context, batch=batch, **fields)
        assert made.verdict is not None and made.capacity is not None
        assert made.verdict.fits == ((made.capacity.requests or 0) >= batch)
        if not made.verdict.fits:
            for change in made.verdict.nearest_change:
                again = {"context": context, "batch": batch, **fields, change.option.removeprefix("--"): change.value}
                fixed = plan(gpu="rtx-4090", **again)
                assert fixed.verdict is not None and fixed.verdict.fits
