"""The figures that SGLang reports, and its log lines. Its "GB" are GiB."""

from __future__ import annotations

from kvplan.engines.sglang.budget import Sizes, why_refused
from kvplan.engines.sglang.pools import CELL, STATE, TWO, Held, Pools, tensor_bytes
from kvplan.engines.shared.types import Case, EngineFigure
from kvplan.memory.groups import DTYPES
from kvplan.units import GIB

_LOG = "SGLang 0.5.23, srt/mem_cache/memory_pool.py:2087"
_REQUESTS = "SGLang 0.5.23, srt/mem_cache/kv_cache_configurator.py:3119-3180"
_TORCH = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32", "fp8_e4m3": "torch.float8_e4m3fn",
          "fp8_e5m2": "torch.float8_e5m2", "fp4_e2m1": "torch.float4_e2m1fn_x2"}  # fmt: skip
_LABELS = {"full": "Full ", "swa": "SWA "}


def buffers(pools: Pools, tokens: int, swa: int | None = None, slots: int | None = None) -> dict[str, int]:
    """Bytes of every buffer for pools of that many tokens, window-pool tokens and state slots.

    Names: `K`, `V`, `latent`, `index`, `scales` (of a 4-bit latent), with `SWA ` before those of the window pool;
    `conv`, `recurrent`; `workspace`; `second scales`. Extra pages and the padding slot are in them.
    """
    found: dict[str, int] = {}
    page = pools.settings.page_size
    for held in pools.of("full", "index", "swa"):
        # Index keys lie in whole pages.
        size = (swa or 0) if held.pool == "swa" else tokens
        rows = (size + page + 1) // page * page if held.pool == "index" else size + page
        for name, nbytes in _tensors(held).items():
            label = ("SWA " if held.pool == "swa" else "") + name
            found[label] = found.get(label, 0) + held.layers * held.spread * rows * nbytes
    for held in pools.of("state"):
        for plane in held.layout.scoped("state"):
            found[plane.name] = found.get(plane.name, 0) + held.layers * ((slots or 0) + 1) * plane.fixed_bytes(1)
    if pools.workspace:
        found["workspace"] = pools.workspace.page_bytes(1) * (tokens + page)
    for held in pools.twice():
        scales = sum(tensor_bytes(held.layout, t, "metadata") for t in ("k", "v"))
        found["second scales"] = found.get("second scales", 0) + held.layers * scales * (tokens + page)
    return found


def _tensors(held: Held) -> dict[str, int]:
    """Bytes of one token of one layer by buffer. SGLang keeps the scales of a 4-bit latent apart, and prints none."""
    if held.group.role == "kv":
        return {"K": tensor_bytes(held.layout, "k"), "V": tensor_bytes(held.layout, "v")}
    if held.group.role == "index":
        return {"index": tensor_bytes(held.layout, "index")}
    if held.layout.tensor("latent").number == "fp4_e2m1":
        payload = tensor_bytes(held.layout, "latent", "payload")
        return {"latent": payload, "scales": tensor_bytes(held.layout, "latent", "metadata")}
    return {"latent": tensor_bytes(held.layout, "latent")}


def plain_figures(pools: Pools) -> tuple[EngineFigure, ...]:
    """What needs no budget."""
    made = [EngineFigure("page_size", pools.settings.page_size, CELL)]
    if pools.of("full", "swa"):
        made.append(EngineFigure("cell_size", pools.cell, TWO if pools.of("swa") else CELL))
    for pool in ("full", "swa") if pools.of("swa") else ():
        for held in pools.of(pool)[:1]:
            made.append(EngineFigure(f"{pool} bytes per token and layer", held.layout.page_bytes(1), TWO))
    if pools.of("state"):
        made.append(EngineFigure("mamba_cache_per_req", pools.slot_bytes, STATE))
        made.append(EngineFigure("state slots per request", pools.settings.slots_per_request, STATE))
    return tuple(made)


def max_requests(pools: Pools, sizes: Sizes, case: Case, context: int) -> int:
    """Requests that run at once (resolve_max_num_reqs)."""
    limit = case.options["max_running_requests"]
    if limit is None:
        most = max(min(int(sizes.tokens / context * 512), 4096), 2048)
    else:
        most = max(1, limit // pools.settings.attention_dp)
    most = min(most, sizes.tokens // 2)
    return most if sizes.slots is None else min(most, sizes.slots // pools.settings.slots_per_request)


def budget_figures(pools: Pools, sizes: Sizes, case: Case, context: int) -> tuple[EngineFigure, ...]:
    """What follows from the bytes left after the weights; `refused` where SGLang would not start with them."""
    refused = why_refused(pools, sizes)
    made = [EngineFigure("refused", refused, CELL)] if refused else []
    if sizes.slots is not None:
        made.append(EngineFigure("max_mamba_cache_size", sizes.slots, STATE))
        made.append(EngineFigure("bytes left for rows", sizes.row_budget, STATE))
    made.append(EngineFigure("max_total_num_tokens", sizes.tokens, CELL))
    if sizes.swa is not None:
        made.append(EngineFigure("full_layer_tokens", sizes.tokens if pools.of("full") else 0, TWO))
        made.append(EngineFigure("swa_layer_tokens", sizes.swa, TWO))
    made.append(EngineFigure("max_running_requests", max_requests(pools, sizes, case, context), _REQUESTS))
    lines = log_lines(pools, sizes, case)
    return (*made, *(EngineFigure(f"log line {i}", text, _LOG) for i, text in enumerate(lines, 1)))


def log_lines(pools: Pools, sizes: Sizes, case: Case) -> tuple[str, ...]:
    """What SGLang prints of its pools, the window pool after the full one."""
    taken = buffers(pools, sizes.tokens, sizes.swa, sizes.slots)
    made = []
    if sizes.slots is not None:
        made.append(
            f"Mamba Cache is allocated. max_mamba_cache_size: {sizes.slots}, "
            f"conv_state size: {gib(taken.get('conv', 0)):.2f}GB, "
            f"ssm_state size: {gib(taken.get('recurrent', 0)):.2f}GB"
        )
    for pool, tokens in (("full", sizes.tokens), ("swa", sizes.swa)):
        for held in pools.of(pool)[:1]:
            number = held.layout.tensors[0].number
            head = f"{_LABELS[pool]}KV Cache" if sizes.swa is not None else "KV Cache"
            before = "SWA " if pool == "swa" else ""
            made.append(
                f"{head} is allocated. dtype: {_TORCH.get(number, DTYPES[case.spec.native_dtype])}, "
                f"#tokens: {tokens}, {_sizes(taken, before)}"
            )
    return tuple(made)


def _sizes(taken: dict[str, int], before: str) -> str:
    if f"{before}K" in taken:
        return f"K size: {gib(taken[f'{before}K']):.2f} GB, V size: {gib(taken[f'{before}V']):.2f} GB"
    return f"KV size: {gib(taken[f'{before}latent'] + taken.get('index', 0)):.2f} GB"


def gib(nbytes: int) -> float:
    """Bytes in GiB."""
    return nbytes / GIB
