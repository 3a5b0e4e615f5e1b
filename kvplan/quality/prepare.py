"""What is settled before anything is loaded: files, config, number of positions, memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan.errors import UnsupportedError
from kvplan.quality import models, texts
from kvplan.quality.memory import check_memory, memory_needed, parameters
from kvplan.quality.models import Geometry, Source
from kvplan.quality.report import TextInfo
from kvplan.quality.request import SMALLEST_TOKENS


@dataclass(frozen=True)
class Reading:
    """Which part of which text; None for the default text, or for its default start."""

    text: Path | None
    tokens: int
    first_token: int | None

    def ids(self, tokenizer: Any, targets: int = 0) -> tuple[list[int], TextInfo]:
        """Token ids, `targets` more than the positions that run, which the info counts."""
        text = texts.read_text(self.text) if self.text else texts.default_text()
        found, info = texts.tokenise(tokenizer, text, self.tokens + targets, self.first_token)
        return found, info.model_copy(update={"tokens": self.tokens})


def prepare(model: str, reading: Reading, device: str, logits: bool, probes: int = 0) -> tuple[Source, Geometry]:
    """Find a model and refuse what cannot run.

    Args:
        probes: tokens of the longest needle.
        logits: whether logits of all positions are kept, as a measurement of K and V does; else rows only.
    """
    source = models.find(model)
    if reading.text is not None:
        texts.read_text(reading.text)
    config = models.load_config(source)
    text = config.get_text_config()
    if logits and getattr(text, "kv_lora_rank", None):
        raise UnsupportedError(
            f"{source.name} ({text.model_type}) caches latents (MLA); kvplan measures K and V only",
            "use a model with MHA, GQA or MQA, or store its latents with kvplan capture",
        )
    g = models.geometry(config)
    models.check_tokens(reading.tokens, SMALLEST_TOKENS, source, g)
    need = memory_needed(
        parameters(config),
        g.vocab if logits else 1,
        g.layers,
        2 * 4 * g.kv_heads * g.head_dim,
        reading.tokens,
        max(reading.tokens, probes),
        source.gguf is not None,
    )
    check_memory(need, device)
    return source, g
