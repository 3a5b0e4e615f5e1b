"""Layouts: sizes by hand, the split law, planes, refusals by name."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.errors import UsageError
from kvplan.formats.grammar import Pair, parse_any, parse_kv
from kvplan.formats.grid import Tensor, bind
from kvplan.formats.layout import Layout

# Formats that a view can describe, with or without a kernel.
BUILT = [
    "fp32", "fp16", "bf16", "int2", "int4", "int4:group/32,asym", "fp4_e2m1", "fp8_e4m3", "fp8_e4m3:head",
    "fp8_e4m3:token", "fp8_e4m3:channel", "fp8_e4m3:group/32", "fp8_e5m2", "fp8_e5m2:head", "fp8_e5m2:token",
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
     ("int8,scale=fp32", "int8,scale=fp32", 264), ("int8:channel/32", "int8", 128 + 8 + 130),
     ("int6", "int5:group/32", 98 + 88), ("int4", "int4:group/64,asym", 66 + 72), ("int3", "int3:channel/64", 50 + 52),
     ("fp8_e4m3:group/32", "fp8_e4m3:channel/64", 136 + 132), ("fp4_e2m1", "fp4_e2m1:token", 80 + 66),
     ("lm4,rot", "lm2:group/64,rot", 66 + 36), ("int8,rot", "int4:head,rot", 130 + 64),
     ("int8,pack=slot", "int8:channel/32,asym,scale=fp32,pack=page", 130 + 160), ("int4,scale=model", "bf16", 322)],
)  # fmt: skip
def test_row_bytes(k: str, v: str, expected: int) -> None:
    assert row_bytes(pair(k, v)) == expected


def test_static_formats_are_exactly_half() -> None:
    for text in ("int8:tensor", "int8:head", "int8:channel", "fp8_e4m3", "fp8_e5m2:head"):
        assert 2 * row_bytes(pair(text, text)) == row_bytes(pair("bf16", "bf16"))


@pytest.mark.parametrize(
    ("text", "heads", "constant"),
    [("int8:tensor", 8, 8), ("int8:head", 8, 64), ("int8:channel", 8, 8192), ("int8:channel,asym", 8, 16384),
     ("fp8_e4m3", 8, 8), ("fp8_e4m3:head,scale=fp16", 8, 32), ("int8", 8, 0), ("bf16", 8, 0),
     ("int4:channel", 8, 8192), ("fp8_e4m3:channel,scale=fp16", 8, 4096), ("fp4_e2m1,global=fp32", 8, 8),
     ("lm4,rot", 8, 0), ("int8,rot", 8, 0)],
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


@given(
    st.sampled_from(["int8:channel/32", "int4:channel/32,recent=96", "int2,recent=128", "int8,recent=64,flush=whole"]),
    st.integers(0, 5000),
)
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


RESIDUALS = ("int8", "int8,recent=1", "int8,recent=48", "int8,recent=64,flush=whole", "int8:channel/32,recent=96",
             "int8:channel/16")  # fmt: skip


@pytest.mark.parametrize("text", RESIDUALS)
def test_what_follows_from_the_split_law(text: str) -> None:
    t = pair(text, text).tensor("k")
    for tokens in range(300):
        assert max(n for n in range(500) if t.split(n)[0] <= tokens) == t.holds(tokens) or t.holds(tokens) >= 499
    for new in (1, 7, 48, 150):
        packed = max(t.split(n + new)[0] - t.split(n)[0] for n in range(300))
        assert packed == t.most_packed(new)
    for other in RESIDUALS:
        o = pair(other, other).tensor("k")
        assert t.waits_at_most_like(o) == all(t.split(n)[1] <= o.split(n)[1] for n in range(400)), other


def test_kivi_splits_k_and_v_apart() -> None:
    """K keeps S mod R whole, V the last R; before the first flush neither has codes."""
    chosen = parse_kv("kivi2")
    assert isinstance(chosen, Pair)
    layout = bind([Tensor("k", chosen.k, 128), Tensor("v", chosen.v, 128)], 8, "bf16")
    k, v = layout.tensor("k"), layout.tensor("v")
    assert [(k.split(n), v.split(n)) for n in (100, 128, 300)] == [
        ((0, 100), (0, 100)), ((128, 0), (0, 128)), ((256, 44), (172, 128)),
    ]  # fmt: skip
    assert {p.name: (p.tokens, p.slot_bytes) for p in layout.scoped("page")} == {
        "k_codes": (1, 32), "v_codes": (1, 32), "meta_fp16_per_32": (32, 512), "meta_fp16": (1, 16),
    }  # fmt: skip
    assert layout.fixed_bytes("residual") == 8 * 2 * 128 * 256


def test_codes_of_no_power_of_two_are_a_low_and_a_high_part() -> None:
    layout = pair("int5", "lm3,rot", dim=96, heads=2)
    widths = {p.name: (p.storage, p.slot_bytes) for p in layout.scoped("page")}
    assert widths == {
        "k_codes": ("int4", 48), "k_high": ("int1", 12), "v_codes": ("int2", 24), "v_high": ("int1", 12),
        "meta_fp16": ("fp16", 4),
    }  # fmt: skip


def test_a_row_of_the_rank_holds_groups_across_heads() -> None:
    """Two heads of 80 channels: 160 = 5 x 32, though 32 does not divide 80."""
    layout = pair("int4:group/32,row", "bf16", dim=80, heads=2)
    codes, meta = layout.plane("k", "codes"), layout.plane("k", "scale")
    assert (codes.heads(2), codes.slot_bytes, meta.heads(2), meta.slot_bytes) == (1, 80, 1, 10)
    assert layout.page_bytes(16) == 16 * (80 + 10 + 2 * 160)
    with pytest.raises(UsageError, match="1 x 80 channels"):
        pair("int4:group/32,row", "bf16", dim=80, heads=1)


def test_a_scale_above_the_scales_is_constant() -> None:
    layout = pair("nvfp4", "nvfp4", heads=8)
    assert (layout.page_bytes(16), layout.fixed_bytes("layer")) == (16 * 8 * 144, 8)


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


@pytest.mark.parametrize(("a", "b"), [(a, b) for a in BUILT for b in BUILT if a < b])
def test_different_layouts_have_different_views(a: str, b: str) -> None:
    """Two layouts that differ in bytes or codes must not share a compiled kernel."""
    assert repr(pair(a, a).view("k")) != repr(pair(b, b).view("k"))
