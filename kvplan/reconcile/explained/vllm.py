"""vLLM: the pool in blocks, the tokens and the concurrency that it prints for them, and its budget."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

from kvplan.engines.shared.types import Engine, EngineCache
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
    plain_figures,
    ranks_of,
    version_attempts,
)
from kvplan.reconcile.result import Beside, Compared
from kvplan.reconcile.rules import LogFormat
from kvplan.reconcile.sizes import ends, in_unit, interval
from kvplan.reconcile.types import Printed, StartUp
from kvplan.specs.model import ModelSpec
from kvplan.units import format_bytes

_NATIVE = ("auto", "bfloat16", "float16", "float32", "half", "bf16", "fp16")
_BACKENDS = {"Flash Attention": "FLASH_ATTN", "FlashInfer": "FLASHINFER", "Triton": "TRITON_ATTN"}
_OTHERS = {True: ("FLASHINFER_MLA", "FLASHMLA", "TRITON_MLA", "CUTLASS_MLA"), False: ("FLASHINFER", "TRITON_ATTN")}
"""Backends to ask for where the log names none, of models with and without latents."""
_BATCHED = (2048, 8192, 16384)
"""Defaults of max_num_batched_tokens by GPU; windows keep that many tokens more."""


def attempts(start: StartUp, spec: ModelSpec, engine: Engine) -> list[Attempt]:
    """Versions, then what the log of a start may leave open."""
    kv = start.option("kv_cache_dtype")
    fields: dict[str, Any] = {
        "context": _length(start, spec), "tp": ranks_of(start, "tensor_parallel_size"),
        "pp": ranks_of(start, "pipeline_parallel_size", "PP"),
        "dcp": number(start.option("decode_context_parallel_size"), 1),
        "engine_options": _options(start, engine),
    }  # fmt: skip
    if kv and kv not in _NATIVE:
        fields["kv"] = kv
    drafts = number(start.option("num_speculative_tokens") or start.option("num_spec_tokens"), 0)
    if drafts and spec.mtp:
        fields["mtp"] = True
    versions = version_attempts(Attempt("", fields), engine, start)
    base = versions[0]
    made = [base]
    if spec.mtp:
        made.append(base.but("prediction layers hold a cache too", mtp=not fields.get("mtp", False)))
    set_names = {text.partition("=")[0] for text in fields["engine_options"]}
    if "max_num_batched_tokens" not in set_names:
        made += [base.with_option(f"max_num_batched_tokens is {n:,}", "max_num_batched_tokens", n) for n in _BATCHED]
    if "enable_prefix_caching" not in set_names:
        made += [base.with_option(f"prefix caching is {x}", "enable_prefix_caching", x) for x in ("off", "on")]
    if "disable_hybrid_kv_cache_manager" not in set_names:
        made.append(base.with_option("windows are kept whole (hybrid cache manager off)",
                                     "disable_hybrid_kv_cache_manager", "on"))  # fmt: skip
    if "block_size" not in set_names:
        made += [base.with_option(f"a block has {n} tokens", "block_size", n) for n in (16, 32, 64, 128)]
    if "attention_backend" not in set_names:
        latent = any(group.kind == "latent" for group in spec.layer_groups)
        made += [base.with_option(f"the attention backend is {b}", "attention_backend", b) for b in _OTHERS[latent]]
    made.append(base.with_option("state dtype is float32", "mamba_ssm_cache_dtype", "float32"))
    if not kv:
        made.append(base.but("the cache is fp8, which the log does not say", kv="fp8"))
    open_reading = [a.but(v.cause, engine_version=v.fields["engine_version"]) for v in versions[1:] for a in made]
    return made + open_reading


def _length(start: StartUp, spec: ModelSpec) -> int:
    for name in ("per_request", "asked_length", "max_length"):
        if found := start.last(name):
            return int(found.value)
    asked = number(start.option("max_model_len"), 0) or number(start.option("max_seq_len"), 0)
    return asked or spec.max_context


def _options(start: StartUp, engine: Engine) -> tuple[str, ...]:
    made = dict(
        text.split("=", 1) for text in options_from(start, engine, {"num_spec_tokens": "num_speculative_tokens"})
    )
    known = {option.name: option for option in engine.options}
    if batched := start.last("batched_tokens"):
        made["max_num_batched_tokens"] = str(batched.value)
    backend = start.option("attention_backend")
    backend = _BACKENDS.get(backend or "", backend)
    if backend and backend in known["attention_backend"].choices:
        made["attention_backend"] = backend
    if override := start.last("blocks_override"):
        made["num_gpu_blocks_override"] = str(override.value)
    return tuple(f"{name}={value}" for name, value in made.items())


def compare(start: StartUp, resolved: Resolved, log: LogFormat) -> list[Compared]:
    """Blocks, tokens and concurrency for the pool of the rank with the least memory; what a request needs."""
    cache, context = cache_of(resolved), context_of(resolved)
    plain = figures_of(cache, context)
    block = int(plain["bytes per block"])
    available = start.least("available") or start.last("refused_available")
    low, high = (n // block for n in ends(available)) if available else (0, 1 << 40)
    made: list[Compared] = []
    blocks = start.last("blocks")
    if blocks:
        made.append(compared(log, blocks, low, high, f"{_pool(available)} / {block:,} bytes of a block"))
        if made[0].agrees:
            low = high = int(blocks.value)
    tokens = start.least("tokens")
    each = f"{plain['blocks per request']:,} blocks"
    if tokens:
        found = _blocks_printing(cache, context, block, int(tokens.value), low, high)
        low, high = found or (low, high)
        shown = [_printed(cache, context, block, n, "kv_cache_size_tokens") for n in (low, high)]
        what = f"{low:,} blocks" if low == high else f"{low:,} to {high:,} blocks"
        how = f"{what} of {block:,} bytes in {_pool(available)}; {each} for a request of {context:,} tokens"
        made.append(compared(log, tokens, min(shown), max(shown), how))
    if (rate := start.last("concurrency")) and high < 1 << 40:
        shown = [_printed(cache, context, block, n, "max concurrency") for n in (low, high)]
        made.append(compared(log, rate, min(shown), max(shown), f"blocks / {each} of a request of {context:,} tokens"))
    return made + _rest(start, cache, context, log, block, plain)


def derived(start: StartUp, resolved: Resolved) -> dict[str, int]:
    """Also the number of blocks that prints the log's tokens."""
    made = plain_figures(resolved)
    available, tokens = start.least("available"), start.least("tokens")
    if available and tokens:
        block = made["bytes per block"]
        low, high = (n // block for n in ends(available))
        cache, context = cache_of(resolved), context_of(resolved)
        found = _blocks_printing(cache, context, block, int(tokens.value), low, high)
        if found is not None:
            made["num_gpu_blocks"] = found[0]
    return made


def _rest(
    start: StartUp, cache: EngineCache, context: int, log: LogFormat, block: int, plain: dict[str, Any]
) -> list[Compared]:
    made = []
    if needed := start.last("needed"):
        exact = in_unit(block * int(plain["blocks per request"]), "GiB")
        made.append(compared(log, needed, exact, exact, f"{plain['blocks per request']:,} blocks x {block:,} bytes"))
    longest = start.last("estimated_length")
    if longest and (ranges := _refused_pool(start, block)):
        shown = [figures_of(cache, context, n).get("estimated maximum model length") for n in ranges]
        numbers = [n for n in shown if n is not None]
        if numbers:
            made.append(compared(log, longest, min(numbers), max(numbers), "the longest request that fits"))
    if size := start.last("block_size"):
        made.append(
            compared(log, size, plain["block_size"], plain["block_size"], "an attention page as large as a state")
        )
    return made


def _refused_pool(start: StartUp, block: int) -> tuple[int, int] | None:
    """Least and most bytes of the pool of a refused start: newer versions print it without the null block."""
    if available := start.least("available"):
        return ends(available)
    if refused := start.last("refused_available"):
        low, high = ends(refused)
        return low, high + block
    return None


def _printed(cache: EngineCache, context: int, block: int, blocks: int, name: str) -> Any:
    return figures_of(cache, context, blocks * block).get(name, 0)


def _blocks_printing(
    cache: EngineCache, context: int, block: int, tokens: int, low: int, high: int
) -> tuple[int, int] | None:
    """(least, most) blocks of a range for which the engine prints so many tokens; several where it rounds down."""
    least = _least_printing(cache, context, block, tokens, low, high)
    if least is None or _printed(cache, context, block, least, "kv_cache_size_tokens") != tokens:
        return None
    beyond = _least_printing(cache, context, block, tokens + 1, least, high)
    return least, high if beyond is None else beyond - 1


def _least_printing(cache: EngineCache, context: int, block: int, tokens: int, low: int, high: int) -> int | None:
    """The least number of blocks of a range for which at least so many tokens are printed; None if for none."""
    name = "kv_cache_size_tokens"
    # The printed figure grows with the blocks, in every version.
    while high - low > 1 << 30 or _printed(cache, context, block, high, name) < tokens:
        if high - low <= 1 << 30:
            return None
        high = low + (1 << 30)
    while low < high:
        middle = (low + high) // 2
        if _printed(cache, context, block, middle, name) < tokens:
            low = middle + 1
        else:
            high = middle
    return low


def _pool(available: Printed | None) -> str:
    return f"{available.value} GiB" if available else "a pool that the log does not print"


def beside(start: StartUp, resolved: Resolved, memory: int | None) -> Beside | str:
    """Share of the GPU less weights and pool: activations, CUDA graphs and what PyTorch does not see."""
    rank = start.least("available") or start.last("refused_available")
    if rank is None:
        return "the log has no line: Available KV cache memory: X GiB"
    weights = start.last("weights", rank.rank) or start.last("weights")
    if weights is None:
        return "the log has no line: Model loading took X GiB"
    allowed = start.last("budget", rank.rank) or start.last("budget")
    if allowed:
        low, high = interval([(1, allowed), (-1, weights), (-1, rank)])
        text = f"{allowed.value} GiB allowed - {weights.value} GiB weights - {rank.value} GiB cache"
        return Beside(low_bytes=low, high_bytes=high, formula=text, memory_bytes=memory)
    if memory is None:
        return "neither the log nor --gpu says how much memory the GPU has"
    share, how = _share(start, resolved, memory)
    whole = int(share * memory)
    low, high = interval([(1, whole), (-1, weights), (-1, rank)])
    text = f"{float(share):g}{how} x {format_bytes(memory)} - {weights.value} GiB weights - {rank.value} GiB cache"
    return Beside(low_bytes=low, high_bytes=high, formula=text, memory_bytes=memory)


def _share(start: StartUp, resolved: Resolved, memory: int) -> tuple[Fraction, str]:
    text = start.option("gpu_memory_utilization")
    if text:
        return Fraction(Decimal(text)), ""
    if printed := start.last("utilization"):
        return Fraction(printed.value), ""
    chosen = resolved.engine
    assert chosen is not None
    ranks = resolved.sharding.tp * resolved.sharding.pp
    return chosen.engine.pool.default_share(chosen.version, memory, ranks), " (the default)"


EXPLAINER = Explainer(
    engine=lambda _start: "vllm",
    attempts=attempts,
    compare=compare,
    beside=beside,
    deciding="available",
    derived=derived,
)
