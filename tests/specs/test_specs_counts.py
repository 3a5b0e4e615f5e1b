"""What the collection of shipped models promises, without the facts beside it."""

from __future__ import annotations

from collections import Counter

import pytest

from kvplan.formats.grammar import parse_any
from kvplan.memory.figures import kv_figures
from kvplan.memory.groups import CacheFormats, cache_groups
from kvplan.specs.load import list_models, load_model
from kvplan.specs.model import ModelSpec

BF16 = CacheFormats(*[parse_any("bf16")] * 4)


@pytest.fixture(scope="module")
def specs() -> tuple[ModelSpec, ...]:
    return tuple(load_model(name) for name in list_models())


def test_at_least_120_verified_models(specs: tuple[ModelSpec, ...]) -> None:
    confidence = Counter(spec.provenance.confidence for spec in specs if spec.provenance)
    assert confidence["verified"] >= 120
    assert confidence["memory"] == 0
    assert confidence.total() == len(specs)


def test_every_kind_of_cache_is_there(specs: tuple[ModelSpec, ...]) -> None:
    kinds = {group.kind for spec in specs for group in spec.layer_groups}
    assert kinds == {"attention", "latent", "state", "cross", "none"}
    states = {group.state.type for spec in specs for group in spec.layer_groups if group.kind == "state"}
    assert states >= {"mamba1", "mamba2", "gated_deltanet", "kda", "lightning", "short_conv", "rwkv7"}
    laws = {g.retain.law for spec in specs for g in spec.layer_groups if g.kind in ("attention", "latent")}
    assert laws == {"all", "window", "chunk", "ring"}


def test_every_model_has_a_cache(specs: tuple[ModelSpec, ...]) -> None:
    for spec in specs:
        groups = cache_groups(spec, BF16)
        kv = kv_figures(groups, groups, 1, 1000, 1, 128)
        assert 10**4 < kv.logical_bytes < 5 * 10**9, spec.id


def test_mixed_models_say_how_they_are_mixed(specs: tuple[ModelSpec, ...]) -> None:
    for spec in specs:
        assert spec.provenance and spec.provenance.sources
        if spec.provenance.confidence == "single-source":
            assert len(spec.provenance.sources) <= 6
        active = spec.params.active
        assert active is None or active < spec.params.total, spec.id


def test_texts_are_plain(specs: tuple[ModelSpec, ...]) -> None:
    """No search marks, no addresses, no half sentences of the collection."""
    for spec in specs:
        for text in (*spec.notes, *(spec.provenance.sources if spec.provenance else ())):
            low = text.lower()
            assert not any(word in low for word in ("find_string", "search id", "http", "facts.json")), (spec.id, text)
        for note in spec.notes:
            assert note.endswith(".") and len(note) > 10, (spec.id, note)


def test_aliases_agree_with_the_id(specs: tuple[ModelSpec, ...]) -> None:
    for spec in specs:
        for known in spec.hf_ids:
            assert load_model(known.upper()) == spec
