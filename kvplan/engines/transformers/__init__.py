"""Hugging Face transformers: one tensor per layer that grows, or a static one; windows, latents, states, quantisation.

There is no serving planner: a batch takes what its tensors take. `rows.py` replays the calls that fill them.
"""

from __future__ import annotations

from kvplan.engines.shared.types import Engine, EngineOption, EngineRule, EngineVersion
from kvplan.engines.transformers.cache import NEWEST, TransformersCache
from kvplan.engines.transformers.quantised import formats_for
from kvplan.engines.transformers.start import LAUNCH
from kvplan.engines.transformers.states import STATES_SOURCE
from kvplan.engines.transformers.stored import SOURCE

_AXIS = "The axis that the groups of {} run along: 0 or -1 with quanto, 0 or 1 with hqq."


def _rule(name: str, text: str, source: str = SOURCE) -> EngineRule:
    return EngineRule(name=name, text=text, source=source)


ENGINE = Engine(
    name="transformers",
    title="transformers",
    flag=('cache_implementation="quantized", cache_config=',),
    versions=(
        EngineVersion(name=NEWEST, source=SOURCE),
        EngineVersion(name="5.21.0", note="the first with the fp8 backend; its states are not known", source=SOURCE),
        EngineVersion(name="5.20.0", note="no fp8 backend", source=SOURCE),
        EngineVersion(name="5.19.0", note="a flush counts one new token, and waits for a first recent row",
                      source="transformers 5.19.0, src/transformers/cache_utils.py: QuantizedLayer.update"),
        EngineVersion(name="5.15.0", note="the first that caches latents", source=SOURCE),
        EngineVersion(name="5.14.0", note="latents are expanded to keys and values of every head",
                      source="transformers 5.14.0, models/deepseek_v3/modeling_deepseek_v3.py"),
        EngineVersion(name="4.57.1", note="windows of W - 1 rows too; caches have names per kind (HybridCache)",
                      source="transformers 4.57.1, src/transformers/cache_utils.py"),
    ),
    formats=formats_for({"q_group_size": 64}),
    tailor=lambda _spec, _version, options, _capability: formats_for(options),
    options=(
        EngineOption(name="cache_implementation", kind=str, default="dynamic", choices=("dynamic", "static"),
                     text="Tensors that grow, or that have their full length at once.", source=SOURCE),
        EngineOption(name="max_cache_len", text="Tokens of a static cache; default the context.", source=SOURCE),
        EngineOption(name="decode_tokens", default=1, text="Of the context, tokens that came one by one after the "
                     "prompt.", source=SOURCE),
        EngineOption(name="q_group_size", default=64, text="Values that share a scale and a zero.", source=SOURCE),
        EngineOption(name="residual_length", text="Recent tokens kept in the model's dtype until this many are there; "
                     "default 128, and none with fp8.", source=SOURCE),
        EngineOption(name="axis_key", kind=str, default="0", choices=("0", "1", "-1"), text=_AXIS.format("K"),
                     source=SOURCE),
        EngineOption(name="axis_value", kind=str, default="0", choices=("0", "1", "-1"), text=_AXIS.format("V"),
                     source=SOURCE),
    ),
    rules=(
        _rule("full", "A dynamic layer holds every token, a static one max_cache_len."),
        _rule("windows", "Sliding and chunked layers: min(tokens, W - 1) rows, a view of a tensor with the last call's "
              "rows; static ones min(W, max_cache_len)."),
        _rule("latents", "Since 5.15.0 keys are the latent and values its rotary part, one head."),
        _rule("index", "Keys of sparse attention: [batch, tokens, index_head_dim]."),
        _rule("shared", "Layers that read another layer's cache, and feed-forward ones, hold nothing."),
        _rule("states", "Convolutions keep as many columns as their kernel, in the model's dtype; recurrent states are "
              "float32, except MiniMax's and Zaya's.", STATES_SOURCE),
        _rule("compressed", "DeepSeek V4: keys and values are one tensor; values and gates of an open group wait in "
              "the model's dtype.", "transformers 5.24.0, models/deepseek_v4/modeling_deepseek_v4.py"),
        _rule("quantised", "The first call is quantised whole; later tokens wait until residual_length is reached, "
              "then everything is quantised again. Groups run over batch, heads, tokens and channels."),
        _rule("three bits", "hqq packs ten 3-bit values into 32 bits.", "hqq 0.2.8, hqq/core/bitpack.py"),
    ),
    cache=TransformersCache,
    launch=LAUNCH,
)  # fmt: skip
