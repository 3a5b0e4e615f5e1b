"""The fused decode kernel against float64 attention on the dequantised codes: formats, lengths, geometries, traps."""

from __future__ import annotations

import pytest
import torch
from kvplan_kernels.attention.config import DecodeConfig, default_config
from kvplan_kernels.attention.decode import decode, make_workspace
from kvplan_kernels.attention.mode import Mode
from kvplan_kernels.attention.reference import attention_reference
from kvplan_kernels.attention.work import tile_starts
from kvplan_kernels.attention.workspace import workspace_bytes
from kvplan_kernels.cache import Cache, allocate
from kvplan_kernels.store.reference import read_reference, write_reference
from kvplan_kernels.store.static import calibrate_cache
from kvplan_kernels.testing import KERNEL, as_bytes, layout_of, relative_error
from torch import Tensor

from kvplan.errors import UnsupportedError

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = DecodeConfig(block_tokens=32, num_warps=1, num_stages=3, ctas_per_sm=1)
VALUES = layout_of("int8").view("v")
LENGTHS = [0, 1, 31, 32, 33, 129, 128]


def filled(
    k: str, v: str | None = None, *, lengths: list[int], heads: int = 2, dims: tuple[int, int] = (64, 64),
    page_size: int = 128, garbage: int = 0xFF, seed: int = 0,
) -> Cache:  # fmt: skip
    """A cache on shuffled pages whose unused bytes all hold `garbage` (0xFF: NaN as fp16, bf16, fp32 and fp8)."""
    layout = layout_of(k, v, dims=dims, heads=heads)
    draw = torch.Generator().manual_seed(seed)
    most = max(1, *lengths)
    cache = allocate(
        layout, num_sequences=len(lengths), max_tokens=most, page_size=page_size, device=DEVICE,
        num_pages=len(lengths) * -(-most // page_size) + 2, shuffle=draw,
    )  # fmt: skip
    for plane in cache.planes.values():
        as_bytes(plane).fill_(garbage)
    rows = [torch.randn(len(lengths), most, heads, dim, generator=draw).to(DEVICE) for dim in dims]
    rows[1] += 0.3
    calibrate_cache(cache, *rows)
    write_reference(cache, *rows, counts=torch.tensor(lengths, dtype=torch.int32, device=DEVICE))
    return cache


def query(cache: Cache, group: int, dtype: torch.dtype = torch.float16) -> Tensor:
    shape = (cache.num_sequences, cache.layout.heads * group, cache.layout.view("k").dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(DEVICE, dtype)


def reference(q: Tensor, cache: Cache) -> Tensor:
    k, v = (lambda b, role=role: read_reference(cache, role, b).double() for role in ("k", "v"))
    return attention_reference(q, k, v, cache.lengths, q.shape[-1] ** -0.5)


def assert_right(q: Tensor, cache: Cache, config: DecodeConfig | None = None) -> Tensor:
    """Run the kernel and hold it to the tolerance table; returns its fp32 output."""
    out = torch.full((*q.shape[:2], cache.layout.view("v").dim), torch.nan, device=DEVICE)
    decode(q, cache, config=config, out=out)
    error = relative_error(out, reference(q, cache))
    assert KERNEL.accepts(error), error
    return out


@pytest.mark.parametrize(
    ("k", "v"),
    [
        ("fp16", "fp16"), ("bf16", "bf16"), ("int8", "int8"), ("int8,asym", "int8,asym"), ("int8:head", "int8:head"),
        ("int8:tensor,asym", "int8:tensor,asym"), ("int8:channel", "int8:channel,asym"), ("fp8_e4m3", "fp8_e4m3"),
        ("fp8_e4m3:head", "fp8_e4m3:head"), ("fp8_e4m3:token", "fp8_e4m3:token"), ("fp8_e5m2", "fp8_e5m2:head"),
        ("int8", "fp8_e4m3"), ("int8,asym", "int8"), ("bf16", "int8"), ("int8,scale=fp32", "int8,scale=bf16"),
        ("int4", "int2:token,asym"), ("int4:token,asym", "int4"), ("int2", "int4:channel,asym"),
        ("int8:group/32,asym", "int4:group/16"), ("int4:group/32,asym", "int8:group/16,scale=bf16"),
        ("int2:group/16,scale=fp32", "int2:group/32,asym"),
        ("nvfp4", "nvfp4"), ("mxfp4", "mxfp8"), ("mxfp8", "fp4_e2m1"), ("fp4_e2m1:token,scale=e8m0", "mxfp4"),
        ("int4,rot", "int4:token,asym,rot"), ("int3,rot", "int2,rot"), ("int4:group/32,asym,rot", "int8:head,rot"),
        ("int3:group/32,asym", "int3:head"), ("int8:group/16,pack=page", "fp8_e4m3:group/32,pack=page"),
        ("int3", "int4:token,recent=8"), ("int8,recent=8", "nvfp4"), ("fp4_e2m1,recent=20", "int4,rot"),
    ],
)  # fmt: skip
def test_every_format_at_every_kind_of_length(k: str, v: str) -> None:
    cache = filled(k, v, lengths=LENGTHS)
    out = assert_right(query(cache, 2), cache, SMALL)
    assert not out[0].any(), "a request of length 0 gives zeros"


@pytest.mark.parametrize(
    ("group", "dims"),
    [(1, (64, 64)), (3, (80, 80)), (4, (128, 128)), (7, (96, 112)), (8, (192, 128)), (16, (64, 256)), (4, (66, 32))],
)
@pytest.mark.parametrize("spelling", ["int8", "fp16"])
def test_any_head_dim_and_any_number_of_query_heads(spelling: str, group: int, dims: tuple[int, int]) -> None:
    cache = filled(spelling, lengths=[70, 5], dims=dims)
    assert_right(query(cache, group, torch.bfloat16), cache, SMALL)


@pytest.mark.parametrize(
    ("k", "v", "group", "dims"),
    [
        ("int4:token,asym", "int2:token,asym", 7, (112, 80)),
        ("int2:token,asym", "int4", 4, (128, 256)),
        # Groups that cut a plane: 24 and 48 words of four fields, groups of 32 channels.
        ("int4:group/32,asym", "int4:group/32", 3, (96, 192)),
        ("int8:group/16,asym", "int4:group/32,asym", 8, (112, 128)),
        ("int2:group/32,asym", "int4:group/64,asym", 4, (128, 128)),
        # An odd number of scales of a byte, in a page plane and beside others.
        ("nvfp4", "mxfp4", 3, (80, 96)),
        ("mxfp8", "nvfp4", 8, (96, 192)),
        ("int3", "int3:group/16", 4, (128, 96)),
        ("int3:token,asym,rot", "nvfp4", 4, (128, 128)),
    ],
)
def test_codes_below_8_bits_and_groups_at_any_head_dim(k: str, v: str, group: int, dims: tuple[int, int]) -> None:
    cache = filled(k, v, lengths=[70, 5], dims=dims)
    assert_right(query(cache, group, torch.bfloat16), cache, SMALL)


@pytest.mark.parametrize("page_size", [16, 48, 128, 256])
def test_any_page_size_with_the_default_shape_of_launch(page_size: int) -> None:
    cache = filled("int8", lengths=[page_size - 1, page_size, page_size + 1], page_size=page_size)
    assert_right(query(cache, 4), cache)


def test_result_does_not_depend_on_the_number_of_programs_or_the_tile() -> None:
    cache = filled("int8", lengths=[243, 0, 17, 130])
    q = query(cache, 4)
    outs = [
        assert_right(q, cache, DecodeConfig(tokens, 1, 3, ctas))
        for tokens, ctas in ((32, 1), (32, 2), (64, 1), (16, 16))
    ]
    for out in outs[1:]:
        assert relative_error(out, outs[0]).relative < 1e-3


@pytest.mark.parametrize(
    ("k", "v"),
    [("fp8_e4m3:token", "fp16"), ("int4:group/16,asym", "int2:token,asym"), ("fp4_e2m1", "nvfp4"), ("int3", "int3")],
)
def test_garbage_beyond_the_length_never_leaks(k: str, v: str) -> None:
    q = None
    outs = []
    for garbage in (0xFF, 0x7C, 0x00):
        cache = filled(k, v, lengths=[33, 100, 0], dims=(80, 80), garbage=garbage)
        q = query(cache, 4) if q is None else q
        outs.append(decode(q, cache, config=SMALL))
    assert torch.equal(outs[0], outs[1]) and torch.equal(outs[0], outs[2])


def test_doubled_scales_and_a_flipped_code_change_the_output_as_the_reference_says() -> None:
    cache = filled("int8", lengths=[100])
    q = query(cache, 4)
    before = assert_right(q, cache, SMALL)
    cache.meta("k")[..., 0] *= 2
    doubled = assert_right(q, cache, SMALL)
    assert relative_error(doubled, before).relative > 0.1
    page = int(cache.page_table[0, 0])
    cache.codes("v")[page, 1, 99, 5] ^= 0x40
    flipped = assert_right(q, cache, SMALL)
    changed = (flipped != doubled).nonzero()
    assert changed[:, 2].unique().tolist() == [5] and changed[:, 1].min() >= 4


@pytest.mark.parametrize("spelling", ["int8:channel", "int8:group/32", "nvfp4", "int4,rot"])
def test_queries_of_any_size_keep_their_precision(spelling: str) -> None:
    cache = filled(spelling, "int8", lengths=[40, 64])
    q = query(cache, 2, torch.bfloat16)
    for factor in (1e-6, 3e4):
        scaled = (q * factor).to(torch.bfloat16)
        out = torch.empty((*q.shape[:2], 64), device=DEVICE)
        decode(scaled, cache, config=SMALL, sm_scale=0.125 / factor, out=out)
        k, v = (lambda b, role=role: read_reference(cache, role, b).double() for role in ("k", "v"))
        wanted = attention_reference(scaled, k, v, cache.lengths, 0.125 / factor)
        assert KERNEL.accepts(relative_error(out, wanted))


def test_logits_far_beyond_fp16_do_not_overflow() -> None:
    cache = filled("int8:group/32", "int4:group/32,asym", lengths=[40, 64])
    assert_right(query(cache, 2) * 1000, cache, SMALL)


def test_not_a_number_in_a_stored_row_poisons_its_head_only() -> None:
    cache = filled("fp16", lengths=[40, 64])
    cache.codes("k")[int(cache.page_table[0, 0]), 1, 3, 0] = torch.nan
    out = decode(query(cache, 2), cache, config=SMALL)
    assert out[0, 2:].isnan().all() and not out[0, :2].isnan().any() and not out[1].isnan().any()


def test_tile_starts_sum_over_more_requests_than_one_block() -> None:
    lengths = torch.randint(0, 300, (300,), dtype=torch.int32, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    tiles = (lengths + 31) // 32
    found = tile_starts(lengths, 32, VALUES)
    assert torch.equal(found[1:], tiles.cumsum(0).int()) and found[0] == 0


def test_many_requests_share_few_programs() -> None:
    lengths = [0] * 5 + [3, 40] + [0] * 125 + [70, 0, 1, 33, 5, 0]
    cache = filled("int8", lengths=lengths, heads=1, page_size=64)
    assert_right(query(cache, 1), cache, SMALL)


def test_workspace_is_exactly_what_is_declared_and_can_be_reused() -> None:
    cache = filled("int8", lengths=[100, 20])
    q = query(cache, 4)
    workspace = make_workspace(q, cache, SMALL)
    assert workspace.nbytes == workspace_bytes(SMALL.num_programs(q.device), 2, 2, Mode(group=4, columns=4), 64)
    work = tile_starts(cache.lengths, SMALL.block_tokens, cache.layout.view("v"))
    first = decode(q, cache, config=SMALL, workspace=workspace, work=work)
    workspace.buffer.fill_(0xFF)
    assert torch.equal(first, decode(q, cache, config=SMALL, workspace=workspace, work=work))


def test_default_launch_keeps_its_rules() -> None:
    for spelling in ("bf16", "int8", "fp8_e4m3", "int4", "int2", "int4:group/16", "nvfp4", "int3"):
        for dim in (64, 80, 128, 256, 576):
            for group in (1, 4, 16):
                config = default_config(layout_of(spelling, dims=(dim, dim)), 128, group)
                assert config.num_warps * config.ctas_per_sm % 4 == 0 and 128 % config.block_tokens == 0


def test_one_program_per_head_where_the_heads_nearly_fill_the_gpu() -> None:
    layout = layout_of("int8", dims=(128, 128))
    configs = {heads: default_config(layout, 128, 4, heads, 132) for heads in (128, 500, 512, 528, 536)}
    assert {heads for heads, config in configs.items() if config.programs == heads} == {512, 528}
    assert configs[512].num_programs(torch.device(DEVICE)) == 512 and configs[128].programs is None


@pytest.mark.parametrize("spelling", ["int8:channel/24", "fp32", "int4:group/2"])
def test_formats_without_a_kernel_are_refused_by_name(spelling: str) -> None:
    layout = layout_of(spelling)
    page = 48 if "24" in spelling else 128
    cache = allocate(layout, num_sequences=1, max_tokens=128, page_size=page, device=DEVICE)
    with pytest.raises(UnsupportedError, match=layout.tensor("k").spelling):
        decode(query(cache, 1), cache)


def test_the_door_names_what_differs() -> None:
    cache = filled("int8", lengths=[20])
    q = query(cache, 2)
    with pytest.raises(ValueError, match="multiple of 2"):
        decode(q[:, :3].contiguous(), cache)
    with pytest.raises(ValueError, match="contiguous fp16 or bf16"):
        decode(q.float(), cache)
    with pytest.raises(ValueError, match="straddle"):
        decode(q, cache, config=DecodeConfig(256, 1, 3, 4))
    with pytest.raises(ValueError, match="out is"):
        decode(q, cache, out=q[:, :2].contiguous())
    with pytest.raises(ValueError, match="workspace"):
        decode(q, cache, workspace=make_workspace(q, cache, SMALL), config=DecodeConfig(32, 1, 3, 2))
    cache.lengths = cache.lengths.long()
    with pytest.raises(ValueError, match="lengths"):
        decode(q, cache)
