"""Logs of vLLM against kvplan's engine: the model is built from a check's dimensions, the version's rules are asked.

A printed pool is known to half a unit of its last decimal, so every figure is computed at both ends of that interval.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from math import lcm
from typing import Any

from golden.vllm.models import engine_caches
from synthetic import attention, latent, make, state

from kvplan.engines.shared.select import number_of
from kvplan.engines.vllm.cache import VllmCache
from kvplan.engines.vllm.pool import capacity_near, gib
from kvplan.engines.vllm.states import StateMode, aligned_block
from kvplan.engines.vllm.versions import VERSIONS, available_bytes, rules_of
from kvplan.errors import KvplanError, UnsupportedError
from kvplan.units import cdiv, parse_bytes
from logs.common import REPRODUCED, Compared, Finding, finding, half_unit

ENGINES = ("vLLM",)
NAMES = [v.name for v in VERSIONS]
MONTHS = ((2026, 11, "0.33.0"), (2026, 8, "0.26.0"), (2026, 5, "0.21.0"), (2025, 12, "0.18.0"), (2025, 9, "0.11.2"))
"""Year and month from which on a build without a number has a covered version's rules."""
ROWS = {576: "fp8", 656: "fp8_ds_mla", 352: "nvfp4_ds_mla"}
"""Bytes of an MLA row to the cache dtype; without a figure the row is in the model's own."""
WIDTHS = {1: "fp8", 2: "auto", 4: "auto"}
"""Bytes of an element to the cache dtype."""
HALF_CENT = 0.005
OTHER_RANK = "minimum over ranks"


def check(record: dict[str, Any]) -> Finding:
    """The finding of one log: with the rules of its version, or of any covered one if the log does not say."""
    findings = [_check(record, version) for version in _versions(record)]
    return next((f for f in findings if f.verdict == REPRODUCED), findings[0])


def _versions(record: dict[str, Any]) -> list[str]:
    """Covered versions whose rules a log may have, the likeliest first."""
    text = record["engine_version"] or ""
    reports = {c["report"] for c in record["checks"] if "report" in c}
    known = [n for n in NAMES if not reports or ("new" in reports) == (rules_of(n).tokens == "capacity")]
    number, month = re.search(r"0\.\d+(\.\d+)?", text), re.search(r"(20\d\d)-(\d\d)", text)
    if number:
        asked = number_of(number[0])
        same = [n for n in known if number_of(n)[: len(asked)] == asked]
        older = [n for n in known if number_of(n)[: len(asked)] < asked]
        newer = [n for n in known if number_of(n)[: len(asked)] > asked]
        # A version between two covered ones has the rules of one or of the other.
        return same or older[:1] + newer[-1:]
    if month:
        date = (int(month[1]), int(month[2]))
        # The meaning of the printed figure changed within one month, so both sides of a change are asked.
        older = [n for year, first, n in MONTHS if (year, first) <= date and n in known]
        return older[:2] or known[-1:]
    return known


def _check(record: dict[str, Any], version: str) -> Finding:
    compared: list[Compared] = []
    for one in record["checks"]:
        try:
            compared += CHECKS[one["f"]](record, one, version) if one["f"] in CHECKS else []
        except KvplanError as error:
            compared.append(Compared(error.message, 1, 0, 0))
    why = "another rank had less memory" if OTHER_RANK in record["derivation"] else ""
    return finding(record, compared, why)


def _dtype(c: dict[str, Any]) -> str:
    width = c.get("bytes", 2)
    if width not in WIDTHS:
        raise UnsupportedError(f"no cache dtype of {width} bytes an element is known", "give 1, 2 or 4")
    return WIDTHS[width]


def _pool_ends(printed: float) -> list[int]:
    """The least and the most bytes that are printed as so many GiB."""
    # Two decimals are printed; a record has lost their trailing zeros.
    half = min(half_unit(printed), HALF_CENT)
    return [parse_bytes(f"{end:.6f}GiB", "pool") for end in (printed - half, printed + half)]


def _within(what: str, printed: float, values: list[float], slack: float = 0) -> Compared:
    return Compared(what, printed, min(values) - slack, max(values) + slack)


def _figures(c: dict[str, Any], cache: VllmCache) -> Iterator[Compared]:
    """Every figure of a check that a pool gives."""
    pool = cache.pool
    if "blocks" in c and "tokens_from_blocks" in c:
        yield _within("tokens", c["tokens_from_blocks"], [pool.printed_tokens(c["blocks"])])
    ends = [pool.num_blocks([end]) for end in _pool_ends(c["avail"])] if "avail" in c else []
    if not ends and "tokens" in c:
        ends = [pool.blocks_printing(c["tokens"])]
    if ends and "blocks" in c:
        yield _within("blocks", c["blocks"], list(ends))
    if ends and "tokens" in c:
        low, high = min(ends), max(ends)
        near = min(max(pool.blocks_printing(c["tokens"]), low), high)
        printed = pool.printed_tokens(near)
        yield _within("tokens", c["tokens"], [printed])
        ends = [near] if printed == c["tokens"] else ends
    if ends and "conc" in c:
        yield _within("concurrency", c["conc"], [pool.max_concurrency(end) for end in ends], HALF_CENT)
    if "need" in c:
        yield _within("need", c["need"], [float(gib(pool.request_bytes(c["max_len"])))])
    estimates = [[c["avail"], c["est_len"]]] if "est_len" in c else c.get("est", [])
    for available, longest in estimates:
        yield _within("longest", longest, [pool.longest(end) for end in _pool_ends(available)])
    if "block" in c:
        yield _within("block", c["block"], [cache.declared.block_size])


def _uniform(record: dict[str, Any], c: dict[str, Any], version: str) -> list[Compared]:
    """All layers alike: K and V, or MLA rows with or without index keys."""
    layers, tp, dcp = c["layers"], c.get("tp", 1), c.get("dcp", 1)
    options: dict[str, Any] = {"block_size": c.get("bs", 16)}
    if c["kind"] == "mla":
        tp = dcp
        groups = [latent(range(layers), c.get("rank", 512), c.get("rope", 64))]
        if "indexer" in c:
            groups.append(latent(range(layers), 128, 0, name="index", role="index", overlay=True))
        kv = ROWS.get(c.get("row_bytes", 0), _dtype(c))
        if kv == "auto" and "indexer" not in c:
            options["attention_backend"] = "TRITON_MLA"
    else:
        heads = c["kv_heads"]
        groups = [attention(range(layers), heads, c["dk"], c.get("dv"), q_heads=lcm(heads, tp))]
        kv = _dtype(c)
        options["attention_backend"] = "TRITON_ATTN"
    spec = make(layers, *groups, native="fp32" if c.get("bytes") == 4 else "bf16")
    (cache,) = engine_caches(
        spec, options, kv=kv, context=c.get("max_len", 1048576), tp=tp, dcp=dcp, engine_version=version
    )
    return list(_figures(c, cache))


def _windows(record: dict[str, Any], c: dict[str, Any], version: str) -> list[Compared]:
    """Full and sliding layers. `mnbt` are the tokens that windows keep, whatever number of batches they belong to."""
    full, swa = c["full"], c["swa"]
    spec = make(
        sum((full, swa)),
        attention(range(swa), c["swa_heads"], c["swa_d"], name="sliding", retain={"window": c["window"]},
                  q_heads=lcm(c["swa_heads"], c.get("tp", 1))),
        attention("rest", c["full_heads"], c["full_d"], name="full", q_heads=lcm(c["full_heads"], c.get("tp", 1))),
    )  # fmt: skip
    options = {
        "block_size": c.get("bs", 16), "max_num_batched_tokens": c["mnbt"], "async_scheduling": False,
        "attention_backend": "TRITON_ATTN",
    }  # fmt: skip
    (cache,) = engine_caches(
        spec, options, kv=_dtype(c), context=c["max_len"], tp=c.get("tp", 1), engine_version=version
    )
    return list(_figures(c, cache))


def _hybrid_cache(c: dict[str, Any], version: str) -> VllmCache:
    """Full attention and gated delta nets, with prediction layers where the check has some."""
    drafts, lin = c.get("mtp", 0), c["lin"]
    dims = {
        "type": "gated_deltanet", "k_heads": c["k_heads"], "v_heads": c["v_heads"], "k_dim": c["sdk"],
        "v_dim": c["sdv"], "conv_kernel": c.get("conv_kernel", 4),
    }  # fmt: skip
    more = {"mtp": {"layers": drafts, "cache_like": ["full"]}} if drafts else {}
    tp = c.get("tp", 1)
    spec = make(
        sum((c["attn"], lin)), state(range(lin), dims),
        attention("rest", c["kv_heads"], c["dk"], name="full", q_heads=lcm(c["kv_heads"], tp)), **more,
    )  # fmt: skip
    options = {
        "mamba_cache_mode": c.get("mode", "align"), "block_size": c.get("align"),
        "mamba_ssm_cache_dtype": {2: "auto", 4: "float32"}[c.get("ssm_bytes", 4)],
        "num_speculative_tokens": c.get("spec", 0), "attention_backend": "TRITON_ATTN",
    }  # fmt: skip
    (cache,) = engine_caches(
        spec, options, kv=_dtype(c), context=c.get("max_len", 262144), tp=tp, mtp=bool(drafts),
        engine_version=version,
    )  # fmt: skip
    return cache


def _hybrid(record: dict[str, Any], c: dict[str, Any], version: str) -> list[Compared]:
    return list(_figures(c, _hybrid_cache(c, version)))


def _budget(record: dict[str, Any], c: dict[str, Any], version: str) -> list[Compared]:
    """The pool from what the log says of the GPU's memory."""
    used = [c["weights"], c["act"], c["nontorch"], *(c[key] for key in ("graphs", "graph") if key in c)]
    less = [u - HALF_CENT for u in used], c["total"] + HALF_CENT
    more = [u + HALF_CENT for u in used], c["total"] - HALF_CENT
    ends = [available_bytes(version, total, c["util"], *taken) for taken, total in (less, more)]
    return [_within("pool", c["avail"], ends, HALF_CENT)]


def _fixed_pages(record: dict[str, Any], c: dict[str, Any], version: str) -> list[Compared]:
    """A request of whole blocks and some fixed ones: the printed figure is one that whole blocks give."""
    per_request = c["F"] + cdiv(c["max_len"], c["block"])
    return [_within("tokens", c["tokens"], [capacity_near(c["tokens"], per_request, c["max_len"])])]


def _ratio(record: dict[str, Any], c: dict[str, Any], version: str) -> list[Compared]:
    """Parts of a page, where the record says the model; a ratio of printed figures says nothing of bytes."""
    params = record["model_params"]
    if "lin" not in params or c["what"] not in ("k_page", "ssm_page", "block"):
        return []
    cache = _hybrid_cache({"dk": params.get("head_dim"), "tp": record["tp"], "sdk": 128, "sdv": 128} | params, version)
    specs = {m.spec.kind: m.spec for m in cache.declared.layers}
    rows = specs["full_attention"].layout
    keys = rows.plane("k", "codes").page_bytes(1, rows.heads)
    states = specs["mamba"].layout.plane("recurrent", "state").fixed_bytes(1)
    found = {"k_page": keys, "ssm_page": states, "block": aligned_block(states, keys, 16, StateMode("none"))}
    return [_within(c["what"], c["printed"], [found[c["what"]]])]


CHECKS: dict[str, Callable[[dict[str, Any], dict[str, Any], str], list[Compared]]] = {
    "vllm_uniform": _uniform,
    "vllm_swa": _windows,
    "vllm_mamba_hybrid": _hybrid,
    "budget": _budget,
    "fixed_pages": _fixed_pages,
    "ratio": _ratio,
}
"""Kind of a check to what answers it; `span` and ratios of printed figures are identities and answered by none."""
