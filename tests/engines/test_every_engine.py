"""Every engine on every shipped model: a plan whose parts add up and that loads again, or one refusal with a hint."""

from __future__ import annotations

import pytest

from kvplan.engines import engine_names, load_engine
from kvplan.errors import InputError, UnsupportedError, UsageError
from kvplan.plan import Plan, PlanRequest, make_plan
from kvplan.specs.load import list_models, load_model

MODELS = tuple(list_models())


def plan_or_refusal(engine: str, model: str, **fields: object) -> Plan | None:
    spec = load_model(model)
    fields = {"context": min(5000, spec.max_context), "batch": 3, **fields}
    try:
        return make_plan(PlanRequest.model_validate({"model": model, "engine": engine, **fields}), spec)
    except (UsageError, UnsupportedError) as refused:
        assert refused.message and refused.hint and "\n" not in refused.message
        return None


def check(plan: Plan) -> None:
    """The identity, the named differences, and the version printed."""
    kv, trees = plan.kv, plan.breakdown
    assert kv is not None and plan.engine is not None and plan.engine.version
    assert kv.allocated_bytes == kv.logical_bytes + kv.reserved_bytes + kv.padding_bytes - kv.engine_saves_bytes
    assert kv.padding_bytes >= 0 and trees.allocated is not None and trees.allocated.nbytes == kv.allocated_bytes
    assert trees.reserved is not None and trees.reserved.nbytes == kv.reserved_bytes
    assert trees.saves is not None and trees.saves.nbytes == kv.engine_saves_bytes
    assert trees.padding is not None and trees.padding.nbytes <= kv.padding_bytes


@pytest.mark.parametrize("engine", engine_names())
def test_every_shipped_model(engine: str) -> None:
    planned = [plan for model in MODELS if (plan := plan_or_refusal(engine, model)) is not None]
    assert len(planned) > len(MODELS) // 2, f"{engine} plans only {len(planned)} of {len(MODELS)} models"
    for plan in planned:
        check(plan)


@pytest.mark.parametrize("engine", engine_names())
def test_every_format_on_a_plain_model(engine: str) -> None:
    """Each format that applies is planned, is loaded again, and gives the same plan from its own echo."""
    made = load_engine(engine)
    for f in made.formats:
        if not f.k:
            continue
        asked = {"k": f.option, "v": f.option} if made.apart and f.v else {"kv": f.option}
        plan = plan_or_refusal(engine, "llama-3.1-8b", **asked)
        if plan is None:
            continue
        check(plan)
        stored = plan.to_dict()
        assert Plan.load(plan.to_json()).to_dict() == stored
        assert make_plan(plan.request).to_dict()["kv"] == stored["kv"]


@pytest.mark.parametrize("engine", engine_names())
def test_more_tokens_or_sequences_never_take_less(engine: str) -> None:
    for model in ("llama-3.1-8b", "gemma-3-1b"):
        held = []
        for context, batch in ((1, 1), (255, 1), (256, 1), (1000, 1), (1000, 2), (4097, 2), (20000, 5)):
            plan = plan_or_refusal(engine, model, context=context, batch=batch)
            if plan is not None and plan.kv is not None:
                held.append(plan.kv.allocated_bytes)
        assert held == sorted(held)


@pytest.mark.parametrize("engine", engine_names())
def test_a_stored_plan_with_another_figure_is_refused(engine: str) -> None:
    plan = plan_or_refusal(engine, "llama-3.1-8b", gpu="h200")
    assert plan is not None
    for name in ("reserved_bytes", "allocated_bytes", "engine_saves_bytes"):
        stored = plan.to_dict()
        stored["kv"][name] += 1
        stored["kv"]["by_group"][0][name] += 1
        with pytest.raises(InputError):
            Plan.load(stored)
