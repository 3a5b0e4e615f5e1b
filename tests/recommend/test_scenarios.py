"""Thirty requests and what a specialist would answer: `scenarios.yaml`, derived by hand with its references."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvplan.engines import engine_names
from kvplan.recommend import Recommendation, RecommendRequest, recommend

HERE = Path(__file__).parent
SCENARIOS: list[dict[str, Any]] = yaml.safe_load((HERE / "scenarios.yaml").read_text(encoding="utf-8"))


def ask(fields: dict[str, Any]) -> Recommendation:
    own = HERE / "devices" / f"{fields['gpu']}.yaml"
    return recommend(RecommendRequest(**(fields | ({"gpu": str(own)} if own.exists() else {}))))


@pytest.mark.parametrize("case", SCENARIOS, ids=lambda case: case["id"])
def test_the_decision_is_the_derived_one(case: dict[str, Any]) -> None:
    expect, result = case["expect"], ask(case["ask"])
    for choice, words in expect.get("excluded", {}).items():
        assert words in reason(result, choice), choice
    if "effect" in expect:
        assert any(expect["effect"] in text for text in result.warnings)
    if expect.get("nothing"):
        assert result.recommended is None and {"--concurrency"} <= {r.option for r in result.relax}
        assert set(expect["relax"]) <= {r.option for r in result.relax}
        return
    assert result.recommended is not None
    found = result.recommended.candidate
    for role in ("k", "v", "latent"):
        # An engine with one option for K and V is asked for K only.
        wanted = expect.get(role, expect.get("k") if role == "v" and case["ask"].get("engine") else None)
        assert found.engine_formats.get(role, getattr(found, role)) == wanted, role
    assert found.layers == () and found.fits and found.obstacles == ()
    if "layout" in expect:
        assert found.layout.model_dump(exclude={"dp_attention"}) == expect["layout"]
    assert binds(result) == expect["binds"]


def binds(result: Recommendation) -> str:
    """What keeps 16 bit from being the answer."""
    assert result.recommended is not None
    if result.recommended.candidate.quality and not result.recommended.candidate.quality.kl:
        return "none"
    plain = [c for c in result.candidates if c.quality and not c.quality.kl]
    obstacles = {"room" if "holds only" in text else "latency" for c in plain for text in c.obstacles}
    return obstacles.pop() if len(obstacles) == 1 else "room-aim" if result.request.quality == "capacity" else "?"


def reason(result: Recommendation, choice: str) -> str:
    """Why a choice with one format is not the answer."""
    if choice in result.refused:
        return result.refused[choice]
    same = [
        c for c in result.candidates
        if {c.engine_formats.get(r, f) for r in ("k", "v", "latent") if (f := getattr(c, r))} == {choice}
        and (result.request.engine or not c.layers)
    ]  # fmt: skip
    return "; ".join(text for c in same for text in c.obstacles)


def test_the_file_covers_what_it_should() -> None:
    asked = [case["ask"] for case in SCENARIOS]
    assert len(SCENARIOS) >= 25 and len({case["id"] for case in SCENARIOS}) == len(SCENARIOS)
    assert {a["engine"] for a in asked if "engine" in a} == set(engine_names())
    over = [c for c in SCENARIOS if c["expect"].get("sixteen_or_fp8_over_fewer_bits")]
    assert len(over) >= 8
    for case in over:
        chosen = {str(case["expect"].get(r)) for r in ("k", "v", "latent")} - {"None"}
        assert all(f.startswith(("bf16", "auto", "fp8", "f16", "FP16", "0")) for f in chosen), case["id"]
    assert min(a["context"] for a in asked) <= 512 and max(a["context"] for a in asked) >= 131072
    assert all(re.search(r"\b[VOQKM] \d", case["why"]) for case in SCENARIOS), "a reason needs a reference"
