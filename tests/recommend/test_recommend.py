"""`kvplan recommend`: the choice follows the rule, the evidence is labelled, the time model is the measured one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvplan.cli.main import main
from kvplan.errors import ExitCode
from kvplan.plan import PlanRequest, make_plan, resolve
from kvplan.recommend import RecommendRequest, recommend
from kvplan.recommend.timemodel import attention_seconds
from kvplan.recommend.types import Recommendation
from kvplan.specs.load import load_device, load_model


def ask(model: str = "llama-3.1-8b", gpu: str = "h200", **fields: int) -> Recommendation:
    return recommend(RecommendRequest(model=model, gpu=gpu, **{"context": 32768, **fields}))


@pytest.fixture(scope="module")
def tight() -> Recommendation:
    return ask(concurrency=40)


def test_16_bit_wins_when_it_fits() -> None:
    result = ask(concurrency=27)
    assert (result.recommended.k, result.recommended.v) == ("bf16", "bf16")
    assert "fit in the model's own dtype" in result.recommended.reason


def test_least_loss_that_fits(tight: Recommendation) -> None:
    assert (tight.recommended.k, tight.recommended.v) == ("int8", "int8")
    fitting = [c for c in tight.candidates if c.ranked and c.fits]
    assert min(c.kl for c in fitting if c.kl is not None) == next(
        c.kl for c in fitting if (c.k, c.v) == ("int8", "int8")
    )
    assert "27 do" in tight.recommended.reason and "54 fit" in tight.recommended.reason


def test_nothing_fits() -> None:
    result = ask(concurrency=500)
    assert not any(c.fits for c in result.candidates if c.ranked)
    assert "fit in no 16- or 8-bit format" in result.recommended.reason


def test_low_bits_are_unranked(tight: Recommendation) -> None:
    low = [c for c in tight.candidates if "int2" in (c.k or "", c.v or "")]
    assert low and not any(c.ranked or c.pareto for c in low)
    assert all("quality not established" in c.reason for c in low)


def test_figures_are_the_planner_s(tight: Recommendation) -> None:
    for c in tight.candidates[::7]:
        request = PlanRequest(model="llama-3.1-8b", context=32768, batch=40, k=c.k, v=c.v, gpu="h200")
        plan = make_plan(request)
        assert plan.kv is not None and plan.capacity is not None and plan.verdict is not None
        assert c.allocated_bytes == plan.kv.allocated_bytes + plan.kv.constant_bytes
        assert (c.requests, c.fits) == (plan.capacity.requests, plan.verdict.fits)


def test_pareto_set_by_brute_force(tight: Recommendation) -> None:
    ranked = [c for c in tight.candidates if c.ranked]
    for c in ranked:
        mine = (c.allocated_bytes, c.predicted_attention_seconds, c.kl)
        better = [
            o for o in ranked
            if (o.allocated_bytes <= mine[0] and o.predicted_attention_seconds <= mine[1] and o.kl <= mine[2])  # type: ignore[operator]
            and (o.allocated_bytes, o.predicted_attention_seconds, o.kl) != mine
        ]  # fmt: skip
        assert c.pareto == (not better)


def test_latents_keep_their_dtype_and_say_why() -> None:
    result = ask("deepseek-v3", tp=8, concurrency=4)
    assert (result.recommended.k, result.recommended.v, result.recommended.latent) == (None, None, "bf16")
    assert any(c.latent == "fp8_e4m3" and not c.ranked for c in result.candidates)


def test_states_only(tmp_path: Path) -> None:
    spec = tmp_path / "mamba.yaml"
    spec.write_text(
        "kvplan_spec: 1\nid: tiny-mamba\nparams: {total: 1000000}\nmax_context: 4096\nlayers: 2\n"
        "native_dtype: bfloat16\nlayer_groups:\n"
        "  - {kind: state, layers: 2, dtype: {recurrent: float32, conv: model},\n"
        "     state: {type: mamba1, inner: 64, d_state: 16, conv_kernel: 4}}\n"
    )
    result = recommend(RecommendRequest(model=str(spec), gpu="l4", context=1024))
    assert (result.recommended.k, result.recommended.latent) == (None, None)
    assert "states only" in result.candidates[0].reason


@pytest.mark.parametrize(
    ("fmt", "batch", "context", "measured_us"),
    [
        ("bf16", 64, 4096, 245.0), ("fp8_e4m3", 64, 4096, 127.1), ("int8", 64, 4096, 131.2),
        ("bf16", 16, 32768, 478.3), ("fp8_e4m3", 16, 32768, 245.7), ("int8", 16, 32768, 253.5),
        ("bf16", 1, 131072, 125.7), ("fp8_e4m3", 1, 131072, 67.3), ("int8", 1, 131072, 69.9),
    ],
)  # fmt: skip
def test_time_model_against_the_study(fmt: str, batch: int, context: int, measured_us: float) -> None:
    """Within 5% of the kernels timed on an H200 in the project's study (kernel plus combine, one layer)."""
    resolved = resolve(PlanRequest(model="llama-3.1-8b", context=context, batch=batch, kv=fmt))
    seconds = attention_seconds(resolved.groups, context, batch, load_device("h200"))
    assert seconds is not None
    assert seconds / 32 == pytest.approx(measured_us * 1e-6, rel=0.05)


def test_time_model_scales_with_bandwidth_and_refuses_the_untimed() -> None:
    spec = load_model("llama-3.1-8b")
    resolved = resolve(PlanRequest(model="llama-3.1-8b", context=32768, batch=16, kv="int8"), spec)
    slow, fast = (attention_seconds(resolved.groups, 32768, 16, load_device(g)) for g in ("l4", "h200"))
    assert slow is not None and fast is not None and 10 < slow / fast < 20
    grouped = resolve(PlanRequest(model="llama-3.1-8b", context=32768, batch=16, kv="int8:group/32"), spec)
    assert attention_seconds(grouped.groups, 32768, 16, load_device("h200")) is None


def test_hardware_without_fp8_is_named() -> None:
    result = ask(gpu="a100-80gb", concurrency=10)
    fp8 = next(c for c in result.candidates if c.k == c.v == "fp8_e4m3")
    assert "no hardware conversion" in fp8.reason


def test_json_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["recommend", "llama-3.1-8b", "--gpu", "h200", "--context", "32k", "--concurrency", "40", "--json"]
    assert main(argv) == ExitCode.OK
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "kvplan.recommendation/1"
    assert data["recommended"]["k"] == data["recommended"]["v"] == "int8"
    assert json.loads(Recommendation.model_validate(data).to_json()) == data


def test_without_context_the_maximum_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "smollm2-135m", "--gpu", "l4"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "No context given: compared at the model's maximum, 8,192 tokens." in " ".join(out.split())
    assert "predicted" in out and "not an engine's flag" in out


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["recommend", "llama-3.1-8b"], ExitCode.USAGE),
        (["recommend", "llama-3.1-8b", "--gpu", "h999"], ExitCode.INPUT),
        (["recommend", "llama-3.1-8b", "--gpu", "h200", "--tp", "3"], ExitCode.USAGE),
        (["recommend", "llama-3.1-8b", "--gpu", "h200", "--concurrency", "0"], ExitCode.USAGE),
        (["recommend", "llama-3.1-8b", "--gpu", "h200", "--context", "1M"], ExitCode.USAGE),
    ],
)
def test_bad_input(argv: list[str], code: ExitCode, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == code
    lines = capsys.readouterr().err.strip().splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "hint"]
