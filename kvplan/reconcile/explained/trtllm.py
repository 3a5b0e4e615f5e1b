"""TensorRT-LLM: bytes, blocks and tokens of the pool, and what the forward pass of the profile took."""

from __future__ import annotations

from typing import Any

from kvplan.engines.shared.types import Engine
from kvplan.plan.resolve import Resolved
from kvplan.reconcile.explained.common import (
    Attempt,
    Explainer,
    cache_of,
    compared,
    context_of,
    figures_of,
    options_from,
    ranks_of,
    sized,
    version_attempts,
)
from kvplan.reconcile.result import Beside, Compared
from kvplan.reconcile.rules import LogFormat
from kvplan.reconcile.sizes import interval
from kvplan.reconcile.types import StartUp
from kvplan.specs.model import ModelSpec
from kvplan.units import format_bytes

_DTYPES = ("fp8", "nvfp4", "int8")


def attempts(start: StartUp, spec: ModelSpec, engine: Engine) -> list[Attempt]:
    """The pool as asked; the log does not say the cache dtype, nor always the ranks."""
    longest, tokens = start.last("max_sequence"), start.last("tokens")
    options = {text.partition("=")[0]: text for text in options_from(start, engine)}
    if size := start.last("block_size"):
        options["tokens_per_block"] = f"tokens_per_block={size.value}"
    if tokens:
        options["max_tokens"] = f"max_tokens={tokens.value}"
    fields: dict[str, Any] = {
        "context": int(longest.value) if longest else spec.max_context,
        "tp": ranks_of(start, "tensor_parallel_size"), "pp": ranks_of(start, "pipeline_parallel_size", "PP"),
        "engine_options": tuple(options.values()),
    }  # fmt: skip
    kv = start.option("kv_cache_dtype")
    if kv in _DTYPES:
        fields["kv"] = kv
    base = version_attempts(Attempt("", fields), engine, start)[0]
    made = [base]
    if kv not in _DTYPES:
        made += [base.but(f"the cache is {dtype}, which the log does not say", kv=dtype) for dtype in _DTYPES]
    if not start.option("tensor_parallel_size"):
        made += [each.but(f"there are {tp} tensor-parallel ranks", tp=tp) for tp in (2, 4, 8) for each in made[:4]]
    if spec.mtp:
        made.append(base.but("prediction layers hold a cache too", mtp=True))
    return made


def compare(start: StartUp, resolved: Resolved, log: LogFormat) -> list[Compared]:
    """The last pool of the start: TensorRT-LLM makes a small one first, to measure."""
    cache, context = cache_of(resolved), context_of(resolved)
    figures = figures_of(cache, context)
    per_token = int(figures["bytes per token"])
    made = []
    tokens = start.last("tokens")
    if tokens and "pool bytes" in figures:
        what = f"{figures['blocks']:,} blocks x {cache.page_size:,} tokens x {per_token:,} bytes"
        for name in ("pool", "pool_bytes"):
            if printed := start.last(name):
                made.append(sized(log, printed, int(figures["pool bytes"]), what))
        made.append(compared(log, tokens, figures["tokens"], figures["tokens"], f"{figures['blocks']:,} whole blocks"))
        if blocks := start.last("blocks"):
            made.append(compared(log, blocks, figures["blocks"], figures["blocks"],
                                 f"ceil({tokens.value:,} tokens / {cache.page_size:,})"))  # fmt: skip
    if printed := start.last("token_bytes"):
        made.append(compared(log, printed, per_token, per_token, "K and V of all layers of a rank"))
    if (pages := start.last("blocks_per_sequence")) and start.last("max_sequence"):
        found = figures["blocks per sequence"]
        made.append(compared(log, pages, found, found, f"ceil({context:,} tokens / {cache.page_size:,})"))
    return made


def beside(start: StartUp, resolved: Resolved, memory: int | None) -> Beside | str:
    """What was in use before the pool, less the engine: buffers and activations."""
    weights = start.last("weights")
    if weights is None:
        return "the log has no line: Loaded engine size: N MiB"
    if peak := start.last("peak"):
        low, high = interval([(1, peak), (-1, weights)])
        text = f"{peak.value} GiB at the peak of the profile - {weights.value} MiB engine"
        return Beside(low_bytes=low, high_bytes=high, formula=text, memory_bytes=memory)
    whole, free = start.last("total_memory"), start.last("free")
    total = whole or memory
    if total is None or free is None:
        return "the log has no line: Memory usage when calculating max tokens in paged kv cache"
    low, high = interval([(1, total), (-1, free), (-1, weights)])
    said = format_bytes(total) if isinstance(total, int) else f"{total.value} GiB"
    text = f"{said} - {free.value} GiB free - {weights.value} MiB engine"
    return Beside(low_bytes=low, high_bytes=high, formula=text, memory_bytes=memory)


EXPLAINER = Explainer(engine=lambda _start: "trtllm", attempts=attempts, compare=compare, beside=beside)
