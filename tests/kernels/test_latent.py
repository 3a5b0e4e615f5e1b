"""The MLA latent: codec, write kernel, decode kernel and unfused baseline, bit by bit and against float64."""

from __future__ import annotations

import pytest
import torch
from kvplan_kernels.attention.latent import latent_decode, make_latent_workspace
from kvplan_kernels.attention.latent_config import LatentConfig
from kvplan_kernels.attention.latent_unfused import dequantise_latent, latent_scratch_bytes, latent_unfused_decode
from kvplan_kernels.attention.reference import attention_reference
from kvplan_kernels.attention.variant import Variant
from kvplan_kernels.attention.work import tile_starts
from kvplan_kernels.cache import Cache, allocate, field_view
from kvplan_kernels.codecs.ds_mla import decode_latent, encode_latent
from kvplan_kernels.store.latent import append_latent
from kvplan_kernels.store.latent_reference import read_latent_reference, write_latent_reference
from kvplan_kernels.testing import (
    DEVICE,
    KERNEL,
    as_bytes,
    differing_bytes,
    guard_pages,
    layout_of,
    poison,
    relative_error,
    written_bytes,
)  # fmt: skip
from torch import Tensor

from kvplan.errors import UnsupportedError
from kvplan.formats.ds_mla import latent_view
from kvplan.formats.grammar import parse_any
from kvplan.formats.grid import Tensor as Stored
from kvplan.formats.grid import bind
from kvplan.formats.layout import Layout

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy warns where the kernel saturates

# DeepSeek's softmax scale: its heads have 128 + 64 channels before absorption.
SM_SCALE = 192**-0.5
FORMATS = ("fp8_ds_mla", "bf16", "fp16")
# A small row of the same kind: 64 codes in two groups, 16 rope values.
SMALL = "fp8_e4m3:group/32,scale=fp32,pack=slot,rope=fp16"
TILE = LatentConfig(block_tokens=16, num_warps=4, num_stages=2, ctas_per_sm=1, columns=16)


def latent_layout(spelling: str) -> Layout:
    nope, rope = (64, 16) if spelling == SMALL else (512, 64)
    stored = Stored("latent", parse_any(spelling), nope + rope, rope)
    return bind([stored], 1, "fp16" if spelling == "fp16" else "bf16")


def make(spelling: str, sequences: int = 2, tokens: int = 48, page_size: int = 16, extra: int = 2) -> Cache:
    """An empty cache on shuffled pages with `extra` pages that nobody owns."""
    pages = sequences * -(-tokens // page_size) + extra
    shuffle = torch.Generator().manual_seed(1)
    return allocate(
        latent_layout(spelling), num_sequences=sequences, max_tokens=tokens, page_size=page_size, device=DEVICE,
        num_pages=pages, shuffle=shuffle,
    )  # fmt: skip


def rows_like(cache: Cache, tokens: int, seed: int = 0) -> Tensor:
    shape = (cache.num_sequences, tokens, latent_view(cache.layout).dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def filled(spelling: str, lengths: list[int], page_size: int = 16, garbage: int = 0xFF) -> Cache:
    """A cache whose unused bytes all hold `garbage` (0xFF: NaN as fp16, bf16, fp32 and fp8)."""
    cache = make(spelling, len(lengths), max(1, *lengths), page_size)
    poison(cache, garbage)
    rows = rows_like(cache, max(lengths))
    rows[..., :8] += 0.5
    write_latent_reference(cache, rows, counts=torch.tensor(lengths, dtype=torch.int32, device=DEVICE))
    return cache


def query(cache: Cache, heads: int, rows: int = 0, dtype: torch.dtype | None = None) -> Tensor:
    """`(B, HQ, D)`, or `(B, rows, HQ, D)`; bf16 latents get the bf16 queries that their kernel computes with."""
    view = latent_view(cache.layout)
    shape = (cache.num_sequences, *((rows,) if rows else ()), heads, view.dim)
    dtype = dtype or (torch.bfloat16 if view.number == "bf16" else torch.float16)
    return torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(DEVICE, dtype)


def reference(q: Tensor, cache: Cache) -> Tensor:
    nope = latent_view(cache.layout).nope
    rows = [read_latent_reference(cache, b)[None] for b in range(cache.num_sequences)]
    return attention_reference(q, rows.__getitem__, lambda b: rows[b][..., :nope], cache.lengths, SM_SCALE)


def assert_right(q: Tensor, cache: Cache, config: LatentConfig | None = None) -> Tensor:
    """Run the kernel and hold it to the tolerance table; returns its fp32 output."""
    out = torch.full((*q.shape[:-1], latent_view(cache.layout).nope), torch.nan, device=DEVICE)
    latent_decode(q, cache, sm_scale=SM_SCALE, config=config, out=out)
    error = relative_error(out, reference(q, cache))
    assert KERNEL.accepts(error), error
    return out


def nasty(cache: Cache, tokens: int, dtype: torch.dtype) -> Tensor:
    """Rows with every trap: zeros, -0, constants, an outlier, denormals, overflow, ties, NaN and infinity."""
    nope = latent_view(cache.layout).nope
    x = rows_like(cache, tokens)
    x[0, 3], x[0, 4], x[0, 5], x[0, 6, 3] = 0, -0.0, 7.0, 1e4
    x[0, 7] *= 1e-7
    x[1, 1] *= 1e-39
    x[1, 2] *= 1e30 if dtype == torch.bfloat16 else 1e4
    x[1, 3, 0], x[1, 4, 1], x[1, 5, :nope] = torch.inf, torch.nan, -torch.inf
    # With a scale of 1 halves between neighbours of all sizes, and of subnormals.
    x[0, 8, :nope] = torch.arange(nope, device=DEVICE) % 64 / 1024 + torch.arange(nope, device=DEVICE) % 7 * 17
    x[0, 8, 0:nope:32] = 448.0
    return x.to(dtype)


def test_the_codec_stores_what_deepseek_stores() -> None:
    """One row by hand: offsets in the slot, the scale rule, the codes."""
    cache = make("fp8_ds_mla", sequences=1, tokens=16)
    x = torch.zeros(1, 1, 576, device=DEVICE)
    x[0, 0, 0], x[0, 0, 1], x[0, 0, 128], x[0, 0, 511] = 448.0, -1.0, 0.5, 1e-12
    x[0, 0, 512], x[0, 0, 575] = 1.5, -2.0
    append_latent(cache, x)
    slot = cache.planes["latent_slots"][int(cache.page_table[0, 0]), 0, 0].cpu()
    assert slot.shape == (656,)
    assert [int(slot[i]) for i in (0, 1, 2, 128, 511)] == [0x7E, 0xB8, 0, 0x7E, 0x7E]
    scales = slot[512:528].view(torch.float32)
    want = torch.tensor([448.0, 0.5, 0.0, 1e-12]) / torch.tensor(448.0)
    assert torch.equal(scales, want.clamp(min=2.0**-60))
    rope = slot[528:].view(torch.bfloat16)
    assert (float(rope[0]), float(rope[63]), int(rope.count_nonzero())) == (1.5, -2.0, 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("spelling", [*FORMATS, SMALL])
def test_slots_are_bit_exact(spelling: str, dtype: torch.dtype) -> None:
    a, b = make(spelling), make(spelling)
    x = nasty(a, 37, dtype)
    if not latent_view(a.layout).quantised:
        # Which NaN a conversion makes is the device's choice.
        x = x.nan_to_num(0.0, torch.inf, -torch.inf)
    for cache, write in ((a, append_latent), (b, write_latent_reference)):
        poison(cache, 0xAA)
        write(cache, x[:, :5])
        write(cache, x[:, 5:6])
        write(cache, x[:, 6:], counts=torch.tensor([40, 9], dtype=torch.int32, device=DEVICE))
    assert differing_bytes(a, b) == {}
    assert a.lengths.tolist() == b.lengths.tolist() == [37, 15]


def test_codes_decode_to_numbers_within_half_a_step() -> None:
    layout = latent_layout("fp8_ds_mla")
    x = nasty(make("fp8_ds_mla"), 12, torch.float32)
    rows = decode_latent(layout, encode_latent(layout, x))
    assert rows[..., :512].isfinite().all()
    fine = x[0, 9:]
    # Half a step of e4m3 is a 16th of the value, below its normals a 1024th of the scale.
    bound = (fine.abs() / 16).clamp(min=float(fine.abs().max()) / 448 / 1024)
    assert ((rows[0, 9:] - fine).abs() <= bound)[:, :512].all()
    assert torch.equal(rows[0, 9:, 512:], fine[:, 512:].bfloat16().float())


@pytest.mark.parametrize("writer", [append_latent, write_latent_reference])
@pytest.mark.parametrize("spelling", [*FORMATS, SMALL])
def test_written_bytes_are_the_declared_bytes(spelling: str, writer: object) -> None:
    cache = make(spelling, tokens=32, extra=3)

    def write(target: Cache) -> None:
        rows = rows_like(target, 32).bfloat16()
        writer(target, rows[:, :7])  # type: ignore[operator]
        writer(target, rows[:, 7:])  # type: ignore[operator]

    [(name, touched)] = written_bytes(cache, write).items()
    plane = cache.layout.plane("latent", "codes")
    assert name == plane.name and len(guard_pages(cache)) == 3
    assert not touched[guard_pages(cache)].any()
    counted = 0
    for field in plane.fields:
        assert field_view(cache.layout, plane, cache.planes[name], "latent", field.name, 16).numel() > 0
        counted += field.unit_bytes
    assert touched[cache.page_table.long()].all()
    assert counted * 16 == plane.page_bytes(16, 1) == touched[0].numel()


def test_rows_beyond_the_page_table_are_refused_or_dropped() -> None:
    cache, want = make(SMALL, tokens=16), make(SMALL, tokens=16)
    for c in (cache, want):
        poison(c, 0x55)
    x = rows_like(cache, 17).half()
    with pytest.raises(ValueError, match="17 tokens do not fit the 16"):
        append_latent(cache, x)
    with pytest.raises(ValueError, match="20 tokens do not fit"):
        append_latent(cache, x[:, :4], max_length=20)
    append_latent(cache, x[:, :12])
    append_latent(cache, x[:, 12:])
    write_latent_reference(want, x[:, :16])
    assert cache.lengths.tolist() == [16, 16]
    assert differing_bytes(cache, want) == {}


@pytest.mark.parametrize("spelling", FORMATS)
def test_every_kind_of_length(spelling: str) -> None:
    cache = filled(spelling, [0, 1, 16, 17, 31])
    out = assert_right(query(cache, 16), cache)
    assert not out[0].any(), "a request of length 0 gives zeros"


@pytest.mark.parametrize(("heads", "rows"), [(7, 0), (128, 0), (16, 3), (7, 3)])
@pytest.mark.parametrize("spelling", ["fp8_ds_mla", "bf16"])
def test_any_number_of_heads_and_rows(spelling: str, heads: int, rows: int) -> None:
    """Rows are causal: row r of R sees R - 1 - r tokens fewer than the last, none where the length is below that."""
    cache = filled(spelling, [65, 2] if rows else [65], page_size=64)
    out = assert_right(query(cache, heads, rows), cache)
    if rows:
        assert not out[1, 0].any() and out[1, 1].any()


@pytest.mark.parametrize(("heads", "rows"), [(5, 0), (40, 0), (1, 20)])
def test_small_latents_of_the_same_kind(heads: int, rows: int) -> None:
    """More rows than a tile has tokens, columns that no power of two divides, several blocks of them."""
    cache = filled(SMALL, [0, 1, 16, 33])
    assert_right(query(cache, heads, rows), cache, TILE)


def test_result_does_not_depend_on_programs_tile_or_block() -> None:
    cache = filled(SMALL, [70, 0, 17], page_size=64)
    q = query(cache, 16, 2)
    outs = [
        assert_right(q, cache, LatentConfig(tokens, 4, 2, ctas, columns=columns))
        for tokens, ctas, columns in ((16, 1, 16), (16, 4, 64), (64, 1, 8), (32, 2, 32))
    ]
    for out in outs[1:]:
        assert relative_error(out, outs[0]).relative < 1e-3


@pytest.mark.parametrize("spelling", [SMALL, "fp16"])
def test_garbage_beyond_the_length_never_leaks(spelling: str) -> None:
    outs = []
    for garbage in (0xFF, 0x7C, 0x00):
        cache = filled(spelling, [19, 32, 0], garbage=garbage)
        outs.append(latent_decode(query(cache, 4, 2), cache, sm_scale=SM_SCALE))
    assert torch.equal(outs[0], outs[1]) and torch.equal(outs[0], outs[2])


def test_every_part_of_a_slot_is_read() -> None:
    """Another scale, the other sign of a code or a rope value change the output as the reference says."""
    for name, byte in (("codes", 5), ("codes", 40), ("scale", 2), ("scale", 6), ("rope", 1), ("rope", 31)):
        cache = filled(SMALL, [9])
        q = query(cache, 4)
        before = assert_right(q, cache, TILE)
        fields = as_bytes(cache.field("latent", name))
        fields[cache.page_table[0, 0], 0, :9, byte] ^= 0x80
        assert relative_error(assert_right(q, cache, TILE), before).relative > 1e-3, (name, byte)


def test_large_and_tiny_numbers_and_a_bf16_query() -> None:
    cache = make(SMALL, tokens=32)
    poison(cache, 0xFF)
    x = rows_like(cache, 32)
    x[0] *= 2.0**-10
    x[1, :, :64] *= 2.0**8
    append_latent(cache, x)
    q = query(cache, 8, dtype=torch.bfloat16)
    q[0] *= 2.0**20
    q[1] *= 2.0**-8
    for b in range(2):
        out = torch.full((2, 8, 64), torch.nan, device=DEVICE)
        latent_decode(q, cache, sm_scale=SM_SCALE / (2.0**10 if b == 0 else 1.0), out=out)
        keys = read_latent_reference(cache, b)[None]
        scale = SM_SCALE / (2.0**10 if b == 0 else 1.0)
        want = attention_reference(q[b : b + 1], keys[None], keys[None, ..., :64], cache.lengths[:1], scale)
        assert KERNEL.accepts(relative_error(out[b : b + 1], want))


@pytest.mark.parametrize("exponent", [-24, -14, 14, 24])
def test_scales_far_from_one(exponent: int) -> None:
    """Probabilities times scales pass through fp16, which has neither these scales nor most of these products."""
    cache = make(SMALL, tokens=64)
    poison(cache, 0xFF)
    x = rows_like(cache, 40)
    x[:, ::3, :64] *= 2.0**exponent
    x[1, :, :64] *= 2.0**exponent
    append_latent(cache, x.bfloat16())
    q = query(cache, 8)
    q[..., :64] *= float(exponent < 0)
    out = torch.full((2, 8, 64), torch.nan, device=DEVICE)
    latent_decode(q, cache, sm_scale=SM_SCALE, out=out)
    keys = [read_latent_reference(cache, b)[None] for b in range(2)]
    want = attention_reference(q, keys.__getitem__, lambda b: keys[b][..., :64], cache.lengths, SM_SCALE)
    for b in range(2):
        assert KERNEL.accepts(relative_error(out[b], want[b])), relative_error(out[b], want[b])


@pytest.mark.parametrize("spelling", [*FORMATS, SMALL])
def test_unfused_baseline(spelling: str) -> None:
    cache = filled(spelling, [20, 0, 33], page_size=16)
    view = latent_view(cache.layout)
    rows = torch.full((3, 40, view.dim), torch.nan, device=DEVICE)
    dequantise_latent(cache, rows)
    for b, length in enumerate([20, 0, 33]):
        assert torch.equal(rows[b, :length], read_latent_reference(cache, b))
        assert not rows[b, length:].any()
    q = query(cache, 4, dtype=torch.float16)
    error = relative_error(latent_unfused_decode(q, cache, SM_SCALE), reference(q, cache))
    assert KERNEL.accepts(error), error
    assert latent_scratch_bytes(cache.layout, 3, 40) == rows.numel() * 2


def test_a_work_list_and_a_workspace_are_reused() -> None:
    cache = filled(SMALL, [20, 33])
    q = query(cache, 4)
    space = make_latent_workspace(q, cache, TILE)
    work = tile_starts(cache.lengths, TILE.block_tokens, latent_view(cache.layout))  # type: ignore[arg-type]
    assert work.tolist() == [0, 2, 5]
    space.part_out.fill_(torch.nan)
    out = latent_decode(q, cache, sm_scale=SM_SCALE, config=TILE, workspace=space, work=work)
    assert torch.equal(out, latent_decode(q, cache, sm_scale=SM_SCALE, config=TILE))


@pytest.mark.parametrize(
    "spelling", ["fp8_e4m3", "nvfp4_ds_mla", "fp8_ds_v4", "fp8_e4m3:group/16,scale=fp32,pack=slot"]
)
def test_formats_without_a_kernel_are_refused_by_name(spelling: str) -> None:
    nope = 448 if spelling == "fp8_ds_v4" else 512
    layout = bind([Stored("latent", parse_any(spelling), nope + 64, 64)], 1, "bf16")
    with pytest.raises(UnsupportedError, match=layout.tensor("latent").spelling):
        latent_view(layout)


def test_the_door_refuses_what_does_not_fit() -> None:
    cache = filled(SMALL, [20, 33])
    q = query(cache, 4)
    with pytest.raises(UnsupportedError, match="no MLA latent"):
        latent_view(layout_of("int8"))
    for variant, name in ((Variant(window=8), "window"), (Variant(softcap=30.0), "softcap")):
        with pytest.raises(UnsupportedError, match=name):
            latent_decode(q, cache, sm_scale=1.0, variant=variant)
    with pytest.raises(UnsupportedError, match="sinks"):
        latent_decode(q, cache, sm_scale=1.0, variant=Variant(sinks=torch.zeros(4)))
    for wrong, message in (
        (q[..., :-1], "q is"), (q[:1], "q is"), (q.float(), "fp16 or bf16"),
        (q.transpose(0, 1).contiguous().transpose(0, 1), "contiguous"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            latent_decode(wrong, cache, sm_scale=1.0)
    with pytest.raises(ValueError, match="out is"):
        latent_decode(q, cache, sm_scale=1.0, out=torch.empty(2, 4, 80, device=DEVICE))
    with pytest.raises(ValueError, match="workspace is for"):
        latent_decode(q, cache, sm_scale=1.0, workspace=make_latent_workspace(query(cache, 8), cache))
    with pytest.raises(ValueError, match="straddle pages"):
        latent_decode(q, cache, sm_scale=1.0, config=LatentConfig(64, 4, 2, 1))
    with pytest.raises(ValueError, match="latent: want"):
        append_latent(cache, rows_like(cache, 1)[..., :-1])
    with pytest.raises(ValueError, match="counts: want"):
        append_latent(cache, rows_like(cache, 1), counts=torch.zeros(2, dtype=torch.int64, device=DEVICE))
    with pytest.raises(ValueError, match="more than the cache holds"):
        dequantise_latent(cache, torch.empty(2, 49, 80, device=DEVICE))
    cache.planes["latent_slots"] = cache.planes["latent_slots"].transpose(0, 2)
    with pytest.raises(ValueError, match="plane latent_slots"):
        latent_decode(q, cache, sm_scale=1.0)
