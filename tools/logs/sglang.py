"""Logs of SGLang: sizes of its pools for the tokens and slots that it printed.

A check states the shapes of a pool. The engine is asked for its buffers at the printed tokens, extra page included; the
page size is the check's, else the record's, else anything from 1 to 64, which is as far as SGLang's defaults go.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, lcm
from typing import Any

from golden.sglang import TWO_POOLS, ask, reported
from synthetic import attention, latent, make, state

from kvplan.engines.sglang.cache import SglangCache
from kvplan.engines.sglang.report import buffers, gib
from kvplan.errors import KvplanError
from logs.common import Compared, Finding, finding, half_unit

ENGINES = ("SGLang",)
FORMATS = ("auto", "fp8_e4m3", "fp4_mx_block16")
DEFAULT_PAGES = (1, 64)


def check(record: dict[str, Any]) -> Finding:
    """Compare every check of a log that is about bytes."""
    compared = []
    for one in record["checks"]:
        try:
            compared += KINDS.get(one["f"], _nothing)(one, record)
        except KvplanError as error:
            # An empty interval: no figure of ours agrees.
            compared.append(Compared(f"{one['f']}: {error.message}", 0.0, inf, -inf))
    return finding(record, compared, _why(record))


def _why(record: Mapping[str, Any]) -> str:
    """What the record itself says about a difference."""
    return str(record["derivation"]) if record.get("status") in ("partly", "unexplained") else ""


def _nothing(one: Mapping[str, Any], record: Mapping[str, Any]) -> list[Compared]:
    return []


def _pages(one: Mapping[str, Any], record: Mapping[str, Any]) -> tuple[int, ...]:
    page = one.get("page") or record.get("block_size")
    return (page,) if page else DEFAULT_PAGES


def _between(what: str, printed: float, sizes: list[float]) -> Compared:
    """A printed size against those of the possible settings."""
    slack = half_unit(printed)
    # Two decimals were printed, whatever trailing zeros the record has lost.
    slack = min(slack, 0.005)
    return Compared(what, printed, min(sizes) - slack, max(sizes) + slack)


def rows(one: Mapping[str, Any], record: Mapping[str, Any]) -> list[Compared]:
    """K and V, or the rows of a latent with its index keys."""
    taken = [
        buffers(cache.pools, one["tokens"], one["tokens"])
        for cache in (_cache(one, page) for page in _pages(one, record))
    ]
    # The scales of a 4-bit latent are not in the printed figure.
    names = {"k_gb": ("K",), "v_gb": ("V",), "kv_gb": ("latent", "index")}
    return [
        _between(f"{key} of {one['layers']} layers", one[key], [gib(sum(t.get(n, 0) for n in parts)) for t in taken])
        for key, parts in names.items()
        if key in one
    ]


def _cache(one: Mapping[str, Any], page: int) -> SglangCache:
    """The engine's cache for a check."""
    layers, tp = one["layers"], one.get("tp", 1)
    if one["kind"] == "gqa":
        spec = make(
            layers, attention("rest", one["kv_heads"], one["dk"], one.get("dv"), q_heads=lcm(one["kv_heads"], tp))
        )
        return ask(spec, {}, kv=one.get("kv_dtype") or _of_width(one.get("bytes", 2)), tp=tp, page_size=page)
    groups = [latent("rest", one.get("kv_lora_rank", 512), one.get("qk_rope", 64))]
    if one.get("indexer"):
        index_layers = range(one.get("indexer_layers", layers))
        groups.append(latent(index_layers, one.get("index_head_dim", 128), 0, name="index", role="index", overlay=True))
    spec = make(layers, *groups)
    made = [
        ask(spec, {"dsa_prefill_backend": backend, "dsa_decode_backend": backend} if one.get("indexer") else {},
            kv=kv, tp=tp, page_size=page)
        for kv in (FORMATS[:2] if one.get("indexer") else FORMATS)
        for backend in (("flashmla_kv", "trtllm") if one.get("indexer") else (None,))
    ]  # fmt: skip
    wanted = one.get("row_bytes")
    if wanted is None:
        return made[0]
    for cache in made:
        if cache.pools.of("full")[0].layout.page_bytes(1) == wanted:
            return cache
    raise KvplanError(f"no format of SGLang has latent rows of {wanted} bytes", "read the check again")


def _of_width(nbytes: int) -> str:
    """The cache dtype whose numbers have that many bytes."""
    return {2: "auto", 1: "fp8_e4m3"}[nbytes]


def states(one: Mapping[str, Any], record: Mapping[str, Any]) -> list[Compared]:
    """The state pool: slots and the padding slot, recurrent states and convolution rows apart."""
    dims = {
        "type": "gated_deltanet", "k_heads": one["k_heads"], "v_heads": one["v_heads"], "k_dim": one["sdk"],
        "v_dim": one["sdv"], "conv_kernel": one.get("kernel", 4),
    }  # fmt: skip
    spec = make(one["lin"], state("rest", dims))
    options = {"max_mamba_cache_size": one["slots"], "disable_radix_cache": True,
               "mamba_ssm_dtype": one.get("ssm_dtype")}  # fmt: skip
    taken = buffers(ask(spec, options, tp=one.get("tp", 1)).pools, 0, slots=one["slots"])
    names = {"ssm_gb": "recurrent", "conv_gb": "conv"}
    return [_between(key, one[key], [gib(taken[name])]) for key, name in names.items() if key in one]


def ratio(one: Mapping[str, Any], record: Mapping[str, Any]) -> list[Compared]:
    """Window-pool tokens beside the full pool's; bytes per token of a model without a pool for windows."""
    what, shapes = one.get("what"), record["model_params"]
    if what == "swa_ratio":
        found = [_window_tokens(one, page) for page in _pages(one, record)]
        return [Compared("swa_layer_tokens", one["num"], min(found), max(found))]
    if what == "bpt" and {"full", "swa", "kv_heads", "head_dim"} <= set(shapes):
        spec = make(
            len((*range(shapes["full"]), *range(shapes["swa"]))),
            attention(range(shapes["full"]), shapes["kv_heads"], shapes["head_dim"], name="full"),
            attention("rest", shapes["kv_heads"], shapes["head_dim"], name="swa", retain={"window": shapes["window"]}),
        )
        kv = "fp8_e4m3" if str(record["kv_dtype"]).startswith("fp8") else "auto"
        cell = reported(ask(spec, {}, kv=kv), 1)["cell_size"]
        return [Compared("cell_size", one["num"], cell, cell)]
    return []


def _window_tokens(one: Mapping[str, Any], page: int) -> int:
    spec = make(
        2, attention([0], 1, 64, name="full"), attention([1], 1, 64, name="swa", retain={"window": 128}),
        model_type=TWO_POOLS,
    )  # fmt: skip
    cache = ask(spec, {"swa_full_tokens_ratio": one["printed"]}, page_size=page)
    return cache.pools.swa_tokens(one["den"])


KINDS = {"sglang_kv": rows, "sglang_mamba": states, "ratio": ratio}
