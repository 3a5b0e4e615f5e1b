"""vLLM: which cache dtype exists for which model, backend, GPU and version, and the rows it stores."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from kvplan.engines import load_engine
from kvplan.engines.vllm.backends import BACKENDS, choose_backend, default_block
from kvplan.errors import KvplanError, UnsupportedError, UsageError
from kvplan.specs.model import ModelSpec

sys.path.insert(0, str(Path(__file__).parent))

from vllm_specs import DENSE, attention, cache, hybrid, latent, make, shown, sparse, windowed

ENGINE = load_engine("vllm")
MLA = make(1, latent([0], 512, 64))


def bytes_per_token(spec: ModelSpec, kv: str, gpu: str | None = None, **more: Any) -> float:
    found = shown(spec, kv=kv, gpu=gpu, **more)
    return found["bytes per block"] / found["block_size"]


@pytest.mark.parametrize(
    ("option", "row"),
    [("auto", 512), ("fp8", 256), ("fp8_e4m3", 256), ("fp8_e5m2", 256), ("int8_per_token_head", 264),
     ("fp8_per_token_head", 264), ("int4_per_token_head", 136), ("nvfp4", 144), ("nvfp4_4over6", 144),
     ("ultraquant_4bit", 136), ("octave_k3v4", 136), ("octave_k3v3", 120), ("octave_k3v3_compact", 100)],
)  # fmt: skip
def test_rows_of_k_and_v(option: str, row: int) -> None:
    """K and V of one token and head of 128 channels; 8 heads, 60 layers of which UltraQuant keeps 4 in bf16."""
    kept = 4 if option == "ultraquant_4bit" else 0
    spec = make(60, attention("rest", 8, 128))
    assert bytes_per_token(spec, option) == 8 * ((60 - kept) * row + kept * 512)


def test_every_value_of_the_flag_is_declared() -> None:
    """22 values in config/cache.py:44-67."""
    assert len({name for f in ENGINE.formats for name in f.names}) == 22
    assert all(f.source for f in ENGINE.formats) and all(o.source for o in ENGINE.options)


def test_gpus_of_a_format() -> None:
    """From the backends that take it: any GPU where Triton does."""
    gpus = {f.option: f.capabilities for f in ENGINE.formats}
    assert gpus["auto"] == gpus["fp8"] == gpus["turboquant_k8v4"] == ()
    assert gpus["nvfp4"] == (((8, 0), (12, 1)),)
    assert gpus["nvfp4_4over6"] == gpus["nvfp4_ds_mla"] == (((10, 0), (11, 9)),)
    assert gpus["fp8_ds_mla"] == (((9, 0), (9, 9)), ((10, 0), (11, 9)), ((12, 0), (12, 9)))


def test_turboquant_skips_layers_of_dense_models_only() -> None:
    """28 layers x 34,304 + 4 x 131,072 bytes in blocks of 32 tokens: 46,400 bytes a token (facts, section 4)."""
    dense = make(32, attention("rest", 8, 128))
    found = shown(dense, kv="turboquant_4bit_nc", gpu="h100-80gb")
    assert found["bytes per block"] == 28 * 34304 + 4 * 131072 == 1_484_800
    assert found["attention backend"] == "FLASH_ATTN, TURBOQUANT" and found["block_size"] == 32
    made = cache(hybrid(attn=1), kv="turboquant_4bit_nc", context=100)
    assert len([m for m in made.declared.layers if m.spec.kind == "full_attention"]) == 1


@pytest.mark.parametrize(
    ("kind", "dtype", "capability", "backend"),
    [
        ("attention", "auto", (9, 0), "FLASH_ATTN"),
        ("attention", "auto", (10, 0), "FLASHINFER"),
        ("attention", "auto", (8, 9), "FLASH_ATTN"),
        ("attention", "auto", (7, 5), "TRITON_ATTN"),
        ("attention", "fp8", (9, 0), "FLASH_ATTN"),
        ("attention", "fp8", (8, 9), "FLASHINFER"),
        ("attention", "fp8_e5m2", (9, 0), "FLASHINFER"),
        ("attention", "fp8", (7, 5), "TRITON_ATTN"),
        ("attention", "int8_per_token_head", (10, 0), "TRITON_ATTN"),
        ("attention", "turboquant_k8v4", (9, 0), "TURBOQUANT"),
        ("attention", "nvfp4", (9, 0), "FLASHINFER"),
        ("attention", "octave_k3v4", None, "ROCM_OCTAVE"),
        ("attention", "nvfp4_4over6", None, "FLASHINFER"),
        ("mla", "auto", (9, 0), "FLASH_ATTN_MLA"),
        ("mla", "fp8", (9, 0), "FLASHMLA"),
        ("mla", "auto", (10, 0), "FLASHINFER_MLA"),
        ("mla", "fp8", (12, 0), "TRITON_MLA"),
        ("mla", "auto", (8, 0), "TRITON_MLA"),
        ("sparse", "fp8", (9, 0), "FLASHMLA_SPARSE"),
        ("sparse", "fp8", (10, 0), "FLASHINFER_MLA_SPARSE"),
        ("sparse", "auto", (10, 0), "FLASHMLA_SPARSE"),
        ("sparse", "auto", (12, 0), "FLASHINFER_MLA_SPARSE_SM120"),
        ("sparse", "nvfp4_ds_mla", (10, 0), "FLASHMLA_SPARSE"),
    ],
)
def test_the_backend_follows_gpu_and_dtype(
    kind: str, dtype: str, capability: tuple[int, int] | None, backend: str
) -> None:
    assert choose_backend(kind, dtype, capability, None) == backend


@pytest.mark.parametrize(
    ("kind", "dtype", "capability", "asked", "what"),
    [
        ("sparse", "auto", (8, 0), None, "8.0"),
        ("sparse", "nvfp4_ds_mla", (9, 0), None, "9.0"),
        ("attention", "nvfp4_4over6", (9, 0), None, "9.0"),
        ("attention", "octave_k3v4", (9, 0), None, "9.0"),
        ("attention", "fp8_e5m2", None, "FLASH_ATTN", "FLASH_ATTN has no cache dtype"),
        ("attention", "fp8", (8, 0), "FLASH_ATTN", "FLASH_ATTN has no cache dtype"),
        ("mla", "fp8", (9, 0), "FLASH_ATTN_MLA", "FLASH_ATTN_MLA has no cache dtype"),
        ("mla", "auto", (9, 0), "FLASH_ATTN", "no backend for this model"),
    ],
)
def test_what_no_backend_has_is_refused(
    kind: str, dtype: str, capability: tuple[int, int] | None, asked: str | None, what: str
) -> None:
    with pytest.raises(UsageError, match=what) as caught:
        choose_backend(kind, dtype, capability, asked)
    assert caught.value.hint and dtype not in caught.value.hint.split("there is: ")[-1].split(", ")


@pytest.mark.parametrize(
    ("backend", "block"),
    [("FLASH_ATTN", 16), ("FLASHMLA", 64), ("FLASHINFER_MLA", 32), ("CUTLASS_MLA", 128), ("TRITON_MLA", 16),
     ("TURBOQUANT", 32), ("ULTRAQUANT", 64), ("FLASH_ATTN_MLA", 16), ("DEEPSEEK_V4", 256)],
)  # fmt: skip
def test_block_sizes(backend: str, block: int) -> None:
    assert default_block(backend, BACKENDS[backend].blocks, indexed=False) == block


def test_heads_of_512_channels_in_fp8_on_hopper_take_blocks_of_64() -> None:
    spec = make(1, attention([0], 4, 512))
    assert shown(spec, kv="fp8", gpu="h100-80gb")["block_size"] == 64
    assert shown(spec, gpu="h100-80gb")["block_size"] == 16


@pytest.mark.parametrize(
    ("kv", "gpu", "row"),
    [("auto", "h100-80gb", 1152), ("fp8", "h100-80gb", 656), ("fp8_e4m3", "h100-80gb", 656), ("fp8", "b200", 576),
     ("auto", "b200", 1152), ("nvfp4_ds_mla", "b200", 352), ("auto", "rtx-5090", 656), ("fp8", None, 656)],
)  # fmt: skip
def test_rows_of_sparse_latents_by_gpu(kv: str, gpu: str | None, row: int) -> None:
    """The index key has 132 bytes whatever the cache dtype."""
    assert bytes_per_token(sparse(1), kv, gpu) == row + 132


def test_sparse_glm_is_fp8_by_default_on_sm100_only() -> None:
    spec = sparse(
        1,
    )
    glm = spec.model_copy(update={"model_type": "glm_moe_dsa"})
    assert bytes_per_token(glm, "auto", "b200") == 576 + 132
    assert bytes_per_token(glm, "auto", "h100-80gb") == 1152 + 132
    assert bytes_per_token(spec, "auto", "b200") == 1152 + 132


@pytest.mark.parametrize(
    ("spec", "kv", "gpu", "what"),
    [
        (DENSE, "fp8_inc", None, "Gaudi"),
        (DENSE, "float16", None, "only for a model of that dtype"),
        (make(1, attention([0], 8, 128), native="fp16"), "bfloat16", None, "only for a model of that dtype"),
        (make(1, attention([0], 8, 192, 128)), "nvfp4", None, "same head_dim"),
        (make(1, attention([0], 8, 64)), "nvfp4", "h100-80gb", "SM100 only"),
        (MLA, "fp8_e5m2", None, "no fp8_e5m2 for the latent"),
        (MLA, "turboquant_k8v4", None, "for the latent"),
        (DENSE, "fp8_ds_mla", None, "for the k"),
        (DENSE, "int2_per_token_head", None, "has no cache format"),
    ],
)
def test_formats_that_a_model_cannot_have(spec: ModelSpec, kv: str, gpu: str | None, what: str) -> None:
    with pytest.raises(KvplanError, match=what) as caught:
        cache(spec, kv=kv, gpu=gpu, context=100)
    assert caught.value.hint


def test_nvfp4_with_heads_of_64_on_sm100() -> None:
    assert bytes_per_token(make(1, attention([0], 8, 64)), "nvfp4", "b200") == 8 * 72


def test_older_versions_have_fewer_formats() -> None:
    for version, kv in (("0.18", "turboquant_k8v4"), ("0.21", "nvfp4"), ("0.26", "octave_k3v4")):
        with pytest.raises(UnsupportedError):
            cache(DENSE, kv=kv, engine_version=version, context=100)
    assert cache(DENSE, kv="turboquant_k8v4", engine_version="0.21", context=100)


def test_layouts_and_backends_of_all_layers() -> None:
    assert cache(DENSE, context=100, gpu="b200").layout == "LBHNC"
    assert cache(DENSE, context=100, gpu="h100-80gb").layout == "LBNHC"
    assert cache(DENSE, "kv_cache_layout=BLNHC", context=100).layout == "BLNHC"
    assert cache(sparse(), context=100, gpu="h100-80gb").backends == ("DEEPSEEK_V32_INDEXER", "FLASHMLA_SPARSE")
    assert cache(hybrid(), context=100, gpu="h100-80gb").backends == ("FLASH_ATTN", "GDN_ATTN")


def test_an_unknown_gpu_is_a_note_and_no_refusal() -> None:
    assert any("as on Hopper" in note for note in cache(DENSE, context=100).notes)
    assert any("as on ROCm" in note for note in cache(DENSE, kv="octave_k3v4", context=100).notes)
    assert not cache(DENSE, context=100, gpu="h100-80gb").notes
    assert cache(windowed(), "max_num_batched_tokens=1024", context=100, gpu="h100-80gb").notes == ()


@pytest.mark.parametrize("model", ["minimax-m3", "deepseek-v4.1-flash", "glm-5.3-flash"])
def test_models_without_a_rule_say_so(model: str) -> None:
    from kvplan.specs.load import load_model

    with pytest.raises(UnsupportedError, match="no rule"):
        cache(load_model(model), context=100)


def test_deepseek_v4_is_known_from_0_26_on() -> None:
    from kvplan.specs.load import load_model

    spec = load_model("deepseek-v4-flash")
    assert cache(spec, context=100, engine_version="0.26").page_size == 256
    with pytest.raises(UnsupportedError, match="DeepSeek-V4 in vLLM"):
        cache(spec, context=100, engine_version="0.21")
