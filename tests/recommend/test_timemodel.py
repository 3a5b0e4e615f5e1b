"""The time model is fitted from a stored benchmark, says how well it does on shapes it has not seen, and is what
`times.json` holds."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from kvplan.plan import PlanRequest, resolve
from kvplan.recommend import timemodel
from kvplan.recommend.fit import fit
from kvplan.recommend.timemodel import Speed, attention_seconds, measured_speeds
from kvplan.specs.load import load_device

REPO = Path(__file__).resolve().parents[2]
STORED = REPO / "docs" / "results" / "decode_h200.json"
ROOF = 4.5e12
# Bytes of a (token, KV head), fixed seconds, share of the roof.
TRUE = {
    ("int4,asym", "int4,asym"): (136, 8e-6, 0.95),
    ("int2:channel/32,asym,recent=128", "int2:group/32,asym,recent=128"): (96, 9e-6, 0.6),
}


def report(bend: float = 0.0) -> dict[str, Any]:
    """A benchmark in which every time is exactly fixed + bytes / rate; held-out shapes take `bend` longer."""
    rows = []
    for (k, v), (width, fixed, share) in TRUE.items():
        for tokens, use in ((524288, "main"), (262144, "main"), (131072, "main"), (196608, "held out")):
            nbytes = width * 8 * tokens
            seconds = (fixed + nbytes / (share * ROOF)) * (1 + bend * (use == "held out"))
            rows.append({"k": k, "v": v, "use": use, "bytes": nbytes, "seconds": seconds})
        rows.append({"k": k, "v": v, "use": "shuffled", "bytes": nbytes, "seconds": 1.0})
    rows.append({"k": "int8", "v": "int8", "use": "main", "bytes": 1, "seconds": None})
    return {"roof": {"bytes_per_second": ROOF}, "rows": rows}


def test_the_fit_finds_what_made_the_times() -> None:
    found = fit(report(), "here")
    assert set(found) == {"int4,asym", "int2:channel/32,asym,recent=128 + int2:group/32,asym,recent=128"}
    for speed, (_, fixed, share) in zip(found.values(), TRUE.values(), strict=True):
        assert speed.fixed_seconds == pytest.approx(fixed) and speed.roof_share == pytest.approx(share)
        assert speed.worst_held_out_error == pytest.approx(0, abs=1e-9) and speed.source == "here"


def test_shapes_that_were_not_fitted_judge_it() -> None:
    assert fit(report(bend=0.25), "here")["int4,asym"].worst_held_out_error == pytest.approx(0.2)


def latents(fixed: float = 7e-6, share: float = 0.9, flops: float = 2.3e14, bend: float = 0.0) -> dict[str, Any]:
    """A benchmark of 16-bit latents: 576 channels are read, 1,088 multiplied for every query head."""
    rows = []
    for tokens, use in ((524288, "main"), (262144, "main"), (4096, "short"), (131072, "held out")):
        for heads in (16, 128):
            nbytes, work = 1152 * tokens, 2 * 1088 * heads * tokens
            seconds = (fixed + nbytes / (share * ROOF) + work / flops) * (1 + bend * (use == "held out"))
            rows.append({"latent": "bf16", "use": use, "bytes": nbytes, "flops": work, "seconds": seconds})
    return {"roof": {"bytes_per_second": ROOF}, "rows": rows}


def test_the_fit_finds_bytes_and_operations_of_a_latent() -> None:
    speed = fit(latents(), "here")["latent bf16"]
    assert (speed.fixed_seconds, speed.roof_share) == (pytest.approx(7e-6), pytest.approx(0.9))
    assert speed.flops_per_second == pytest.approx(2.3e14)
    assert speed.worst_held_out_error == pytest.approx(0, abs=1e-9)
    assert fit(latents(bend=0.25), "here")["latent bf16"].worst_held_out_error == pytest.approx(0.2)


def test_what_has_no_part_in_the_time_is_left_out() -> None:
    """Reading that hides the arithmetic gives no rate of it, and no term of the fit is ever negative."""
    speed = fit(latents(flops=1e30), "here")["latent bf16"]
    assert speed.roof_share == pytest.approx(0.9) and (speed.flops_per_second or 1e30) > 1e20
    rows = [row | {"seconds": row["seconds"] - 9e-6} for row in latents(fixed=0)["rows"] if row["bytes"] > 1e8]
    odd = fit({"roof": {"bytes_per_second": ROOF}, "rows": rows}, "here")["latent bf16"]
    assert odd.fixed_seconds == 0 and odd.roof_share > 0 and odd.flops_per_second is not None


def test_other_head_dims_have_a_share_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = report()
    nbytes = 2 * 136 * 8 * 524288
    row = {"k": "int4,asym", "v": "int4,asym", "use": "unstudied", "dim": 256, "bytes": nbytes}
    bench["rows"].append(row | {"seconds": 8e-6 + nbytes / (0.8 * ROOF)})
    speeds = fit(bench, "here")
    assert speeds["int4,asym"].share_by_head_dim == {"256": pytest.approx(0.8)}
    assert speeds["int4,asym"].at(256).roof_share == pytest.approx(0.8)
    assert speeds["int4,asym"].at(64).roof_share == pytest.approx(0.95)
    monkeypatch.setattr(timemodel, "measured_speeds", lambda: speeds)
    resolved = resolve(PlanRequest(model="gemma-3-12b", context=32768, batch=16, kv="int4:token,asym"))
    roof = timemodel.read_roof(load_device("h200"))
    read = 264 * 8 * 16 * 32768
    found = attention_seconds(resolved, load_device("h200"), "full")
    assert found == pytest.approx(8 * (8e-6 + read / (0.8 * roof)))


def test_a_fixed_time_is_never_negative() -> None:
    rows = [
        {"k": "int8", "v": "int8", "use": "main", "bytes": n, "seconds": t}
        for n, t in ((1e9, 2e-4), (2e9, 4.4e-4), (4e9, 9.2e-4))
    ]
    speed = fit({"roof": {"bytes_per_second": ROOF}, "rows": rows}, "here")["int8"]
    assert speed.fixed_seconds == 0 and speed.worst_held_out_error is None


def seconds(**formats: str) -> float | None:
    resolved = resolve(PlanRequest(model="llama-3.1-8b", context=32768, batch=16, **formats))  # type: ignore[arg-type]
    return attention_seconds(resolved, load_device("h200"))


def test_a_measured_pair_is_predicted_and_others_are_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {name: Speed(8.5e-6, 0.98, "before") for name in ("bf16", "int8")}
    monkeypatch.setattr(timemodel, "measured_speeds", lambda: plain)
    assert seconds(kv="kivi2") is None and seconds(kv="int4:token,asym") is None
    monkeypatch.setattr(timemodel, "measured_speeds", lambda: plain | fit(report(), "here"))
    roof = timemodel.read_roof(load_device("h200"))
    found = seconds(kv="int4:token,asym")
    assert found == pytest.approx(32 * (8e-6 + 136 * 8 * 16 * 32768 / (0.95 * roof)))
    assert seconds(kv="kivi2") is not None
    whole, k_only, v_only = seconds(kv="int8"), seconds(k="int8", v="int4:token,asym"), seconds(k="int4,asym", v="int8")
    assert whole and k_only and v_only and found < k_only == v_only < whole
    # One side of a measured pair alone was never timed.
    assert seconds(k="int2:channel/32,asym,recent=128", v="int8") is None


def test_formats_keep_their_speed_wherever_few_scales_lie() -> None:
    assert seconds(kv="int8:head") and seconds(kv="fp8_e5m2:token") and seconds(kv="int2")
    assert seconds(kv="int8:group/32") is None or "int8:group/32" in measured_speeds()


def test_the_stored_speeds_are_the_stored_benchmark_s() -> None:
    assert all(isinstance(s, Speed) and 0 < s.roof_share < 1.2 for s in measured_speeds().values())
    tool = runpy.run_path(str(REPO / "tools" / "fit_times.py"))
    text = timemodel.TIMES.read_text(encoding="utf-8")
    assert text == tool["text"](tool["fitted"]()), "run python tools/fit_times.py"
    assert tool["too_far"](measured_speeds()) == []
    if STORED.is_file():
        assert json.loads(text)["int8"]["source"] == "docs/results/decode_h200.json"


def test_a_latent_is_predicted_once_its_row_was_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = resolve(PlanRequest(model="deepseek-v2-lite", context=32768, batch=16, latent="fp8_ds_mla"))
    unknown = {key: s for key, s in measured_speeds().items() if not key.startswith("latent")}
    monkeypatch.setattr(timemodel, "measured_speeds", lambda: unknown)
    assert attention_seconds(resolved, load_device("h200")) is None
    speeds = unknown | {"latent fp8_ds_mla": Speed(1e-5, 0.5, "here", flops_per_second=1e14)}
    monkeypatch.setattr(timemodel, "measured_speeds", lambda: speeds)
    found = attention_seconds(resolved, load_device("h200"))
    roof, tokens = timemodel.read_roof(load_device("h200")), 16 * 32768
    assert found == pytest.approx(27 * (1e-5 + 656 * tokens / (0.5 * roof) + 2 * 1088 * 16 * tokens / 1e14))
    # Ranks that share the 128 heads of DeepSeek-V3 read the same rows and multiply less.
    one, eight = (
        resolve(PlanRequest(model="deepseek-v3", context=32768, batch=16, latent="fp8_ds_mla", tp=tp)) for tp in (1, 8)
    )
    whole, rank = (attention_seconds(r, load_device("h200")) or 0.0 for r in (one, eight))
    assert whole - rank == pytest.approx(61 * 2 * 1088 * 112 * tokens / 1e14)
    # Ranks that share the rows gather the queries of all heads.
    shared = resolve(PlanRequest(model="deepseek-v3", context=32768, batch=16, latent="fp8_ds_mla", tp=8, dcp=8))
    eighth = attention_seconds(shared, load_device("h200")) or 0.0
    assert eighth - 61e-5 == pytest.approx((whole - 61e-5) / 8)
