"""A tiny random Llama with a byte tokenizer, as transformers saves it, no download; the tool that fits the laws."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

SIZES: dict[str, Any] = {
    "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 256, "max_position_embeddings": 1024,
    "initializer_range": 0.3,
}  # fmt: skip


@pytest.fixture(scope="session")
def fit_quality() -> Any:
    """tools/fit_quality.py."""
    path = Path(__file__).resolve().parents[2] / "tools" / "fit_quality.py"
    spec = importlib.util.spec_from_file_location("fit_quality", path)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


@pytest.fixture
def sizes() -> dict[str, Any]:
    """Sizes of a model for transformers' config classes."""
    return dict(SIZES)


def save_tokenizer(folder: Path) -> None:
    """One token per byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(folder)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the model: two layers, four query heads on two KV heads of 32 channels."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny") / "tiny-llama"
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def prose(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of some 2,000 bytes."""
    path = tmp_path_factory.mktemp("text") / "prose.txt"
    path.write_text("".join(f"Line {i}: {i * i} is the square of {i}.\n" for i in range(60)), encoding="utf-8")
    return path
