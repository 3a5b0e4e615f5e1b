"""From a command line to a running measurement: files, memory, formats against the geometry, tokens, model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from kvplan.errors import NoDeviceError
from kvplan.quality import models, texts
from kvplan.quality.report import Candidate, QualityReport, QualityRequest, TextInfo
from kvplan.quality.request import CALIBRATION_TOKENS, SMALLEST_TOKENS, memory_needed, needs_calibration
from kvplan.quality.run import Inputs, Progress, measure
from kvplan.quality.stored import codec_layout


def start(
    model: str,
    chosen: Sequence[Candidate],
    *,
    text: Path | None,
    calibration_text: Path | None,
    tokens: int,
    first_token: int | None,
    compute: str,
    device: str,
    parts: bool,
    command: str,
    progress: Progress,
) -> Iterator[QualityReport]:
    """Reports of a measurement, one per finished format; everything that can be refused is refused first."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise NoDeviceError("no CUDA GPU is available to torch", "leave --device out: the CPU does")
    source = models.find(model)
    words = texts.read_text(text) if text else texts.default_text()
    other = texts.read_text(calibration_text) if calibration_text else texts.default_calibration()
    progress("reading the config")
    config = models.load_config(source)
    g = models.geometry(config)
    models.check_tokens(tokens, SMALLEST_TOKENS, source, g)
    for c in chosen:
        for role, spelling in (("k", c.k), ("v", c.v)):
            codec_layout(role, spelling, g.kv_heads, g.head_dim, g.dtype)
    row_bytes = 2 * 4 * g.kv_heads * g.head_dim
    size = models.parameters(config)
    models.check_memory(memory_needed(size, g.vocab, g.layers, row_bytes, tokens, source.gguf is not None), device)
    progress("reading the text")
    tokenizer = models.load_tokenizer(source)
    ids, info = texts.tokenise(tokenizer, words, tokens + 1, first_token)
    learned: tuple[list[int], TextInfo] | None = None
    if needs_calibration(chosen):
        learned = texts.tokenise(tokenizer, other, CALIBRATION_TOKENS)
    progress("loading the model")
    inputs = Inputs(
        models.load_model(source, compute, device),
        torch.tensor([ids], device=device),
        torch.tensor([learned[0]], device=device) if learned else None,
        g.dtype,
        source.weights_sha256,
    )
    request = QualityRequest.model_validate(
        {
            "model": source.name, "candidates": chosen, "text": info.model_copy(update={"tokens": tokens}),
            "calibration": learned[1] if learned else None, "compute": compute, "device": device, "parts": parts,
        }
    )  # fmt: skip
    yield from measure(request, inputs, command, progress)
