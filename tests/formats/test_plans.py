"""Formats end to end: what `make_plan` answers for real models, to the byte."""

from __future__ import annotations

from fractions import Fraction

import pytest

from kvplan.errors import UsageError
from kvplan.memory.figures import KvFigures
from kvplan.plan import Plan, PlanRequest, make_plan
from kvplan.units import GIB

TOKENS = 32768
ELEMENTS = 2 * 32 * 8 * 128 * TOKENS
"""K and V elements of Llama-3.1-8B at 32k: 2^31, 4 GiB in 16 bit."""


def kv(model: str = "llama-3.1-8b", context: int = TOKENS, **fields: object) -> KvFigures:
    made = make_plan(PlanRequest.model_validate({"model": model, "context": context, **fields}))
    assert Plan.load(made.to_json()) == made
    assert made.kv is not None
    return made.kv


@pytest.mark.parametrize(
    ("spelling", "per_element", "gib"),
    [
        ("fp8_e4m3", Fraction(1), Fraction(2)),
        ("int8:token,scale=fp32", Fraction(128 + 4, 128), Fraction("2.0625")),
        ("q8_0", Fraction(34, 32), Fraction("2.125")),
        ("q4_0", Fraction(18, 32), Fraction("1.125")),
        ("nvfp4", Fraction(9, 16), Fraction("1.125")),
        ("mxfp4", Fraction(17, 32), Fraction("1.0625")),
        ("int4:group/32,asym", Fraction(5, 8), Fraction("1.25")),
    ],
)
def test_formats_that_other_planners_get_wrong(spelling: str, per_element: Fraction, gib: Fraction) -> None:
    """Bytes per element with scales, and GiB at 32k; nothing is rounded and pages are full."""
    found = kv(kv=spelling)
    assert found.logical_bytes == ELEMENTS * per_element == GIB * gib
    assert found.allocated_bytes == found.logical_bytes
    assert found.bytes_per_token.numerator == found.logical_bytes // TOKENS


def test_sparse_mla_records_with_their_index() -> None:
    """DeepSeek-V3.2: 61 layers of 656 + 132 bytes a token."""
    found = kv("deepseek-v3.2", latent="fp8_ds_mla", index="fp8_e4m3:token,scale=fp32,pack=page")
    assert found.logical_bytes == 48_068 * TOKENS == 61 * (656 + 132) * TOKENS
    assert round(found.logical_bytes / GIB, 4) == 1.4669
    assert kv("deepseek-v3.2", kv="fp8_ds_mla", index="mxfp4").bytes_per_token.numerator == 61 * (656 + 68)
    assert kv("deepseek-v3.2", latent="nvfp4_ds_mla", index="bf16").bytes_per_token.numerator == 61 * (352 + 256)


# 32 layers x 8 heads. K and V take 32 bytes of codes a token; K's scale and zero are 2 x 128 x 2 bytes for 32 tokens,
# V's 2 x 4 x 2 for each: 48 bytes a packed token either way. An unquantised row takes 256.
PACKED, ROW, HEADS = 48, 256, 32 * 8


@pytest.mark.parametrize(
    ("context", "k_recent", "v_recent"),
    [
        (32768, 0, 128),  # 256 flushes of K, just done
        (32767, 127, 128),  # one token before the flush: K packs 32,640, V packs 32,639
        (32769, 1, 128),  # K packs 32,768, V packs 32,641
        (128, 0, 128),  # K is flushed whole, V has no codes yet
        (127, 127, 127),
        (1, 1, 1),
    ],
)
def test_kivi2(context: int, k_recent: int, v_recent: int) -> None:
    found = kv(context=context, kv="kivi2")
    packed = (context - k_recent) + (context - v_recent)
    assert found.payload_bytes == HEADS * packed * 32
    assert found.metadata_bytes == HEADS * packed * 16
    assert found.residual_bytes == HEADS * (k_recent + v_recent) * ROW
    assert found.logical_bytes == HEADS * (packed * PACKED + (k_recent + v_recent) * ROW)
    assert found.reserved_bytes == HEADS * (256 - k_recent - v_recent) * ROW
    pages = -(-max(context - k_recent, context - v_recent) // 128)
    assert found.allocated_bytes == HEADS * (pages * 128 * 2 * PACKED + 2 * 128 * ROW)
    if context < 128:
        assert found.payload_bytes == found.metadata_bytes == 0
        assert found.logical_bytes == HEADS * 2 * context * ROW


def test_kivi2_in_plain_numbers() -> None:
    assert [kv(context=n, kv="kivi2").logical_bytes for n in (32768, 32767, 32769)] == [
        812_122_112, 818_860_032, 812_199_936,
    ]  # fmt: skip


def test_kivi_with_other_groups_and_recents() -> None:
    """kivi4/64,recent=64 at 1,000 tokens: K packs 960, V 936; 64 bytes of codes and 2 x 2 x 2 of scales a token."""
    found = kv(context=1000, kv="kivi4/64,recent=64")
    assert found.logical_bytes == HEADS * ((960 + 936) * (64 + 8) + (40 + 64) * ROW)
    echo = make_plan(PlanRequest(model="llama-3.1-8b", kv="kivi4/64,recent=64")).request
    assert (echo.kv, echo.k, echo.v) == (
        "kivi4/64,recent=64", "int4:channel/64,asym", "int4:group/64,asym,recent=64",
    )  # fmt: skip


def test_kivi_in_a_sliding_window() -> None:
    """Rows that have left the window are nobody's: 4,096 rows, K all packed, V all but 128."""
    found = kv("mistral-7b-v0.1", kv="kivi2")
    assert found.logical_bytes == HEADS * ((4096 + 3968) * PACKED + 128 * ROW)
    assert found.bytes_per_token.numerator == 0


def test_joint_slots_and_constants() -> None:
    assert kv(kv="turboquant_3bit_nc").logical_bytes == HEADS * TOKENS * 102
    assert kv(kv="nvfp4").constant_bytes == 32 * 2 * 4
    assert kv(kv="lm4,rot").constant_bytes == 0


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1)])
def test_rows_of_a_rank_after_sharding(tp: int, heads: int) -> None:
    found = kv(kv="q8_0", tp=tp)
    assert found.logical_bytes == 32 * TOKENS * heads * 2 * 128 // 32 * 34
    assert found.replicated_bytes == (tp * heads - 8) * 32 * TOKENS * 272


def test_padding_is_what_the_slots_do_not_need() -> None:
    """A latent of 448 + 64 in pages of 64 rows: 583 bytes of a row are used, pages are 65 x 576 bytes."""
    from kvplan.specs.model import ModelSpec

    group = {"kind": "latent", "layers": 2, "q_heads": 64, "width": {"nope": 448, "rope": 64}}
    common = {"kvplan_spec": 1, "id": "toy", "params": {"total": 1}, "max_context": 65536, "native_dtype": "bfloat16"}
    spec = ModelSpec.model_validate({**common, "layers": 2, "layer_groups": [group]})
    made = make_plan(PlanRequest(model="toy", context=640, latent="fp8_ds_v4", page_size=64), spec).kv
    assert made is not None
    assert (made.payload_bytes, made.metadata_bytes) == (2 * 640 * (448 + 128), 2 * 640 * 7)
    assert made.allocated_bytes == 2 * 10 * 65 * 576
    assert made.padding_bytes == 2 * (10 * 65 * 576 - 640 * 583)


def test_a_rank_too_small_for_whole_groups_is_no_way_out() -> None:
    """Heads of 80 channels: blocks of 32 fit 2 heads, not 1. The verdict offers tp 4 of 8 heads, never 8."""
    from kvplan.specs.model import ModelSpec

    group = {"kind": "attention", "layers": 2, "q_heads": 8, "kv_heads": 8, "head_dim": 80}
    common = {"kvplan_spec": 1, "id": "toy", "params": {"total": 1}, "max_context": 65536, "native_dtype": "bfloat16"}
    spec = ModelSpec.model_validate({**common, "layers": 2, "layer_groups": [group]})
    need = 2 * 65536 * 8 * 80 * 2 // 32 * 34
    for share, tp in ((4, 4), (8, None)):
        request = PlanRequest(
            model="toy", context=65536, kv="q8_0", gpu_memory=need // share + 2**20, bandwidth=10**12, util=1
        )
        made = make_plan(request, spec)
        assert made.verdict is not None and not made.verdict.fits
        assert {c.option: c.value for c in made.verdict.nearest_change}.get("--tp") == tp
    with pytest.raises(UsageError, match="1 x 80 channels"):
        make_plan(PlanRequest(model="toy", context=10, kv="q8_0", tp=8), spec)


@pytest.mark.parametrize(
    ("fields", "message", "hint"),
    [
        ({"kv": "int8:group/96"}, "do not divide head_dim 128", "8, 16, 32, 64, 128"),
        ({"kv": "kivi2", "page_size": 48}, "page size 48", "32 or 64"),
        ({"kv": "kivi2/96,recent=96"}, "groups of 96 channels", "8, 16, 32"),
        ({"k": "nvfp4:group/8"}, "takes no granularity", "just nvfp4"),
        ({"k": "kivi2"}, "pair for K and V", "--kv kivi2"),
        ({"kv": "fp8_ds_mla"}, "for a latent", "--latent"),
        ({"k": "turboquant_k8v4"}, "one slot", "--kv turboquant_k8v4"),
        ({"model": "deepseek-v3", "kv": "kivi2"}, "does not carry over", "--latent"),
        ({"model": "deepseek-v3", "latent": "fp8_ds_v4"}, "448 + 64", "rope=bf16"),
    ],
)
def test_what_does_not_fit_is_refused(fields: dict[str, object], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        kv(**{"context": 1000, **fields})  # type: ignore[arg-type]
    assert message in caught.value.message
    assert hint in caught.value.hint
