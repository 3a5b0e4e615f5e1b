"""Ollama: its estimate, the cache on all devices, and llama.cpp's lines in its log."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from kvplan.engines.shared.types import Engine
from kvplan.plan.resolve import Resolved
from kvplan.reconcile.explained import llamacpp
from kvplan.reconcile.explained.common import (
    Attempt,
    Explainer,
    cache_of,
    compared,
    context_of,
    figures_of,
    number,
    version_attempts,
)
from kvplan.reconcile.llamacpp import CACHES
from kvplan.reconcile.result import Beside, Compared
from kvplan.reconcile.rules import LogFormat
from kvplan.reconcile.sizes import UNIT_BYTES, interval
from kvplan.reconcile.types import Printed, StartUp
from kvplan.specs.model import ModelSpec


def attempts(start: StartUp, spec: ModelSpec, engine: Engine) -> list[Attempt]:
    """Context of all slots, slots and type; then versions and types that the log may not say."""
    whole, slots = start.last("context"), start.last("slots") or start.last("sequences")
    parallel = int(slots.value) if slots else number(start.option("parallel"), 1)
    context = int(whole.value) // max(parallel, 1) if whole else 4096
    options = [f"num_parallel={parallel}"]
    if batch := start.last("batch"):
        options.append(f"num_batch={batch.value}")
    fields: dict[str, Any] = {"context": max(context, 1), "batch": parallel, "engine_options": tuple(options)}
    kv = start.option("kv_cache_type") or start.option("type_k")
    if kv and kv != "f16":
        fields["kv"] = kv
    versions = version_attempts(Attempt("", fields), engine, start)
    made = list(versions)
    if not kv:
        made += [
            versions[0].but(f"the cache is {kind}, which the log does not say", kv=kind) for kind in ("q8_0", "q4_0")
        ]
    if not whole:
        made += [versions[0].but(f"the context is {n:,}", context=n) for n in (2048, 8192, 32768)]
    return made


def compare(start: StartUp, resolved: Resolved, log: LogFormat) -> list[Compared]:
    """The estimate beside kvplan's of it; the caches of all devices beside llama.cpp's tensors."""
    figures = figures_of(cache_of(resolved), context_of(resolved))
    made = []
    if (printed := start.last("kv_estimate")) and "estimated bytes" in figures:
        exact = Decimal(int(figures["estimated bytes"])) / UNIT_BYTES[printed.unit]
        made.append(compared(log, printed, exact, exact, "Ollama's own estimate: bytes of a type without its scales"))
    devices = [p for p in start.all("kv_device") if not p.rank]
    if devices:
        low, high = interval((1, p) for p in devices)
        expected = sum(own.low for own in llamacpp.expected(resolved) if own.figure.name in CACHES) * UNIT_BYTES["MiB"]
        unit = UNIT_BYTES[devices[-1].unit]
        middle = Decimal(low + high) / 2 / unit
        half = Decimal(high - low) / 2 / unit
        both = Printed(name="kv_device", value=middle.quantize(Decimal("0.1")), unit=devices[-1].unit, half_unit=half,
                       line=devices[-1].line)  # fmt: skip
        where = " and ".join(p.of for p in devices)
        made.append(compared(log, both, expected / unit, expected / unit, f"llama.cpp's caches, on {where}"))
    return made + llamacpp.compare(start, resolved, log)


def beside(start: StartUp, resolved: Resolved, memory: int | None) -> Beside | str:
    """Compute graphs of all devices."""
    graphs = start.all("graph_device") or start.all("graph_estimate")
    if not graphs:
        return llamacpp.beside(start, resolved, memory)
    low, high = interval((1, p) for p in graphs)
    text = " + ".join(f"{p.value} {p.unit} compute graph{f' on {p.of}' if p.of else ''}" for p in graphs)
    return Beside(low_bytes=low, high_bytes=high, formula=text, memory_bytes=memory)


EXPLAINER = Explainer(engine=lambda _start: "ollama", attempts=attempts, compare=compare, beside=beside)
