"""One `kvplan quality`: the untouched run, its noise floor, then format after format; a report after each."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from kvplan import __version__
from kvplan.errors import UnsupportedError
from kvplan.quality.attention import Visitor, identity, visiting
from kvplan.quality.measure import Outcome, Run, buckets, compare, figures
from kvplan.quality.predict import part_of
from kvplan.quality.probe import answered, continuations, run_tasks, usual_attention
from kvplan.quality.report import Baseline, Candidate, FormatQuality, QualityReport, QualityRequest
from kvplan.quality.request import has_parts, unverified
from kvplan.quality.stored import Codec, Rows, untouched
from kvplan.quality.tasks import Task

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Inputs:
    """The model and what it reads.

    Attributes:
        tokens: int64 `(1, T + 1)`; the last one is only a target.
        calibration: int64 `(1, N)` for static scales, or None.
        cache_dtype: fp16, bf16 or fp32: the dtype that the model's cache has.
        tasks: prompts with answers.
        prompts: beginnings for greedy decoding.
    """

    model: Any
    tokens: Tensor
    calibration: Tensor | None
    cache_dtype: str
    weights_sha256: str | None = None
    tasks: Sequence[Task] = ()
    prompts: Sequence[tuple[int, ...]] = ()


def measure(
    request: QualityRequest,
    inputs: Inputs,
    command: str,
    progress: Progress = lambda _: None,
    kept: Sequence[FormatQuality] = (),
) -> Iterator[QualityReport]:
    """Run every candidate; yields the report so far after each, the last one complete.

    Args:
        kept: figures of the same request, from an earlier report.
    """
    progress("the untouched cache")
    layers: set[int] = set()

    def counting(layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Rows, Rows]:
        layers.add(layer)
        return identity(layer, q, k, v)

    base = Run(_logits(inputs, counting), inputs.tokens[0, 1:])
    if not layers:
        raise UnsupportedError(f"{request.model} has no attention that kvplan can watch", "use a transformer model")
    progress("the noise floor")
    noise = compare(base, _usual_logits(inputs))
    progress("tasks with the untouched cache")
    tasks, answers = answered(inputs.model, [*inputs.tasks, *continuations(inputs.model, inputs.prompts)])
    report = QualityReport(
        command=command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        request=request,
        weights_sha256=inputs.weights_sha256,
        layers=len(layers),
        versions=versions(),
        baseline=Baseline(ppl=noise.loss_untouched.mean().exp().item(), noise=figures(noise), tasks=answers),
        notes=_notes(request),
    )
    for i, candidate in enumerate(request.candidates):
        progress(f"{candidate.format} ({i + 1} of {len(request.candidates)})")
        found = next((f for f in kept if (f.k, f.v) == (candidate.k, candidate.v)), None)
        found = found or _measured(candidate, base, inputs, tasks)
        if request.parts and has_parts(candidate) and found.k_only is None:
            found = _with_parts(found, base, inputs, (*report.formats, *kept))
        done = i + 1 == len(request.candidates)
        report = report.model_copy(update={"formats": (*report.formats, found), "complete": done})
        yield report


def _measured(c: Candidate, base: Run, inputs: Inputs, tasks: Sequence[Task]) -> FormatQuality:
    """K and V together."""
    started = time.perf_counter()
    codecs = _codecs(c.k, c.v, inputs)
    both, share = _outcome(codecs, base, inputs)
    return FormatQuality(
        format=c.format,
        k=c.k,
        v=c.v,
        **figures(both).model_dump(),
        exact_share=share,
        clipped_fraction={x.role: x.clipped / x.values for x in codecs if x.values},
        buckets=buckets(both),
        tasks=run_tasks(inputs.model, tasks, quantising(codecs))[1],
        seconds=round(time.perf_counter() - started, 1),
    )


def _with_parts(found: FormatQuality, base: Run, inputs: Inputs, known: Sequence[FormatQuality]) -> FormatQuality:
    """K and V each alone, unless another format has the same K or V."""
    started = time.perf_counter()
    codecs = _codecs(found.k, found.v, inputs)
    alone = [
        part_of(known, codec.role, codec.spelling) or figures(_outcome([codec], base, inputs)[0]) for codec in codecs
    ]
    seconds = round(found.seconds + time.perf_counter() - started, 1)
    return found.model_copy(update={"k_only": alone[0], "v_only": alone[1], "seconds": seconds})


def _codecs(k: str, v: str, inputs: Inputs) -> list[Codec]:
    """Codecs of K and V, static ones calibrated."""
    codecs = [Codec(role, spelling, inputs.cache_dtype) for role, spelling in (("k", k), ("v", v))]
    _calibrate(codecs, inputs)
    return codecs


def _calibrate(codecs: Sequence[Codec], inputs: Inputs) -> None:
    """Static scales of every layer from one run of the untouched model on the calibration text."""
    if not any(codec.is_calibrated for codec in codecs):
        return
    assert inputs.calibration is not None

    def learn(layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Rows, Rows]:
        for codec in codecs:
            codec.calibrate(layer, k if codec.role == "k" else v)
        return identity(layer, q, k, v)

    with torch.inference_mode(), visiting(learn):
        inputs.model(inputs.calibration, use_cache=False, logits_to_keep=1)


def _outcome(codecs: Sequence[Codec], base: Run, inputs: Inputs) -> tuple[Outcome, float]:
    """One run with these tensors quantised and the others untouched; with the mean share of rows seen exact."""
    shares: dict[str, float] = {}
    visitor = quantising(codecs)

    def watching(layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Rows, Rows]:
        kept = visitor(layer, q, k, v)
        if not shares:
            shares.update({rows.role: _exact_share(rows) for rows in kept})
        return kept

    outcome = compare(base, _logits(inputs, watching))
    return outcome, sum(shares[codec.role] for codec in codecs) / len(codecs)


def quantising(codecs: Sequence[Codec]) -> Visitor:
    """Stores these tensors of every layer and leaves the others untouched."""
    by_role = {codec.role: codec for codec in codecs}

    def quantise(layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Rows, Rows]:
        kept = [by_role[r].rows(layer, x) if r in by_role else untouched(r, x) for r, x in (("k", k), ("v", v))]
        return kept[0], kept[1]

    return quantise


def _exact_share(rows: Rows) -> float:
    """Mean over queries of the share of their rows that they see exact."""
    if rows.layout is None:
        return 0.0
    tokens: int = rows.exact.shape[-2]
    return sum((t + 1 - rows.packed(t)) / (t + 1) for t in range(tokens)) / tokens


def _logits(inputs: Inputs, visitor: Any) -> Tensor:
    """Teacher-forced logits fp32 `(T, V)`: one prefill, errors pass from layer to layer."""
    with torch.inference_mode(), visiting(visitor):
        found: Tensor = inputs.model(inputs.tokens[:, :-1], use_cache=False).logits[0].float()
    return found


def _usual_logits(inputs: Inputs) -> Tensor:
    """The same through the model's usual attention function."""
    with usual_attention(inputs.model):
        return _logits(inputs, identity)


def versions() -> dict[str, str]:
    """What ran."""
    import transformers

    return {
        "kvplan": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _notes(request: QualityRequest) -> tuple[str, ...]:
    notes = ["residual rows stay as computed; they are packed after the query of their own position has read them"]
    if request.calibration is not None and request.text.tokens > request.calibration.tokens:
        notes.append(
            f"static scales were calibrated on positions below {request.calibration.tokens:,}: rotated keys differ "
            "beyond, and scales by channel clip most there"
        )
    notes += [] if request.probes else unverified(request.candidates)
    if request.compute == "bf16":
        notes.append("bf16 compute: its own error is larger than that of 8-bit formats")
    return tuple(notes)
