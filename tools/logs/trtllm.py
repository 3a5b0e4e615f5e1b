"""TensorRT-LLM: bytes of a pool of so many tokens, and the blocks of a sequence."""

from __future__ import annotations

from contextlib import suppress
from math import lcm
from typing import Any

import synthetic

from kvplan.errors import KvplanError
from kvplan.plan import PlanRequest, make_plan
from kvplan.specs.model import ModelSpec
from logs.common import Compared, Finding, finding

ENGINES = ("TensorRT-LLM",)
BLOCK_TOKENS = (32, 64, 128, 16, 8, 4, 2)
"""Sizes of blocks to try where a log does not say it: 32 is the default, older engines were built with 64 or 128."""
DTYPES = ("fp8", "nvfp4", "int8")
"""Beginnings of the dtypes that logs name; any other is 16 bit."""
LONGEST = 100_000_000
TWO_DECIMALS = 0.00506
"""Half a unit of a GiB with two decimals; kvplan's own figure has four."""
BY_WIDTH = {1: "fp8", 0.5625: "nvfp4"}
"""Bytes of an element to the dtype that has them; 2 bytes are 16 bit."""
LATENTS = (("fp8", False), ("auto", False), ("fp8", True), ("auto", True))
"""Dtype of a latent of 512 + 64 channels, and whether index keys of 128 channels lie beside it."""


def check(record: dict[str, Any]) -> Finding:
    """Ask for the pool that a log prints; a ratio is asked for where it counts the blocks of a sequence."""
    compared: list[Compared] = []
    for made in record["checks"]:
        if made["f"] == "trt_pool" and "tokens" in made:
            compared += _pool(record, made)
        elif made["f"] == "ratio":
            compared += _blocks(made)
    return finding(record, compared)


def _pool(record: dict[str, Any], made: dict[str, Any]) -> list[Compared]:
    """The bytes of a pool; where its tokens fill no whole blocks, a log leaves open of which of both they are."""
    answers = _answers(record, made)
    if not answers:
        return []
    least, blocks = min(answers, key=lambda a: a["tokens"]), answers[0]
    if not record["block_size"]:
        blocks = least
    compared = []
    if "blocks" in record["printed"]:
        compared.append(_exact("blocks", record["printed"]["blocks"], blocks["blocks"]))
    if "bytes_printed" in made:
        between = least["pool bytes"], blocks["pool bytes"]
        compared.append(Compared("bytes of the pool", made["bytes_printed"], *between))
    if "gib" in made:
        between = least["pool GiB"] - TWO_DECIMALS, blocks["pool GiB"] + TWO_DECIMALS
        compared.append(Compared("GiB of the pool", made["gib"], *between))
    return compared


def _blocks(made: dict[str, Any]) -> list[Compared]:
    """`pages`: tokens of a sequence over those of a block; which model it is does not matter."""
    if made.get("what") not in ("pages", "blocks") or made["den"] not in BLOCK_TOKENS:
        return []
    spec = synthetic.make(1, synthetic.attention(range(1), 1, 128), max_context=LONGEST)
    figures = _ask(spec, made["num"], made["den"], "auto", made["num"])
    return [_exact(made["what"], made["printed"], figures["blocks per sequence"])]


def _answers(record: dict[str, Any], made: dict[str, Any]) -> list[dict[str, Any]]:
    """The engine's figures for the log's pool, by tokens of a block: the log's own first, else the default's."""
    sizes = dict.fromkeys((record["block_size"] or BLOCK_TOKENS[0], *BLOCK_TOKENS))
    latents = ((_dtype(record, made), False),) if "kv_heads" in made else _latents(made)
    answers = []
    for dtype, index in latents:
        for size in sizes:
            with suppress(KvplanError):
                answers.append(_ask(_model(made, index), made["tokens"], size, dtype, size, made.get("tp") or 1))
    return answers


def _latents(made: dict[str, Any]) -> list[tuple[str, bool]]:
    """The kinds of latent whose row in one layer has the log's bytes; all where the log does not say it."""
    one = made | {"layers": 1}
    rows = {kind: _ask(_model(one, kind[1]), made["tokens"], 32, kind[0], 32)["bytes per token"] for kind in LATENTS}
    return [kind for kind in LATENTS if rows[kind] == made.get("row_bytes")] or list(LATENTS)


def _ask(spec: ModelSpec, tokens: int, block: int, dtype: str, context: int, tp: int = 1) -> dict[str, Any]:
    request = PlanRequest(
        model=spec.id, context=context, kv=dtype, engine="trtllm", tp=tp,
        engine_options=(
            f"tokens_per_block={block}", f"max_tokens={tokens}",
            f"backend={'tensorrt' if dtype == 'int8' else 'pytorch'}",
        ),
    )  # fmt: skip
    summary = make_plan(request, spec).engine
    assert summary is not None
    return {figure.name: figure.value for figure in summary.figures}


def _model(made: dict[str, Any], index: bool) -> ModelSpec:
    layers = range(made["layers"])
    if "kv_heads" not in made:
        groups = [synthetic.latent(layers, 512, 64)]
        if index:
            groups.append(synthetic.latent(layers, 128, 0, name="index", role="index", overlay=True))
        return synthetic.make(made["layers"], *groups)
    heads = made["kv_heads"]
    queries = lcm(heads, made.get("tp") or 1)
    group = synthetic.attention(layers, heads, made["dk"], made.get("dv"), q_heads=queries)
    return synthetic.make(made["layers"], group, native="fp16")


def _dtype(record: dict[str, Any], made: dict[str, Any]) -> str:
    if "bytes" in made:
        return BY_WIDTH.get(made["bytes"], "auto")
    return next((dtype for dtype in DTYPES if (record["kv_dtype"] or "").startswith(dtype)), "auto")


def _exact(what: str, printed: float, found: float) -> Compared:
    return Compared(what, printed, found, found)
