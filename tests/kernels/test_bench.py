"""The benchmark programs: what they hold a row to, and that a wrong kernel has no speed. Timing is stubbed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kvplan_kernels.attention import config
from kvplan_kernels.bench import append, baseline, cases, decode, latent, peers, tries
from kvplan_kernels.bench.cases import APART, CASES, FORMATS, Case, goal, layout_for, measured, spread_lengths
from kvplan_kernels.bench.filled import filled
from kvplan_kernels.bench.report import with_reasons
from kvplan_kernels.bench.timing import Timing
from kvplan_kernels.store.reference import read_reference
from kvplan_kernels.testing import DEVICE

TINY = Case("tiny", (64,), group=2, dim=64, kv_heads=1)
RAGGED = Case("ragged", (70, 9), "unstudied", group=2, dim=64, kv_heads=1)
SHUFFLED = Case("tiny shuffled", (200, 200), "shuffled", group=1, dim=64, kv_heads=1)
BY_NAME = {case.name: case for case in CASES}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call once and one microsecond each, over a roof of 1 TB/s."""

    def timing(calls: Any, launches: int = 24, replays: int = 7) -> Timing:
        for call in calls:
            call()
        return Timing(1e-6, (1e-6,), len(calls))

    for module in (decode, baseline):
        monkeypatch.setattr(module, "graph_time", timing)
        monkeypatch.setattr(module, "rotating", lambda cache: [cache])
    monkeypatch.setattr(baseline, "copies_needed", lambda nbytes: 1)
    monkeypatch.setattr(decode, "measure_roof", lambda: SimpleNamespace(bytes_per_second=1e12, config="stub"))
    monkeypatch.setattr(config, "INTERPRETER_SMS", 1)
    for module in (cases, decode):
        monkeypatch.setattr(module, "CASES", (TINY, RAGGED))


def run(tmp_path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    file = tmp_path / "out.json"
    words = ["--json", str(file), "--jobs", "0", "--device", DEVICE, *options]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["decode", *words])
        code = decode.main()
    return code, json.loads(file.read_text())


def test_rows_of_every_kind_of_format(clock: None, tmp_path: Path) -> None:
    names = ("fp16", "int4:token,asym", APART)
    code, report = run(tmp_path, "--cases", "tiny", "ragged", "--formats", *names)
    assert code == 0
    rows = {(r["case"], r["format"]): r for r in report["rows"]}
    assert set(rows) == {("tiny", n) for n in names} | {("ragged", n) for n in names if n != APART}
    for row in rows.values():
        assert row["green"] and row["error_ok"], row
        assert row["seconds"] == 1e-6 and row["config"]["block_tokens"] and row["reason"] is None
        assert row["fraction"] == pytest.approx(row["bytes"] / 1e6)
    # 64 tokens of 64 channels: 2 x 128 bytes of fp16, 2 x (32 + 4) of int4 with scale and zero.
    assert rows["tiny", "fp16"]["bytes"] == 64 * 256 and rows["tiny", "int4:token,asym"]["bytes"] == 64 * 72
    assert rows["tiny", "fp16"]["speedup"] == 1.0
    assert "/" not in report["command"]


def test_a_wrong_kernel_has_no_speed(clock: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = decode.sampled
    monkeypatch.setattr(decode, "sampled", lambda q, c, s: [(b, own, 1.01 * x) for b, own, x in right(q, c, s)])
    code, report = run(tmp_path, "--cases", "tiny", "--formats", "int8")
    (row,) = report["rows"]
    assert code == 1 and row["seconds"] is None and row["fraction"] is None and not row["green"]
    assert "error" in row["misses"] and "no speed" in decode.line(row)


def test_a_reason_survives_another_run() -> None:
    row = {"format": "int8", "case": "tiny", "misses": ["fraction"], "reason": None}
    old = [{"format": "int8", "case": "tiny", "reason": "the last wave is short"}]
    assert with_reasons([row], old)[0]["reason"] == "the last wave is short"
    assert with_reasons([row | {"misses": []}], old)[0]["reason"] is None


def test_tried_shapes_obey_the_rules(clock: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for fmt in ("fp16", "int4:token,asym", "int2:token,asym"):
        found = tries.tries(fmt, BY_NAME["16x32k"], torch.device("cpu"))
        assert 8 < len(found) == len(set(found))
        assert all(c.num_warps * c.ctas_per_sm % 4 == 0 and 128 % c.block_tokens == 0 for c in found[1:])
    two = tries.tries("int8", TINY, torch.device("cpu"))[:2]
    monkeypatch.setattr(decode, "tries", lambda *_: two)
    _, report = run(tmp_path, "--cases", "tiny", "--formats", "int8", "--try-configs")
    assert len(report["tries"]) == 2 and all(t["seconds"] for t in report["tries"])


def test_every_kernel_is_compiled_once_and_tried_ones_are_shared_out() -> None:
    items = list(measured(["fp16", "int8"], [c.name for c in CASES]))
    chosen = SimpleNamespace(jobs=30, try_configs=False, device="cpu")
    assert len(decode.compile_jobs(items, chosen)) == 2 * 5
    chosen.try_configs = True
    jobs = decode.compile_jobs(items, chosen)
    assert len(jobs) == 30 and {job.args[2:4] for job in jobs} == {(0, 3), (1, 3), (2, 3)}


def test_the_musts() -> None:
    assert goal("int8", BY_NAME["16x32k"]) == cases.Goal(0.92, 0.96, 1.85, 1.92)
    assert goal("int8", BY_NAME["64x4k"]).fraction == 0.90 and goal("int8", BY_NAME["1x128k"]).fraction == 0.84
    assert goal("int8", BY_NAME["16x32k shuffled"]).fraction == pytest.approx(0.92 * 0.92)
    assert goal("int4:group/32,asym", BY_NAME["64x4k shuffled"]).fraction == pytest.approx(0.85 * 0.78)
    assert goal("fp8_e4m3", BY_NAME["ragged"]).fraction == pytest.approx(0.85 * 0.94)
    assert goal("kivi2", BY_NAME["64x4k"]).fraction == 0.48 and goal("kivi2", BY_NAME["16x32k"]) == cases.Goal()
    assert (goal("fp16", BY_NAME["1x4k"]).microseconds, goal("int8", BY_NAME["1x4k"]).microseconds) == (13, 12)
    assert goal("int8", BY_NAME["8x16k"]) == cases.Goal()


def test_fp8_is_held_to_the_peers_where_they_were_timed() -> None:
    row, want = {"seconds": 1e-6, "bytes": 10**6, "error": 1e-5}, goal("fp8_e4m3", BY_NAME["64x4k"])
    slow, fast, none = (decode.judge(row, want, None, rival, 1e12) for rival in (1.1e-6, 1e-6, None))
    assert slow["rival_speedup"] == pytest.approx(1.1) and slow["rival_must"] == 1.08 and slow["misses"] == []
    assert fast["misses"] == ["rival"] and none["misses"] == []


def test_the_run_covers_every_must_and_starts_with_the_baseline() -> None:
    items = [(c.name, f) for c, f in measured(list(FORMATS), [c.name for c in CASES])]
    assert all((name, fmt) in items for fmt in cases.TARGETS for name in ("16x32k", "64x4k", "1x128k", "1x4k"))
    for name in BY_NAME:
        assert next(f for n, f in items if n == name) == "fp16"
    lengths = BY_NAME["ragged"].lengths
    assert len(lengths) == 32 and 512 < min(lengths) < 600 and 55_000 < max(lengths) < 65_536
    assert sorted(spread_lengths(4, 1, 16)) == [1, 3, 6, 11]


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_format_binds(fmt: str) -> None:
    layout = layout_for(fmt, CASES[0])
    assert [t.role for t in layout.tensors] == ["k", "v"]


def test_caches_hold_the_same_rows_whatever_the_table() -> None:
    consecutive = Case("tiny", SHUFFLED.lengths, group=1, dim=64, kv_heads=1)
    a, b = (filled(layout_for("int8", c), c, DEVICE) for c in (SHUFFLED, consecutive))
    assert a.page_table.tolist() != b.page_table.tolist()
    assert torch.equal(read_reference(a, "k", 1), read_reference(b, "k", 1))


def test_a_missing_peer_is_named() -> None:
    found = peers.peer_times(TINY)
    assert len(found) == 3 and all(p["seconds"] is None and "Error" in p["failed"] for p in found)


@pytest.mark.parametrize("version", ["0.6.6", None])
def test_a_peer_carries_the_version_that_was_timed(version: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(name: str) -> str:
        if name != "flashinfer-python" or version is None:
            raise peers.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(peers.metadata, "version", installed)
    monkeypatch.setattr(peers, "_time", lambda *_: (1e-6, 1e-3))
    found = peers.peer_times(TINY)
    assert [(p["version"], p["seconds"]) for p in found] == [(version, 1e-6)] * 3


@pytest.fixture
def writes(clock: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows, and two microseconds a write where lengths lie at a multiple of 32, else one."""
    lengths: list[int] = []

    def replay(graph: Any, launches: int, copies: int, replays: int = 7, before: Any = None) -> Timing:
        before()
        graph()
        seconds = 2e-6 if lengths[-1] % 32 == 31 else 1e-6
        return Timing(seconds, (seconds,), copies)

    def prepared(fmt: str, requests: int, tokens: int, capacity: int, launches: int, device: str) -> Any:
        calls, caches = right(fmt, min(requests, 2), min(tokens, 16), 64 + min(tokens, 16), 2, device)
        lengths.append(0)
        return [lambda: lengths.append(int(caches[0].lengths[0])), *calls], caches

    right = append.prepared
    monkeypatch.setattr(append, "prepared", prepared)
    # Every write once; after that only lengths are looked at.
    monkeypatch.setattr(append, "captured", lambda calls, warm_up: [call() for call in calls] and calls[0])
    monkeypatch.setattr(append, "replay_time", replay)
    monkeypatch.setattr(append, "copy_rate", lambda device: 1e12)
    for name, value in {"SHAPE": SHUFFLED, "CHECKED": (1, 40, 2), "CAPACITY": 128, "START": 32}.items():
        monkeypatch.setattr(append, name, value)


def run_append(tmp_path: Path, *formats: str) -> tuple[int, list[dict[str, Any]]]:
    file = tmp_path / "append.json"
    with pytest.MonkeyPatch.context() as patch:
        words = ["append", "--json", str(file), "--jobs", "0", "--device", DEVICE, "--formats", *formats]
        patch.setattr("sys.argv", words)
        code = append.main()
    return code, json.loads(file.read_text())["rows"]


def test_appends_have_a_mean_and_a_worst_step(writes: None, tmp_path: Path) -> None:
    code, rows = run_append(tmp_path, "int8", APART)
    assert code == 0 and len(rows) == 2 * (1 + len(append.BULK))
    plain, flushed = (r for r in rows if r["tokens"] == 1)
    assert (plain["steps"], plain["seconds"], plain["microseconds_must"]) == (1, 1e-6, 6.0)
    assert flushed["steps"] == 32 and flushed["worst_seconds"] == 2e-6 and flushed["microseconds_must"] is None
    assert flushed["seconds"] == pytest.approx(33e-6 / 32)
    assert all(r["share_must"] == 0.70 and r["share"] > 0 for r in rows if r["tokens"] > 1)


def test_a_wrong_writer_has_no_speed(writes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = append.write_reference
    monkeypatch.setattr(append, "write_reference", lambda cache, k, v: right(cache, k, 1.01 * v))
    code, (row,) = run_append(tmp_path, "int8")
    assert code == 1 and row["seconds"] is None and not row["green"] and "no speed" in append.line(row)


def test_the_latent_benchmark_s_rows_fit_the_time_model(
    clock: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvplan.recommend.fit import fit

    for name, stub in (("graph_time", decode.graph_time), ("rotating", decode.rotating)):
        monkeypatch.setattr(latent, name, stub)
    monkeypatch.setattr(latent, "measure_roof", decode.measure_roof)
    tiny = (("two", 2, 20, (16,), "main"), ("one", 1, 40, (16,), "main"), ("half", 1, 10, (16,), "held out"))
    monkeypatch.setattr(latent, "CASES", tiny)
    file = tmp_path / "latent.json"
    monkeypatch.setattr("sys.argv", ["latent", "--json", str(file), "--jobs", "0", "--device", str(DEVICE)])
    assert latent.main() == 0
    report = json.loads(file.read_text())
    assert [r["latent"] for r in report["rows"]] == ["bf16", "fp8_ds_mla"] * 3
    two = report["rows"][1]
    assert two["bytes"] == 656 * 40 and two["flops"] == 2 * 1088 * 16 * 40 and two["seconds"] == 1e-6
    assert fit(report, "here") == {}, "all shapes are of one size"
    report["rows"][2] |= {"bytes": 2 * 1152 * 40, "seconds": 2e-6}
    assert set(fit(report, "here")) == {"latent bf16"}


def test_a_latent_launch_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = latent.filled("bf16", 1, 10, str(DEVICE))

    def refused(*_: Any, **__: Any) -> Any:
        raise RuntimeError("out of registers")

    monkeypatch.setattr(latent, "graph_time", refused)
    q = latent.queries(1, 16, str(DEVICE))
    row = latent.time_fused([cache], q, latent.latent_config(latent.latent_view(cache.layout), latent.PAGE, 16, 90))
    assert row["seconds"] is None and row["failed"] == "RuntimeError: out of registers"
