"""The inverse questions agree with the plan they turn round; workloads of several lengths, prefixes and drafts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.cli.main import main
from kvplan.errors import UsageError
from kvplan.plan import Plan, PlanRequest, make_plan
from kvplan.plan.solve import solve

ENGINES = (None, "tgi")


def request(**fields: Any) -> PlanRequest:
    base = {"model": "llama-3.1-8b", "context": 8192, "batch": 4, "gpu": "h100-80gb"}
    return PlanRequest.model_validate(base | fields)


def fits(**fields: Any) -> bool:
    plan = make_plan(request(**fields))
    assert plan.verdict is not None
    return plan.verdict.fits


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-32b"])
def test_answers_hold_and_one_more_does_not(engine: str | None, model: str) -> None:
    found = solve(request(model=model, engine=engine, batch=3))
    same: dict[str, Any] = {"model": model, "engine": engine}
    assert fits(**same, batch=found.users) and not fits(**same, batch=found.users + 1)
    if found.longest_context < 32768:
        assert fits(**same, batch=3, context=found.longest_context)
        assert not fits(**same, batch=3, context=found.longest_context + 257)
    assert found.users <= found.users_high and found.longest_context <= found.longest_context_high


@pytest.mark.parametrize("engine", ENGINES)
def test_the_fewest_gpus_and_the_least_share(engine: str | None) -> None:
    big = {"model": "llama-3.1-70b", "context": 32768, "batch": 8, "engine": engine}
    found = solve(request(**big))
    assert found.users == 0 and found.limited_by.startswith("weights")
    best, flat = found.fewest_gpus, found.fewest_gpus_without_pipeline
    assert best is not None and flat is not None and best.gpus <= flat.gpus and flat.pp == 1
    assert fits(**big, tp=best.tp, pp=best.pp) and fits(**big, tp=flat.tp)
    assert not fits(**big, tp=flat.tp // 2)
    share = solve(request(engine=engine)).least_share
    assert (
        share is not None and fits(engine=engine, util=share) and not fits(engine=engine, util=round(share - 0.01, 2))
    )


def test_a_gpu_is_needed() -> None:
    with pytest.raises(UsageError, match="depends on the GPU"):
        solve(request(gpu=None))


def test_lengths_of_one_size_are_the_plain_capacity() -> None:
    """Every request alike: the mean is the request, and no spread is left for the 95%."""
    plan = make_plan(request(lengths="p50=8k"))
    assert plan.capacity is not None and plan.capacity.workload is not None
    work = plan.capacity.workload
    assert work.requests == work.requests_p95 == plan.capacity.requests
    assert work.mean_request_bytes == 8192 * 131072


def test_a_distribution_by_hand() -> None:
    """Half the requests of 1,024 tokens, half of 7,168: mean 4,096 x 131,072 bytes, deviation 3,072 x 131,072."""
    plan = make_plan(request(lengths="p49=1k,p50=1k,p51=7k,p52=7k,p0=1k,p100=7k", page_size=128))
    assert plan.capacity is not None and plan.capacity.workload is not None
    work, pool = plan.capacity.workload, plan.capacity.pool_bytes
    assert work.mean_tokens == pytest.approx(4096, rel=0.01)
    assert work.requests == int(pool / work.mean_request_bytes)
    n, deviation = work.requests_p95, 3072 * 131072
    assert n * work.mean_request_bytes + 1.645 * deviation * n**0.5 == pytest.approx(pool, rel=0.02)


def test_a_shared_prefix_counts_once() -> None:
    """8 users of 8,192 tokens with 4,096 in common: each further request is half as large."""
    plan = make_plan(request(shared_prefix=4096, page_size=128))
    assert plan.capacity is not None and plan.capacity.workload is not None
    work, pool = plan.capacity.workload, plan.capacity.pool_bytes
    assert work.shared_bytes == 4096 * 131072 and work.mean_request_bytes == 4096 * 131072
    assert work.requests == (pool - work.shared_bytes) // (4096 * 131072)
    with pytest.raises(UsageError, match="not shorter than the longest request"):
        make_plan(request(shared_prefix=8192))


def test_samples_multiply_and_share_the_prefix() -> None:
    alone = make_plan(request(samples=4)).capacity
    together = make_plan(request(samples=4, shared_prefix=4096)).capacity
    plain = make_plan(request()).capacity
    assert alone and together and plain and alone.workload and together.workload and plain.requests
    assert alone.workload.requests == plain.requests // 4
    assert together.workload.requests > 1.9 * alone.workload.requests - 2


def test_windows_are_not_shared() -> None:
    """Gemma-3-1B: 4 of 26 layers keep every row; only those rows of a prefix can be shared."""
    plan = make_plan(request(model="gemma-3-1b", shared_prefix=2048, page_size=128))
    assert plan.capacity is not None and plan.capacity.workload is not None
    assert plan.capacity.workload.shared_bytes == 4 * 2048 * 2 * 256 * 2


def test_a_draft_model_takes_room() -> None:
    plain, both = make_plan(request()).capacity, make_plan(request(draft="llama-3.2-1b")).capacity
    assert plain and both and both.draft and plain.requests and both.requests
    # Llama-3.2-1B: 16 layers x 8 heads x 64 x 2 x 2 bytes = 32,768 a token, 4 requests of 8,192.
    assert both.draft.held_bytes == 4 * 8192 * 32768
    assert both.pool_bytes == plain.pool_bytes - both.draft.weights.nbytes
    assert both.requests == both.pool_bytes // (8192 * (131072 + 32768))
    with pytest.raises(UsageError, match="draft model"):
        make_plan(request(draft="qwen2.5-0.5b", tp=8))


def test_plans_with_answers_load_again() -> None:
    for engine in ENGINES:
        plan = make_plan(
            request(engine=engine, lengths="p50=2k,p95=8k", shared_prefix=512, draft="llama-3.2-1b", samples=2)
        )
        assert Plan.load(plan.to_json()).to_dict() == plan.to_dict()


def test_a_calibration_replaces_the_estimates(tmp_path: Path) -> None:
    file = tmp_path / "residual.json"
    data = {"schema": "kvplan.calibration/1", "engine": "tgi", "version": "3", "model": "llama-3.1-8b",
            "residual_low_bytes": 2**30, "residual_high_bytes": 2**30 + 2**20}  # fmt: skip
    file.write_text(json.dumps(data), encoding="utf-8")
    plan = make_plan(request(engine="tgi", calibration=str(file)))
    assert plan.capacity is not None and plan.capacity.budget is not None
    budget = plan.capacity.budget
    assert [n.name for n in budget.needs] == ["weights", "measured residual"]
    assert budget.pool_high_bytes - budget.pool_low_bytes == 2**20
    for key, value in {"engine": "vllm", "schema": "other/1", "residual_low_bytes": "x"}.items():
        file.write_text(json.dumps(data | {key: value}), encoding="utf-8")
        assert main(["estimate", "llama-3.1-8b", "--engine", "tgi", "--gpu", "h200", "--calibration", str(file)]) in (
            2,
            3,
        )


def test_the_command_answers_in_words_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["solve", "qwen3-32b", "--gpu", "h100-80gb", "--context", "8k", "--batch", "5", "--engine", "tgi"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    for word in ("users:", "context: each of 5 requests", "GPUs:", "memory:", "limited by:"):
        assert word in shown
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "kvplan.solution/1"
