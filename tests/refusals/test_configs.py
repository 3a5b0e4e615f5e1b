"""Configs that must not become a plan: each is refused in one line that names the field, with a hint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.cli.main import main
from kvplan.errors import ExitCode, InputError
from kvplan.specs.importers.config import import_config
from kvplan.specs.load import load_model

FAMILIES: dict[str, Any] = json.loads(
    (Path(__file__).resolve().parents[1] / "configs" / "families.json").read_text(encoding="utf-8")
)
GONE = object()


def changed(base: str, **fields: Any) -> dict[str, Any]:
    """A small good config with some fields changed; `GONE` removes one."""
    config = {**FAMILIES[base]["config"], **fields}
    return {key: value for key, value in config.items() if value is not GONE}


def inside(base: str, **fields: Any) -> dict[str, Any]:
    """Likewise, in its text_config."""
    config = FAMILIES[base]["config"]
    text = {key: value for key, value in {**config["text_config"], **fields}.items() if value is not GONE}
    return {**config, "text_config": text}


SLIDING = ["sliding_attention", "full_attention"]
CASES: list[tuple[dict[str, Any], str, str]] = [
    # which architecture
    (changed("llama", model_type="llamma"), "model_type", "unknown architecture 'llamma'"),
    (changed("llama", model_type="resnet"), "model_type", "unknown architecture"),
    (changed("llama", model_type=GONE), "model_type", "missing"),
    (changed("llama", model_type=None), "model_type", "missing"),
    (changed("llama", model_type=7), "model_type", "expected text"),
    (changed("llama", model_type=["llama"]), "model_type", "expected text"),
    ({}, "model_type", "missing"),
    (inside("mllama", model_type="clip_text_model"), "text_config.model_type", "unknown architecture"),
    ({"model_type": "llava", "text_config": "llama"}, "text_config", "expected a mapping"),
    # numbers that are missing
    (changed("llama", num_hidden_layers=GONE), "num_hidden_layers", "missing"),
    (changed("llama", num_attention_heads=GONE), "num_attention_heads", "missing"),
    (changed("llama", hidden_size=GONE), "hidden_size", "missing"),
    (changed("deepseek_v3", kv_lora_rank=GONE), "kv_lora_rank", "missing"),
    (changed("deepseek_v3", qk_rope_head_dim=GONE), "qk_rope_head_dim", "missing"),
    (changed("deepseek_v32", index_head_dim=GONE), "index_head_dim", "missing"),
    (changed("minimax_m1", attn_type_list=GONE), "attn_type_list", "missing"),
    (changed("kimi_linear", linear_attn_config=GONE), "linear_attn_config", "missing"),
    (changed("granitemoehybrid", layer_types=GONE), "layer_types", "missing"),
    (changed("nemotron_h", hybrid_override_pattern=GONE), "hybrid_override_pattern", "missing"),
    (changed("bailing linear", layer_group_size=GONE), "layer_group_size", "missing"),
    (changed("chatglm", multi_query_group_num=GONE), "multi_query_group_num", "missing"),
    (changed("dbrx", attn_config={}), "attn_config.kv_n_heads", "missing"),
    (changed("lfm2", full_attn_idxs=GONE), "layer_types", "missing"),
    (changed("cross-layer sharing", cla_share_factor=GONE), "cla_share_factor", "missing"),
    (changed("deepseek_v4", compress_ratios=GONE), "compress_ratios", "missing"),
    (inside("mllama", cross_attention_layers=GONE), "text_config.cross_attention_layers", "missing"),
    (changed("whisper", decoder_layers=GONE), "decoder_layers", "missing"),
    (changed("minimax_m3", sparse_attention_config=GONE), "layer_types", "missing"),
    # numbers that are none
    (changed("llama", num_hidden_layers=None), "num_hidden_layers", "null"),
    (changed("llama", num_hidden_layers=6.0), "num_hidden_layers", "expected a whole number, got 6.0"),
    (changed("llama", num_hidden_layers="6"), "num_hidden_layers", "expected a whole number, got '6'"),
    (changed("llama", num_hidden_layers=True), "num_hidden_layers", "expected a whole number, got true"),
    (changed("llama", num_hidden_layers=[6]), "num_hidden_layers", "expected a whole number, got a list"),
    (changed("llama", num_hidden_layers={"n": 6}), "num_hidden_layers", "expected a whole number, got a mapping"),
    (changed("llama", num_key_value_heads=2.5), "num_key_value_heads", "expected a whole number, got 2.5"),
    (changed("llama", head_dim=float("nan")), "head_dim", "expected a whole number, got nan"),
    (changed("mistral window", sliding_window="4096"), "sliding_window", "expected a whole number"),
    (changed("mistral window", sliding_window=True), "sliding_window", "expected a whole number, got true"),
    (changed("qwen2 window switched on", use_sliding_window="yes"), "use_sliding_window", "expected true or false"),
    (changed("deepseek_v3", kv_lora_rank=None), "kv_lora_rank", "null"),
    (changed("mamba2", state_size=None), "state_size", "null"),
    # numbers out of range
    (changed("llama", num_hidden_layers=0), "num_hidden_layers", "from 1 to"),
    (changed("llama", num_hidden_layers=-32), "num_hidden_layers", "from 1 to"),
    (changed("llama", num_hidden_layers=10**9), "num_hidden_layers", "from 1 to"),
    (changed("llama", num_attention_heads=10**12), "num_attention_heads", "from 1 to"),
    (changed("llama", num_key_value_heads=-2), "num_key_value_heads", "from 1 to"),
    (changed("llama", num_key_value_heads=0), "num_key_value_heads", "from 1 to"),
    (changed("llama", head_dim=-8), "head_dim", "from 1 to"),
    (changed("llama", head_dim=2**40), "head_dim", "from 1 to"),
    (changed("llama", hidden_size=10**200), "hidden_size", "a number of 201 digits"),
    (changed("llama", max_position_embeddings=0), "max_position_embeddings", "from 1 to"),
    (changed("llama", max_position_embeddings=2**60), "max_position_embeddings", "from 1 to"),
    (changed("mistral window", sliding_window=-1), "sliding_window", "from 0 to"),
    (changed("deepseek_v3", kv_lora_rank=10**9), "kv_lora_rank", "from 1 to"),
    (changed("deepseek_v3", qk_rope_head_dim=-64), "qk_rope_head_dim", "from 1 to"),
    (changed("deepseek_v3", qk_rope_head_dim=0), "qk_rope_head_dim", "from 1 to"),
    (changed("qwen3_next", linear_conv_kernel_dim=10**6), "linear_conv_kernel_dim", "from 1 to"),
    (changed("nemotron_h", ssm_state_size=0), "ssm_state_size", "from 1 to"),
    (changed("deepseek_v3", num_nextn_predict_layers=-1), "num_nextn_predict_layers", "from 0 to"),
    # numbers that contradict
    (changed("llama", num_key_value_heads=3), "num_key_value_heads", "does not divide the 8 query heads"),
    (changed("llama", hidden_size=63), "head_dim", "does not divide"),
    (changed("chatglm", multi_query_group_num=3), "multi_query_group_num", "does not divide"),
    (changed("rwkv7", head_dim=48), "head_dim", "does not divide"),
    (changed("deepseek_v4", qk_rope_head_dim=32), "qk_rope_head_dim", "is not below head_dim"),
    (changed("gemma3n shared", num_kv_shared_layers=10), "num_kv_shared_layers", "no layer before"),
    # lists of layers
    (changed("gpt_oss", layer_types=SLIDING), "layer_types", "expected 6 entries, one per layer, got 2"),
    (changed("gpt_oss", layer_types=SLIDING * 4), "layer_types", "expected 6 entries, one per layer, got 8"),
    (changed("gpt_oss", layer_types=[*SLIDING * 2, "full_attention", "warp_attention"]), "layer_types[5]", "unknown"),
    (changed("gpt_oss", layer_types=[*SLIDING * 2, "full_attention", None]), "layer_types[5]", "expected a word"),
    (changed("gpt_oss", layer_types="full_attention"), "layer_types", "expected a list"),
    (changed("llama", layer_types=["sliding_attention"] * 6), "layer_types[0]", "unknown layer type"),
    (changed("step3p5 tail", layer_types=["full_attention"] * 12), "layer_types", "expected 6 entries"),
    (changed("qwen3_next", layer_types=["mamba2x"] * 8), "layer_types[0]", "unknown layer type 'mamba2x'"),
    (changed("nemotron_h", hybrid_override_pattern="M-M*EX"), "hybrid_override_pattern[5]", "unknown layer 'X'"),
    (changed("nemotron_h", hybrid_override_pattern="M-M*E"), "hybrid_override_pattern", "expected 6 entries"),
    (changed("minimax_m1", attn_type_list=[0, 0, 2, 0, 0, 1]), "attn_type_list[2]", "from 0 to 1"),
    (changed("minimax_m1", attn_type_list=[0, 1]), "attn_type_list", "expected 6 entries"),
    (changed("mimo_v2", hybrid_layer_pattern=[0, 1, True, 1, 1, 0]), "hybrid_layer_pattern[2]", "whole number"),
    (changed("baichuan_m1", sliding_window_layers=[1, 4]), "sliding_window_layers[1]", "layer 4 does not exist"),
    (changed("lfm2", full_attn_idxs=[2, 2]), "full_attn_idxs[1]", "listed twice"),
    (changed("deepseek_v4", compress_ratios=[0, 4, 64, 4, 0]), "compress_ratios[2]", "unknown ratio 64"),
    (changed("deepseek_v4", compress_ratios=[0, 4]), "compress_ratios", "expected 4 entries"),
    (changed("glm_moe_dsa schedule", indexer_types=["full"] * 5), "indexer_types", "expected 6 entries"),
    (changed("glm_moe_dsa schedule", indexer_types=["half"] * 6), "indexer_types[0]", "expected full or shared"),
    (changed("mistral_large4", kv_source_layers=[0, 1, 1, 3, 5, 5]), "kv_source_layers[4]", "no earlier layer"),
    (changed("exaone4 letters", sliding_window_pattern="LXG"), "sliding_window_pattern", "letters L"),
    (changed("gpt_neo", attention_types=[[["global", "local"], 10**9]]), "attention_types", "pattern"),
    (changed("recurrent_gemma", block_types=["recurrent", "mlp"]), "block_types[1]", "unknown block"),
    (changed("nemotron-nas", block_configs=[{}] * 4), "block_configs[0].attention", "missing"),
    (changed("nemotron-nas", block_configs=[]), "block_configs", "expected 4 entries"),
    (changed("openelm", num_kv_heads=[1, 2]), "num_kv_heads", "expected 3 entries"),
    (changed("openelm", num_kv_heads=[1, 4, 2]), "num_kv_heads[1]", "does not divide"),
    (
        changed("kimi_linear", linear_attn_config={"kda_layers": [1, 2], "full_attn_layers": [4]}),
        "linear_attn_config.kda_layers",
        "layer 3 is in neither list",
    ),
    (
        changed("kimi_linear", linear_attn_config={"kda_layers": [0, 1, 2], "full_attn_layers": [3]}),
        "linear_attn_config.kda_layers[0]",
        "from 1 to",
    ),
    (changed("llama", per_layer_config={"first": {"head_dim": 4}}), "per_layer_config.first", "layer index"),
    (changed("llama", per_layer_config={"1": {"head_dim": 4.0}}), "per_layer_config[1].head_dim", "whole number"),
    # words
    (changed("llama", torch_dtype=16), "torch_dtype", "number type"),
    (changed("qwen3_next", mamba_ssm_dtype="int8"), "mamba_ssm_dtype", "expected float32"),
]


def test_there_are_enough() -> None:
    assert len(CASES) >= 40
    assert len({(field, text) for _, field, text in CASES}) > 60


@pytest.mark.parametrize(("config", "field", "text"), CASES, ids=[f"{f}-{i}" for i, (_, f, _) in enumerate(CASES)])
def test_refused_by_field_name(config: dict[str, Any], field: str, text: str) -> None:
    with pytest.raises(InputError) as caught:
        import_config(config, "config.json")
    message = caught.value.message
    assert message.startswith(f"config.json: {field}: "), message
    assert text in message
    assert caught.value.hint
    assert "\n" not in message + caught.value.hint
    assert len(message) <= 600


def test_an_unknown_architecture_names_the_nearest_and_the_way_out() -> None:
    with pytest.raises(InputError) as caught:
        import_config({"model_type": "qwen3next"}, "x")
    assert caught.value.hint == (
        "did you mean qwen3_next? write the model as a YAML spec: model_specs/README.md shows one"
    )


FILES = {
    "truncated": (b'{"model_type": "llama", "num_hid', "not valid JSON"),
    "empty": (b"", "not valid JSON"),
    "list": (b"[1, 2]", "expected a JSON object at the top level, got a list"),
    "number": (b"12", "expected a JSON object at the top level"),
    "null": (b"null", "expected a JSON object at the top level, got null"),
    "deep": (b'{"a": ' * 100_000 + b"1" + b"}" * 100_000, "nested deeper than"),
    "deep lists": (b'{"a": ' + b"[" * 60 + b"]" * 60 + b"}", "nested deeper than"),
    "twice": (b'{"model_type": "llama", "model_type": "gpt2"}', "'model_type' is given twice"),
    "binary": (b"\xff\xfe\x00\x01", "not UTF-8"),
    "digits": (b'{"num_hidden_layers": ' + b"9" * 5000 + b"}", "not valid JSON"),
    "huge": (b'{"a": "' + b"x" * (17 * 2**20) + b'"}', "larger than 16 MiB"),
}


@pytest.mark.parametrize("name", FILES)
def test_files(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, text = FILES[name]
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"config\.json") as caught:
        load_model(str(file))
    assert text in caught.value.message
    assert main(["estimate", str(file)]) == ExitCode.INPUT
    printed = capsys.readouterr()
    assert printed.out == ""
    assert [line.split(":")[0] for line in printed.err.splitlines()] == ["error", "hint"]


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config\.json in this folder"):
        load_model(str(tmp_path))
