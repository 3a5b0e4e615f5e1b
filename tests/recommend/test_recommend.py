"""`kvplan recommend`: the choice follows its rule, three results stay apart, and every figure is the planner's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.cli.main import main
from kvplan.errors import ExitCode
from kvplan.plan import PlanRequest, make_plan, resolve
from kvplan.recommend import Recommendation, RecommendRequest, recommend
from kvplan.recommend.timemodel import attention_seconds
from kvplan.recommend.types import Candidate
from kvplan.specs.load import load_device, load_model


def ask(model: str = "llama-3.1-8b", gpu: str = "h200", **fields: Any) -> Recommendation:
    return recommend(RecommendRequest(model=model, gpu=gpu, **{"context": 32768, **fields}))


def best(result: Recommendation) -> Candidate:
    assert result.recommended is not None
    return result.recommended.candidate


@pytest.fixture(scope="module")
def tight() -> Recommendation:
    return ask(concurrency=40)


def test_16_bit_wins_when_it_fits() -> None:
    result = ask(concurrency=27)
    assert result.recommended and (best(result).k, best(result).v) == ("bf16", "bf16")
    assert "27 requests of 32,768 tokens fit in the model's own dtype" in result.recommended.reason
    assert "more than 27 requests" in result.changes[0]
    assert any("x as fast in decode attention" in text for text in result.changes)


def test_the_reason_and_the_runner_up_have_numbers(tight: Recommendation) -> None:
    assert tight.recommended and tight.runner_up and (best(tight).k, best(tight).v) == ("int8", "int8")
    reason = tight.recommended.reason
    assert all(x in reason for x in ("(27 do)", "KL 0.0008", "54 fit", "81.25 GiB", "1.97x", "from another model"))
    assert tight.runner_up.candidate.k_v != best(tight).k_v
    assert "requests fit against 54" in tight.runner_up.reason and "lost" in tight.runner_up.reason


def test_three_results_are_apart(tight: Recommendation) -> None:
    c = best(tight)
    assert c.capacity.requests == 54 and c.capacity.gain == pytest.approx(512 / 260)
    assert c.attention.seconds and c.attention.gain and c.attention.basis.startswith("predicted")
    # 40 requests read 81.25 GiB at 0.965 of 4.56 TB/s; the weights another 16.06 GB, at half to all of it.
    assert c.attention.seconds == pytest.approx(81.25 * 2**30 / (0.965 * 4.56e12), rel=0.02)
    assert c.step.seconds and c.step.tokens_per_second
    low, high = c.step.seconds
    assert low == pytest.approx(c.attention.seconds + 16.06e9 / 4.56e12)
    assert high - low == pytest.approx(16.06e9 / 4.56e12)
    assert c.step.tokens_per_second == (40 / high, 40 / low)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"engine": "vllm", "concurrency": 8}, "not of an engine's"),
        ({"concurrency": 65, "context": 4096}, "above 64 requests"),
        ({"gpus": 2, "concurrency": 8}, "communication between GPUs"),
        ({"model": "qwen3-30b-a3b", "concurrency": 8}, "which experts"),
    ],
)
def test_throughput_is_not_estimated_where_the_step_has_no_model(fields: dict[str, Any], why: str) -> None:
    step = best(ask(**fields)).step
    assert step.seconds is None and step.tokens_per_second is None
    assert step.basis.startswith("not estimated: ") and why in step.basis and step.floor_seconds > 0


def test_figures_are_the_planner_s(tight: Recommendation) -> None:
    for c in tight.candidates[::5]:
        plan = make_plan(
            PlanRequest(
                model="llama-3.1-8b", context=32768, batch=40, k=c.k, v=c.v, layers=c.layers, gpu="h200",
                page_size=c.page_size,
            )
        )  # fmt: skip
        assert plan.kv is not None and plan.capacity is not None and plan.verdict is not None
        assert c.capacity.allocated_bytes == plan.kv.allocated_bytes + plan.kv.constant_bytes
        assert (c.capacity.requests, c.capacity.tokens, c.fits) == (
            plan.capacity.requests, plan.capacity.tokens, plan.verdict.fits,
        )  # fmt: skip


def test_where_it_runs(tight: Recommendation) -> None:
    known = {(c.k, c.v): c.support for c in tight.candidates if not c.layers}
    assert "vLLM int8_per_token_head" in known["int8", "int8"] and "SGLang fp8_e4m3" in known["fp8_e4m3", "fp8_e4m3"]
    assert "LMDeploy" in known["int8,asym", "int8,asym"] and known["bf16", "bf16"] == "every engine"
    assert known["int8:channel/32", "int8:channel/32"].startswith("research kernels of kvplan only")
    assert best(ask(engine="vllm", concurrency=40)).support.startswith("ready flag of vLLM (TRITON_ATTN")


def test_bounds_decide() -> None:
    strict = best(ask(concurrency=40, quality="strict"))
    # int8 by token cost another model ten times as much, so strict takes groups of 32.
    assert strict.quality and strict.quality.high <= 0.0024 and strict.k != "int8"
    kl = best(ask(concurrency=60, max_kl=0.001))
    assert kl.quality and kl.quality.kl <= 0.001 and kl.capacity.requests >= 60
    top1 = best(ask(concurrency=60, min_top1=0.97))
    assert top1.quality and top1.quality.top1 >= 0.97
    most = best(ask(concurrency=40, quality="capacity"))
    assert most.quality and 0.02 < most.quality.kl <= 0.12 and most.capacity.requests > 100


def test_layouts_are_compared() -> None:
    result = ask("llama-3.1-70b", "h100-80gb", gpus=4, concurrency=24)
    s = best(result).layout
    assert (s.tp, s.dp) == (4, 1) and "at tp 4" in (result.recommended.reason if result.recommended else "")
    fixed = ask("llama-3.1-8b", gpus=4, tp=2, concurrency=24)
    assert (best(fixed).layout.tp, best(fixed).layout.dp) == (2, 2)


def test_a_quantised_latent_needs_room_to_be_chosen() -> None:
    roomy = ask("deepseek-v3", gpus=8, concurrency=4)
    assert best(roomy).latent == "bf16" and best(roomy).k is None
    tight = ask("deepseek-v3", gpus=8, concurrency=200)
    q = best(tight).quality
    assert best(tight).latent == "fp8_ds_mla" and q and q.evidence == "format theory only"
    assert any("the format's arithmetic only" in text for text in tight.changes)


def test_states_only(tmp_path: Path) -> None:
    spec = tmp_path / "mamba.yaml"
    spec.write_text(
        "kvplan_spec: 1\nid: tiny-mamba\nparams: {total: 1000000}\nmax_context: 4096\nlayers: 2\n"
        "native_dtype: bfloat16\nlayer_groups:\n"
        "  - {kind: state, layers: 2, dtype: {recurrent: float32, conv: model},\n"
        "     state: {type: mamba1, inner: 64, d_state: 16, conv_kernel: 4}}\n"
    )
    result = ask(str(spec), "l4", context=1024)
    assert (best(result).k, best(result).latent) == (None, None)
    assert result.recommended and "a KV format has no effect" in result.recommended.reason


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
    seconds = attention_seconds(resolved, load_device("h200"))
    assert seconds is not None
    assert seconds / 32 == pytest.approx(measured_us * 1e-6, rel=0.05)


def test_time_model_scales_with_bandwidth() -> None:
    spec = load_model("llama-3.1-8b")
    resolved = resolve(PlanRequest(model="llama-3.1-8b", context=32768, batch=16, kv="int8"), spec)
    slow, fast = (attention_seconds(resolved, load_device(g)) for g in ("l4", "h200"))
    assert slow is not None and fast is not None and 10 < slow / fast < 20


def test_json_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["recommend", "llama-3.1-8b", "--gpu", "h200", "--context", "32k", "--concurrency", "40", "--json"]
    assert main(argv) == ExitCode.OK
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "kvplan.recommendation/1"
    assert data["recommended"]["candidate"]["k"] == data["recommended"]["candidate"]["v"] == "int8"
    assert json.loads(Recommendation.model_validate(data).to_json()) == data


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "smollm2-135m", "--gpu", "l4"]) == ExitCode.OK
    out = " ".join(capsys.readouterr().out.split())
    assert "No context given: compared at the model's maximum, 8,192 tokens." in out
    for part in ("capacity: ", "attention latency: ", "end-to-end: ", "What would change the answer", "kvplan_plan: 1"):
        assert part in out
    assert "not an engine's flags" in out
    argv = ["recommend", "llama-3.1-8b", "--gpu", "h200", "--engine", "vllm", "--context", "32k", "--concurrency", "40"]
    assert main(argv) == ExitCode.OK
    out = capsys.readouterr().out
    assert "--kv-cache-dtype int8_per_token_head" in out and "Not usable here" in out


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        ([], ExitCode.USAGE, "--gpu"),
        (["--gpu", "h999"], ExitCode.INPUT, "h999"),
        (["--gpu", "h200", "--tp", "3"], ExitCode.USAGE, "legal values"),
        (["--gpu", "h200", "--gpus", "3", "--tp", "2"], ExitCode.USAGE, "multiple of --tp"),
        (["--gpu", "h200", "--concurrency", "0"], ExitCode.USAGE, "concurrency"),
        (["--gpu", "h200", "--context", "1M"], ExitCode.USAGE, "use --context 131072"),
        (["--gpu", "h200", "--quality", "strict", "--max-kl", "0.1"], ExitCode.USAGE, "drop --quality"),
        (["--gpu", "h200", "--max-kl", "-1"], ExitCode.USAGE, "below 0"),
        (["--gpu", "h200", "--min-top1", "95"], ExitCode.USAGE, "from 0 to 1"),
        (["--gpu", "h200", "--slo-itl", "0"], ExitCode.USAGE, "above 0"),
        (["--gpu", "h200", "--engine", "vllm", "--engine-version", "0.12"], ExitCode.USAGE, "nearest covered version"),
        (["--gpu", "h200,l4", "--verify"], ExitCode.USAGE, "one --gpu"),
        (["--gpu", "h200,l4", "--price", "a100=2"], ExitCode.USAGE, "a100"),
        (["--gpu", "h200,l4", "--price", "l4"], ExitCode.USAGE, "G=X"),
        (["--gpu", "h200", "--price", "h200=2"], ExitCode.USAGE, "several GPUs"),
        (["--gpu", "h200", "--out", "/no/such/folder/x.yaml"], ExitCode.INPUT, "folder"),
        (["--gpu", "h200", "--evidence", "no.json"], ExitCode.INPUT, "no.json"),
    ],
)
def test_bad_input(argv: list[str], code: ExitCode, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "llama-3.1-8b", *argv]) == code
    lines = capsys.readouterr().err.strip().splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "hint"]
    assert words in " ".join(lines)
