"""Properties of the grammar and of every layout, against arithmetic that shares nothing with the layouts."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from kvplan.errors import UnsupportedError, UsageError
from kvplan.formats import grammar
from kvplan.formats.grammar import Format, Pair, parse_any, parse_format, parse_kv
from kvplan.formats.grid import Tensor, bind
from kvplan.formats.layout import Layout

BITS = {"fp32": 32, "fp16": 16, "bf16": 16, "fp8_e4m3": 8, "fp8_e5m2": 8, "fp4_e2m1": 4, "lm4": 4, "lm3": 3, "lm2": 2,
        **{f"int{n}": n for n in (8, 7, 6, 5, 4, 3, 2, 1)}}  # fmt: skip
SCALE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "e4m3": 1, "e8m0": 1}
DIMS = (64, 80, 96, 112, 128, 192, 256, 512, 576)


def spellings() -> st.SearchStrategy[str]:
    """Spellings of the whole grammar with random options in random order; some combinations are refused."""
    where = st.one_of(
        st.sampled_from(["", ":tensor", ":head", ":channel", ":token"]),
        st.builds(":{}/{}".format, st.sampled_from(["channel", "group"]), st.sampled_from([1, 7, 16, 32, 64, 128])),
    )
    option = st.one_of(
        st.sampled_from(["asym", "row", "flat", "rot"]),
        *(st.sampled_from(values).map(f"{name}={{}}".format) for name, values in grammar.VALUES.items()),
        st.integers(1, 512).map("recent={}".format),
    )
    options = st.lists(option, max_size=5, unique_by=lambda o: o.split("=")[0])
    return st.builds(lambda n, w, o: ",".join([n + w, *o]), st.sampled_from(grammar.NUMBERS), where, options)


@given(spellings())
def test_round_trip(text: str) -> None:
    try:
        value = parse_format(text)
    except UsageError as error:
        assert "\n" not in error.message + error.hint
        return
    again = parse_format(value.spelling)
    assert again == value
    assert again.spelling == value.spelling
    assert value.spelling == value.spelling.lower().replace(" ", "")


def bytes_by_hand(f: Format, dim: int, rope: int, heads: int, tokens: int) -> Fraction:
    """Bytes of `tokens` packed tokens of a rank, from the meaning of the spelling; model dtype fp16."""
    channels = (dim - rope if f.rope else dim) * heads
    scales = {"token": heads, "group": Fraction(channels, f.group or 1), "channel": Fraction(channels, f.group or 1)}
    per_token = Fraction(channels * BITS[f.number], 8)
    if f.granularity in scales and not f.is_static:
        per_token += scales[f.granularity] * SCALE_BYTES.get(f.scale, 2) * (2 if f.asym else 1)
    return (per_token + (rope * 2 if f.rope else 0)) * tokens


def constant_by_hand(f: Format, dim: int, rope: int, heads: int) -> int:
    """Bytes of static and global scales of a layer."""
    each = {"tensor": 1, "head": heads, "channel": heads * (dim - rope if f.rope else dim)}
    scales = each[f.granularity] * SCALE_BYTES.get(f.scale, 2) * (2 if f.asym else 1) if f.is_static else 0
    return scales + (4 if f.global_scale else 0)


@settings(max_examples=500)
@given(spellings(), st.sampled_from(["k", "latent", "index"]), st.sampled_from(DIMS), st.integers(1, 8))
@example("fp8_e4m3:group/128,scale=fp32,pack=slot,rope=bf16", "latent", 576, 1)
@example("int3:channel/32,asym,recent=64,pack=page", "k", 112, 3)
@example("int5:group/32,row,asym,pack=slot", "k", 80, 2)
@example("int1:group/64,asym,flat", "k", 80, 1)
def test_every_spelling_binds_to_its_bytes_or_is_refused(text: str, role: str, dim: int, heads: int) -> None:
    heads, rope = (heads, 0) if role == "k" else (1, 64 if role == "latent" and dim > 64 else 0)
    try:
        f = parse_format(text)
        layout = bind([Tensor(role, f, dim, rope)], heads, "fp16")
    except (UsageError, UnsupportedError) as error:
        assert "\n" not in error.message + error.hint
        return
    page = layout.page_multiple * 16
    assert layout.page_bytes(page) == bytes_by_hand(f, dim, rope, heads, page)
    assert layout.fixed_bytes("layer") == constant_by_hand(f, dim, rope, heads)
    assert layout.fixed_bytes("residual") == f.recent * heads * dim * 2
    assert layout.tensor(role).spelling == f.spelling


@given(spellings(), spellings(), st.sampled_from(DIMS), st.integers(1, 8))
def test_k_and_v_add_up(k: str, v: str, dim: int, heads: int) -> None:
    """Metadata that K and V share in one plane changes no byte."""
    try:
        parts = [bind([Tensor(r, parse_format(f), dim)], heads, "bf16") for r, f in (("k", k), ("v", v))]
        both = bind([Tensor("k", parse_format(k), dim), Tensor("v", parse_format(v), dim)], heads, "bf16")
    except UsageError:
        return
    page = both.page_multiple * 2
    assert both.page_bytes(page) == sum(p.page_bytes(page) for p in parts)
    for scope in ("residual", "layer"):
        assert both.fixed_bytes(scope) == sum(p.fixed_bytes(scope) for p in parts)
    assert len({p.name for p in both.planes}) == len(both.planes)
    fields = [(f.tensor, f.name, p.scope) for p in both.planes for f in p.fields]
    assert len(set(fields)) == len(fields)


def payload(layout: Layout, tokens: int) -> int:
    codes = [(f, p) for p in layout.scoped("page") for f in p.fields if f.role == "payload"]
    return sum(tokens * p.heads(layout.heads) * f.unit_bytes for f, p in codes)


@pytest.mark.parametrize("where", ["tensor", "head", "channel", "token", "group/32", "channel/32"])
@pytest.mark.parametrize("dim", DIMS)
def test_fewer_bits_are_never_more_bytes(where: str, dim: int) -> None:
    if where == "group/32" and dim % 32:
        return
    made = [
        bind([Tensor("k", parse_any(f"int{bits}:{where}"), dim)], 2, "fp16")
        for bits in (8, 6, 5, 4, 3, 2)
    ]  # fmt: skip
    codes = [payload(layout, 64) for layout in made]
    pages = [layout.page_bytes(64) for layout in made]
    assert codes == sorted(codes, reverse=True) and len(set(codes)) == 6
    assert pages == sorted(pages, reverse=True)


@given(st.sampled_from(["kivi2", "kivi4"]), st.sampled_from([16, 32, 64]), st.integers(1, 8), st.integers(0, 3000))
def test_the_split_law_of_kivi(name: str, group: int, blocks: int, tokens: int) -> None:
    recent = group * blocks
    pair = parse_kv(f"{name}/{group},recent={recent}")
    assert isinstance(pair, Pair)
    assume(128 % group == 0)
    layout = bind([Tensor("k", pair.k, 128), Tensor("v", pair.v, 128)], 1, "bf16")
    k, v = layout.tensor("k").split(tokens), layout.tensor("v").split(tokens)
    assert k == (tokens // recent * recent, tokens % recent)
    assert v == (max(tokens - recent, 0), min(tokens, recent))
    assert k[0] % group == 0
    if tokens < recent:
        assert k[0] == v[0] == 0
