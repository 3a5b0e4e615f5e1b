"""Formats with a name and the engines' rows: sizes from the facts, engine pages, refusals."""

from __future__ import annotations

import pytest

from kvplan.errors import UsageError
from kvplan.formats import ds_mla, named, octave, turboquant
from kvplan.formats.grammar import NAMES, Named, parse_any, parse_format
from kvplan.formats.grid import Tensor, bind
from kvplan.formats.layout import Layout


def pair(k: str, v: str, dim: int = 128, heads: int = 1, dtype: str = "bf16") -> Layout:
    return bind([Tensor("k", parse_any(k), dim), Tensor("v", parse_any(v), dim)], heads, dtype)


def latent(spelling: str, nope: int = 512, rope: int = 64, role: str = "latent") -> Layout:
    return bind([Tensor(role, parse_any(spelling), nope + rope, rope)], 1, "bf16")


def test_every_name_has_a_layout() -> None:
    assert set(NAMES) == {*named.SPELLINGS, *ds_mla.RECORDS, *turboquant.SLOTS, *octave.SLOTS}


@pytest.mark.parametrize("name", named.SPELLINGS)
def test_a_name_keeps_its_spelling_and_has_the_planes_of_its_meaning(name: str) -> None:
    by_name, by_meaning = pair(name, name, heads=2), pair(*[named.SPELLINGS[name]] * 2, heads=2)
    assert by_name.planes == by_meaning.planes
    assert {t.spelling for t in by_name.tensors} == {name}


@pytest.mark.parametrize(
    ("name", "block", "nbytes"),
    [("q8_0", 32, 34), ("q5_1", 32, 24), ("q5_0", 32, 22), ("q4_1", 32, 20), ("q4_0", 32, 18), ("iq4_nl", 32, 18),
     ("nvfp4", 16, 9), ("mxfp4", 32, 17), ("mxfp8", 32, 33)],
)  # fmt: skip
@pytest.mark.parametrize("dim", [64, 96, 128, 192, 256, 512])
def test_blocks(name: str, block: int, nbytes: int, dim: int) -> None:
    assert pair(name, name, dim, heads=3).page_bytes(16) == 16 * 2 * (3 * dim // block) * nbytes


def test_ggml_blocks_cross_heads_of_80() -> None:
    assert pair("q8_0", "q8_0", 80, heads=2).page_bytes(16) == 16 * 2 * 5 * 34
    with pytest.raises(UsageError, match="32 channels"):
        pair("q8_0", "q8_0", 80, heads=3)
    with pytest.raises(UsageError, match="head_dim 80"):
        pair("mxfp4", "mxfp4", 80, heads=2)


# Engine and option, role, spelling, widths without and with position, bytes of a row.
LATENT_ROWS = (
    ("vllm fp8", "latent", "fp8_e4m3", 512, 64, 576),
    ("vllm fp8_ds_mla", "latent", "fp8_ds_mla", 512, 64, 656),
    ("vllm nvfp4_ds_mla", "latent", "nvfp4_ds_mla", 512, 64, 352),
    ("vllm DeepSeek-V4", "latent", "fp8_ds_v4", 448, 64, 584),
    ("vllm DeepSeek-V4.1", "latent", "fp8_e4m3:group/32,scale=e8m0,pack=slot", 448, 64, 528),
    ("vllm sparse index", "index", "fp8_e4m3:token,scale=fp32,pack=page", 128, 0, 132),
    ("vllm sparse index, mxfp4", "index", "mxfp4", 128, 0, 68),
    ("sglang fp4_mx_block16", "latent", "fp4_e2m1,scale=e8m0", 512, 64, 324),
    ("llama.cpp q8_0", "latent", "q8_0", 512, 64, 612),
    ("exllamav3 -cq 4", "latent", "int4:group/32,rope=fp16", 512, 64, 416),
)


@pytest.mark.parametrize(("role", "spelling", "nope", "rope", "nbytes"), [r[1:] for r in LATENT_ROWS])
def test_latent_rows(role: str, spelling: str, nope: int, rope: int, nbytes: int) -> None:
    """576 rows: the least number of DeepSeek-V4 rows that fills its aligned pages."""
    layout = latent(spelling, nope, rope, role)
    assert layout.page_bytes(576) == 576 * nbytes
    assert layout.tensors[0].spelling == spelling


def test_pages_of_deepseek_v4_are_whole_units_of_576_bytes() -> None:
    layout = latent("fp8_ds_v4", 448, 64)
    assert [layout.page_bytes(n) for n in (1, 64, 256)] == [2 * 576, 65 * 576, 260 * 576]
    [plane] = layout.planes
    assert {f.name: (f.unit_bytes, f.role) for f in plane.fields} == {
        "codes": (448, "payload"), "scale": (7, "metadata"), "pad": (1, "padding"), "rope": (128, "payload"),
    }  # fmt: skip


def test_a_record_fits_its_own_widths_only() -> None:
    with pytest.raises(UsageError, match=r"row of 512 \+ 64 channels; this latent has 256 \+ 32"):
        latent("fp8_ds_mla", 256, 32)
    assert latent("fp8_e4m3:group/128,scale=fp32,pack=slot,rope=bf16", 256, 32).page_bytes(1) == 256 + 8 + 64


@pytest.mark.parametrize("spelling", ["fp8_ds_mla", "int8,rope=bf16"])
def test_a_rope_part_belongs_to_a_latent(spelling: str) -> None:
    with pytest.raises(UsageError, match="not for k") as caught:
        pair(spelling, "bf16")
    assert "--latent" in caught.value.hint
    with pytest.raises(UsageError, match="not for index"):
        latent(spelling, 128, 0, "index")
    with pytest.raises(UsageError, match="no rope part"):
        latent(spelling, 512, 0)


def test_joint_slots_hold_both_tensors() -> None:
    for k, v in (("turboquant_k8v4", "bf16"), ("int8", "turboquant_k8v4"), ("turboquant_k8v4", "turboquant_3bit_nc")):
        with pytest.raises(UsageError, match="K and V in one slot") as caught:
            pair(k, v)
        assert "--kv turboquant" in caught.value.hint
    with pytest.raises(UsageError, match="not of latent"):
        latent("turboquant_k8v4")
    with pytest.raises(UsageError, match="3-bit rows of head_dim 84"):
        pair("turboquant_3bit_nc", "turboquant_3bit_nc", dim=84)


def test_a_slot_has_an_even_number_of_bytes() -> None:
    """head_dim 72: K 27 bytes and a norm, V 27 bytes with scale and zero, 60; with int4 V 36: 69, rounded up to 70."""
    assert pair("turboquant_3bit_nc", "turboquant_3bit_nc", 72).page_bytes(1) == 60
    assert pair("turboquant_k3v4_nc", "turboquant_k3v4_nc", 72).page_bytes(1) == 27 + 2 + 36 + 4 + 1


def test_a_nonlinear_table_is_a_number_of_its_own() -> None:
    assert pair("iq4_nl", "q4_0").tensor("k").number != pair("iq4_nl", "q4_0").tensor("v").number
    assert parse_any("iq4_nl") == Named("iq4_nl") != parse_format(named.SPELLINGS["iq4_nl"])


@pytest.mark.parametrize(
    ("name", "dim", "rope", "nbytes"),
    [
        # Rope channels of K 4 bit, its others 3; V; an fp16 scale for every 64 channels of K and one for V; round up.
        ("octave_k3v4", 128, 128, 64 + 64 + 2 * 2 + 2 + 2),
        ("octave_k3v4", 128, 64, 32 + 24 + 64 + 2 * 2 + 2 + 2),
        ("octave_k3v3", 128, 128, 64 + 48 + 2 * 2 + 2 + 2),
        ("octave_k3v3", 64, 64, 32 + 24 + 2 + 2 + 4),
        # No rope channels apart, one scale for K: rounded up to 4 bytes.
        ("octave_k3v3_compact", 128, 128, 48 + 48 + 2 + 2),
    ],
)
def test_octave_slots(name: str, dim: int, rope: int, nbytes: int) -> None:
    layout = bind([Tensor("k", Named(name), dim, rope), Tensor("v", Named(name), dim)], 3, "bf16")
    assert layout.page_bytes(16) == 16 * 3 * nbytes


def test_octave_refuses_one_tensor_alone_and_other_heads() -> None:
    with pytest.raises(UsageError, match="one slot"):
        pair("octave_k3v4", "bf16")
    with pytest.raises(UsageError, match="64-channel"):
        pair("octave_k3v4", "octave_k3v4", dim=96)
