"""Page arithmetic: odd head dims, pages that do not fit, open groups, tensors as declared, kernels that say no."""

from __future__ import annotations

import pytest
import torch
from kvplan_kernels.attention.decode import check_supported
from kvplan_kernels.cache import allocate, make_planes, plane_dtype, plane_shape
from kvplan_kernels.codecs.grid import encode
from kvplan_kernels.codecs.limits import check_kernel

from kvplan.errors import UnsupportedError, UsageError
from kvplan.formats.grammar import NAMES, parse_any
from kvplan.formats.grid import Tensor, bind
from kvplan.formats.layout import Field, Layout, Plane

DIMS = (64, 80, 96, 112, 192, 256, 512, 576)
# (spelling, bits per channel of codes, scale bytes per token, or per group of 16 or 32 channels)
ROWS = (("int7", 7, 2, 0), ("int6", 6, 2, 0), ("int5,asym", 5, 4, 0), ("int4:token,scale=fp32", 4, 4, 0),
        ("int3", 3, 2, 0), ("int2,asym", 2, 4, 0), ("lm3,rot", 3, 2, 0), ("fp4_e2m1", 4, 1 * 2, 16),
        ("nvfp4", 4, 1, 16), ("mxfp4", 4, 1, 32), ("mxfp8", 8, 1, 32), ("int4:group/32,asym", 4, 4, 32),
        ("int3:group/16", 3, 2, 16))  # fmt: skip
FORMULA_ONLY = ("int7", "int6", "int5:group/32", "int8,pack=slot", "int8:group/32,row", "int8,scale=e8m0",
                "int4:group/16,scale=e4m3", "fp4_e2m1,global=fp32", "int8,asym,pack=page",
                "int8:channel/32,pack=page")  # fmt: skip


def pair(k: str, v: str, dim: int = 128, heads: int = 2) -> Layout:
    return bind([Tensor("k", parse_any(k), dim), Tensor("v", parse_any(v), dim)], heads, "fp16")


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize(("spelling", "bits", "scale", "group"), ROWS)
def test_odd_head_dims(spelling: str, bits: int, scale: int, group: int, dim: int) -> None:
    if group and dim % group:
        with pytest.raises(UsageError, match=f"do not divide head_dim {dim}"):
            pair(spelling, spelling, dim)
        return
    per_row = dim * bits // 8 + scale * (dim // group if group else 1)
    assert pair(spelling, spelling, dim).page_bytes(48) == 48 * 2 * 2 * per_row


@pytest.mark.parametrize(
    ("spelling", "dim", "multiple"),
    [("int4", 65, 2), ("int3", 100, 8), ("int2", 66, 4), ("int5", 76, 8), ("int6", 74, 4)],
)
def test_rows_that_do_not_fill_bytes(spelling: str, dim: int, multiple: int) -> None:
    with pytest.raises(UsageError, match=f"-bit rows of head_dim {dim} do not fill whole bytes") as caught:
        pair(spelling, "bf16", dim)
    assert f"multiple of {multiple} channels" in caught.value.hint
    assert pair(spelling, "bf16", dim // multiple * multiple).page_bytes(16) > 0


@pytest.mark.parametrize(
    ("spelling", "page", "near"),
    [("int4:channel/32", 48, "32 or 64"), ("int2:channel/64,asym", 100, "64 or 128"), ("int8:channel/96", 64, "use 96"),
     ("int4:channel/32,asym,scale=fp32,pack=page", 33, "32 or 64")],
)  # fmt: skip
def test_pages_that_cut_a_group(spelling: str, page: int, near: str) -> None:
    with pytest.raises(UsageError) as caught:
        pair(spelling, "int8").page_bytes(page)
    assert near in caught.value.hint


def test_two_group_sizes_need_their_common_multiple() -> None:
    layout = pair("int4:channel/48", "int4:channel/32")
    assert layout.page_multiple == 96
    assert layout.page_bytes(96) == 2 * (2 * 96 * 64 + (2 + 3) * 256)


@pytest.mark.parametrize("spelling", ["int4:channel/32", "int3:channel/32,recent=96", "int2:channel/32,asym,pack=page"])
def test_an_open_group_waits_in_the_residual(spelling: str) -> None:
    tensor = pair(spelling, "int8").tensor("k")
    for tokens in range(300):
        packed, waiting = tensor.split(tokens)
        assert packed % 32 == 0 and packed + waiting == tokens and waiting < tensor.recent


@pytest.mark.parametrize(
    "spelling",
    ["int4", "int3:group/16", "int5,asym", "int2:channel/32,asym,recent=64", "lm3,rot", "fp4_e2m1",
     "fp8_e4m3:channel/32", "int8:group/16,row", "int6,pack=slot", "int4:channel/32,asym,scale=fp32,pack=page",
     "int4:channel,asym",
     *(n for n in NAMES if "mla" not in n and n != "fp8_ds_v4")],
)  # fmt: skip
def test_tensors_have_the_declared_bytes(spelling: str) -> None:
    for dim in (64, 128, 576) if spelling.startswith("octave") else (64, 96, 128, 576):
        for heads in (1, 3, 8):
            layout = pair(spelling, spelling, dim, heads)
            planes = make_planes(layout, 7, 3, 96, "meta")
            allocated = sum(t.untyped_storage().nbytes() for t in planes.values())
            declared = 7 * layout.page_bytes(96) + 3 * layout.fixed_bytes("residual") + layout.fixed_bytes("layer")
            assert allocated == declared > 0


def test_shapes_of_packed_planes() -> None:
    slots, pages = pair("int8,pack=slot", "int8:channel/32,asym,scale=fp32,pack=page").planes[:2]
    assert (slots.name, pages.name, pages.tokens, pages.storage) == ("k_slots", "v_pages", 32, "bytes")
    layout = pair("int8,pack=slot", "int8:channel/32,asym,scale=fp32,pack=page")
    assert plane_shape(slots, layout, 5, 1, 64) == (5, 2, 64, 130)
    assert plane_shape(pages, layout, 5, 1, 64) == (5, 2 * (64 * 128 + 2 * 128 * 8))
    assert plane_dtype(slots) == plane_dtype(pages) == torch.uint8
    assert [slots.offset("k", n) for n in ("codes", "scale")] == [0, 128]
    assert [pages.offset("v", n, 64) for n in ("codes", "scale", "zero")] == [0, 64 * 128, 64 * 128 + 2 * 512]
    latent = bind([Tensor("latent", parse_any("fp8_ds_v4"), 512, 64)], 1, "bf16")
    assert plane_shape(latent.planes[0], latent, 3, 1, 64) == (3, 65 * 576)
    assert allocate(layout, num_sequences=2, max_tokens=96, page_size=32, device="cpu").nbytes == (
        6 * layout.page_bytes(32) + 2 * layout.fixed_bytes("residual")
    )


def test_a_plane_that_contradicts_itself_cannot_be_made() -> None:
    a, b = Field("k", "codes", "int8", 16), Field("k", "scale", "fp16", 1, 32, "metadata")
    for broken in ({"fields": (a, b)}, {"fields": (a, b), "pack": "slot"}, {"fields": (a,), "slot_align": 16},
                   {"fields": (a,), "scope": "layer", "pack": "slot"}):  # fmt: skip
        with pytest.raises(AssertionError):
            Plane("p", **{"scope": "page", **broken})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="whole bytes"):
        Field("k", "codes", "int1", 12)


@pytest.mark.parametrize("spelling", [*FORMULA_ONLY, "q8_0", "iq4_nl", "turboquant_k8v4"])
def test_kernels_refuse_what_a_view_cannot_describe(spelling: str) -> None:
    layout = pair(spelling, spelling)
    for door in (check_kernel, check_supported, lambda x: encode(x, "k", torch.zeros(2, 32, 128))):
        with pytest.raises(UnsupportedError, match="no kernel yet") as caught:
            door(layout)
        assert layout.tensor("k").spelling in caught.value.message


@pytest.mark.parametrize("spelling", ["lm4,rot", "lm2,rot"])
def test_numbers_without_a_codec_are_refused(spelling: str) -> None:
    for door in (check_kernel, check_supported, lambda x: encode(x, "k", torch.zeros(2, 32, 128))):
        with pytest.raises(UnsupportedError):
            door(pair(spelling, spelling))
