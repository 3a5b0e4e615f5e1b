"""The unfused path: dequantise to memory, then torch's attention."""

from __future__ import annotations

import pytest
import torch
from kvplan_kernels.attention.reference import attention_reference
from kvplan_kernels.attention.unfused import dense_decode, dequantise, unfused_decode
from kvplan_kernels.cache import Cache, allocate
from kvplan_kernels.store.reference import read_reference, write_reference
from kvplan_kernels.store.static import calibrate_cache
from kvplan_kernels.testing import DEVICE, KERNEL, WITH_KERNEL, layout_of, poison, relative_error

from kvplan.errors import UnsupportedError

HEADS, TOKENS, LENGTHS = 2, 40, (37, 20, 0)


def filled(k: str, v: str = "", dims: tuple[int, int] = (96, 64)) -> Cache:
    """Three sequences of unequal length in shuffled pages whose unused bytes are NaN."""
    shuffle = torch.Generator().manual_seed(1)
    layout = layout_of(k, v, dims, HEADS)
    page = max(16, layout.page_multiple)
    cache = allocate(layout, num_sequences=3, max_tokens=48, page_size=page, device=DEVICE, shuffle=shuffle)
    poison(cache, 0xFF)
    generator = torch.Generator().manual_seed(2)
    x, y = (torch.randn(3, 37, HEADS, d, generator=generator).to(DEVICE) for d in dims)
    calibrate_cache(cache, x, y)
    write_reference(cache, x, y, counts=torch.tensor(LENGTHS, device=DEVICE))
    return cache


@pytest.mark.parametrize("spelling", WITH_KERNEL)
def test_dequantised_values_are_the_references_and_tails_are_zero(spelling: str) -> None:
    cache = filled(spelling, dims=(128, 64) if spelling.endswith("rot") else (96, 64))
    check_dequantised(cache, spelling, torch.float16)
    if spelling in ("fp32", "fp16", "bf16", "int8", "int8:channel,asym"):
        check_dequantised(cache, spelling, torch.bfloat16)


def check_dequantised(cache: Cache, spelling: str, dtype: torch.dtype) -> None:
    dims = [cache.layout.tensor(role).dim for role in ("k", "v")]
    k, v = (torch.full((3, HEADS, TOKENS, d), 9.0, dtype=dtype, device=DEVICE) for d in dims)
    dequantise(cache, k, v)
    for b, length in enumerate(LENGTHS):
        for role, out in (("k", k), ("v", v)):
            want = read_reference(cache, role, b, turned=True)
            # scale * code + zero may be one fused operation on a GPU: a last place of fp32, then of the output.
            rtol = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-10
            assert torch.isclose(out[b, :, :length].float(), want, rtol=rtol, atol=1e-7).all()
            if "asym" not in spelling:
                assert torch.equal(out[b, :, :length], want.to(dtype))
            assert (out[b, :, length:] == 0).all()


@pytest.mark.parametrize(
    ("k", "v"),
    [
        ("fp16", "fp16"),
        ("int8", "int8,asym"),
        ("fp8_e4m3", "int8:channel"),
        ("int4,rot", "nvfp4"),
        ("int3", "int2,rot"),
    ],
)
def test_unfused_decode_matches_float64(k: str, v: str) -> None:
    dim = 128 if k.endswith("rot") else 96
    cache = filled(k, v, (dim, 64))
    q = torch.randn(3, 6, dim, generator=torch.Generator().manual_seed(3)).half().to(DEVICE)
    stored = [lambda b, role=role: read_reference(cache, role, b) for role in ("k", "v")]
    out = unfused_decode(q, cache, 0.1)
    assert (out[2] == 0).all()
    assert KERNEL.accepts(relative_error(out, attention_reference(q, *stored, cache.lengths, 0.1)))
    cache.lengths.fill_(20)
    ref = attention_reference(q[:2], *stored, cache.lengths[:2], 0.1)
    assert KERNEL.accepts(relative_error(unfused_decode(q, cache, 0.1, num_tokens=20, uniform=True)[:2], ref))


def test_grouped_queries_equal_torchs_own_grouping() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(*s, generator=generator).to(DEVICE) for s in ((2, 6, 64), (2, 2, 30, 64), (2, 2, 30, 64)))
    attention = torch.nn.functional.scaled_dot_product_attention
    want = attention(q[:, :, None], k, v, scale=0.2, enable_gqa=True)[:, :, 0]
    torch.testing.assert_close(dense_decode(q, k, v, None, 0.2), want)


def test_scratch_bytes_are_what_the_path_allocates() -> None:
    cache = filled("int8")
    k, v = (torch.empty(3, HEADS, TOKENS, d, dtype=torch.float16) for d in (96, 64))
    assert cache.layout.dense_bytes(3, TOKENS) == k.nbytes + v.nbytes


def test_refusals() -> None:
    out = torch.empty(3, HEADS, 16, 96, device=DEVICE), torch.empty(3, HEADS, 16, 64, device=DEVICE)
    with pytest.raises(UnsupportedError, match="pack=page"):
        packed = layout_of("int8:channel/16,pack=page")
        dequantise(allocate(packed, num_sequences=3, max_tokens=16, page_size=16, device=DEVICE), *out)
    with pytest.raises(ValueError, match="v: want"):
        dequantise(filled("int8"), out[0], out[1][:, :, :8])
