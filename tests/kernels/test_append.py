"""The write kernel against the reference writer, bit by bit, and the laws of appending."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kvplan_kernels.cache import Cache, allocate
from kvplan_kernels.codecs.grid import saturated as count_saturated
from kvplan_kernels.store.append import append
from kvplan_kernels.store.reference import read_reference, write_reference
from kvplan_kernels.store.static import calibrate_cache, get_static, set_static
from kvplan_kernels.testing import DEVICE, WITH_KERNEL, as_bytes, differing_bytes, layout_of, poison

from kvplan.errors import UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy warns where the kernel saturates

PAGE, TOKENS = 16, 37


def make(spelling: str, v: str = "", dims: tuple[int, int] = (64, 64), heads: int = 2, tokens: int = 48) -> Cache:
    layout = layout_of(spelling, v, dims, heads)
    page = PAGE if PAGE % layout.page_multiple == 0 else layout.page_multiple
    shuffle = torch.Generator().manual_seed(1)
    cache = allocate(layout, num_sequences=2, max_tokens=tokens, page_size=page, device=DEVICE, shuffle=shuffle)
    poison(cache, 0xAA)
    return cache


def sample(dim: int, heads: int = 2, tokens: int = TOKENS, seed: int = 0) -> torch.Tensor:
    return torch.randn(2, tokens, heads, dim, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def nasty(dim: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Rows with every trap: zeros, -0, constants, one outlier, denormals, overflow, one sign only, NaN, infinity."""
    x = sample(dim, seed=seed)
    x[0, 3], x[0, 4], x[0, 5], x[0, 6, 0, 3] = 0, -0.0, 7.0, 1e4
    x[0, 7] *= 1e-7
    x[1, 3] = -x[1, 3].abs()
    x[1, 4] = 100 + x[1, 4].abs()
    x[1, 5] *= 1e30 if dtype == torch.bfloat16 else 1e4
    x[1, 6] *= 1e-39
    x[1, 7, 0, 0], x[1, 7, 1, 0], x[1, 8] = torch.inf, torch.nan, -torch.inf
    # Exact ties of a scale of 1: halves.
    x[0, 9] = torch.arange(dim, device=DEVICE) % 255 - 126.5
    x[0, 9, :, 0] = 127.0
    # The same for 4 bits, signed and unsigned, and for 2 bits.
    x[0, 10], x[0, 11] = torch.arange(dim, device=DEVICE) % 14 - 6.5, torch.arange(dim, device=DEVICE) % 15 + 0.5
    x[0, 10, :, ::16], x[0, 11, :, ::16], x[0, 11, :, 1::16] = 7.0, 0.0, 15.0
    x[0, 12], x[0, 13] = torch.arange(dim, device=DEVICE) % 3 - 1, torch.arange(dim, device=DEVICE) % 3 + 0.5
    x[0, 12, :, 1::5], x[0, 13, :, ::16], x[0, 13, :, 1::16] = 0.5, 0.0, 3.0
    return x.to(dtype)


def write_both(a: Cache, b: Cache, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same three ragged writes through kernel and reference, with counters of saturated values."""
    counters = [torch.zeros(2, a.layout.heads, dtype=torch.int64, device=DEVICE) for _ in range(2)]
    for cache, write, counter in zip((a, b), (append, write_reference), counters, strict=True):
        calibrate_cache(cache, k[:, 10:].nan_to_num(0), v[:, 10:].nan_to_num(0))
        write(cache, k[:, :5], v[:, :5], saturated=counter)
        write(cache, k[:, 5:6], v[:, 5:6], saturated=counter)
        counts = torch.tensor([k.shape[1] - 6, 9], dtype=torch.int32, device=DEVICE)
        write(cache, k[:, 6:], v[:, 6:], counts=counts, saturated=counter)
    return counters[0], counters[1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("spelling", WITH_KERNEL)
def test_codes_scales_and_counters_are_bit_exact(spelling: str, dtype: torch.dtype) -> None:
    a, b = make(spelling), make(spelling)
    k, v = nasty(64, dtype), nasty(64, dtype, seed=9)
    if not a.layout.view("k").quantised or a.residual("k") is not None:
        # Which NaN a conversion makes is the device's choice.
        k, v = (x.nan_to_num(0.0, torch.inf, -torch.inf) for x in (k, v))
    got, want = write_both(a, b, k, v)
    assert differing_bytes(a, b) == {}
    assert a.lengths.tolist() == b.lengths.tolist() == [TOKENS, 15]
    assert torch.equal(got, want)
    if spelling.startswith("int8") and "asym" not in spelling:
        for role in ("k", "v"):
            rows = a.codes(role)[a.page_table[0].long()].movedim(1, 0).flatten(1, 2)[:, :TOKENS]
            assert rows.min() >= -127


@pytest.mark.parametrize(
    ("k", "v", "dims", "heads"),
    [
        ("int8", "fp8_e4m3:token", (80, 80), 1),
        ("int8,asym", "int8:channel", (112, 112), 3),
        ("fp16", "int8", (192, 128), 2),
        ("int8:group/32", "fp8_e5m2:head", (256, 256), 2),
        ("fp8_e4m3", "bf16", (96, 64), 5),
        ("int4:token,asym", "int2:token,asym", (80, 112), 2),
        ("int4:group/32,asym", "int4:group/32", (96, 192), 1),
        ("int2:group/32,asym", "int8", (128, 256), 1),
        ("int4:group/16", "int2:group/16,asym", (80, 48), 1),
        ("nvfp4", "mxfp4", (80, 96), 3),
        ("int3:group/16", "fp4_e2m1", (112, 192), 1),
        ("int3,rot", "fp4_e2m1:token,scale=e8m0,rot", (128, 32), 2),
        ("int8:head,rot", "int8:group/16,pack=page", (64, 80), 2),
        ("fp8_e4m3:group/16,scale=e4m3,pack=page", "int8:group/16,pack=page", (48, 80), 2),
        ("int2:channel/16,asym,recent=32", "int2:group/16,asym,recent=20", (72, 48), 2),
        ("fp8_e4m3:channel/8,recent=16", "int8:channel/16", (80, 40), 1),
    ],
)
def test_mixed_formats_and_head_dims(k: str, v: str, dims: tuple[int, int], heads: int) -> None:
    a, b = (make(k, v, dims, heads) for _ in range(2))
    write_both(a, b, sample(dims[0], heads).half(), sample(dims[1], heads, seed=4).half())
    assert differing_bytes(a, b) == {}


@pytest.mark.parametrize("spelling", ["fp8_e4m3", "fp8_e5m2", "int8:tensor"])
def test_every_16_bit_input_and_random_fp32_bits(spelling: str) -> None:
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    bits = torch.randint(-(2**31), 2**31 - 1, (2**16,), generator=torch.Generator().manual_seed(0))
    inputs = (patterns.view(torch.float16), patterns.view(torch.bfloat16), bits.to(torch.int32).view(torch.float32))
    for x, same in zip(inputs, ("fp16", "bf16", "fp32"), strict=True):
        k = x.view(2, 128, 1, 256).to(DEVICE)
        caches = [make(spelling, same, (256, 256), 1, 128) for _ in range(2)]
        for cache, write in zip(caches, (append, write_reference), strict=True):
            set_static(cache, "k", {"scale": torch.full((1, 1), 0.37, device=DEVICE)})
            write(cache, k, k)
        assert differing_bytes(*caches) == {}, x.dtype


@pytest.mark.parametrize("spelling", WITH_KERNEL)
@settings(max_examples=12, deadline=None)
@given(chunks=st.lists(st.integers(1, 19), min_size=1, max_size=9), data=st.integers(0, 3))
def test_appending_never_changes_what_is_stored(spelling: str, chunks: list[int], data: int) -> None:
    """Earlier codes and scales stay bit-identical unless a flush wrote them, however the rows are cut."""
    total = sum(chunks)
    k, v = sample(64, tokens=total, seed=data), sample(64, tokens=total, seed=data + 50)
    cut, whole = make(spelling, tokens=total), make(spelling, tokens=total)
    for cache in (cut, whole):
        calibrate_cache(cache, k, v)
    write_reference(whole, k, v)
    at = 0
    for n in chunks:
        before = {role: packed_fields(cut, role, at) for role in ("k", "v")}
        write_reference(cut, k[:, at : at + n], v[:, at : at + n])
        for role, fields in before.items():
            after = packed_fields(cut, role, at)
            assert all(torch.equal(x, after[name]) for name, x in fields.items())
        at += n
    assert differing_bytes(cut, whole) == {}
    for role, x in (("k", k), ("v", v)):
        rows = read_reference(cut, role, 1)
        assert rows.shape == (2, total, 64)
        bound = {4: 0.2, 3: 0.5, 2: 1.1}.get(cut.layout.view(role).bits, 0.08)
        assert (rows - x[1].transpose(0, 1)).norm() < bound * x[1].norm()
        recent = cut.layout.tensor(role).split(total)[1]
        assert torch.equal(rows[:, total - recent :], x[1, total - recent :].half().float().transpose(0, 1))


def packed_fields(cache: Cache, role: str, tokens: int) -> dict[str, torch.Tensor]:
    """Bytes of every row field of the tokens that are packed when `tokens` are stored, copied."""
    packed = cache.layout.tensor(role).split(tokens)[0]
    found = {}
    for plane in cache.layout.scoped("page"):
        for field in plane.fields:
            if field.tensor == role:
                pages = as_bytes(cache.field(role, field.name))[cache.page_table.long()]
                slots = pages.movedim(3, 2).flatten(1, 2)
                found[field.name] = slots[:, : packed // field.tokens].clone()
    return found


@pytest.mark.parametrize(
    "spelling",
    ["bf16", "int8,asym", "int8:group/32", "fp8_e4m3:head", "int2:token,asym", "int8:token,recent=8", "mxfp8"],
)  # fmt: skip
@settings(max_examples=4, deadline=None)
@given(chunks=st.lists(st.sampled_from([1, 2, 3, 7, 16, 17, 33]), min_size=2, max_size=5))
def test_the_kernel_does_not_care_how_rows_are_cut(spelling: str, chunks: list[int]) -> None:
    total = sum(chunks)
    k, v = sample(64, tokens=total).bfloat16(), sample(64, tokens=total, seed=1).bfloat16()
    cut, whole = make(spelling, tokens=total), make(spelling, tokens=total)
    for cache in (cut, whole):
        calibrate_cache(cache, k, v)
    append(whole, k, v, max_length=total)
    at = 0
    for n in chunks:
        append(cut, k[:, at : at + n], v[:, at : at + n])
        at += n
    assert differing_bytes(cut, whole) == {}
    assert cut.lengths.tolist() == [total, total]


def test_strided_rows_and_counts() -> None:
    """Rows may come from a fused projection; count 0 leaves a sequence as it is."""
    fused = torch.randn(2, 5, 2, 3 * 64, generator=torch.Generator().manual_seed(0)).half().to(DEVICE)
    k, v = fused[..., :64], fused[..., 64:128]
    a, b = make("int8"), make("int8")
    append(a, k, v, counts=torch.tensor([0, 5], dtype=torch.int32, device=DEVICE))
    write_reference(b, k.contiguous(), v.contiguous(), counts=torch.tensor([0, 5], device=DEVICE))
    assert differing_bytes(a, b) == {}
    assert a.lengths.tolist() == [0, 5]


def test_saturation_counts_what_a_drift_clips() -> None:
    k = sample(64).half()
    cache = make("int8:head")
    calibrate_cache(cache, k, k)
    counter = torch.zeros(2, 2, dtype=torch.int64, device=DEVICE)
    append(cache, k, k, saturated=counter)
    assert counter.sum() == 0
    static = get_static(cache, "k")
    assert static is not None
    cache.lengths.zero_()
    append(cache, k * 2, k, saturated=counter)
    limit = static["scale"].view(1, 1, 2, 1) * 127.5
    want = ((k * 2).float().abs() > limit).sum((0, 1, 3))
    assert counter[0].tolist() == want.tolist()
    assert (want > 0).all()
    assert counter[1].tolist() == [0, 0]
    assert count_saturated(cache.layout, "k", (k * 2).transpose(1, 2), static).tolist() == want.tolist()


def test_a_global_scale_that_no_longer_fits_is_counted() -> None:
    """Blocks beyond the calibrated range have no scale of their own: the kernel counts what they clip."""
    a, b = make("nvfp4"), make("nvfp4")
    k = sample(64).half()
    counters = [torch.zeros(2, 2, dtype=torch.int64, device=DEVICE) for _ in range(2)]
    for cache, write, counter in zip((a, b), (append, write_reference), counters, strict=True):
        calibrate_cache(cache, k, k)
        write(cache, k, k, saturated=counter)
        assert counter.sum() == 0
        cache.lengths.zero_()
        write(cache, k * 2, k, saturated=counter)
    assert torch.equal(*counters) and (counters[0][0] > 0).all() and counters[0][1].sum() == 0
    assert differing_bytes(a, b) == {}


def test_rows_beyond_the_page_table_are_refused_or_dropped() -> None:
    cache = make("int8", tokens=16)
    k = sample(64, tokens=17).half()
    with pytest.raises(ValueError, match="17 tokens do not fit the 16"):
        append(cache, k, k)
    with pytest.raises(ValueError, match="20 tokens do not fit"):
        append(cache, k[:, :4], k[:, :4], max_length=20)
    append(cache, k[:, :12], k[:, :12])
    append(cache, k[:, 12:], k[:, 12:])
    assert cache.lengths.tolist() == [16, 16]
    want = make("int8", tokens=16)
    write_reference(want, k[:, :16], k[:, :16])
    assert differing_bytes(cache, want) == {}
    with pytest.raises(ValueError, match="do not fit the 16"):
        write_reference(cache, k[:, :1], k[:, :1])


@pytest.mark.parametrize("spelling", ["int6", "int3:channel/16", "int4,recent=16,rot", "int8:channel/16,pack=page"])
def test_formats_without_a_kernel_are_refused_by_name(spelling: str) -> None:
    k = sample(64, tokens=1)
    with pytest.raises(UnsupportedError, match=layout_of(spelling).tensor("k").spelling):
        append(make(spelling), k, k)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": torch.zeros(2, 3, 2, 65)}, "k: want"),
        ({"k": torch.zeros(2, 4, 2, 64)}, "v: want"),
        ({"k": torch.zeros(2, 3, 2, 64, dtype=torch.float64)}, "k: want fp16"),
        ({"k": torch.zeros(2, 3, 64, 2).transpose(2, 3)}, "contiguous channels"),
        ({"counts": torch.zeros(2, dtype=torch.int64)}, "counts: want"),
        ({"saturated": torch.zeros(2, 3, dtype=torch.int64)}, "saturated: want"),
    ],
)
def test_the_door_refuses_what_does_not_fit(change: dict[str, torch.Tensor], message: str) -> None:
    given = {"k": torch.zeros(2, 3, 2, 64), "v": torch.zeros(2, 3, 2, 64)} | change
    with pytest.raises(ValueError, match=message):
        append(make("int8"), **{name: x.to(DEVICE) for name, x in given.items()})  # type: ignore[arg-type]
