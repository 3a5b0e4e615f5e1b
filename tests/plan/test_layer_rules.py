"""Formats of single layers: which layers a rule names, which rule wins, how a group is cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.errors import UsageError
from kvplan.plan import Plan, PlanRequest, make_plan
from kvplan.specs.load import load_model


def plan(model: str = "llama-3.1-8b", **fields: Any) -> Plan:
    return make_plan(PlanRequest(model=model, **fields))


def parts(made: Plan) -> dict[str, tuple[int, dict[str, str]]]:
    assert made.kv is not None
    return {g.name: (g.layers, g.formats) for g in made.kv.by_group}


BF, I8 = {"k": "bf16", "v": "bf16"}, {"k": "int8", "v": "int8"}


def test_first_and_last_layers() -> None:
    made = plan(context=1000, kv="int8", layers=("First=2 : BF16", "last=2:bf16"))
    assert parts(made) == {"attention[0-1,30-31]": (4, BF), "attention[2-29]": (28, I8)}
    assert made.kv is not None and made.kv.logical_bytes == 8 * 1000 * (4 * 512 + 28 * 260)
    assert made.request.layers == ("first=2:bf16", "last=2:bf16")
    assert make_plan(made.request) == made == Plan.load(made.to_json())
    assert parts(plan(context=1000, kv="int8", layers=("0-1,30-31:bf16",))) == parts(made)


def test_the_last_rule_wins() -> None:
    made = plan(context=10, layers=("0-9:int8", "5:bf16", "k@0:fp8_e4m3"))
    assert parts(made) == {
        "attention[0]": (1, {"k": "fp8_e4m3", "v": "int8"}),
        "attention[1-4,6-9]": (8, I8),
        "attention[5,10-31]": (23, BF),
    }
    assert parts(plan(context=10, layers=("5:bf16", "0-9:int8")))["attention[0-9]"] == (10, I8)


def test_a_rule_for_all_layers_is_the_format() -> None:
    ruled, plain = plan(context=1000, layers=("first=32:int8",)), plan(context=1000, kv="int8")
    assert ruled.kv == plain.kv


def test_rules_and_stages() -> None:
    made = plan(context=1000, kv="int8", layers=("last=2:bf16",), pp=4)
    assert made.sharding is not None and made.sharding.stage == 4
    assert {name: layers for name, (layers, _) in parts(made).items()} == {"attention[0-29]": 6, "attention[30-31]": 2}


def test_patterns_have_short_names() -> None:
    names = list(parts(plan("gemma-3-27b", context=10, layers=("0-20:int8",))))
    assert len(names) == len(set(names)) == 4
    assert all(len(name) < 40 for name in names)


def test_latents_and_index_keys() -> None:
    made = plan("deepseek-v3.2", context=10, layers=("first=1:fp8_e4m3", "index@last=1:fp8_e4m3:token"))
    formats = {name: formats for name, (_, formats) in parts(made).items()}
    assert formats["latent[0]"] == {"latent": "fp8_e4m3"}
    assert formats["indexer[60]"] == {"index": "fp8_e4m3:token"}
    assert formats["indexer[0-59]"] == {"index": "bf16"}
    with pytest.raises(UsageError, match="carry over"):
        plan("deepseek-v3.2", layers=("first=1:int8",))


def test_layers_without_a_cache_are_noted() -> None:
    note = next(n for n in plan("gemma-3n-e4b", layers=("last=20:int8",)).notes if "--layers" in n)
    assert "has no effect on layers 20-34" in note
    assert any("has no effect:" in n for n in plan(layers=("index@0:bf16",)).notes)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("first=2", "is not"),
        ("bf16", "is not"),
        ("q@0:bf16", "is not"),
        ("first=0:bf16", "32 layers"),
        ("last=33:bf16", "32 layers"),
        ("32:bf16", "not a range"),
        ("5-3:bf16", "not a range"),
        ("0,,1:bf16", "names no layers"),
        ("middle:bf16", "names no layers"),
        ("0:int9", "int9"),
        ("k@0:kivi2", "kivi2"),
        (":", "names no layers"),
        ("99999999999:bf16", "names no layers"),
    ],
)
def test_bad_rules(rule: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        plan(layers=(rule,))
    assert refused.value.hint


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 31), st.integers(0, 31), st.sampled_from(["bf16", "int8", "fp8_e4m3"])),
                max_size=5), st.integers(1, 3000))  # fmt: skip
def test_parts_add_up_layer_by_layer(rules: list[tuple[int, int, str]], context: int) -> None:
    spec = load_model("llama-3.1-8b") if not _SPEC else _SPEC[0]
    _SPEC[:] = [spec]
    width = {"bf16": 512, "int8": 260, "fp8_e4m3": 256}
    of_layer = ["int8"] * 32
    for a, b, fmt in rules:
        for i in range(min(a, b), max(a, b) + 1):
            of_layer[i] = fmt
    texts = tuple(f"{min(a, b)}-{max(a, b)}:{fmt}" for a, b, fmt in rules)
    made = make_plan(PlanRequest(model=spec.id, context=context, kv="int8", layers=texts), spec)
    assert made.kv is not None
    assert made.kv.logical_bytes == 8 * context * sum(width[fmt] for fmt in of_layer)


_SPEC: list[Any] = []
