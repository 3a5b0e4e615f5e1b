"""The reference codec: known codes, error bounds, policies, and figures computed elsewhere on real K and V."""

from __future__ import annotations

import pytest
import torch
from kvplan_kernels.attention.reference import attention_reference, format_error
from kvplan_kernels.codecs.grid import calibrate, decode, encode, saturated
from kvplan_kernels.codecs.planar import flip_top_bit, pack, unpack
from kvplan_kernels.testing import WITH_KERNEL, layout_of

from kvplan.errors import UnsupportedError, UsageError

DIM = 64


def rows(*leading: int, dim: int = DIM, seed: int = 0) -> torch.Tensor:
    return torch.randn(*leading, dim, generator=torch.Generator().manual_seed(seed))


def there_and_back(spelling: str, x: torch.Tensor) -> torch.Tensor:
    layout = layout_of(spelling, heads=x.shape[-3])
    return decode(layout, "k", encode(layout, "k", x, calibrate(layout, "k", x) or None))


def test_int8_halves_go_to_even_and_minus_128_is_not_a_code() -> None:
    layout = layout_of("int8", dims=(8, 8), heads=1)
    x = torch.tensor([127, -127, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5]).view(1, 1, 8)
    encoded = encode(layout, "k", x)
    assert encoded["scale"].item() == 1.0
    assert encoded["codes"].flatten().tolist() == [127, -127, 0, 2, 2, 0, -2, 126]


def test_asymmetric_codes_are_unsigned_bits_above_the_minimum() -> None:
    layout = layout_of("int8,asym", dims=(8, 8), heads=1)
    x = torch.tensor([-510.0, -509, -508, -2, -1, 0, -255, -254]).view(1, 1, 8)
    encoded = encode(layout, "k", x)
    assert (encoded["scale"].item(), encoded["zero"].item()) == (2.0, -510.0)
    assert encoded["codes"].view(torch.uint8).flatten().tolist() == [0, 0, 1, 254, 254, 255, 128, 128]


@pytest.mark.parametrize("bits", [2, 4])
def test_planar_words_hold_one_channel_per_plane(bits: int) -> None:
    """Channel j * words + w lies at bits j * bits of little-endian word w."""
    codes = torch.randint(0, 2**bits, (3, 96), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    packed = pack(codes, bits)
    assert packed.shape == (3, 96 * bits // 8) and torch.equal(unpack(packed, bits), codes)
    words = packed.view(torch.int16).int() & 0xFFFF
    for channel in (0, 5, 50, 95):
        field, word = divmod(channel, words.shape[1])
        assert torch.equal(words[:, word] >> field * bits & (1 << bits) - 1, codes[:, channel])
    row = packed[0].clone()
    flip_top_bit(row, 50, bits)
    changed = unpack(row, bits) ^ codes[0]
    assert changed.nonzero().tolist() == [[50]] and changed[50] == 1 << bits - 1


@pytest.mark.parametrize(
    ("spelling", "x", "scale", "zero", "stored"),
    [
        # Signed codes are stored in excess notation; -8 and -2 are no codes.
        ("int4", [7, -7, 0.5, 1.5, 2.5, -0.5, -1.5, 6.5], 1.0, None, [15, 1, 8, 10, 10, 8, 6, 14]),
        ("int2", [1, -1, 0.5, -0.5, 0.51, -0.51, 0, 1], 1.0, None, [3, 1, 2, 2, 3, 1, 2, 3]),
        ("int4:token,asym", [-30, 0, -29, -28, -27, -1, -15, -16], 2.0, -30.0, [0, 15, 0, 1, 2, 14, 8, 7]),
        ("int2:token,asym", [1, 4, 1.5, 2.5, 3.5, 2, 3, 1], 1.0, 1.0, [0, 3, 0, 2, 2, 1, 2, 0]),
    ],
)
def test_codes_below_8_bits(spelling: str, x: list[float], scale: float, zero: float | None, stored: list[int]) -> None:
    layout = layout_of(spelling, dims=(8, 8), heads=1)
    encoded = encode(layout, "k", torch.tensor(x).view(1, 1, 8))
    assert encoded["scale"].item() == scale
    assert zero is None or encoded["zero"].item() == zero
    assert unpack(encoded["codes"], layout.view("k").bits).flatten().tolist() == stored


def test_fp8_is_a_saturating_cast() -> None:
    layout = layout_of("fp8_e4m3", dims=(8, 8), heads=1)
    x = torch.tensor([448.0, 449, 1e6, -torch.inf, torch.nan, -0.0, 2**-10, 0.0176]).view(1, 1, 8)
    encoded = encode(layout, "k", x, {"scale": torch.ones(1, 1)})
    assert encoded["codes"].view(torch.uint8).flatten().tolist() == [0x7E, 0x7E, 0x7E, 0xFE, 0x00, 0x80, 0x00, 0x09]


@pytest.mark.parametrize(
    "spelling",
    [
        "int8", "int8,asym", "int8:group/16", "int8:channel/32,asym", "int8:head", "int4", "int4:group/32,asym",
        "int2:token,asym", "int2:channel/32,asym",
    ],
)  # fmt: skip
def test_integer_error_is_at_most_half_a_step(spelling: str) -> None:
    x = rows(2, 64) * torch.tensor([1.0, 300.0]).view(2, 1, 1)
    layout = layout_of(spelling)
    encoded = encode(layout, "k", x, calibrate(layout, "k", x) or None)
    step = encoded["scale"].float().amax((-2, -1) if "head" not in spelling else -1).view(2, 1, 1)
    # The stored scale is rounded: the value farthest out may lie 127 or 255 half units in the last place beyond it.
    assert ((decode(layout, "k", encoded) - x).abs() <= step * 0.5 + x.abs().amax() * 2**-10).all()


def test_fp8_relative_error_is_flat_over_six_octaves_where_int8_is_not() -> None:
    x = rows(1, 512)
    layout = {s: layout_of(s, heads=1) for s in ("fp8_e4m3", "int8:tensor")}
    errors: dict[str, list[float]] = {}
    for spelling, lay in layout.items():
        static = calibrate(lay, "k", x)
        errors[spelling] = []
        for octave in range(7):
            y = x * 2.0**-octave
            stored = decode(lay, "k", encode(lay, "k", y, static))
            errors[spelling].append(float((stored - y).norm() / y.norm()))
    assert max(errors["fp8_e4m3"]) < 1.1 * min(errors["fp8_e4m3"]) < 0.03
    assert errors["int8:tensor"][6] > 30 * errors["int8:tensor"][0]


@pytest.mark.parametrize("spelling", [s for s in WITH_KERNEL if not s.startswith(("fp32", "fp16", "bf16"))])
def test_no_input_decodes_to_nan_or_infinity(spelling: str) -> None:
    x = rows(2, 48)
    x[0, 0], x[0, 1, :3] = torch.nan, torch.tensor([torch.inf, -torch.inf, 1.0])
    x[0, 2], x[0, 3], x[0, 4], x[1, 5] = 0, 1e-30, 7.25, -x[1, 5].abs()
    x[1, 1] *= 1e9
    layout = layout_of(spelling)
    values = decode(layout, "k", encode(layout, "k", x, calibrate(layout, "k", rows(2, 48, seed=1)) or None))
    assert values.isfinite().all()
    if "asym" not in spelling or "token" in spelling:
        assert (values[0, 2] == 0).all()


def test_scales_stay_in_their_storage() -> None:
    """Range 0 and denormal ranges get the smallest fp16 scale, ranges beyond fp16 its largest."""
    layout = layout_of("int8", heads=1)
    x = torch.ones(1, 4, DIM) * torch.tensor([0.0, 1e-12, 1e-6, 1e12]).view(1, 4, 1)
    encoded = encode(layout, "k", x)
    assert encoded["scale"].flatten().tolist() == [2.0**-24, 2.0**-24, 2.0**-24, 65504.0]
    assert encoded["codes"][0, :, 0].tolist() == [0, 0, 17, 127]


@pytest.mark.parametrize(
    ("spelling", "shape"), [("int8:tensor", (1, 1)), ("fp8_e4m3:head", (2, 1)), ("int8:channel", (2, DIM))]
)
def test_calibration_covers_its_own_samples_and_no_more(spelling: str, shape: tuple[int, int]) -> None:
    layout, x = layout_of(spelling), rows(3, 2, 40)
    static = calibrate(layout, "k", x)
    assert static["scale"].shape == shape
    assert saturated(layout, "k", x, static).tolist() == [0, 0]
    x[0, 0, 0, :5] *= 1e4
    x[0, 1, 0, 0] = torch.nan
    clipped = saturated(layout, "k", x, static)
    assert clipped[1] == 0
    assert 4 <= clipped[0] <= 5
    wide = calibrate(layout, "k", rows(3, 2, 40), margin=2.0)
    assert torch.equal(wide["scale"], static["scale"] * 2)


def test_refusals() -> None:
    with pytest.raises(UnsupportedError, match="lm4"):
        encode(layout_of("lm4,rot"), "k", rows(2, 4))
    with pytest.raises(UnsupportedError, match="Hadamard") as caught:
        encode(layout_of("int4,rot", dims=(96, 96)), "k", rows(2, 4, dim=96))
    assert "power of two" in caught.value.hint
    with pytest.raises(UsageError, match="static scales missing"):
        encode(layout_of("nvfp4"), "k", rows(2, 4))
    with pytest.raises(UnsupportedError, match="end inside a 16-bit word"):
        encode(layout_of("int4", dims=(66, 66)), "k", rows(2, 4, dim=66))
    with pytest.raises(UsageError, match="static scales missing"):
        encode(layout_of("int8:head"), "k", rows(2, 4))
    with pytest.raises(UsageError, match="no multiple of the 16-token group"):
        encode(layout_of("int8:channel/16"), "k", rows(2, 17))
    with pytest.raises(UsageError, match="do not fit 2 heads"):
        encode(layout_of("int8"), "k", rows(3, 4))


def test_reference_attention_matches_torch_and_skips_empty_requests() -> None:
    q, k, v = rows(3, 6), rows(3, 2, 20, seed=1), rows(3, 2, 20, dim=48, seed=2)
    lengths = torch.tensor([20, 0, 7])
    out = attention_reference(q, k, v, lengths, 0.3)
    assert out.dtype == torch.float64
    assert (out[1] == 0).all()
    for b in (0, 2):
        n = int(lengths[b])
        args = (q[b].view(2, 3, DIM).double(), k[b, :, :n].double(), v[b, :, :n].double())
        want = torch.nn.functional.scaled_dot_product_attention(*args, scale=0.3).view(6, 48)
        torch.testing.assert_close(out[b], want)


def test_format_error_separates_k_from_v() -> None:
    q, k, v = rows(2, 4), rows(2, 2, 30, seed=1), rows(2, 2, 30, seed=2)
    lengths = torch.tensor([30, 12])
    shifted = format_error(q, k, v, k + 0.5, v, lengths, 0.1)
    assert shifted.k.logit.mean < 1e-6, "a shift common to all keys is no error"
    assert shifted.k.total_variation.mean < 1e-6
    doubled = format_error(q, k, v, k, v * 2, lengths, 0.1)
    assert doubled.k.relative == 0
    assert doubled.v.relative == doubled.both.relative == pytest.approx(1.0)
    assert doubled.v.output.mean == doubled.v.output.worst_head == pytest.approx(1.0)
    noisy = k.clone()
    noisy[:, 1] += rows(2, 30, seed=3) * 0.1
    error = format_error(q, k, v, noisy, v, lengths, 0.1)
    assert error.both.relative == error.k.relative > 0
    assert error.k.output.head in (2, 3), "only the query heads of KV head 1 are wrong"
