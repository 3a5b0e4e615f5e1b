"""4-bit floats, scales of one byte, page planes and rotation: the rules, by numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
from kvplan_kernels.attention.door import check_supported
from kvplan_kernels.cache import allocate
from kvplan_kernels.codecs.blocks import MAGNITUDES, e2m1_codes, e2m1_values
from kvplan_kernels.codecs.grid import calibrate, decode, encode
from kvplan_kernels.codecs.limits import check_kernel
from kvplan_kernels.codecs.planar import pack_code, unpack, unpack_code
from kvplan_kernels.codecs.rotation import rotate, rotate_back, rotate_reference, signs
from kvplan_kernels.store.append import append
from kvplan_kernels.testing import DEVICE, layout_of

from kvplan.errors import UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy warns where infinities are rotated


def test_e2m1_rounds_to_the_nearest_and_halves_to_the_even_code() -> None:
    halves = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert e2m1_codes(halves).tolist() == [0, 2, 2, 4, 4, 6, 6]
    assert e2m1_codes(-halves).tolist() == [8, 10, 10, 12, 12, 14, 14]
    assert e2m1_codes(torch.tensor([5.1, 7.0, 1e9, torch.inf, -torch.inf, -0.0, 0.26, 4.9])).tolist() == [
        7, 7, 7, 7, 15, 8, 1, 6,
    ]  # fmt: skip
    values = e2m1_values(torch.arange(16))
    assert values.tolist() == [*MAGNITUDES, *(-x for x in MAGNITUDES)]
    assert torch.equal(e2m1_codes(values), torch.arange(16, dtype=torch.int32))


@pytest.mark.parametrize(
    ("spelling", "absmax", "byte"),
    [
        # 2^(floor(log2(absmax)) - emax), emax 2 for e2m1 and 8 for e4m3; the byte is the exponent + 127.
        ("mxfp4", 4.0, 127), ("mxfp4", 7.99, 127), ("mxfp4", 8.0, 128), ("mxfp4", 0.9, 124), ("mxfp8", 448.0, 127),
        ("mxfp8", 1.0, 119), ("mxfp4", 0.0, 67), ("mxfp4", torch.inf, 238), ("mxfp4", 1e-38, 67),
    ],
)  # fmt: skip
def test_the_scale_of_a_microscaling_block_is_a_power_of_two(spelling: str, absmax: float, byte: int) -> None:
    layout = layout_of(spelling, dims=(32, 32), heads=1)
    x = torch.zeros(1, 1, 32)
    x[0, 0, 5] = -absmax
    encoded = encode(layout, "k", x)
    assert encoded["scale"].flatten().tolist() == [byte]
    if 0 < absmax < 10:
        # Up to 6 times (e2m1) or 448 times (e4m3) the scale nothing is clipped.
        largest = (6 if spelling == "mxfp4" else 448) * 2.0 ** (byte - 127)
        assert abs(decode(layout, "k", encoded)[0, 0, 5]) == pytest.approx(min(absmax, largest), rel=0.2)


def test_nvfp4_has_two_levels_of_scales() -> None:
    layout = layout_of("nvfp4", dims=(32, 32), heads=1)
    x = torch.zeros(1, 2, 32)
    x[0, 0, :4] = torch.tensor([6.0, -3.0, 0.75, 0.1]) * 448
    x[0, 0, 16:20] = torch.tensor([6.0, 4.0, -1.0, 0.5])
    static = calibrate(layout, "k", x)
    assert static["global"].tolist() == [[1.0]]
    encoded = encode(layout, "k", x, static)
    assert encoded["scale"].float().flatten().tolist() == [448.0, 1.0, 2.0**-9, 2.0**-9]
    assert unpack(encoded["codes"], 4)[0, 0, [0, 1, 2, 3, 16, 17, 18, 19]].tolist() == [7, 13, 2, 0, 7, 6, 10, 1]
    doubled = encode(layout, "k", x * 2, calibrate(layout, "k", x * 2))
    assert torch.equal(doubled["codes"], encoded["codes"]) and doubled["global"].item() == 2.0
    assert torch.equal(decode(layout, "k", doubled), 2 * decode(layout, "k", encoded))


def test_a_page_of_nvfp4_holds_codes_then_scales_head_after_head() -> None:
    layout = layout_of("nvfp4", dims=(32, 32), heads=2)
    cache = allocate(layout, num_sequences=1, max_tokens=16, page_size=16, device=DEVICE)
    plane = cache.planes["k_pages"].fill_(0xAA)
    for role in ("k", "v"):
        cache.planes[f"{role}_static_global"].fill_(1.0)
    k = torch.zeros(1, 3, 2, 32, dtype=torch.float16, device=DEVICE)
    k[0, 2, 1, :] = 6.0
    append(cache, k, k)
    # Head 1 of 16 tokens of 16 + 2 bytes; token 2: codes of 7, scales of 1 (0x38 in e4m3).
    head = plane[0].cpu()[16 * 18 :].tolist()
    assert head[2 * 16 : 3 * 16] == [0x77] * 16 and head[3 * 16 : 16 * 16] == [0xAA] * (13 * 16)
    assert head[16 * 16 + 4 : 16 * 16 + 6] == [0x38, 0x38] and head[16 * 16 + 6 :] == [0xAA] * (13 * 2)


def test_three_bits_are_two_and_one() -> None:
    codes = torch.randint(0, 8, (5, 128), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    low, high = pack_code(codes, (2, 1))
    assert (low.shape, high.shape) == ((5, 32), (5, 16))
    assert torch.equal(unpack_code([low, high], (2, 1)), codes)
    assert torch.equal(unpack(high, 1), codes >> 2)


def test_signs_are_fixed() -> None:
    """Stored caches depend on them: they may never change."""
    assert signs(16).tolist() == [1, -1, 1, -1, 1, -1, -1, -1, 1, -1, 1, -1, 1, -1, -1, 1]
    assert torch.equal(signs(64), signs(256)[:64]) and 100 < (signs(256) > 0).sum() < 156


@pytest.mark.parametrize("dim", [2, 16, 64, 128])
def test_the_rotation_is_orthogonal_and_the_same_in_the_kernel(dim: int) -> None:
    x = torch.randn(2, 3, 5, dim, generator=torch.Generator().manual_seed(0)).half().to(DEVICE)
    y = rotate_reference(x)
    assert torch.allclose(rotate_back(y), x.float(), atol=1e-5)
    assert torch.allclose(y @ y.mT, x.float() @ x.float().mT, atol=1e-3)
    one = torch.eye(dim, device=DEVICE)
    assert torch.allclose(rotate_reference(one).abs(), torch.full_like(one, dim**-0.5))
    strided = x.transpose(1, 2)
    assert torch.equal(rotate(strided), rotate_reference(strided))
    assert torch.equal(rotate(y, back=True), rotate_back(y))


def test_a_head_dim_that_has_no_hadamard_matrix_is_refused() -> None:
    layout = layout_of("int4,rot", dims=(96, 96))
    for door in (check_kernel, check_supported):
        with pytest.raises(UnsupportedError, match="int4"):
            door(layout)


def test_nothing_that_is_rotated_becomes_not_a_number() -> None:
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    x[0, 3], x[1, :2], x[2] = torch.nan, torch.tensor([torch.inf, -torch.inf]), 3e38
    y = rotate_reference(x)
    assert y.isfinite().all() and torch.equal(rotate(x), y)
