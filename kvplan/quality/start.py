"""From a command line to a running measurement: formats against the geometry, tokens, model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvplan.errors import NoDeviceError
from kvplan.quality import models, texts
from kvplan.quality.models import Geometry
from kvplan.quality.prepare import Reading, prepare
from kvplan.quality.report import Candidate, QualityReport, QualityRequest, TextInfo
from kvplan.quality.request import CALIBRATION_TOKENS, needs_calibration
from kvplan.quality.resume import usable
from kvplan.quality.run import Inputs, Progress, measure, versions
from kvplan.quality.stored import codec_layout
from kvplan.quality.tasks import built_in, own_tasks, prompts, read_tasks

SHORTEST_NEEDLE = 512


def start(
    model: str,
    chosen: Sequence[Candidate],
    reading: Reading,
    *,
    calibration_text: Path | None,
    compute: str,
    device: str | None,
    parts: bool,
    probes: int,
    tasks: Path | None,
    command: str,
    progress: Progress,
    previous: QualityReport | None = None,
) -> Iterator[QualityReport]:
    """Reports of a measurement, one per finished format; everything that can be refused is refused first.

    Args:
        device: cpu or cuda; None for cuda if there is one.
    """
    import torch

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise NoDeviceError("no CUDA GPU is available to torch", "leave --device out: the CPU does")
    other = texts.read_text(calibration_text) if calibration_text else texts.default_calibration()
    asked = read_tasks(tasks) if tasks else []
    progress("reading the config")
    source, g = prepare(model, reading, device, logits=True, probes=probes)
    _check_formats(chosen, g)
    if probes:
        models.check_tokens(probes, SHORTEST_NEEDLE, source, g)
    progress("reading the text")
    tokenizer = models.load_tokenizer(source)
    ids, info = reading.ids(tokenizer, targets=1)
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
        [*own_tasks(tokenizer, asked, g.max_positions), *(built_in(tokenizer, probes) if probes else ())],
        prompts(tokenizer) if probes else (),
    )
    request = QualityRequest.model_validate(
        {
            "model": source.name, "candidates": chosen, "text": info, "calibration": learned[1] if learned else None,
            "compute": compute, "device": device, "parts": parts,
            "probes": probes, "tasks_sha256": file_hash(tasks) if tasks else None,
        }
    )  # fmt: skip
    kept = usable(previous, request, source.weights_sha256, versions()) if previous else ()
    yield from measure(request, inputs, command, progress, kept)


def file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _check_formats(chosen: Sequence[Candidate], g: Geometry) -> None:
    """Each format fits the model's heads and has a codec."""
    for c in chosen:
        for role, spelling in (("k", c.k), ("v", c.v)):
            codec_layout(role, spelling, g.kv_heads, g.head_dim, g.dtype)
