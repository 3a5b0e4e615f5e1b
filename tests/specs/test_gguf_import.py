"""GGUF headers of every family, written here with the gguf package, against the shipped specs of the same models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kvplan.cli.main import main
from kvplan.errors import InputError
from kvplan.specs.groups import LayerGroup
from kvplan.specs.importers.gguf import import_gguf
from kvplan.specs.load import load_model
from kvplan.specs.model import ModelSpec

Write = Callable[..., Path]
LLAMA = {
    "context_length": 131072,
    "embedding_length": 4096,
    "block_count": 32,
    "attention.head_count": 32,
    "attention.head_count_kv": 8,
}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file: architecture, its keys without prefix, tensors by name, and the file's name."""

    def make(
        arch: str, keys: dict[str, Any], tensors: dict[str, Any] | None = None, name: str = "model.gguf", **more: Any
    ) -> Path:
        writer = gguf.GGUFWriter(tmp_path / name, arch, **more)
        for key, value in keys.items():
            _add(writer, key if key.startswith(("general.", "split.", "tokenizer.")) else f"{arch}.{key}", value)
        for tensor, value in (tensors or {}).items():
            raw = value[1] if isinstance(value, tuple) else None
            writer.add_tensor(tensor, value[0] if isinstance(value, tuple) else value, raw_dtype=raw)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return tmp_path / name

    return make


def _add(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _shape(spec: ModelSpec, group: LayerGroup) -> tuple[Any, ...]:
    """What decides the bytes of a group: everything but its name, the spelling of its layers, and traits."""
    data = group.model_dump()
    for key in ("name", "layers", "softcap", "sinks", "k_bias", "qk_norm", "reads"):
        data.pop(key, None)
    return spec.positions(group), sorted(data.items(), key=str)


def _same_cache(found: ModelSpec, shipped: str) -> None:
    expected = load_model(shipped)
    assert found.layers == expected.layers
    key = str
    assert sorted((_shape(found, g) for g in found.layer_groups), key=key) == sorted(
        (_shape(expected, g) for g in expected.layer_groups), key=key
    )


def _heads(q: int, kv: Any, k: int | None = None, v: int | None = None) -> dict[str, Any]:
    found = {"attention.head_count": q, "attention.head_count_kv": kv}
    if k:
        found |= {"attention.key_length": k, "attention.value_length": v or k}
    return found


def _every(layers: int, period: int, place: int, inside: Any, outside: Any) -> list[Any]:
    return [inside if i % period == place else outside for i in range(layers)]


MLA = {
    "attention.kv_lora_rank": 512,
    "attention.key_length": 576,
    "attention.value_length": 512,
    "attention.key_length_mla": 192,
    "attention.value_length_mla": 128,
    "rope.dimension_count": 64,
}
SSM = {"ssm.conv_kernel": 4, "ssm.inner_size": 8192, "ssm.state_size": 128, "ssm.time_step_rank": 128}
NEMOTRON = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"

MODELS = {
    "llama-3.1-8b": ("llama", LLAMA),
    "qwen3-8b": ("qwen3", {"block_count": 36, "embedding_length": 4096, **_heads(32, 8, 128)}),
    "gemma-2-9b": (
        "gemma2",
        {"block_count": 42, "embedding_length": 3584, **_heads(16, 8, 256), "attention.sliding_window": 4096},
    ),
    "gemma-3-27b": (
        "gemma3",
        {"block_count": 62, "embedding_length": 5376, **_heads(32, 16, 128), "attention.sliding_window": 1024},
    ),
    "gpt-oss-20b": (
        "gpt-oss",
        {"block_count": 24, "embedding_length": 2880, **_heads(64, 8, 64), "attention.sliding_window": 128},
    ),
    "olmo-3-7b": (
        "olmo2",
        {"block_count": 32, "embedding_length": 4096, **_heads(32, 32), "attention.sliding_window": 4096},
    ),
    "command-r7b": (
        "cohere2",
        {"block_count": 32, "embedding_length": 4096, **_heads(32, 8), "attention.sliding_window": 4096},
    ),
    "exaone-4.0-1.2b": ("exaone4", {"block_count": 30, "embedding_length": 2048, **_heads(32, 8)}),
    "llama-4-scout": (
        "llama4",
        {"block_count": 48, "embedding_length": 5120, **_heads(40, 8, 128), "attention.chunk_size": 8192},
    ),
    "gemma-3n-e4b": (
        "gemma3n",
        {
            "block_count": 35,
            "embedding_length": 2048,
            **_heads(8, 2, 256),
            "attention.sliding_window": 512,
            "attention.sliding_window_pattern": _every(35, 5, 4, False, True),
            "attention.shared_kv_layers": 15,
        },
    ),
    "gemma-4-26b-a4b": (
        "gemma4",
        {
            "block_count": 30,
            "embedding_length": 2816,
            **_heads(16, _every(30, 6, 5, 2, 8), 512),
            "attention.key_length_swa": 256,
            "attention.value_length_swa": 256,
            "attention.sliding_window": 1024,
            "attention.sliding_window_pattern": _every(30, 6, 5, False, True),
            "attention.shared_kv_layers": 0,
        },
    ),
    "mimo-v2-flash": (
        "mimo2",
        {
            "block_count": 48,
            "embedding_length": 4096,
            **_heads(64, [4 if i % 6 == 5 or i == 0 else 8 for i in range(48)], 192, 128),
            "attention.sliding_window": 128,
            "attention.sliding_window_pattern": [i % 6 != 5 and i != 0 for i in range(48)],
        },
    ),
    "step-3.5-flash": (
        "step35",
        {
            "block_count": 48,
            "nextn_predict_layers": 3,
            "embedding_length": 4096,
            "attention.head_count": _every(48, 4, 0, 64, 96),
            "attention.head_count_kv": [8] * 48,
            "attention.key_length": 128,
            "attention.value_length": 128,
            "attention.sliding_window": 512,
            "attention.sliding_window_pattern": _every(48, 4, 0, False, True),
        },
    ),
    "glm-4.5-air": (
        "glm4moe",
        {"block_count": 47, "nextn_predict_layers": 1, "embedding_length": 4096, **_heads(96, 8, 128)},
    ),
    "deepseek-v3": ("deepseek2", {"block_count": 61, "embedding_length": 7168, **_heads(128, 1), **MLA}),
    "deepseek-v3.2": (
        "deepseek32",
        {
            "block_count": 61,
            "embedding_length": 7168,
            **_heads(128, 1),
            **MLA,
            "attention.indexer.head_count": 64,
            "attention.indexer.key_length": 128,
        },
    ),
    "deepseek-v4-flash": (
        "deepseek4",
        {
            "block_count": 43,
            "embedding_length": 4096,
            **_heads(64, 1, 512),
            "rope.dimension_count": 64,
            "attention.sliding_window": 128,
            "attention.compress_ratios": [0, 0, *([4, 128] * 20), 4],
            "attention.indexer.head_count": 64,
            "attention.indexer.key_length": 128,
        },
    ),
    "minimax-m3": (
        "minimax-m3",
        {
            "block_count": 60,
            "embedding_length": 6144,
            **_heads(64, 4, 128),
            "leading_dense_block_count": 3,
            "attention.indexer.head_count": 4,
            "attention.indexer.key_length": 128,
        },
    ),
    "kimi-linear-48b": (
        "kimi-linear",
        {
            "block_count": 27,
            "embedding_length": 2304,
            **_heads(32, [1 if i % 4 == 3 or i == 26 else 0 for i in range(27)]),
            **MLA,
            "ssm.conv_kernel": 4,
            "kda.head_dim": 128,
        },
    ),
    "qwen3-next-80b-a3b": (
        "qwen3next",
        {
            "block_count": 48,
            "embedding_length": 2048,
            **_heads(16, 2, 256),
            **SSM,
            "ssm.inner_size": 4096,
            "ssm.time_step_rank": 32,
            "ssm.group_count": 16,
        },
    ),
    "jamba-mini": (
        "jamba",
        {
            "block_count": 32,
            "embedding_length": 4096,
            **_heads(32, _every(32, 8, 4, 8, 0)),
            **SSM,
            "ssm.state_size": 16,
        },
    ),
    "falcon-h1-7b": (
        "falcon-h1",
        {
            "block_count": 44,
            "embedding_length": 3072,
            **_heads(12, 2, 128),
            **SSM,
            "ssm.inner_size": 3072,
            "ssm.state_size": 256,
            "ssm.time_step_rank": 24,
            "ssm.group_count": 1,
        },
    ),
    "granite-4.0-h-tiny": (
        "granitehybrid",
        {
            "block_count": 40,
            "embedding_length": 1536,
            **_heads(12, _every(40, 10, 5, 4, 0)),
            **SSM,
            "ssm.inner_size": 3072,
            "ssm.time_step_rank": 48,
            "ssm.group_count": 1,
        },
    ),
    "nemotron-h-8b": (
        "nemotron_h",
        {
            "block_count": 52,
            "embedding_length": 4096,
            "feed_forward_length": [21504 if c == "-" else 0 for c in NEMOTRON],
            **_heads(32, [8 if c == "*" else 0 for c in NEMOTRON], 128),
            **SSM,
            "ssm.group_count": 8,
        },
    ),
    "falcon-mamba-7b": (
        "mamba",
        {"block_count": 64, "embedding_length": 4096, "attention.head_count": 0, **SSM, "ssm.state_size": 16},
    ),
    "lfm2-1.2b": (
        "lfm2",
        {
            "block_count": 16,
            "embedding_length": 2048,
            **_heads(32, [8 if i in (2, 5, 8, 10, 12, 14) else 0 for i in range(16)]),
            "shortconv.l_cache": 3,
        },
    ),
    "rwkv7-g1j-2.9b": (
        "rwkv7",
        {"block_count": 32, "embedding_length": 2560, "attention.head_count": 0, "wkv.head_size": 64},
    ),
}


@pytest.mark.parametrize("shipped", MODELS)
def test_equals_the_shipped_spec(shipped: str, write: Write) -> None:
    arch, keys = MODELS[shipped]
    imported = import_gguf(write(arch, {"context_length": 4096, **keys}))
    _same_cache(imported.spec, shipped)
    assert imported.spec.id == "model"
    named = {origin.field: origin for origin in imported.origins}
    assert named["layers"].how == "read"
    assert all(origin.source and origin.value for origin in imported.origins)


def test_old_deepseek_files_keep_expanded_heads(write: Write) -> None:
    keys = {"context_length": 4096, "block_count": 27, "embedding_length": 2048, **_heads(16, 16, 192, 128)}
    imported = import_gguf(write("deepseek2", {**keys, "attention.kv_lora_rank": 512, "rope.dimension_count": 64}))
    (group,) = imported.spec.layer_groups
    assert group.kind == "attention"
    assert (group.kv_heads, group.k_dim, group.v_dim) == (16, 192, 128)
    assert any("expanded" in note for note in imported.notes)


def test_weights_are_exact_and_traits_come_from_tensors(write: Write) -> None:
    tensors = {
        "token_embd.weight": (np.zeros((10, 34), dtype=np.uint8), gguf.GGMLQuantizationType.Q8_0),
        "blk.0.attn_k.bias": np.zeros(1024, dtype=np.float32),
        "blk.0.attn_k_norm.weight": np.zeros(128, dtype=np.float32),
        "blk.0.attn_sinks.weight": np.zeros(32, dtype=np.float32),
        "output.weight": np.zeros((10, 4096), dtype=np.float16),
    }
    tokens = [f"t{i}" for i in range(10)]
    keys = {**LLAMA, "block_count": 1, "attn_logit_softcapping": 50.0, "tokenizer.ggml.tokens": tokens}
    spec = import_gguf(write("llama", keys, tensors)).spec
    assert spec.weights is not None and spec.params is not None
    assert spec.weights.bytes == 10 * 34 + 4 * (1024 + 128 + 32) + 2 * 40960
    assert spec.weights.dtype == "f16"
    assert spec.params.total == 10 * 32 + 1024 + 128 + 32 + 40960
    (group,) = spec.layer_groups
    assert group.kind == "attention"
    assert (group.k_bias, group.qk_norm, group.sinks, group.softcap) == (True, True, True, 50.0)
    assert (spec.vocab_size, spec.native_dtype) == (10, "float16")


def test_index_keys_only_where_the_tensors_are(write: Write) -> None:
    keys = {"context_length": 4096, "block_count": 4, "embedding_length": 7168, **_heads(128, 1), **MLA}
    keys |= {"attention.indexer.head_count": 64, "attention.indexer.key_length": 128}
    tensors = {f"blk.{i}.indexer.attn_k.weight": np.zeros((1, 32), dtype=np.float32) for i in (0, 2)}
    spec = import_gguf(write("glm-dsa", keys, tensors)).spec
    assert [(g.name, spec.positions(g)) for g in spec.layer_groups] == [
        ("latent", (0, 1, 2, 3)),
        ("indexer", (0, 2)),
    ]


def test_a_long_vocabulary_is_counted_not_kept(write: Write) -> None:
    tokens = [str(i) for i in range(5000)]
    spec = import_gguf(write("llama", {**LLAMA, "tokenizer.ggml.tokens": tokens})).spec
    assert spec.vocab_size == 5000


@pytest.mark.parametrize(
    ("arch", "change", "message"),
    [
        ("wavetokenizer", {}, "unknown architecture 'wavetokenizer'"),
        ("qwen4", {}, "unknown architecture 'qwen4'"),
        ("llama", {"block_count": None}, "llama.block_count: this field is missing"),
        ("llama", {"block_count": 0}, "llama.block_count: expected a number from 1"),
        ("llama", {"block_count": "many"}, "llama.block_count: expected a whole number"),
        ("llama", {"attention.head_count": None}, "llama.attention.head_count: this field is missing"),
        ("llama", {"attention.head_count_kv": 5}, "5 does not divide the 32 query heads"),
        ("llama", {"attention.head_count_kv": [8, 8]}, "expected one entry per layer, got 2"),
        ("llama", {"context_length": None}, "llama.context_length: this field is missing"),
        ("llama", {"embedding_length": 4097}, "does not divide by 32 heads"),
        ("llama", {"nextn_predict_layers": 32}, "expected less than block_count = 32"),
        ("gemma4", {"attention.sliding_window": 512}, "gemma4.attention.sliding_window_pattern: this key is missing"),
        ("gemma3", {"attention.sliding_window": 5, "attention.sliding_window_pattern": [True]}, "each of 32 layers"),
        ("jamba", {}, "expected a list: it says which layers are attention"),
        ("mamba", {}, "mamba.ssm.inner_size: this field is missing"),
        ("mamba2", {**SSM, "ssm.time_step_rank": 7}, "does not divide by the 7 heads"),
        ("deepseek4", {}, "deepseek4.attention.compress_ratios: expected one entry for each of 32 layers, got 0"),
        ("deepseek4", {"attention.compress_ratios": [16] * 32}, "compress_ratios[0]: unknown ratio 16"),
        ("gemma3n", {"attention.shared_kv_layers": 32}, "no layer before layer 0 keeps"),
    ],
)
def test_refused_by_name(arch: str, change: dict[str, Any], message: str, write: Write) -> None:
    keys = {key: value for key, value in {**LLAMA, **change}.items() if value is not None}
    with pytest.raises(InputError) as caught:
        import_gguf(write(arch, keys))
    assert message in caught.value.message
    assert "model_specs/README.md" in caught.value.hint or "expected" in caught.value.message
    assert "\n" not in caught.value.message + caught.value.hint


def test_a_window_that_the_runtime_ignores_is_a_note(write: Write) -> None:
    imported = import_gguf(write("llama", {**LLAMA, "attention.sliding_window": 4096}))
    assert imported.spec.layer_groups[0].kind == "attention"
    assert any("ignored" in note for note in imported.notes)


@pytest.mark.parametrize(("window", "law"), [(2047, "window"), (262144, "all"), (0, "all")])
def test_phi3_slides_everywhere_if_the_window_is_below_the_context(window: int, law: str, write: Write) -> None:
    keys = {**LLAMA, "context_length": 4096, "attention.sliding_window": window}
    (group,) = import_gguf(write("phi3", keys)).spec.layer_groups
    assert group.kind == "attention" and group.retain.law == law


def test_a_gguf_file_is_a_model_and_survives_as_yaml(write: Write, tmp_path: Path) -> None:
    path = write(
        "qwen3next", {"context_length": 4096, **MODELS["qwen3-next-80b-a3b"][1]}, {"a": np.ones(4, np.float32)}
    )
    spec = load_model(str(path))
    assert ModelSpec.model_validate(spec.model_dump()) == spec
    assert main(["specs", "import", str(path)]) == 0
    assert main(["estimate", str(path), "--context", "4096", "--gpu", "h200", "--json"]) == 0
