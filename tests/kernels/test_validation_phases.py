"""The prefill and prefix phases of a validation are right, and each of their checks can fail."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kvplan.specs.load import load_model
from kvplan.validate import filled as filling
from kvplan.validate.filled import Filled, fill
from kvplan.validate.kinds.attention import ATTENTION
from kvplan.validate.phases import prefill, prefix
from kvplan.validate.report import PhaseResult
from kvplan.validate.request import make_request
from kvplan.validate.session import DTYPES, Session
from kvplan.validate.subject import choose_group, geometry
from kvplan.validate.tensors import make_tensors

SPEC = load_model("smollm2-135m")


@pytest.fixture(scope="module", params=["int8:head", "int4,rot"])
def case(request: pytest.FixtureRequest) -> tuple[Session, Filled]:
    """A cache without its proofs, which have tests of their own."""
    asked = make_request(
        SPEC, context=36, batch=2, formats=(request.param,), device="cpu", page_size=32, seed=1, phases=("prefix",)
    )
    group = choose_group(SPEC)
    shape = geometry(group, asked.context, asked.batch)
    tensors = make_tensors(shape, seed=1, dtype=DTYPES[asked.dtype], device="cpu")
    session = Session(asked, SPEC, group, shape, tensors, lambda _: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filling, "prove", lambda _small: ())
        return session, fill(session, request.param)


def red(result: PhaseResult) -> set[str]:
    assert result.checks and result.status == ("failed" if any(not c.passed for c in result.checks) else "ok")
    return {c.name for c in result.checks if not c.passed}


def test_sound_phases_are_green(case: tuple[Session, Filled]) -> None:
    for phase in (prefill, prefix):
        result = phase.run(*case)
        assert not red(result) and result.kernel_error is not None and 0 < result.kernel_error < 2e-3
        assert result.paths == () and result.verdict.endswith("not measured here")


def test_prefill_that_sees_the_future_is_caught(case: tuple[Session, Filled], monkeypatch: pytest.MonkeyPatch) -> None:
    real = prefill.prefill_and_write

    def shifted(q: Any, k: Any, v: Any, cache: Any, *, out: Any = None, **how: Any) -> Any:
        done = real(q, k, v, cache, **how)
        if out is not None:
            out.copy_(done.roll(-1, 1))
        return done

    monkeypatch.setattr(prefill, "prefill_and_write", shifted)
    assert red(prefill.run(*case)) == {"prefill attention"}


def test_prefill_that_leaves_a_row_out_is_caught(case: tuple[Session, Filled], monkeypatch: pytest.MonkeyPatch) -> None:
    real = prefill.prefill_and_write

    def stale(q: Any, k: Any, v: Any, cache: Any, **how: Any) -> Any:
        return real(q, k, torch.cat([v[:, 1:], v[:, :1]], 1) if how.get("out") is None else v, cache, **how)

    monkeypatch.setattr(prefill, "prefill_and_write", stale)
    assert red(prefill.run(*case)) == {"prefill writes as append"}


def test_a_prefix_that_is_not_read_is_caught(case: tuple[Session, Filled], monkeypatch: pytest.MonkeyPatch) -> None:
    real = prefix.prefix_attention

    def shorter(q: Any, k: Any, v: Any, cache: Any, **how: Any) -> Any:
        cut = cache.clone()
        cut.lengths = cache.lengths - 9
        return real(q, k, v, cut, **how)

    monkeypatch.setattr(prefix, "prefix_attention", shorter)
    # Rows beyond a length are zeros in the dense copy.
    expected = {"prefix attention, fused", "prefix attention, dequantised first", "dense copy of the prefix"}
    assert red(prefix.run(*case)) == expected


def test_the_variant_of_a_model() -> None:
    gemma = load_model("gemma-2-9b").layer_groups
    sliding, full = (ATTENTION.variant(g, 1, "cpu") for g in gemma if g.kind == "attention")
    assert sliding.window == 4096 and full.window is None and sliding.softcap == full.softcap == 50.0
    gpt = load_model("gpt-oss-20b").layer_groups
    sinks = [ATTENTION.variant(g, 1, "cpu").sinks for g in gpt if g.kind == "attention"]
    assert all(s is not None and s.shape == (64,) for s in sinks)
