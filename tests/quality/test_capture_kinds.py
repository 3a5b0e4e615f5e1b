"""`kvplan capture` of latents, of sliding layers and of a GGUF file, each against what the model itself computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kvplan.captured import CaptureFile, read_capture
from kvplan.cli.main import main
from kvplan.errors import ExitCode
from kvplan.quality.stored import untouched
from kvplan.quality.tensors import attend_at

from .conftest import save_tokenizer

TOKENS = 40
MLA: dict[str, Any] = {
    "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 20, "num_key_value_heads": 4,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 32,
    "first_k_dense_replace": 1, "head_dim": 8, "q_lora_rank": 24,
}  # fmt: skip


def captured(model: Path, prose: Path, out: Path) -> CaptureFile:
    argv = ["capture", str(model), "--text", str(prose), "--tokens", str(TOKENS), "--queries", str(TOKENS)]
    assert main([*argv, "--dtype", "fp32", "--out", str(out)]) == ExitCode.OK
    return read_capture(out)


def outputs(model: Any, prose: Path) -> tuple[Any, list[Tensor]]:
    """The model's cache, and what enters each layer's output projection, by its own eager attention."""
    seen: list[Tensor] = []
    for layer in model.model.layers:
        layer.self_attn.o_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0][0]))
    ids = torch.tensor([list(prose.read_bytes()[:TOKENS])])
    with torch.inference_mode():
        cache = model.eval()(model_ids(ids), use_cache=True).past_key_values
    return cache, seen


def model_ids(ids: Tensor) -> Tensor:
    """Bytes to the ids of the test's tokenizer, which numbers the byte alphabet in its order."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    order = {c: i for i, c in enumerate(sorted(bytes_to_unicode().values()))}
    return torch.tensor([[order[bytes_to_unicode()[int(b)]] for b in row] for row in ids])


def test_latents(sizes: dict[str, Any], prose: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows as the cache of transformers keeps them, and attention on them is that of the model."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    torch.manual_seed(3)
    config = DeepseekV3Config(**{**sizes, **MLA}, attn_implementation="eager")
    model = DeepseekV3ForCausalLM(config)
    model.save_pretrained(tmp_path / "mla")
    save_tokenizer(tmp_path / "mla")
    file = captured(tmp_path / "mla", prose, tmp_path / "x.safetensors")
    assert file.is_latent and [x.layer for x in file.layers] == [0, 1]
    cache, seen = outputs(model, prose)
    for x, kept, out in zip(file.layers, cache.layers, seen, strict=True):
        assert tuple(x.q.shape) == (4, TOKENS, 40) and tuple(x.v.shape) == (1, TOKENS, 32)
        torch.testing.assert_close(x.k, torch.cat([kept.keys[0], kept.values[0]], -1), rtol=1e-4, atol=1e-4)
        to_values = model.model.layers[x.layer].self_attn.kv_b_proj.weight.view(4, 36, 32)[:, 16:]
        found = attend_at(x, untouched("k", x.k), untouched("v", x.v)) @ to_values.mT
        torch.testing.assert_close(found.transpose(0, 1).flatten(1), out, rtol=1e-3, atol=1e-3)
    capsys.readouterr()
    argv = ["quality", str(tmp_path / "mla"), "--predict", "--tensors", str(tmp_path / "x.safetensors")]
    assert main([*argv, "--kv", "int8", "--kv", "fp8_e4m3"]) == ExitCode.OK
    assert "latents" in capsys.readouterr().out
    assert main([*argv, "--kv", "int8 / fp8_e4m3"]) == ExitCode.USAGE
    assert "one row" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("family", "more", "windows"),
    [
        ("Gemma3Text", {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}, [8, None]),
        ("Mistral", {"sliding_window": 8}, [8, 8]),
        ("Gemma2", {"sliding_window": 8, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 32}, [8, None]),
        ("GptOss", {"sliding_window": 8, "num_local_experts": 2, "num_experts_per_tok": 1}, [8, None]),
    ],
)
def test_sliding_layers(
    family: str, more: dict[str, Any], windows: list[int | None], sizes: dict[str, Any], prose: Path, tmp_path: Path
) -> None:
    """The window of each layer, softcap and sinks: attention on the captured rows is that of the model."""
    import transformers

    torch.manual_seed(4)
    config = getattr(transformers, f"{family}Config")(**{**sizes, **more}, attn_implementation="eager")
    model = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(config)
    model.save_pretrained(tmp_path / "m")
    save_tokenizer(tmp_path / "m")
    file = captured(tmp_path / "m", prose, tmp_path / "x.safetensors")
    assert [x.window for x in file.layers] == windows
    for x, out in zip(file.layers, outputs(model, prose)[1], strict=True):
        found = attend_at(x, untouched("k", x.k), untouched("v", x.v))
        torch.testing.assert_close(found.transpose(0, 1).flatten(1), out, rtol=1e-3, atol=1e-3)


def write_gguf(path: Path, sizes: dict[str, Any]) -> None:
    """A random Llama of these sizes, as llama.cpp stores it."""
    import gguf
    import numpy as np
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    rng = np.random.default_rng(0)
    hidden, inner, dim = sizes["hidden_size"], sizes["intermediate_size"], sizes["head_dim"]
    heads, kv_heads, vocab = sizes["num_attention_heads"], sizes["num_key_value_heads"], sizes["vocab_size"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(sizes["num_hidden_layers"])
    writer.add_context_length(sizes["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab)
    writer.add_tokenizer_model("gpt2")
    # One merge at least; the text has no QQ.
    writer.add_token_list([*sorted(bytes_to_unicode().values()), "QQ"])
    writer.add_token_types([1] * vocab)
    writer.add_token_merges(["Q Q"])
    shapes = {"token_embd": (vocab, hidden), "output_norm": (hidden,), "output": (vocab, hidden)}
    for i in range(sizes["num_hidden_layers"]):
        shapes |= {
            f"blk.{i}.attn_norm": (hidden,), f"blk.{i}.ffn_norm": (hidden,),
            f"blk.{i}.attn_q": (heads * dim, hidden), f"blk.{i}.attn_k": (kv_heads * dim, hidden),
            f"blk.{i}.attn_v": (kv_heads * dim, hidden), f"blk.{i}.attn_output": (hidden, heads * dim),
            f"blk.{i}.ffn_gate": (inner, hidden), f"blk.{i}.ffn_up": (inner, hidden),
            f"blk.{i}.ffn_down": (hidden, inner),
        }  # fmt: skip
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", (rng.standard_normal(shape) * 0.3).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file(sizes: dict[str, Any], prose: Path, tmp_path: Path) -> None:
    """Against transformers' own reading of the file."""
    from transformers import AutoModelForCausalLM

    write_gguf(tmp_path / "tiny.gguf", {**sizes, "vocab_size": 257})
    file = captured(tmp_path / "tiny.gguf", prose, tmp_path / "x.safetensors")
    assert file.model == "tiny" and [x.layer for x in file.layers] == [0, 1]
    model = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype=torch.float32)
    cache, _ = outputs(model, prose)
    for x, kept in zip(file.layers, cache.layers, strict=True):
        torch.testing.assert_close(x.k, kept.keys[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(x.v, kept.values[0], rtol=1e-4, atol=1e-4)
