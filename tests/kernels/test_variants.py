"""Decode with a window, softcap, sinks, several query rows, own rows and the FP8 domain, against float64."""

from __future__ import annotations

import pytest
import torch
from kvplan_kernels.attention.config import DecodeConfig
from kvplan_kernels.attention.decode import decode
from kvplan_kernels.attention.reference import attention_reference
from kvplan_kernels.attention.variant import PLAIN, Variant
from kvplan_kernels.cache import Cache, allocate
from kvplan_kernels.store.reference import read_reference, write_reference
from kvplan_kernels.store.static import calibrate_cache
from kvplan_kernels.testing import FP8_DOMAIN, KERNEL, as_bytes, layout_of, relative_error
from torch import Tensor

from kvplan.errors import UnsupportedError

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = DecodeConfig(block_tokens=32, num_warps=1, num_stages=3, ctas_per_sm=1)
LENGTHS = [0, 1, 33, 150, 128]
SINKS = torch.tensor([0.5, 3.0, -2.0, 6.0], device=DEVICE)
VARIANTS = {
    "window of 1": Variant(window=1),
    "window of 40": Variant(window=40),
    "window longer than all": Variant(window=1000),
    "softcap": Variant(softcap=2.0),
    "sinks": Variant(sinks=SINKS),
    "all": Variant(window=70, softcap=5.0, sinks=SINKS),
}
# Static zeros, groups and recent rows: where shifts common to all scores come from; the trap matrix crosses the rest.
PAIRS = [
    ("int8:channel,asym", "int8,asym"), ("int4:group/32,asym", "int2:token,asym"), ("int3,rot", "int4,rot"),
    ("int2:channel/32,asym,recent=64", "int2:group/32,asym,recent=64"), ("int8:token,recent=16", "int8:head,asym"),
]  # fmt: skip


def filled(k: str, v: str, lengths: list[int], page_size: int = 64, dim: int = 64, heads: int = 2) -> Cache:
    """A cache on shuffled pages whose unused bytes are NaN."""
    layout = layout_of(k, v, dims=(dim, dim), heads=heads)
    draw = torch.Generator().manual_seed(3)
    most = max(1, *lengths)
    cache = allocate(
        layout, num_sequences=len(lengths), max_tokens=most, page_size=page_size, device=DEVICE,
        num_pages=len(lengths) * -(-most // page_size) + 2, shuffle=draw,
    )  # fmt: skip
    for plane in cache.planes.values():
        as_bytes(plane).fill_(0xFF)
    rows = [torch.randn(len(lengths), most, heads, dim, generator=draw).to(DEVICE) + 0.3 for _ in "kv"]
    calibrate_cache(cache, *rows)
    write_reference(cache, *rows, counts=torch.tensor(lengths, dtype=torch.int32, device=DEVICE))
    return cache


def queries(cache: Cache, rows: int, group: int = 2, dtype: torch.dtype = torch.float16) -> Tensor:
    shape = (cache.num_sequences, rows, cache.layout.heads * group, cache.layout.view("k").dim)
    return (torch.randn(shape, generator=torch.Generator().manual_seed(1)) + 0.2).to(DEVICE, dtype)


def stored(cache: Cache, role: str, request: int) -> Tensor:
    return read_reference(cache, role, request).double()


def assert_right(q: Tensor, cache: Cache, variant: Variant = PLAIN, config: DecodeConfig = SMALL) -> Tensor:
    out = torch.full((*q.shape[:-1], cache.layout.view("v").dim), torch.nan, device=DEVICE)
    decode(q, cache, variant=variant, config=config, out=out)
    k, v = (lambda b, role=role: stored(cache, role, b) for role in ("k", "v"))
    error = relative_error(out, attention_reference(q, k, v, cache.lengths, q.shape[-1] ** -0.5, variant))
    assert KERNEL.accepts(error), error
    return out


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize(("k", "v"), PAIRS)
def test_every_variant_of_attention(k: str, v: str, name: str) -> None:
    cache = filled(k, v, LENGTHS)
    out = assert_right(queries(cache, 1), cache, VARIANTS[name])
    assert not out[0].any(), "a request of length 0 gives zeros"


@pytest.mark.parametrize(("rows", "group"), [(2, 1), (3, 2), (5, 7)])
@pytest.mark.parametrize(("k", "v"), PAIRS)
def test_several_rows_see_the_cache_up_to_themselves(k: str, v: str, rows: int, group: int) -> None:
    cache = filled(k, v, LENGTHS, heads=1)
    out = assert_right(queries(cache, rows, group, torch.bfloat16), cache)
    assert not out[1, : rows - 1].any(), "rows before the first position see nothing"


def test_several_rows_with_everything() -> None:
    cache = filled("int8:channel,asym", "int4:group/32,asym", LENGTHS)
    for variant in VARIANTS.values():
        assert_right(queries(cache, 4), cache, variant)


def test_more_columns_than_a_block() -> None:
    """Forty rows of three heads are two blocks, the second with columns that do not exist."""
    cache = filled("int8", "int4", [70, 33, 150], heads=2)
    assert_right(queries(cache, 40, 3), cache, Variant(window=50, sinks=torch.linspace(-1, 2, 6).to(DEVICE)))


@pytest.mark.parametrize("name", ["window of 40", "all"])
def test_what_lies_left_of_every_window_is_never_read(name: str) -> None:
    """Pages that no window reaches may have been given away: they hold NaN, and their table entries are nonsense."""
    cache = filled("int8", "fp16", [150, 130], page_size=16)
    q = queries(cache, 2)
    before = decode(q, cache, variant=VARIANTS[name], config=DecodeConfig(16, 1, 3, 1))
    for b, length in enumerate(cache.lengths.tolist()):
        gone = (length - 2 - (VARIANTS[name].window or 0) + 1) // 16
        for page in cache.page_table[b, :gone].tolist():
            for plane in cache.planes.values():
                as_bytes(plane)[page] = 0xFF
    assert torch.equal(before, decode(q, cache, variant=VARIANTS[name], config=DecodeConfig(16, 1, 3, 1)))


@pytest.mark.parametrize("variant", [PLAIN, Variant(window=20), VARIANTS["all"]])
@pytest.mark.parametrize(
    ("k", "v"), [("int8:channel", "fp8_e4m3"), ("int4:group/32,asym", "int4:token,asym"), ("int4,rot", "int3,rot"),
                 ("int8:token,recent=16", "int8:token,recent=24")],
)  # fmt: skip
def test_rows_whose_own_keys_are_not_in_the_cache(k: str, v: str, variant: Variant) -> None:
    """A chunk behind a stored prefix: its own rows come as a partial result, and both are one softmax."""
    rows = 6
    cache = filled(k, v, [0, 17, 100, 64])
    q = queries(cache, rows)
    k_own, v_own = (torch.randn(4, 2, rows, 64, generator=torch.Generator().manual_seed(i)).to(DEVICE) for i in (5, 6))
    scale = 64**-0.5
    alone = Variant(window=variant.window, softcap=variant.softcap)
    out = attention_reference(q, k_own, v_own, torch.full((4,), rows), scale, alone).float()
    logits = torch.einsum("brhgd,bhtd->brhgt", q.view(4, rows, 2, 2, 64).double(), k_own.double()).reshape(
        4, rows, 4, -1
    )
    logits = logits * scale
    if variant.softcap:
        logits = variant.softcap * torch.tanh(logits / variant.softcap)
    r, t = torch.arange(rows, device=DEVICE)[:, None], torch.arange(rows, device=DEVICE)[None]
    unseen = (t > r) | (t <= r - (variant.window or rows))
    logits = logits.masked_fill(unseen[None, :, None], -torch.inf)
    lse = (torch.logsumexp(logits, -1) * 1.4426950408889634).float()
    found = torch.full((4, rows, 4, 64), torch.nan, device=DEVICE)
    decode(q, cache, variant=variant, own=(out.contiguous(), lse.contiguous()), out=found, config=SMALL)
    k_all, v_all = (
        lambda b, role=role, own=own: torch.cat([stored(cache, role, b), own[b].double()], 1)
        for role, own in (("k", k_own), ("v", v_own))
    )
    wanted = attention_reference(q, k_all, v_all, cache.lengths + rows, scale, variant)
    error = relative_error(found, wanted)
    assert KERNEL.accepts(error), error


def test_split_count_and_tile_do_not_matter_with_windows_and_rows() -> None:
    cache = filled("int4:group/32,asym", "int8", [243, 0, 17, 130])
    q = queries(cache, 3)
    outs = [
        assert_right(q, cache, VARIANTS["all"], DecodeConfig(tokens, 1, 3, ctas))
        for tokens, ctas in ((32, 1), (32, 2), (64, 1), (16, 16))
    ]
    for out in outs[1:]:
        assert relative_error(out, outs[0]).relative < 1e-3


@pytest.mark.parametrize(("k", "v"), [("fp8_e4m3", "fp8_e4m3"), ("fp8_e4m3:head", "fp8_e4m3")])
def test_fp8_domain_rounds_queries_and_probabilities_as_its_reference(k: str, v: str) -> None:
    cache = filled(k, v, LENGTHS)
    q = queries(cache, 3, dtype=torch.bfloat16)
    keys, values = (lambda b, role=role: stored(cache, role, b) for role in ("k", "v"))
    exact = attention_reference(q, keys, values, cache.lengths, 0.125)
    wanted = attention_reference(q, keys, values, cache.lengths, 0.125, fp8_domain=True)
    for config in (SMALL, DecodeConfig(64, 1, 3, 4)):
        out = torch.full(q.shape, torch.nan, device=DEVICE)
        decode(q, cache, fp8_domain=True, config=config, out=out)
        assert FP8_DOMAIN.accepts(relative_error(out, wanted)), relative_error(out, wanted)
        # The rounding is there: it costs far more than the kernel's own error.
        assert relative_error(out, exact).relative > 2 * relative_error(out, wanted).relative + KERNEL.relative


def test_what_has_no_fp8_domain_is_refused() -> None:
    for k in ("int8", "fp8_e4m3:token", "fp8_e5m2"):
        cache = filled(k, "fp8_e4m3", [20])
        with pytest.raises(UnsupportedError, match="FP8-domain"):
            decode(queries(cache, 1), cache, fp8_domain=True)


def test_the_door_names_what_differs_in_a_variant() -> None:
    cache = filled("int8", "int8", [20])
    q = queries(cache, 2)
    with pytest.raises(ValueError, match="sinks"):
        decode(q, cache, variant=Variant(sinks=SINKS[:3].clone()))
    with pytest.raises(ValueError, match="own lse"):
        decode(q, cache, own=(torch.zeros(1, 2, 4, 64, device=DEVICE), torch.zeros(1, 2, 3, device=DEVICE)))
    with pytest.raises(ValueError, match="window of 0"):
        Variant(window=0)
    with pytest.raises(ValueError, match="softcap"):
        Variant(softcap=0.0)
