"""A validation in this process: a failure is the result of its phase, drift is flagged, missing parts run later."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from kvplan_kernels.bench.timing import Timing
from kvplan_kernels.tuning.launch import Launch

from kvplan.formats.layout import Layout
from kvplan.specs.load import load_model
from kvplan.validate import drift, format, measure, run
from kvplan.validate.filled import Filled, fill
from kvplan.validate.kinds import attention
from kvplan.validate.phases import append, decode, table
from kvplan.validate.proofs import stored_attention
from kvplan.validate.report import Baselines, Check, FormatResult, Roof, ValidationReport, ValidationRequest
from kvplan.validate.request import make_request
from kvplan.validate.session import DTYPES, Session
from kvplan.validate.subject import choose_group, geometry, planned
from kvplan.validate.tensors import make_tensors

SPEC = load_model("smollm2-135m")


def request(*formats: str, tokens: int = 20) -> ValidationRequest:
    return make_request(
        SPEC, context=tokens, batch=1, formats=formats, device="cpu", page_size=32, seed=1, phases=("decode", "append")
    )


def session(asked: ValidationRequest) -> Session:
    group = choose_group(SPEC)
    shape = geometry(group, asked.context, asked.batch)
    tensors = make_tensors(shape, seed=1, dtype=DTYPES[asked.dtype], device="cpu")
    return Session(asked, SPEC, group, shape, tensors, lambda _: None)


def layout_of(fmt: str) -> Layout:
    return planned(SPEC, fmt, 20, 1, 32).group(choose_group(SPEC).name).layout


@pytest.fixture(scope="module")
def real() -> Filled:
    return fill(session(request("int8")), "int8")


@pytest.fixture
def hollow(monkeypatch: pytest.MonkeyPatch, real: Filled) -> list[str]:
    """Phases that succeed at once; returns the list of formats that were filled."""
    seen: list[str] = []

    def filled(_run: Session, fmt: str) -> Any:
        seen.append(fmt)
        return replace(real, fmt=fmt, native=fmt == "bf16")

    monkeypatch.setattr(format, "fill", filled)
    monkeypatch.setattr(format, "measure_drift", lambda *_: None)
    for phase, name in ((decode, "decode"), (append, "append")):
        done = table._absent(name, "not run", "").model_copy(update={"status": "ok", "error": None})  # type: ignore[arg-type]
        monkeypatch.setattr(phase, "run", lambda _session, _filled, done=done: done)
    return seen


def breaks(monkeypatch: pytest.MonkeyPatch, fmt: str, error: Exception) -> None:
    """The decode phase of one format raises."""
    good = decode.run

    def run_phase(session: Any, filled: Any) -> Any:
        if filled.fmt == fmt:
            raise error
        return good(session, filled)

    monkeypatch.setattr(decode, "run", run_phase)


def statuses(result: FormatResult) -> dict[str, str]:
    return {p.name: p.status for p in result.phases}


def last(reports: Iterator[ValidationReport]) -> ValidationReport:
    return list(reports)[-1]


def test_out_of_memory_is_the_result_of_its_phase(monkeypatch: pytest.MonkeyPatch, hollow: list[str]) -> None:
    breaks(monkeypatch, "int8", torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 7 GiB\nmore"))
    report = last(run.validate(request("int8", "int4"), SPEC, "test"))
    by_format = {r.format: r for r in report.results}
    assert statuses(by_format["int8"]) == {"decode": "error", "append": "ok"}
    assert by_format["int8"].status == "error" and by_format["int4"].status == by_format["bf16"].status == "ok"
    broken = by_format["int8"].phases[0]
    assert broken.error is not None and broken.error.startswith("out of GPU memory: CUDA out of memory. Tried")
    assert "--batch" in broken.error and "\n" not in broken.error
    assert "attention latency: could not run" in by_format["int8"].verdicts
    assert report.complete and not report.passed


def test_a_cache_that_cannot_be_made_is_the_result_of_its_format(
    monkeypatch: pytest.MonkeyPatch, hollow: list[str]
) -> None:
    good = format.fill

    def fails(session: Session, fmt: str) -> Any:
        if fmt == "int8":
            raise RuntimeError("no")
        return good(session, fmt)

    monkeypatch.setattr(format, "fill", fails)
    report = last(run.validate(request("int8", "int4"), SPEC, "test"))
    assert [r.status for r in report.results] == ["ok", "error", "ok"]
    assert report.results[1].error == "RuntimeError: no" and report.complete


def test_a_lost_device_ends_the_run_and_resume_runs_the_rest(
    monkeypatch: pytest.MonkeyPatch, hollow: list[str]
) -> None:
    asked = request("int8", "int4", "int2")
    with monkeypatch.context() as patch:
        breaks(patch, "int8", RuntimeError("CUDA error: an illegal memory access was encountered"))
        patch.setattr(table, "usable", lambda _device: False)
        report = last(run.validate(asked, SPEC, "test"))
    assert not report.complete and not report.passed
    assert [r.status for r in report.results] == ["ok", "error", "not run", "not run"]
    assert statuses(report.results[1]) == {"decode": "error", "append": "not run"}
    assert "--resume" in str(report.results[2].error)
    hollow.clear()
    again = last(run.validate(asked, SPEC, "test", previous=report))
    assert hollow == ["int4", "int2"] and again.complete
    assert [r.format for r in again.results] == ["bf16", "int8", "int4", "int2"]
    assert again.results[:2] == report.results[:2] and again.created == report.created
    assert any(note.startswith("resumed ") for note in again.notes)


def test_drift_is_flagged_and_calm_rows_are_not() -> None:
    running, layout = session(request("int8:head", tokens=260)), layout_of("int8:head")
    doubled = drift.measure_drift(running, layout, 32)
    calm = drift.measure_drift(running, layout, 32, amplitude=1.0)
    assert doubled is not None and calm is not None
    assert doubled.flagged and all(len(c.per_head) == 3 and c.max > 0.001 for c in doubled.clipped.values())
    assert not calm.flagged and calm.output_error == calm.output_error_without
    assert doubled.output_error > 3 * doubled.output_error_without
    assert drift.measure_drift(running, layout_of("int8"), 32) is None


def test_an_append_that_depends_on_its_pieces_is_caught(monkeypatch: pytest.MonkeyPatch, real: Filled) -> None:
    running = session(request("int8"))
    assert append.run(running, real).status == "ok"
    sound = attention.append

    def forgets(cache: Any, k: Any, v: Any, **kw: Any) -> None:
        sound(cache, torch.zeros_like(k) if k.shape[1] == 1 else k, v, **kw)

    monkeypatch.setattr(attention, "append", forgets)
    assert append.run(running, real).status == "failed"


def test_an_unfused_baseline_that_computes_something_else_is_caught(
    monkeypatch: pytest.MonkeyPatch, real: Filled
) -> None:
    running = session(request("int8"))
    q, scale = running.tensors.q, running.sm_scale
    reference = stored_attention(q, real.cache, scale)
    assert measure.unfused_check(q, real.cache, scale, reference).passed
    sound = attention.unfused_decode
    monkeypatch.setattr(attention, "unfused_decode", lambda q, cache, scale: sound(q, cache, 1.2 * scale))
    assert not measure.unfused_check(q, real.cache, scale, reference).passed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Timing without a GPU: each call once, one microsecond for each timing so far; returns launches asked for."""
    asked: list[int] = []

    def timing(calls: Any, launches: int = 24, replays: int = 7) -> Timing:
        for call in calls:
            call()
        asked.append(launches)
        return Timing(len(asked) * 1e-6, (1e-6,), len(calls))

    for module in (measure, append):
        monkeypatch.setattr(module, "graph_time", timing)
    monkeypatch.setattr("kvplan.validate.phases.decode.rotating", lambda cache: [cache])
    fused = Check(name="fusion is real", passed=True, detail="")
    monkeypatch.setattr(measure, "fusion_check", lambda *_: fused)
    return asked


def test_the_searched_launch_is_checked_timed_and_named(
    real: Filled, clock: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where there will be a time, and not with --no-tune."""
    said: list[str] = []
    running = session(request("int8"))
    running.progress = said.append
    table = attention.launch_config(running.tensors.q, real.cache)
    searched = replace(table, num_stages=7)
    launched: list[Any] = []
    sound = attention.decode

    def decode_with(*args: Any, config: Any = None, **how: Any) -> Any:
        launched.append(config)
        return sound(*args, config=config, **how)

    def search(_q: Any, _cache: Any, *, say: Any, **_how: Any) -> Launch:
        say("searching")
        return Launch(searched, "searched")

    monkeypatch.setattr(attention, "decode", decode_with)
    monkeypatch.setattr(attention, "tuned_config", search)

    def phase(device: str, filled: Filled = real, tune: bool = True) -> tuple[Any, list[Any]]:
        launched.clear()
        running.request = running.request.model_copy(update={"device": device, "tune": tune})
        return decode.run(running, filled), list(launched)

    tuned, configs = phase("cuda")
    assert tuned.launch.source == "searched" and "stages 7" in tuned.launch.shape and tuned.seconds("fused")
    # To be checked, to make its work list, to be timed.
    assert configs == [searched] * 3 and "int8: searching" in said
    running.roof = Roof(bytes_per_second=1e12, method="")
    times = decode.roof_times(running, real, tuned)
    assert times is not None and times.config == tuned.launch.shape
    red = replace(real, checks=(Check(name="codes bit-exact", passed=False, detail=""),))
    for plain, configs in (phase("cuda", tune=False), phase("cuda", red), phase("cpu")):
        assert plain.launch.source == "table" and set(configs) == {table}


def test_times_become_sentences(real: Filled, clock: list[int]) -> None:
    running = session(request("int8"))
    running.request = running.request.model_copy(update={"device": "cuda"})
    running.roof = Roof(bytes_per_second=1e12, method="")
    running.baselines = Baselines(torch_sdpa_seconds=9e-6, best_seconds=9e-6, best="torch")
    native = replace(fill(session(request("bf16")), "bf16"), native=True)
    first = decode.run(running, native)
    assert first.seconds("fused") == 1e-6 and first.seconds("unfused") is None
    assert running.baselines.best_seconds == running.baselines.kernel_seconds == 1e-6
    assert append.run(running, native).verdict.startswith("append cost: one token per request 2.0 us, 20 tokens per")
    timed = decode.run(running, real)
    assert {c.name for c in timed.checks} == {
        "kernel at the validated shape", "unfused computes the same", "fusion is real"
    }  # fmt: skip
    assert timed.verdict.startswith("attention latency: 0.25x the speed of the best 16-bit path")
    times = decode.roof_times(running, real, timed)
    assert times is not None and times.fusion_gain == pytest.approx(5 / 4) and times.speedup == pytest.approx(1 / 4)
    assert times.roof_share == pytest.approx(times.bytes_read / 4e-6 / 1e12)
    later = append.run(running, real).verdict
    assert "one token per request 6.0 us (16 bit: 2.0 us), 20 tokens per request 7.0 us (16 bit: 3.0 us)" in later
    red = replace(real, checks=(Check(name="codes bit-exact", passed=False, detail=""),))
    assert decode.run(running, red).paths == () and append.run(running, red).paths == ()


def test_the_work_list_is_no_part_of_the_time(real: Filled, clock: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """All layers of a step share it: made once beforehand, the calls that are timed are given it."""
    lists: list[Any] = []
    sound = attention.decode

    def seen(*args: Any, work: Any = None, out: Any = None, **how: Any) -> Any:
        lists.append(work)
        done = sound(*args, work=work, out=out, **how)
        outs.append(done.clone())
        return done

    outs: list[torch.Tensor] = []
    monkeypatch.setattr(attention, "decode", seen)
    running = session(request("int8"))
    q, config = running.tensors.q, attention.launch_config(running.tensors.q, real.cache)
    measure.fused_time(q, [real.cache, real.cache.clone()], running.sm_scale, running.variant, config)
    assert lists[0] is None and lists[1].shape == (real.cache.num_sequences + 1,) and len(lists) == 3
    assert torch.equal(outs[1], outs[0]) and torch.equal(outs[2], outs[0])
