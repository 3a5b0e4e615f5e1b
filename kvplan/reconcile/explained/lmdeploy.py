"""LMDeploy: bytes of a block, and the tokens of all blocks; TurboMind or the PyTorch engine, as the lines show."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from kvplan.engines.shared.types import Engine
from kvplan.errors import KvplanError
from kvplan.plan.capacity import loaded_weights
from kvplan.plan.resolve import Resolved
from kvplan.reconcile.explained.common import (
    Attempt,
    Explainer,
    cache_of,
    compared,
    context_of,
    figures_of,
    number,
    options_from,
    version_attempts,
)
from kvplan.reconcile.result import Beside, Compared
from kvplan.reconcile.rules import LogFormat
from kvplan.reconcile.sizes import ends, in_unit, interval
from kvplan.reconcile.types import StartUp
from kvplan.specs.model import ModelSpec
from kvplan.units import format_bytes

_POLICIES = ("4", "8", "16", "17", "42")


def engine_of(start: StartUp) -> str:
    """Which of the two engines wrote the log."""
    return "lmdeploy-turbomind" if start.all("block_bytes", "block_bytes_floor", "pool") else "lmdeploy-pytorch"


def attempts(start: StartUp, spec: ModelSpec, engine: Engine) -> list[Attempt]:
    """The settings of the log; then the other cache policies and ranks."""
    policy = start.option("quant_policy")
    known = {name for f in engine.formats for name in f.names}
    fields: dict[str, Any] = {
        "context": number(start.option("session_len"), spec.max_context), "tp": number(start.option("tp"), 1),
        "engine_options": options_from(start, engine),
    }  # fmt: skip
    if policy in known and policy != "0":
        fields["kv"] = policy
    versions = version_attempts(Attempt("", fields), engine, start)
    if not start.version and start.last("block_bytes_floor"):
        # Whole MB were printed by the first versions only.
        versions = [*versions[1:][::-1], versions[0]]
        versions[0] = Attempt("", versions[0].fields)
    made = list(versions)
    if policy is None:
        made += [v.but(f"quant_policy is {p}", kv=p) for v in versions for p in _POLICIES if p in known]
    if start.option("tp") is None:
        made += [v.but(f"there are {tp} tensor-parallel ranks", tp=tp) for v in versions for tp in (2, 4, 8)]
    return made


def compare(start: StartUp, resolved: Resolved, log: LogFormat) -> list[Compared]:
    """A block as printed, and what all blocks hold."""
    cache, context = cache_of(resolved), context_of(resolved)
    block = int(figures_of(cache, context)["bytes per block"])
    what = f"{cache.page_size:,} tokens of all layers: {block:,} bytes"
    made = []
    if printed := start.last("block_bytes"):
        exact = in_unit(block, "MiB")
        made.append(compared(log, printed, exact, exact, what))
    if printed := start.last("block_bytes_floor"):
        whole = Decimal(int(in_unit(block, "MiB")))
        made.append(compared(log, printed, whole, whole, what + ", whole MiB"))
    blocks = start.last("blocks")
    if blocks and cache.page_size and (session := start.last("session")):
        tokens = int(blocks.value) * cache.page_size
        made.append(compared(log, session, tokens, tokens, f"{blocks.value:,} blocks x {cache.page_size:,} tokens"))
    if (size := start.last("block_size")) and cache.page_size:
        made.append(compared(log, size, cache.page_size, cache.page_size, "tokens of a block"))
    return made + _budget(start, log, block)


def _budget(start: StartUp, log: LogFormat, block: int) -> list[Compared]:
    """The share of the free memory: TurboMind's object cache, the PyTorch engine's blocks."""
    free, pool, fraction = start.last("free"), start.last("pool"), start.last("fraction")
    if free and pool and fraction:
        least, most = (in_unit(int(n * fraction.value), pool.unit) for n in ends(free))
        return [compared(log, pool, least, most, f"{fraction.value} x {free.value} MiB free")]
    share, runtime, blocks = start.option("cache_max_entry_count"), start.last("runtime"), start.last("blocks")
    if not (free and runtime and blocks and share):
        return []
    low, high = interval([(1, free), (-1, runtime)])
    shown = [int(n * Decimal(share)) // block for n in (low, high)]
    how = f"{share} x ({free.value} MiB free - {runtime.value} MiB runtime) / {block:,} bytes of a block"
    return [compared(log, blocks, shown[0], shown[1], how)]


def beside(start: StartUp, resolved: Resolved, memory: int | None) -> Beside | str:
    """What is in use beside the weights before the pool is made."""
    free = start.last("free")
    if free is None or memory is None:
        return "the log prints no free memory after the weights" if free is None else "give --gpu"
    try:
        weights = sum(term.nbytes for term in loaded_weights(resolved))
    except KvplanError as error:
        return error.message
    low, high = (memory - end - weights for end in reversed(ends(free)))
    text = f"{format_bytes(memory)} - {free.value} MiB free - {format_bytes(weights)} weights by the spec"
    return Beside(low_bytes=low, high_bytes=high, formula=text, memory_bytes=memory)


EXPLAINER = Explainer(engine=engine_of, attempts=attempts, compare=compare, beside=beside)
