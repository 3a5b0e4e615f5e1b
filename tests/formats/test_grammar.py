"""The format grammar: canonical spelling, round trip, refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.errors import UsageError
from kvplan.formats import grammar
from kvplan.formats.grammar import Format, Named, Pair, parse_any, parse_format, parse_kv


@given(st.sampled_from(grammar.PAIRS), st.sampled_from([16, 32, 64]), st.integers(1, 8))
def test_pairs_round_trip(name: str, group: int, blocks: int) -> None:
    pair = parse_kv(f"{name}/{group},recent={group * blocks}")
    assert isinstance(pair, Pair)
    assert parse_kv(pair.spelling) == pair
    assert pair.k == parse_format(f"int{name[-1]}:channel/{group},asym,recent={group * blocks}")
    assert (pair.k.flush, pair.v.flush) == ("whole", "oldest")


@pytest.mark.parametrize("name", grammar.NAMES)
def test_names_round_trip(name: str) -> None:
    assert parse_any(name.upper()) == Named(name)
    assert parse_any(name).spelling == name


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("int8:token", "int8"),
        (" INT8:Group/32,ASYM ", "int8:group/32,asym"),
        ("int8:group/32,scale=fp16", "int8:group/32"),
        ("int8:head,scale=fp32", "int8:head"),
        ("int8:head,scale=fp16", "int8:head,scale=fp16"),
        ("int8:channel/32,recent=32,flush=whole", "int8:channel/32"),
        ("int8:channel/32,recent=64", "int8:channel/32,recent=64"),
        ("int8:token,recent=128,flush=oldest", "int8,recent=128"),
        ("fp8_e4m3:tensor", "fp8_e4m3"),
        ("fp4_e2m1:group/16,global=fp32,scale=e4m3,pack=page", "fp4_e2m1,scale=e4m3,global=fp32,pack=page"),
        ("int4:group/32,scale=model,asym,row", "int4:group/32,asym,row,scale=model"),
        ("kivi2/32,recent=128", "kivi2"),
        ("kivi4/64", "kivi4/64"),
    ],
)
def test_canonical(text: str, canonical: str) -> None:
    assert parse_kv(text).spelling == canonical


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("int9", "unknown format", "int"),
        ("fp8", "unknown format", "fp8_e4m3"),
        ("int8:token-head", "granularity", "token"),
        ("int8:per_token_head", "granularity", "token"),
        ("int8:chanel", "granularity", "channel"),
        ("int8:group", "granularity", "group/N"),
        ("int8:group/0", "granularity", "group/N"),
        ("bf16:token", "no granularity", "bf16"),
        ("fp16,asym", "no granularity", "fp16"),
        ("fp8_e4m3,asym", "asym", "drop asym"),
        ("int8:head,recent=128", "static", "drop recent"),
        ("int8:channel/32,recent=100", "multiple of 32", "recent=128"),
        ("int8,flush=whole", "flush needs recent", "recent="),
        ("int8:token,row", "row needs group/N", "row"),
        ("int8,asym,asym", "given twice", "asym"),
        ("int8,asym=1", "not understood", "asym"),
        ("int8,scale", "not understood", "scale"),
        ("int8,scale=fp12", "scale=fp12", "fp16"),
        ("int8,recent=0", "recent=0", "recent=128"),
        ("lm4", "needs rot", "lm4,rot"),
        ("int8,asym,scale=e8m0", "powers of two", "drop asym"),
        ("fp4_e2m1:tensor,global=fp32", "global", "drop global"),
        ("int4:channel,pack=slot", "static", "drop pack"),
        ("fp8_e4m3,pack=page", "static", "drop pack"),
        ("int4:channel/32,pack=slot", "a slot is one token", "pack=page"),
        ("int8,", "not understood", "known"),
        ("", "unknown format", "known"),
        ("kivi3", "unknown format", "kivi"),
        ("nvfp4:group/8", "nvfp4 takes no granularity", "just nvfp4"),
        ("q8_0,row", "q8_0 takes no granularity", "just q8_0"),
        ("kivi2/7x", "KIVI pair", "kivi2"),
        ("kivi2/32,recent=100", "not a multiple", "recent=128"),
    ],
)
def test_refused(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_kv(text)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert "\n" not in caught.value.message + caught.value.hint


def test_a_pair_is_no_format_of_one_tensor() -> None:
    with pytest.raises(UsageError, match="pair") as caught:
        parse_any("kivi2/64")
    assert caught.value.hint == "write --kv kivi2/64"


def test_defaults() -> None:
    assert parse_format("int8") == Format("int8", "token", scale="fp16")
    assert parse_format("int8:tensor").scale == "fp32"
    assert parse_format("fp8_e5m2:token").scale == "fp16"
    assert parse_format("fp4_e2m1").group == 16
    assert parse_format("int8:channel/64").recent == 64
