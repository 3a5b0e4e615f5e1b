"""Layouts: sizes by hand, the split law, planes, refusals by name."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.errors import UnsupportedError, UsageError
from kvplan.formats.grammar import NAMES, parse_any, parse_kv
from kvplan.formats.grid import Tensor, bind
from kvplan.formats.layout import Layout

BUILT = [
    "fp32", "fp16", "bf16", "int2", "fp8_e4m3", "fp8_e4m3:head", "fp8_e4m3:token", "fp8_e5m2", "fp8_e5m2:head",
    "fp8_e5m2:token",
    *(f"int8:{where}{asym}" for where in ("tensor", "head", "channel", "token", "channel/32", "group/32")
      for asym in ("", ",asym")),
]  # fmt: skip


def pair(k: str, v: str, dim: int = 128, heads: int = 1, dtype: str = "fp16", v_dim: int | None = None) -> Layout:
    return bind([Tensor("k", parse_any(k), dim), Tensor("v", parse_any(v), v_dim or dim)], heads, dtype)


def row_bytes(layout: Layout) -> Fraction:
    """Bytes of one (token, head) of K and V."""
    return Fraction(layout.page_bytes(128), 128 * layout.heads)


@pytest.mark.parametrize(
    ("k", "v", "expected"),
    [("fp16", "fp16", 512), ("int8", "int8", 260), ("int8:token,asym", "int8:token,asym", 264),
     ("int8", "fp8_e4m3", 258), ("int8:group/32", "int8", 266), ("int2", "int2", 68), ("int2,asym", "int2,asym", 72),
     ("int8,scale=fp32", "int8,scale=fp32", 264), ("int8:channel/32", "int8", 128 + 8 + 130)],
)  # fmt: skip
def test_row_bytes(k: str, v: str, expected: int) -> None:
    assert row_bytes(pair(k, v)) == expected


def test_static_formats_are_exactly_half() -> None:
    for text in ("int8:tensor", "int8:head", "int8:channel", "fp8_e4m3", "fp8_e5m2:head"):
        assert 2 * row_bytes(pair(text, text)) == row_bytes(pair("bf16", "bf16"))


@pytest.mark.parametrize(
    ("text", "heads", "constant"),
    [("int8:tensor", 8, 8), ("int8:head", 8, 64), ("int8:channel", 8, 8192), ("int8:channel,asym", 8, 16384),
     ("fp8_e4m3", 8, 8), ("fp8_e4m3:head,scale=fp16", 8, 32), ("int8", 8, 0), ("bf16", 8, 0)],
)  # fmt: skip
def test_constant_bytes(text: str, heads: int, constant: int) -> None:
    assert pair(text, text, heads=heads).fixed_bytes("layer") == constant


def test_scales_of_k_and_v_share_a_word() -> None:
    layout = pair("int8", "int8", heads=8)
    [meta] = [p for p in layout.planes if p.name.startswith("meta")]
    assert [f.tensor for f in meta.fields] == ["k", "v"]
    assert meta.slot_bytes == 4
    k, v = layout.view("k"), layout.view("v")
    assert (k.meta_stride, k.scale_at, v.scale_at) == (2, 0, 1)
    assert pair("int8", "fp8_e4m3").view("v").meta_stride == 0


@given(st.sampled_from(BUILT), st.sampled_from(BUILT), st.sampled_from([64, 96, 128, 256]), st.integers(1, 8))
def test_page_bytes_are_the_sum_of_planes(k: str, v: str, dim: int, heads: int) -> None:
    layout = pair(k, v, dim, heads)
    page = 128
    by_hand = 0
    for plane in layout.scoped("page"):
        for f in plane.fields:
            by_hand += page // f.tokens * heads * f.unit_bytes
    assert layout.page_bytes(page) == by_hand
    assert layout.page_multiple in (1, 32)


RESIDUALS = ["int8:channel/32", "int8:channel/32,recent=96", "int8,recent=128", "int8,recent=64,flush=whole"]


@given(st.sampled_from(RESIDUALS), st.integers(0, 5000))
def test_split(text: str, tokens: int) -> None:
    t = pair(text, text).tensor("k")
    packed, recent = t.split(tokens)
    assert packed + recent == tokens
    assert 0 <= recent <= t.recent
    assert packed % (t.group or 1) == 0
    if t.flush == "whole":
        assert recent == tokens % t.recent
    else:
        assert recent == min(tokens, t.recent)


def test_kivi_splits_k_and_v_apart() -> None:
    pair_ = parse_kv("kivi2")
    with pytest.raises(UnsupportedError, match="channel/32"):
        bind([Tensor("k", pair_.k, 128), Tensor("v", pair_.v, 128)], 8, "bf16")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text",
    ["int4", "int6:group/32", "int3:token,asym", "int8,rot", "int8,pack=slot", "int8:group/32,row", "lm4,rot",
     "fp4_e2m1", "fp8_e4m3:channel", "fp8_e4m3:group/32", "int2:group/32", "int8,rope=fp16", "int8,scale=e8m0", *NAMES],
)  # fmt: skip
def test_spelling_without_a_layout_is_refused_by_name(text: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        pair(text, text)
    assert parse_any(text).spelling in caught.value.message


def test_group_must_divide() -> None:
    with pytest.raises(UsageError, match="96") as caught:
        pair("int8:group/64", "bf16", dim=96)
    assert "16, 32" in caught.value.hint


def test_page_size_must_hold_whole_groups() -> None:
    layout = pair("int8:channel/96", "int8")
    assert layout.page_multiple == 96
    with pytest.raises(UsageError) as caught:
        layout.page_bytes(128)
    assert "96 or 192" in caught.value.hint


def test_a_view_is_a_compile_key() -> None:
    a, b = pair("int8", "int8").view("k"), pair("int8", "int8", heads=4).view("k")
    assert a == b and hash(a) == hash(b) and repr(a) == repr(b)
    assert pair("int8", "fp8_e4m3").view("k") != a
    assert type(a).__str__ is object.__str__
    with pytest.raises(dataclasses.FrozenInstanceError):
        a.dim = 64  # type: ignore[misc]


def test_different_layouts_have_different_views() -> None:
    """Two layouts that differ in bytes or codes must not share a compiled kernel."""
    assert len({repr(pair(f, f).view("k")) for f in BUILT}) == len(BUILT)
