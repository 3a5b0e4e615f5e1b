"""llama.cpp: the lines that kvplan expects beside the lines of the log, read by the same reader."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from kvplan.engines.shared.types import Engine
from kvplan.plan.resolve import Resolved
from kvplan.reconcile.explained.common import (
    Attempt,
    Explainer,
    cache_of,
    compared,
    context_of,
    version_attempts,
)
from kvplan.reconcile.figures import figures_in
from kvplan.reconcile.llamacpp import CACHES, FORMAT
from kvplan.reconcile.result import Beside, Compared
from kvplan.reconcile.rules import LogFormat
from kvplan.reconcile.sizes import in_unit, interval
from kvplan.reconcile.types import Printed, StartUp
from kvplan.specs.model import ModelSpec


def _latent(spec: ModelSpec) -> bool:
    return any(group.kind == "latent" and group.role != "index" for group in spec.layer_groups)


SIZES = ("size", "kv_self", *CACHES)
LINES = (*SIZES, "cells", "layers", "streams", "rollbacks")
"""Figures of the lines about whole caches, which kvplan writes too."""


def attempts(start: StartUp, spec: ModelSpec, engine: Engine) -> list[Attempt]:
    """Context, slots and types from the log; then builds, and what a log may not print."""
    base = Attempt("", _fields(start, spec, engine))
    # Between covered builds only latents and the cells without flash attention changed, and the newest is the likelier.
    newest = version_attempts(base, engine, replace(start, version=None))
    versions = newest if not _latent(spec) else version_attempts(base, engine, start)
    made = [*versions]
    for first in versions:
        made += [first.with_option(f"a micro batch has {n} tokens", "n_ubatch", n) for n in (512, 2048, 1024, 256)]
        made.append(first.with_option("every token of windows is kept (--swa-full)", "swa_full", "on"))
        made.append(first.with_option("flash attention is off", "flash_attn", "off"))
    made.append(versions[0].but("the log's cache is of another context size", context=spec.max_context))
    return made


def _fields(start: StartUp, spec: ModelSpec, engine: Engine) -> dict[str, Any]:
    main = [p for p in start.printed if not p.rank]
    found = {p.name: int(p.value) for p in main if p.name in ("context", "context_per_sequence", "sequences", "ubatch")}
    shapes = [p for p in main if p.name in ("cells", "seqs", "streams")]
    cells = max((int(p.value) for p in shapes if p.name == "cells"), default=0)
    seqs = found.get("sequences") or max((int(p.value) for p in shapes if p.name == "seqs"), default=1)
    streams = max((int(p.value) for p in shapes if p.name == "streams"), default=1)
    unified = start.option("kv_unified")
    one_stream = unified in ("true", "1") if unified else seqs > 1 and streams == 1
    # Without the context's own lines the cells of a full cache tell it; cells are per stream.
    n_ctx = found.get("context") or cells * streams or spec.max_context
    per_slot = found.get("context_per_sequence") or (n_ctx if one_stream else max(n_ctx // max(seqs, 1), 1))
    options = [f"n_parallel={seqs}", f"kv_unified={'on' if one_stream else 'off'}", f"n_ctx={n_ctx}"]
    if "ubatch" in found:
        options.append(f"n_ubatch={found['ubatch']}")
    flash = {"1": "on", "enabled": "on", "true": "on", "0": "off", "disabled": "off", "false": "off"}
    if (word := start.option("flash_attn")) in flash:
        options.append(f"flash_attn={flash[word]}")
    if rollbacks := [int(p.value) for p in main if p.name == "rollbacks"]:
        options.append(f"n_rs_seq={max(rollbacks)}")
    known = {option.name for option in engine.options}
    fields: dict[str, Any] = {
        "context": max(per_slot // (seqs if one_stream and seqs else 1), 1), "batch": max(seqs, 1),
        "engine_options": tuple(text for text in options if text.partition("=")[0] in known),
    }  # fmt: skip
    latent = _latent(spec)
    if type_k := start.option("type_k"):
        fields["latent" if latent else "k"] = type_k
        if not latent:
            fields["v"] = start.option("type_v") or type_k
    return fields


def compare(start: StartUp, resolved: Resolved, log: LogFormat) -> list[Compared]:
    """Each line about a cache beside kvplan's line at the same place."""
    mine: dict[str, list[Expected]] = {}
    for own in expected(resolved):
        mine.setdefault(own.figure.name, []).append(own)
    printed = [p for p in start.printed if p.name in LINES and not p.rank]
    made = []
    for p in printed:
        waiting = mine.get("size" if p.name == "kv_self" else p.name, [])
        if waiting:
            own = waiting.pop(0)
            made.append(compared(log, p, own.low, own.high, own.formula))
        elif p.name in SIZES:
            made.append(compared(log, p, 0, 0, "kvplan has no such cache"))
    names = {p.name for p in printed}
    for own in (own for name in CACHES if name in names for own in mine.get(name, []) if own.high):
        absent = replace(own.figure, value=Decimal(0))
        made.append(compared(log, absent, own.low, own.high, f"the log has no line of it; {own.formula}"))
    return made


@dataclass(frozen=True)
class Expected:
    """A figure of a line that kvplan writes; exact where the engine's figures have its bytes."""

    figure: Printed
    low: Decimal
    high: Decimal
    formula: str


def expected(resolved: Resolved) -> list[Expected]:
    """The figures of the lines that kvplan writes for a context."""
    figures = cache_of(resolved).figures(context_of(resolved))
    sizes = [int(f.value) for f in figures if f.name.endswith(" bytes") and f.name != "estimated bytes"]
    lines = [figures_in(FORMAT, str(f.value)) for f in figures if f.name.startswith("log line")]
    return [_expected(figure, line, sizes) for line in lines for figure in line]


def _expected(figure: Printed, line: list[Printed], sizes: list[int]) -> Expected:
    low, high = figure.value - figure.half_unit, figure.value + figure.half_unit
    if figure.name not in SIZES:
        return Expected(figure, low, high, "llama.cpp's rule for this cache")
    shape = {p.name: int(p.value) for p in line if p.name in ("cells", "layers", "streams")}
    exact = next((n for n in sizes if low <= in_unit(n, figure.unit) <= high), None)
    if exact is None:
        return Expected(figure, low, high, "the sum of its tensors")
    mib = in_unit(exact, figure.unit)
    rows = shape.get("cells", 0) * shape.get("streams", 0) * shape.get("layers", 0)
    if not rows or exact % rows:
        return Expected(figure, mib, mib, f"{exact:,} bytes")
    how = " x ".join(f"{n:,} {name}" for name, n in shape.items()) + f" x {exact // rows:,} bytes"
    return Expected(figure, mib, mib, how)


def beside(start: StartUp, resolved: Resolved, memory: int | None) -> Beside | str:
    """Compute and output buffers of all devices: what llama.cpp reserves for activations."""
    main = [p for p in start.all("compute_buffer", "output_buffer") if not p.rank]
    if not any(p.name == "compute_buffer" for p in main):
        return "the log has no line: compute buffer size = X MiB"
    low, high = interval((1, p) for p in main)
    text = " + ".join(f"{p.value} MiB {'compute' if p.name == 'compute_buffer' else 'output'} on {p.of}" for p in main)
    return Beside(low_bytes=low, high_bytes=high, formula=text, memory_bytes=memory)


EXPLAINER = Explainer(engine=lambda _start: "llamacpp", attempts=attempts, compare=compare, beside=beside)
