"""Cross-attention: encoder-decoder models, and decoders whose single layers look at an image."""

from __future__ import annotations

from typing import Any

from kvplan.specs.importers.attention import full, head_dim, kv_heads, q_heads, traits
from kvplan.specs.importers.family import FULL, Part, Words
from kvplan.specs.importers.fields import Fields
from kvplan.specs.importers.figure import HEAD_DIM, LAYERS, TOKENS, Figure, derived
from kvplan.specs.importers.rules import listed

CROSS = "cross_attention"
MLLAMA_ROWS = 6404
"""Rows of one image: at most 4 tiles of 1,601 rows each."""


def decoder_count(cfg: Fields) -> Figure:
    """Layers of the decoder: `num_hidden_layers` and T5's `num_layers` count the encoder's."""

    def like_encoder() -> Figure:
        found = cfg.whole("num_layers", high=LAYERS, default=False)
        return derived(found, found, rule=f"{found.source}: as many as the encoder", instead=True)

    return cfg.whole(
        "decoder_layers",
        "num_decoder_layers",
        high=LAYERS,
        default=False,
        null=like_encoder,
        absent=like_encoder if cfg.has("num_layers") else None,
    )


def audio_decoder(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Whisper: self-attention, and one batch of audio frames."""
    return _decoder(cfg, "audio", cfg.whole("max_source_positions", high=TOKENS))


def text_decoder(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """BART, T5: self-attention, and the longest input that the encoder was made for."""
    names = ("max_position_embeddings", "n_positions")
    usual = Figure(512, "assumed", "the config states no longest input")
    return _decoder(cfg, "input", cfg.whole(*names, high=TOKENS, null=lambda: usual, absent=lambda: usual))


def _decoder(cfg: Fields, per: str, rows: Figure) -> tuple[Part, ...]:
    heads = q_heads(cfg, "decoder_attention_heads")
    dim = head_dim(cfg, heads) if not cfg.has("d_kv") else cfg.whole("d_kv", high=HEAD_DIM)
    kv = kv_heads(cfg, heads)
    body: dict[str, Any] = {"q_heads": heads, "kv_heads": kv, "head_dim": dim}
    own = {key: value for key, value in traits(cfg).items() if value}
    cross = Part("cross", {"kind": "cross", **body, "encoder_tokens": {"per": per, "count": rows}})
    return Part("self", {"kind": "attention", **body, **own}), cross


def image_words(cfg: Fields, layers: int) -> Words:
    """Mllama: a list of the layers that look at the image and at nothing else."""
    return listed("cross_attention_layers", CROSS, FULL)(cfg, layers)


def image_layer(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Mllama: keys and values of the image's rows; no self-attention."""
    shape = full(cfg, layer)[0].body
    rows = Figure(MLLAMA_ROWS, "assumed", "4 tiles of 1,601 rows, the most of one image")
    keys = ("q_heads", "kv_heads", "head_dim")
    body = {"kind": "cross", **{key: shape[key] for key in keys}, "encoder_tokens": {"per": "image", "count": rows}}
    return (Part("cross", body),)
