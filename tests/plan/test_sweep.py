"""The sweep gives make_plan's figures, and fast."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from kvplan.errors import KvplanError, UsageError
from kvplan.memory.groups import roles
from kvplan.plan import PlanRequest, legal_dcps, legal_tps, make_plan
from kvplan.plan.sweep import Sweep, Swept, sweep
from kvplan.specs.load import list_models, load_model
from kvplan.specs.model import ModelSpec

KV = (
    "bf16", "int8", "int8:head", "int8:channel/32,asym", "int8:channel/64,recent=128", "int8:group/32,recent=128",
    "int8,recent=96,flush=whole", "fp8_e4m3", "fp8_e5m2:token", "int2", "int4:group/32,asym", "q8_0", "q4_0", "nvfp4",
    "int2:channel/32,asym,recent=128", "int2:group/32,asym,recent=128", "int3:group/32", "mxfp4",
    "int8,scale=fp32,pack=slot",
)  # fmt: skip
GPUS = (None, "h200", "l4", "rtx-4090", "b200", "h100-80gb")


def random_request(pick: random.Random, spec: ModelSpec) -> PlanRequest:
    present = roles(spec)
    fields: dict[str, Any] = {"model": spec.id, "gpu": pick.choice(GPUS), "util": pick.choice((0.9, 0.95, 1.0))}
    fields |= {role: pick.choice(KV) for role in ("k", "v", "latent", "index") if role in present}
    if pick.random() < 0.3 and "k" in present:
        fields["layers"] = (f"first={pick.randint(1, 3)}:{pick.choice(KV)}", "v@last=1:bf16")
        if "latent" in present:
            fields["layers"] = ("last=1:bf16",)
    fields["tp"] = pick.choice(legal_tps(spec))
    fields["dcp"] = pick.choice(legal_dcps(spec, fields["tp"]))
    fields["pp"] = min(spec.layers, pick.choice((1, 1, 1, 2, 3, 5)))
    fields["dp"] = pick.choice((1, 1, 2, 3))
    fields["mtp"] = pick.random() < 0.2
    fields["page_size"] = pick.choice((None, None, 384))
    fields["weights_dtype"] = pick.choice((None, "int4"))
    fields["context"] = min(spec.max_context, int(2 ** pick.uniform(0, 20)))
    fields["batch"] = int(2 ** pick.uniform(0, 9))
    return PlanRequest(**fields)


def planned(request: PlanRequest, spec: ModelSpec) -> Swept:
    made = make_plan(request, spec)
    kv, room = made.kv, made.capacity
    assert kv is not None
    bytes_ = (kv.context, kv.batch, kv.logical_bytes, kv.allocated_bytes, kv.constant_bytes)
    if room is None or made.verdict is None:
        return Swept(*bytes_, None, None, None, None, None)
    return Swept(*bytes_, room.pool_bytes, room.requests, room.tokens, room.longest_request, made.verdict.fits)


def answer(ask: Callable[[], Swept]) -> Swept | str:
    """The figures, or the words with which they are refused."""
    try:
        return ask()
    except KvplanError as refused:
        return refused.message


def test_equal_to_make_plan_on_1000_random_requests() -> None:
    pick = random.Random(3)
    specs = {name: load_model(name) for name in list_models()}
    requests = [random_request(pick, pick.choice(list(specs.values()))) for _ in range(1000)]
    known, refused = Sweep(), 0
    for request in requests:
        row = answer(lambda r=request: known.plan(r))
        assert row == answer(lambda r=request: planned(r, specs[r.model])), request
        refused += isinstance(row, str)
    # Such as groups along a row that a tensor-parallel rank cuts.
    assert refused < 250


def test_what_make_plan_refuses_is_refused() -> None:
    with pytest.raises(UsageError, match="needs the context"):
        list(sweep([PlanRequest(model="llama-3.1-8b")]))
    known = Sweep()
    known.plan(PlanRequest(model="llama-3.1-8b", context=1000))
    for fields in ({"context": 0}, {"context": 131_073}, {"context": 1, "batch": 0}, {"context": 1, "tp": 3}):
        with pytest.raises(UsageError):
            known.plan(PlanRequest(model="llama-3.1-8b", **fields))
    assert known.plan(PlanRequest(model="llama-3.1-8b", context=131_073, beyond_max=True)).context == 131_073


def test_a_modest_speed() -> None:
    """The real figure is in benchmarks/sweep.py; this only catches a sweep that has become a loop over plans."""
    requests = [PlanRequest(model="gemma-3-27b", context=n, batch=n % 7 + 1, gpu="h200") for n in range(1, 2001)]
    start = time.perf_counter()
    assert len(list(sweep(requests))) == 2000
    assert time.perf_counter() - start < 1
