"""MLX-LM: buffers per layer that grow in steps of 256 rows, rotate in a window, or are cut in chunks.

What is held depends on the calls that filled the cache: `rows.py` replays them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan.engines.mlx.cache import CACHE, GENERATE, MlxCache
from kvplan.engines.shared.launch import Flag, LaunchSpec
from kvplan.engines.shared.types import (
    NATIVE,
    Engine,
    EngineFormat,
    EngineOption,
    EngineRule,
    EngineVersion,
)
from kvplan.errors import UsageError
from kvplan.units import cdiv

BITS = (2, 3, 4, 8)
"""Bits of --kv-bits that work. A fresh QuantizedKVCache of 5 or 6 bits fails: its buffer counts 32 // bits values in a
word, the codes themselves bits / 32 words in a value."""


def formats_for(options: Mapping[str, Any]) -> tuple[EngineFormat, ...]:
    """Values of --kv-bits with the rows that --kv-group-size gives.

    Raises:
        UsageError: a group size that MLX does not have.
    """
    size = options["kv_group_size"]
    if size not in (32, 64, 128):
        raise UsageError(f"MLX has no group size {size}", "use 32, 64 or 128")
    made = [EngineFormat(option="auto", k=NATIVE, v=NATIVE, latent=NATIVE, index=NATIVE, nbytes=512, source=CACHE)]
    for bits in BITS:
        rows = f"int{bits}:group/{size},asym,scale=model"
        # Codes of K and V, then a scale and a bias for each group of both, in 16 bit.
        nbytes = cdiv(2 * 128 * bits, 8) + 2 * 2 * 128 // size * 2
        made.append(
            EngineFormat(
                option=str(bits), k=rows, v=rows, index=NATIVE, nbytes=nbytes, source=CACHE + ": QuantizedKVCache",
                needs="full-attention layers only; 5 and 6 bits fail in MLX-LM",
            )
        )  # fmt: skip
    return tuple(made)


def _rule(name: str, text: str, where: str = "") -> EngineRule:
    return EngineRule(name=name, text=text, source=f"{CACHE}{': ' if where else ''}{where}")


_FLAGS = "mlx-lm 0.32.2, server.py and generate.py"
_DEFAULTS = {"kv_group_size": 64, "quantized_kv_start": 5000, "max_kv_size": None, "prefill_step_size": 2048}
_TEXTS = {
    "kv_group_size": "Values that share a scale and a bias: 32, 64 or 128.",
    "quantized_kv_start": "Tokens from which on a cache is converted to --kv-bits; below it is full precision.",
    "max_kv_size": "Rows of a rotating cache, for models that make no caches of their own.",
    "prefill_step_size": "Tokens of the prompt in one call.",
}
ENGINE = Engine(
    name="mlx",
    title="MLX-LM",
    flag=("--kv-bits",),
    versions=(EngineVersion(name="0.32.2", source=CACHE),),
    formats=formats_for(_DEFAULTS),
    tailor=lambda _spec, _version, options, _capability: formats_for(options),
    options=(
        *(
            EngineOption(name=name, default=default, text=_TEXTS[name], source=GENERATE)
            for name, default in _DEFAULTS.items()
        ),
        EngineOption(
            name="decode_tokens", default=1, source=GENERATE,
            text="Single tokens after the prompt's pieces: its last one, and those generated.",
        ),
    ),
    rules=(
        _rule("growth", "A buffer grows by the tokens of the call that does not fit, rounded up to 256.", "KVCache"),
        _rule("quantised", "Words of bits x head_dim / 32, a scale and a bias per group in the input's dtype; 2, 3, 4 "
              "and 8 bits work, 5 and 6 fail.", "QuantizedKVCache"),
        _rule("windows", "A call of several tokens is kept whole until the next one; then rows up to the window, "
              "growing by 256.", "RotatingKVCache"),
        _rule("rotating", "A rotating cache cannot be quantised.", "RotatingKVCache.to_quantized"),
        _rule("chunks", "Llama 4's local layers cut the front before each call, and grow by 256 after it.",
              "ChunkedKVCache"),
        _rule("latents", "A latent and its rotary key are one head."),
        _rule("states", "States lie in an ArraysCache and do not depend on the length.", "ArraysCache"),
    ),
    cache=MlxCache,
    launch=LaunchSpec(
        command="mlx_lm.server --model {model}",
        flags=(
            Flag(field="kv", text="--kv-bits {value}", source=_FLAGS),
            Flag(field="kv_group_size", text="--kv-group-size {value}", needs="kv", source=_FLAGS),
            Flag(field="quantized_kv_start", text="--quantized-kv-start {value}", needs="kv", source=_FLAGS),
            Flag(field="max_kv_size", text="--max-kv-size {value}", source=_FLAGS),
            Flag(field="prefill_step_size", text="--prefill-step-size {value}", source=_FLAGS),
        ),
        source=_FLAGS,
    ),
)  # fmt: skip
