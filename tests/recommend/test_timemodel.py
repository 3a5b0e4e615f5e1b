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


def test_a_fixed_time_is_never_negative() -> None:
    rows = [
        {"k": "int8", "v": "int8", "use": "main", "bytes": n, "seconds": t}
        for n, t in ((1e9, 2e-4), (2e9, 4.4e-4), (4e9, 9.2e-4))
    ]
    speed = fit({"roof": {"bytes_per_second": ROOF}, "rows": rows}, "here")["int8"]
    assert speed.fixed_seconds == 0 and speed.worst_held_out_error is None


def seconds(**formats: str) -> float | None:
    resolved = resolve(PlanRequest(model="llama-3.1-8b", context=32768, batch=16, **formats))  # type: ignore[arg-type]
    return attention_seconds(resolved.groups, 32768, 16, load_device("h200"))


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
    assert all(isinstance(s, Speed) and 0 < s.roof_share < 1.1 for s in measured_speeds().values())
    if STORED.is_file():
        tool = runpy.run_path(str(REPO / "tools" / "fit_times.py"))
        text = timemodel.TIMES.read_text(encoding="utf-8")
        assert text == tool["text"](tool["fitted"]()), "run python tools/fit_times.py"
        assert json.loads(text)["int8"]["source"] == "docs/results/decode_h200.json"
        fitted = [s for s in measured_speeds().values() if s.source == "docs/results/decode_h200.json"]
        assert all((s.worst_held_out_error or 0) <= 0.05 for s in fitted)


def test_a_latent_is_predicted_once_its_row_was_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = resolve(PlanRequest(model="deepseek-v2-lite", context=32768, batch=16, latent="fp8_ds_mla"))
    assert attention_seconds(resolved.groups, 32768, 16, load_device("h200")) is None
    speeds = measured_speeds() | {"latent fp8_ds_mla": Speed(1e-5, 0.5, "here")}
    monkeypatch.setattr(timemodel, "measured_speeds", lambda: speeds)
    found = attention_seconds(resolved.groups, 32768, 16, load_device("h200"))
    roof = timemodel.read_roof(load_device("h200"))
    assert found == pytest.approx(27 * (1e-5 + 656 * 16 * 32768 / (0.5 * roof)))
