"""The pruned search finds the Pareto set of the exhaustive one, on five kinds of model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvplan.recommend import RecommendRequest, recommend, search
from kvplan.recommend.bounds import bounds_of
from kvplan.recommend.evidence import PREDICTED, Body, Evidence
from kvplan.recommend.scored import Scored, Scorer, pareto
from kvplan.recommend.search import Found, Search
from kvplan.specs.load import load_device, load_model

REPO = Path(__file__).resolve().parents[2]
MODELS = {
    "llama-3.2-1b": "h200",  # dense, GQA
    "deepseek-v2-lite": "h200",  # MLA
    "nemotron-h-8b": "l4",  # attention and Mamba 2
    "gemma-3-1b": "l4",  # sliding and full
    "qwen2.5-0.5b": "l4",  # K bias
}


@pytest.fixture(autouse=True)
def smaller(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A third of the pages and layer rules; the whole space is timed by benchmarks/recommend.py."""
    monkeypatch.setattr(search, "PAGES", (None, 256))
    monkeypatch.setattr(search, "KEPT", ((), ("first=2",)))
    yield


def found(model: str, exhaustive: bool, gpus: int = 1) -> Found:
    request = RecommendRequest(model=model, gpu=MODELS[model], gpus=gpus, context=8192, concurrency=30)
    spec, device = load_model(model), load_device(request.gpu)
    evidence = Evidence(spec)
    return Search(request, spec, device, evidence, Scorer(evidence, device, bounds_of(request), None)).run(exhaustive)


def points(choices: list[Scored]) -> dict[tuple[float, float, float], tuple[object, ...]]:
    return {c.point: (c.choice, c.resolved.sharding, c.resolved.page_size) for c in pareto(choices)}


@pytest.mark.parametrize("model", MODELS)
def test_pruned_and_exhaustive_agree(model: str) -> None:
    pruned, whole = found(model, False), found(model, True)
    assert len(pruned.choices) < len(whole.choices) and len(points(whole.choices)) >= 2
    assert points(pruned.choices) == points(whole.choices)


def test_the_set_by_brute_force() -> None:
    choices = found("llama-3.2-1b", False, gpus=2).choices
    known = [c.point for c in choices if c.quality is not None]
    right = {p for p in known if not any(all(a <= b for a, b in zip(q, p, strict=True)) and q != p for q in known)}
    assert set(points(choices)) == right and len({c.resolved.sharding for c in choices}) > 1


def test_pruning_leaves_out_formats() -> None:
    used = {c.formats[0] for c in found("llama-3.2-1b", False).choices}
    # int8 with one static scale holds as much as fp8 and loses less; e5m2 loses more than both.
    assert "int8:head" in used and "fp8_e5m2" not in used and "mxfp4" not in used


def test_layers_that_suffer_most_are_tried_in_16_bit() -> None:
    own = Body(PREDICTED, "tensors", {}, layers={0: 0.1, 5: 0.5, 9: 0.3, 12: 0.1})
    request = RecommendRequest(model="llama-3.2-1b", gpu="l4", context=8192, concurrency=30)
    spec, device = load_model(request.model), load_device(request.gpu)
    evidence = Evidence(spec, [own])
    one = Search(request, spec, device, evidence, Scorer(evidence, device, bounds_of(request), None))
    with_rule = [c for c in one.run().choices if c.resolved.request.layers == ("5,9:bf16",)]
    assert with_rule and all(c.quality and "K's error by layer" in c.quality.source for c in with_rule)


def test_the_stored_run_of_the_whole_space() -> None:
    """benchmarks/recommend.py: at most 10 s for each model, and the same set."""
    stored = json.loads((REPO / "docs" / "results" / "recommend_search.json").read_text(encoding="utf-8"))
    assert stored["command"].startswith("python benchmarks/recommend.py") and len(stored["rows"]) == 5
    for row in stored["rows"]:
        assert row["same"] and row["exhaustive"]["seconds"] <= 10 and row["pruned"]["seconds"] <= 1
        assert row["exhaustive"]["choices"] > row["pruned"]["choices"]


def test_the_answer_is_the_same() -> None:
    request = RecommendRequest(model="gemma-3-1b", gpu="l4", context=32768, concurrency=100)
    one, other = recommend(request), recommend(request, exhaustive=True)
    assert one.recommended and other.recommended and one.recommended == other.recommended
    assert other.searched > one.searched
