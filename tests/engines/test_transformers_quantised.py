"""transformers' quantised caches: codes, scales and recent rows of every backend, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.engines.transformers.quantised import formats_for
from kvplan.errors import UnsupportedError, UsageError
from kvplan.plan import PlanRequest, make_plan
from kvplan.plan.resolve import resolve
from kvplan.specs.model import ModelSpec


def model(heads: int = 2, dim: int = 64, dtype: str = "bfloat16", **more: Any) -> ModelSpec:
    group = {"kind": "attention", "layers": 2, "q_heads": heads, "kv_heads": heads, "head_dim": dim, **more}
    body = {"kvplan_spec": 1, "id": "small", "max_context": 1 << 20, "layers": 2, "native_dtype": dtype}
    return ModelSpec.model_validate(body | {"layer_groups": [group]})


def cache(spec: ModelSpec, kv: str, calls: list[int], batch: int = 1, *options: str, version: str | None = None) -> Any:
    given = PlanRequest(
        model="small", engine="transformers", kv=kv, context=sum(calls), batch=batch, engine_version=version,
        engine_options=(f"decode_tokens={len(calls) - 1}", *options), beyond_max=True,
    )  # fmt: skip
    rank: Any = resolve(given, spec).ranks[0]
    return rank.cache


def stored(spec: ModelSpec, kv: str, calls: list[int], batch: int = 1, *options: str) -> dict[str, int]:
    """Bytes of each tensor of one layer."""
    ((group, made),) = cache(spec, kv, calls, batch, *options).tensors(calls, batch)
    return {s.name: s.tensor(group, batch).nbytes // group.layers for s in made}


@pytest.mark.parametrize(
    ("kv", "options", "codes"),
    [
        # 2 sequences x 2 heads x 32 rows x 64 channels = 8,192 values in 128 groups of 64.
        ("quanto-int4", (), 8192 // 2),
        ("quanto-int2", ("axis_key=-1",), 8192 // 4),
        ("hqq-int8", (), 8192),
        ("hqq-int4", ("axis_key=1",), 8192 // 2),
        ("hqq-int2", (), 8192 // 4),
        ("hqq-int1", ("axis_key=1",), 8192 // 8),
        # Seven 32-bit words for a group of 64; on the other axis 13 words for ten groups each, 64 times.
        ("hqq-int3", (), 128 * 7 * 4),
        ("hqq-int3", ("axis_key=1",), 13 * 64 * 4),
    ],
)
def test_codes_and_scales(kv: str, options: tuple[str, ...], codes: int) -> None:
    made = stored(model(), kv, [32], 2, *options)
    second = "zero" if kv.startswith("hqq") else "shift"
    assert made["_quantized_keys"] == codes
    assert made["_quantized_keys scale"] == made[f"_quantized_keys {second}"] == 128 * 2
    assert made["keys"] == made["values"] == 0


def test_recent_rows_and_flushes() -> None:
    spec = model()
    waiting = stored(spec, "quanto-int4", [32] + [1] * 127, 2)
    assert waiting["keys"] == 2 * 2 * 127 * 64 * 2 and waiting["_quantized_keys"] == 4096
    flushed = stored(spec, "quanto-int4", [32] + [1] * 128, 2)
    assert flushed["keys"] == 0 and flushed["_quantized_keys"] == 2 * 2 * 160 * 64 // 2
    short = stored(spec, "quanto-int4", [64] + [1] * 17, 1, "residual_length=16", "q_group_size=32")
    assert short["keys"] == 2 * 64 * 2 and short["_quantized_keys scale"] == 2 * 80 * 64 // 32 * 2


def test_float32_models_double_scales() -> None:
    made = stored(model(dtype="float32"), "quanto-int4", [32], 2)
    assert made["_quantized_keys"] == 4096 and made["_quantized_keys scale"] == 128 * 4


def test_fp8_keeps_no_recent_rows() -> None:
    made = stored(model(), "fp8", [32, 1], 2)
    assert made["_quantized_keys"] == 2 * 2 * 33 * 64 and made["_quantized_keys scale"] == 4 and made["keys"] == 0
    kept = stored(model(), "fp8", [32, 1], 2, "residual_length=128")
    assert kept["_quantized_keys"] == 2 * 2 * 32 * 64 and kept["keys"] == 2 * 2 * 64 * 2
    with pytest.raises(UsageError, match=r"5\.20\.0 has no cache format 'fp8'"):
        cache(model(), "fp8", [32], version="5.20.0")


def test_a_latent_is_quantised_in_two_parts() -> None:
    group = {"kind": "latent", "layers": 2, "q_heads": 4, "width": {"nope": 512, "rope": 64}}
    body = {"kvplan_spec": 1, "id": "small", "max_context": 4096, "layers": 2, "native_dtype": "bfloat16"}
    made = stored(ModelSpec.model_validate(body | {"layer_groups": [group]}), "quanto-int4", [10, 1])
    assert made["_quantized_keys"] == 10 * 512 // 2 and made["_quantized_values"] == 10 * 64 // 2
    assert made["keys"] == 512 * 2 and made["values"] == 64 * 2


def test_what_a_plan_says() -> None:
    given = PlanRequest(model="small", engine="transformers", kv="quanto-int4", context=1001)
    made = make_plan(given, model())
    kv = made.kv
    assert kv is not None
    # Per row of K and V: 2 x 64 values, half a byte each, and a scale and a zero for each 64.
    row = 2 * (2 * 64 // 2 + 2 * 2 * 2)
    assert kv.logical_bytes == 2 * 1001 * row
    assert kv.allocated_bytes == 2 * (1000 * row + 512)
    assert kv.padding_bytes == 2 * (512 - row)
    assert made.request.k == "int4:group/64,asym,flat,scale=model"
    assert any("dequantises" in note for note in made.notes)
    third = make_plan(given.model_copy(update={"kv": "hqq-int3"}), model()).kv
    # Ten values of 3 bits in four bytes, with padding: 28 bytes for a group that needs 24.
    assert third is not None and third.allocated_bytes - third.logical_bytes == 2 * (4 * 1000 * 4 + 512 - 4 * (24 + 4))


@pytest.mark.parametrize(
    ("kv", "calls", "options", "message"),
    [
        ("quanto-int8", [64], (), "no cache format"),
        ("hqq-int5", [64], (), "no cache format"),
        ("quanto-int4", [64], ("axis_key=1",), "axis_key of quanto is 0 or -1"),
        ("hqq-int4", [64], ("axis_value=-1",), "axis_value of hqq is 0 or 1"),
        # 2 heads x 64 channels x 2 rows = 256 values: no group of 96.
        ("quanto-int4", [2], ("q_group_size=96",), "groups of 96 do not divide"),
        # 4 groups of 64 do not fill a byte of eight.
        ("hqq-int1", [2], ("axis_key=1",), "do not fill whole bytes"),
        # 128 groups are no multiple of ten; 10 rows of 2 groups are.
        ("hqq-int3", [64, 1], ("axis_key=1",), "no multiple of ten"),
    ],
)
def test_refusals(kv: str, calls: list[int], options: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        cache(model(), kv, calls, 1, *options)


def test_values_of_the_batch_fill_groups() -> None:
    odd = model(1, 80)
    for rows in (7, 33):
        with pytest.raises(UsageError, match=f"groups of 64 do not divide {rows} rows x 1 heads x 80 channels"):
            cache(odd, "quanto-int4", [rows, 1])
    # 8 rows x 80 = ten groups; of four sequences even one row is five.
    assert stored(odd, "quanto-int4", [8])["_quantized_keys scale"] == 10 * 2
    assert stored(odd, "hqq-int4", [1], 4)["_quantized_keys scale"] == 5 * 2
    # A later flush counts too: 8 + 15 rows.
    with pytest.raises(UsageError, match="divide 23 rows"):
        cache(odd, "quanto-int4", [8] + [1] * 15, 1, "residual_length=15")
    assert cache(model(), "hqq-int3", [5, 1], 1, "axis_key=1", "axis_value=1")


def test_only_full_attention() -> None:
    with pytest.raises(UsageError, match="only full attention layers"):
        cache(model(retain={"window": 16}), "quanto-int4", [64])


def test_flush_of_older_versions() -> None:
    calls = [64, 100, 100]
    new, old = (cache(model(), "quanto-int4", [264], version=v) for v in ("5.20.0", "5.19.0"))
    rows = [next(s.tensor(g, 1).nbytes for g, made in c.tensors(calls, 1) for s in made) for c in (new, old)]
    assert rows == [0, 2 * 200 * 2 * 64 * 2]


def test_formats_follow_the_group_size() -> None:
    by_name = {f.option: f for f in formats_for({"q_group_size": 32})}
    assert by_name["hqq-int1"].k == "int1:group/32,asym,flat,scale=model"
    with pytest.raises(UnsupportedError, match="stores no k as"):
        cache(model(), "int4:group/64,asym,flat,scale=model", [64], 1, "q_group_size=32")
    assert cache(model(), "int4:group/64,asym,flat,scale=model", [64]).option == "quanto-int4"


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 300), st.integers(1, 60), st.integers(0, 3), st.integers(0, 60), st.sampled_from([0, 1, 2, 7, 128]),
    st.sampled_from(["quanto-int4", "hqq-int8", "hqq-int3", "fp8"]),
)  # fmt: skip
def test_it_grows(context: int, more: int, sequences: int, decode: int, residual: int, kv: str) -> None:
    given = PlanRequest(
        model="small", engine="transformers", kv=kv, context=301,
        engine_options=(f"decode_tokens={decode}", f"residual_length={residual}"),
    )  # fmt: skip
    rank: Any = resolve(given, model()).ranks[0]
    assert rank.cache.held(context, sequences) <= rank.cache.held(context + more, sequences)
    assert rank.cache.held(context, sequences) <= rank.cache.held(context, sequences + 1)
    assert make_plan(given.model_copy(update={"context": context, "batch": sequences + 1}), model()).kv
