"""Post-RoPE queries and un-repeated K and V of a model on a text, layer by layer into a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from kvplan.errors import UsageError
from kvplan.quality import models
from kvplan.quality.attention import Visitor, identity, visiting
from kvplan.quality.manifest import KEY, CapturedLayer, Manifest
from kvplan.quality.prepare import Reading, prepare
from kvplan.quality.run import versions
from kvplan.quality.stored import Rows
from kvplan.quality.stream import UNKNOWN_HASH, TensorStream

Dtype = Literal["fp16", "bf16", "fp32"]
PROBE_TOKENS = 2


def capture(
    model: str,
    out: Path,
    reading: Reading,
    *,
    layers: Sequence[int] | None,
    queries: int,
    query_step: int | None = None,
    dtype: Dtype,
    command: str,
    written: Callable[[], None] = lambda: None,
) -> Manifest:
    """Run `model` once over a text and write the chosen layers; all of them for None.

    Args:
        reading: the positions, all of which are kept of K and V.
        queries: positions kept of Q, every `query_step`th up to the last; None spreads them.
        written: called after each layer.
    """
    source, g = prepare(model, reading, "cpu", logits=False)
    chosen = sorted(set(range(g.layers) if layers is None else layers))
    step = query_step or spread(reading.tokens, queries)
    _check(chosen, g.layers, reading.tokens, queries, step)
    ids, info = reading.ids(models.load_tokenizer(source))
    loaded = models.load_model(source, "fp32", "cpu")
    shapes, found = _probe(loaded, torch.tensor([ids[:PROBE_TOKENS]]))
    missing = [i for i in chosen if i not in found]
    if missing:
        raise UsageError(f"layers {missing} have no K and V attention", "leave them out")
    manifest = Manifest(
        command=command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        model=source.name,
        weights_sha256=source.weights_sha256,
        text=info,
        compute="fp32",
        dtype=dtype,
        queries=queries,
        query_step=step,
        layers=tuple(found[i] for i in chosen),
        versions=versions(),
        tensors_sha256=UNKNOWN_HASH,
    )
    _write(loaded, torch.tensor([ids]), manifest, shapes, out, written)
    return manifest


def spread(tokens: int, queries: int) -> int:
    """The largest odd step that fits: an even one meets a residual mostly when it is full."""
    most = max(tokens // max(queries, 1), 1)
    return most if most % 2 else most - 1


def parse_layers(text: str | None) -> list[int] | None:
    """`all` or None to None; `0,10,20-22` to numbers.

    Raises:
        UsageError: anything else.
    """
    if text is None or text.strip().lower() == "all":
        return None
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(
                f"layers {text!r}: {part.strip()!r} is no layer", "for example --layers 0,10,20-22, or all"
            )
        found += range(int(first), int(last or first) + 1)
    return found


def _check(chosen: Sequence[int], layers: int, tokens: int, queries: int, step: int) -> None:
    if not chosen or chosen[-1] >= layers:
        raise UsageError(f"layers {list(chosen)}: the model has 0 to {layers - 1}", "choose among these, or all")
    if not 1 <= queries <= tokens // step:
        raise UsageError(
            f"{queries} queries, each {step} apart, of {tokens:,} positions", f"use --queries 1 to {tokens // step}"
        )


def _probe(model: Any, ids: Tensor) -> tuple[dict[str, tuple[int, int]], dict[int, CapturedLayer]]:
    """One pass over two tokens: heads and channels of every tensor, and what each layer's attention is told."""
    shapes: dict[str, tuple[int, int]] = {}

    def look(layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Rows, Rows]:
        for role, x in (("q", q), ("k", k), ("v", v), ("latent", k)):
            shapes[f"layers.{layer}.{role}"] = x.shape[1], x.shape[3]
        return identity(layer, q, k, v)

    return shapes, _read(model, ids, look)


def _write(
    model: Any,
    ids: Tensor,
    manifest: Manifest,
    shapes: dict[str, tuple[int, int]],
    out: Path,
    written: Callable[[], None],
) -> None:
    """One pass over all tokens; each layer is written as it comes."""
    roles = {x.layer: ("q", "latent") if x.latent_rank else ("q", "k", "v") for x in manifest.layers}
    tokens, queries, step = ids.shape[1], manifest.queries, manifest.query_step
    declared: dict[str, tuple[int, ...]] = {}
    for layer, of_layer in roles.items():
        for role in of_layer:
            heads, channels = shapes[f"layers.{layer}.{role}"]
            declared[f"layers.{layer}.{role}"] = heads, queries if role == "q" else tokens, channels
    with TensorStream(out, declared, manifest.dtype, {KEY: manifest.model_dump_json(by_alias=True)}) as stream:

        def keep(layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Rows, Rows]:
            rows = {"q": q[:, :, tokens - 1 - step * (queries - 1) :: step], "k": k, "v": v, "latent": k}
            for role in roles.get(layer, ()):
                stream.write(f"layers.{layer}.{role}", rows[role][0])
            if layer in roles:
                written()
            return identity(layer, q, k, v)

        _read(model, ids, keep)


def _read(model: Any, ids: Tensor, visitor: Visitor) -> dict[int, CapturedLayer]:
    with torch.inference_mode(), visiting(visitor) as notes:
        model(ids, use_cache=False, logits_to_keep=1)
    return notes
