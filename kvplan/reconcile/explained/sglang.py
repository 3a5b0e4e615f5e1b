"""SGLang: buffers of its pools for the printed tokens and slots, and what is left of the GPU."""

from __future__ import annotations

from typing import Any

from kvplan.engines.sglang.cache import SglangCache
from kvplan.engines.sglang.report import buffers
from kvplan.engines.shared.types import Engine
from kvplan.plan.resolve import Resolved
from kvplan.reconcile.explained.common import (
    Attempt,
    Explainer,
    cache_of,
    compared,
    number,
    options_from,
    ranks_of,
    sized,
    version_attempts,
)
from kvplan.reconcile.result import Beside, Compared
from kvplan.reconcile.rules import LogFormat
from kvplan.reconcile.sizes import interval
from kvplan.reconcile.types import Printed, StartUp
from kvplan.specs.model import ModelSpec
from kvplan.units import format_bytes

_NATIVE = ("auto", "bfloat16", "float16", "bf16", "fp16")
_STORED = {"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2", "fp8": "fp8_e4m3"}
_TENSORS = {("k", ""): ("K",), ("v", ""): ("V",), ("kv", ""): ("latent", "index"), ("k", "full"): ("K",),
            ("v", "full"): ("V",), ("kv", "full"): ("latent", "index"), ("k", "swa"): ("SWA K",),
            ("v", "swa"): ("SWA V",), ("kv", "swa"): ("SWA latent",)}  # fmt: skip
"""Figure and pool to the buffers that it is the sum of."""


def attempts(start: StartUp, spec: ModelSpec, engine: Engine) -> list[Attempt]:
    """The printed dtype and settings, then page sizes and pools that the log may leave open."""
    kv = start.option("kv_cache_dtype")
    stored = start.option("kv_dtype")
    context = start.last("context")
    fields: dict[str, Any] = {
        "context": int(context.value) if context else spec.max_context,
        "tp": ranks_of(start, "tp_size"), "pp": ranks_of(start, "pp_size", "PP"),
        "dp_attention": start.option("enable_dp_attention") == "True",
        "engine_options": options_from(start, engine),
    }  # fmt: skip
    if fields["dp_attention"]:
        fields["dp"] = number(start.option("dp_size"), 1)
    # `auto` says nothing where the checkpoint has a cache dtype of its own; the pool's line does.
    wanted = _STORED.get(stored or "") or (kv if kv not in (None, *_NATIVE) else None)
    if wanted:
        fields["kv"] = wanted
    versions = version_attempts(Attempt("", fields), engine, start)
    base = versions[0]
    made = [*versions]
    made += [base.with_option(f"a page has {n} tokens", "page_size", n) for n in (1, 16, 32, 64, 128)]
    made.append(base.with_option("windows are kept whole", "disable_hybrid_swa_memory", "on"))
    made += [base.with_option(f"state dtype is {d}", "mamba_ssm_dtype", d) for d in ("float32", "bfloat16")]
    if spec.mtp:
        made.append(base.but("prediction layers hold a cache too", mtp=True))
    if any(group.kind == "latent" and group.role == "index" for group in spec.layer_groups):
        for backend in ("flashmla_kv", "trtllm"):
            other = base.with_option(f"sparse attention runs on {backend}", "dsa_prefill_backend", backend)
            made.append(other.with_option("", "dsa_decode_backend", backend))
    return made


def compare(start: StartUp, resolved: Resolved, log: LogFormat) -> list[Compared]:
    """Every pool of every rank, for the tokens that it printed."""
    cache = cache_of(resolved)
    assert isinstance(cache, SglangCache)
    made: list[Compared] = []
    for rank in start.ranks:
        tokens = {p.of: int(p.value) for p in start.all("tokens") if p.rank == rank}
        slots = start.last("slots", rank)
        full = tokens.get("", tokens.get("full", 0))
        taken = buffers(cache.pools, full, tokens.get("swa"), int(slots.value) if slots else None)
        for p in start.printed:
            if p.rank == rank and (names := _TENSORS.get((p.name, p.of))):
                rows = f"{tokens.get(p.of, full):,} tokens + a page of {cache.page_size:,}"
                made.append(_size(log, p, taken, names, rows))
        if slots:
            for name, tensor in (("conv", "conv"), ("ssm", "recurrent")):
                if printed := start.last(name, rank):
                    made.append(_size(log, printed, taken, (tensor,), f"{slots.value} slots + one for padding"))
        both = start.last("pool", rank)
        if both:
            made.append(_size(log, both, taken, ("K", "V", "SWA K", "SWA V"), "both pools"))
    return made + _windows(start, cache, log)


def _size(log: LogFormat, printed: Printed, taken: dict[str, int], names: tuple[str, ...], what: str) -> Compared:
    nbytes = sum(taken.get(name, 0) for name in names)
    return sized(log, printed, nbytes, f"{' + '.join(names)}, {what}: {nbytes:,} bytes")


def _windows(start: StartUp, cache: SglangCache, log: LogFormat) -> list[Compared]:
    """Tokens of the window pool beside those of the full one."""
    swa, full = start.last("swa_tokens"), start.last("full_tokens")
    if not (swa and full and cache.pools.of("swa") and cache.pools.of("full")):
        return []
    found = cache.pools.swa_tokens(int(full.value))
    return [compared(log, swa, found, found, f"{full.value:,} tokens x swa_full_tokens_ratio, in whole pages")]


def beside(start: StartUp, resolved: Resolved, memory: int | None) -> Beside | str:
    """What is neither weights, pool nor free when serving starts: graphs, activations kept, libraries."""
    left = start.least("available")
    if left is None:
        return "the log has no line with available_gpu_mem=X GB"
    rank = left.rank
    pools = [p for p in start.all("k", "v", "kv", "conv", "ssm", "draft_ssm", "draft_conv") if p.rank == rank]
    weights = [p for p in start.all("weights") if p.rank == rank]
    if not pools or not weights:
        return "the log lacks the line of the pool or of the weights"
    first = next((p for p in start.all("before_weights") if p.rank == rank), None)
    total: Printed | int | None = memory if memory is not None else first
    if total is None:
        return "neither the log nor --gpu says how much memory the GPU has"
    low, high = interval([(1, total), *((-1, p) for p in (*weights, *pools, left))])
    whole = format_bytes(total) if isinstance(total, int) else f"{total.value} GiB free before loading"
    parts = " - ".join(f"{p.value} GiB {log_word}" for p, log_word in (*((w, "weights") for w in weights),
                       *((p, "pool") for p in pools), (left, "left")))  # fmt: skip
    return Beside(low_bytes=low, high_bytes=high, formula=f"{whole} - {parts}", memory_bytes=memory)


EXPLAINER = Explainer(
    engine=lambda _start: "sglang", attempts=attempts, compare=compare, beside=beside, deciding="max_tokens"
)
