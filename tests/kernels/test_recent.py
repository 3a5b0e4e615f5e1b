"""Scales by channel over N tokens and rows that wait in a residual: kernels against the references, KIVI included."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from kvplan_kernels.attention.config import DecodeConfig, default_config
from kvplan_kernels.attention.decode import decode
from kvplan_kernels.attention.reference import attention_reference
from kvplan_kernels.cache import Cache, allocate
from kvplan_kernels.store.append import append
from kvplan_kernels.store.reference import read_reference, write_reference
from kvplan_kernels.testing import DEVICE, KERNEL, as_bytes, differing_bytes, layout_of, relative_error
from torch import Tensor

from kvplan.errors import UnsupportedError

SMALL = DecodeConfig(block_tokens=32, num_warps=1, num_stages=3, ctas_per_sm=1)
KIVI2 = ("int2:channel/32,asym,recent=128", "int2:group/32,asym,recent=128")
KIVI4 = ("int4:channel/16,asym,recent=32", "int4:group/16,asym,recent=32")
LENGTHS = (0, 1, 31, 32, 33, 100, 129)


def empty(
    k: str, v: str, sequences: int, most: int, dims: tuple[int, int] = (64, 64), page: int = 64, heads: int = 1,
    garbage: int = 0xFF, dtype: str = "fp16",
) -> Cache:  # fmt: skip
    """A cache on shuffled pages, all bytes `garbage` (0xFF: NaN as fp16 and bf16), with two pages nobody owns."""
    layout = layout_of(k, v, dims, heads, dtype)
    page = page if page % layout.page_multiple == 0 else layout.page_multiple
    cache = allocate(
        layout, num_sequences=sequences, max_tokens=most, page_size=page, device=DEVICE,
        num_pages=sequences * -(-most // page) + 2, shuffle=torch.Generator().manual_seed(3),
    )  # fmt: skip
    for plane in cache.planes.values():
        as_bytes(plane).fill_(garbage)
    return cache


def rows(cache: Cache, tokens: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw, heads = torch.Generator().manual_seed(seed), cache.layout.heads
    dims = [cache.layout.tensor(role).dim for role in ("k", "v")]
    k, v = (torch.randn(cache.num_sequences, tokens, heads, d, generator=draw) for d in dims)
    return k.to(DEVICE), (v + 0.3).to(DEVICE)


def filled(k: str, v: str, lengths: tuple[int, ...] = LENGTHS, **given: object) -> Cache:
    cache = empty(k, v, len(lengths), max(lengths), **given)  # type: ignore[arg-type]
    write_reference(cache, *rows(cache, max(lengths)), counts=torch.tensor(lengths, dtype=torch.int32, device=DEVICE))
    return cache


def query(cache: Cache, group: int = 2, dtype: torch.dtype = torch.float16) -> Tensor:
    shape = (cache.num_sequences, cache.layout.heads * group, cache.layout.view("k").dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(DEVICE, dtype)


def assert_right(cache: Cache, q: Tensor, config: DecodeConfig | None = SMALL) -> Tensor:
    """Run the kernel over NaN and hold it to the tolerance table; returns its output."""
    out = torch.full((*q.shape[:2], cache.layout.view("v").dim), torch.nan, device=DEVICE)
    decode(q, cache, config=config, out=out)
    stored = [lambda b, role=role: read_reference(cache, role, b) for role in ("k", "v")]
    error = relative_error(out, attention_reference(q, *stored, cache.lengths, q.shape[-1] ** -0.5))
    assert KERNEL.accepts(error), error
    return out


@pytest.mark.parametrize(
    ("k", "v"),
    [
        KIVI4, ("int8:channel/32", "int8:channel/32"), ("int4:channel/32,asym", "int2:channel/16"),
        ("fp8_e4m3:channel/16", "int4:token,asym"),
        ("int8:channel/32,asym,scale=bf16", "fp8_e5m2:channel/16,scale=fp32"),
        ("int8:token,recent=40", "int8:token,recent=40"),
        # Keys wait longer than values, values longer than keys, each in turn, one of the two not at all.
        ("int4:token,recent=48", "int8:group/32,recent=24,flush=whole"),
        ("int8:channel/16,recent=96", "int8,asym,recent=20"), ("int2:channel/32,asym", "int8"),
        ("bf16", "int2:group/32,asym,recent=32"),
    ],
)  # fmt: skip
def test_every_format_at_every_kind_of_length(k: str, v: str) -> None:
    cache = filled(k, v)
    out = assert_right(cache, query(cache))
    assert not out[0].any(), "a request of length 0 gives zeros"


def test_kivi_with_its_own_default_launch() -> None:
    cache = filled(*KIVI2, lengths=(127, 128, 129, 255, 257, 300), dims=(128, 128), page=128)
    assert_right(cache, query(cache, 4, torch.bfloat16), None)


@pytest.mark.parametrize(
    ("k", "v", "dims", "group"),
    [
        ("int8:channel/16,asym", "int8:channel/48,asym", (80, 96), 7),
        ("int4:channel/16,recent=32", "int4:channel/16,asym,recent=16", (48, 256), 3),
        ("int2:channel/32,asym,recent=32", "int2:group/16,asym,recent=50", (72, 112), 16),
    ],
)
def test_any_head_dim_and_any_number_of_query_heads(k: str, v: str, dims: tuple[int, int], group: int) -> None:
    cache = filled(k, v, lengths=(70, 5), dims=dims, page=96)
    assert_right(cache, query(cache, group, torch.bfloat16))


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_waiting_rows_of_both_dtypes(dtype: str) -> None:
    cache = filled("int4:channel/16,recent=48", "int4,recent=30", lengths=(47, 90), dtype=dtype)
    assert_right(cache, query(cache, 4, torch.bfloat16))


def test_result_does_not_depend_on_the_number_of_programs_or_the_tile() -> None:
    cache = filled(*KIVI4, lengths=(243, 0, 17, 130))
    q = query(cache)
    outs = [assert_right(cache, q, DecodeConfig(n, 1, 3, ctas)) for n, ctas in ((16, 4), (32, 1), (64, 2))]
    for out in outs[1:]:
        assert relative_error(out, outs[0]).relative < 1e-3


@pytest.mark.parametrize(("k", "v"), [KIVI4, ("int8:channel/16", "int8:channel/32")])
def test_garbage_in_unused_slots_never_leaks(k: str, v: str) -> None:
    outs = []
    for garbage in (0xFF, 0x7C, 0x00):
        cache = filled(k, v, lengths=(33, 100, 0, 31), dims=(80, 80), garbage=garbage)
        outs.append(decode(query(cache), cache, config=SMALL))
    assert torch.equal(outs[0], outs[1]) and torch.equal(outs[0], outs[2])


def change_scale(cache: Cache) -> None:
    """Double K's scales in the group of tokens 32 to 47."""
    view, slots = cache.layout.view("k"), cache.page_size // 16
    meta = cache.meta("k")
    assert meta is not None
    meta[int(cache.page_table[0, 2 // slots]), 0, 2 % slots, view.scale_at : view.scale_at + 64] *= 2


def change_waiting_key(cache: Cache) -> None:
    ring = cache.residual("k")
    assert ring is not None
    ring[0, 0, 99 % 32] *= 2


def change_waiting_value(cache: Cache) -> None:
    ring = cache.residual("v")
    assert ring is not None
    ring[0, 0, 68 % 32, 7] += 9


@pytest.mark.parametrize("change", [change_scale, change_waiting_key, change_waiting_value])
def test_a_changed_scale_or_waiting_row_changes_the_output_as_the_reference_says(
    change: Callable[[Cache], None],
) -> None:
    cache = filled(*KIVI4, lengths=(100,))
    q = query(cache)
    before = assert_right(cache, q)
    change(cache)
    assert relative_error(assert_right(cache, q), before).relative > 0.01


def test_queries_of_any_size_keep_their_precision() -> None:
    cache = filled("int4:channel/16,asym,recent=32", "int8", lengths=(40, 64))
    q = query(cache, 2, torch.bfloat16)
    stored = [lambda b, role=role: read_reference(cache, role, b) for role in ("k", "v")]
    for factor in (1e-6, 3e4):
        scaled = (q * factor).to(torch.bfloat16)
        out = torch.empty((*q.shape[:2], 64), device=DEVICE)
        decode(scaled, cache, config=SMALL, sm_scale=0.125 / factor, out=out)
        wanted = attention_reference(scaled, *stored, cache.lengths, 0.125 / factor)
        assert KERNEL.accepts(relative_error(out, wanted))


def test_streaming_token_by_token_over_flushes_and_reused_pages() -> None:
    """A generation as a server runs it: prompts of two lengths, then single tokens; then the pages serve others."""
    cache, oracle = (empty(*KIVI4, 2, 80) for _ in range(2))
    for seed, counts in ((0, [31, 64]), (1, [5, 40])):
        k, v = rows(cache, 80, seed)
        cache.lengths.zero_()
        oracle.lengths.zero_()
        count = torch.tensor(counts, dtype=torch.int32, device=DEVICE)
        append(cache, k[:, :64], v[:, :64], counts=count)
        write_reference(oracle, k[:, :64], v[:, :64], counts=count)
        for t in range(64, 70):
            append(cache, k[:, t : t + 1], v[:, t : t + 1])
            write_reference(oracle, k[:, t : t + 1], v[:, t : t + 1])
        assert differing_bytes(cache, oracle) == {}
        assert_right(cache, query(cache))


def test_rows_that_wait_need_no_page() -> None:
    cache = allocate(layout_of(*KIVI2), num_sequences=2, max_tokens=100, page_size=32, device=DEVICE)
    assert cache.page_table.shape == (2, 0) and cache.max_tokens == 127
    append(cache, *rows(cache, 100))
    assert_right(cache, query(cache))
    with pytest.raises(ValueError, match="128 tokens do not fit the 127"):
        append(cache, *rows(cache, 28), max_length=128)


def test_what_the_decode_kernel_cannot_read_is_refused_by_name() -> None:
    for spelling, dtype in (("int8:channel/24", "fp16"), ("int8,recent=8", "fp32")):
        cache = empty(spelling, spelling, 1, 48, page=48, dtype=dtype)
        with pytest.raises(UnsupportedError, match=cache.layout.tensor("k").spelling):
            decode(query(cache), cache)
    cache = empty("int8:channel/16", "int8", 1, 256, page=256)
    with pytest.raises(ValueError, match="16 groups, at most 8"):
        decode(query(cache), cache, config=DecodeConfig(256, 1, 3, 4))


def test_default_launch_keeps_its_rules() -> None:
    for k, v in (KIVI2, KIVI4, ("int8:channel/32", "int8:channel/32")):
        for dim in (64, 128, 256):
            for group in (1, 4, 16):
                config = default_config(layout_of(k, v, dims=(dim, dim)), 128, group)
                assert config.num_warps * config.ctas_per_sm % 4 == 0 and 128 % config.block_tokens == 0
