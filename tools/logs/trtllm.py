"""TensorRT-LLM: bytes of a pool of so many tokens, and the blocks of a sequence."""

from __future__ import annotations

from typing import Any

import synthetic

from kvplan.errors import KvplanError
from kvplan.plan import PlanRequest, make_plan
from kvplan.specs.model import ModelSpec
from logs.common import Compared, Finding, finding, rounded

ENGINES = ("TensorRT-LLM",)
BLOCK_TOKENS = (32, 64, 128, 16, 8, 4, 2)
"""Sizes of blocks to try where a log does not say it: 32 is the default, older engines were built with 64 or 128."""
DTYPES = {"float32": "auto", "fp32": "auto", "auto": "auto", "bf16": "auto", "fp16": "auto", "fp8": "fp8",
          "nvfp4": "nvfp4", "int8": "int8"}  # fmt: skip
LONGEST = 100_000_000
TWO_DECIMALS = 0.0051
"""Half a unit of a GiB with two decimals, for a figure that kvplan rounds to two as well."""
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
    figures = _figures(record, made)
    compared = []
    if "blocks" in record["printed"]:
        compared.append(_exact("blocks", record["printed"]["blocks"], figures["blocks"]))
    if "bytes_printed" in made:
        compared.append(_exact("bytes of the pool", made["bytes_printed"], figures["pool bytes"]))
    if "gib" in made:
        compared.append(rounded("GiB of the pool", made["gib"], figures["pool GiB"], TWO_DECIMALS))
    return compared


def _blocks(made: dict[str, Any]) -> list[Compared]:
    """`pages`: tokens of a sequence over those of a block; which model it is does not matter."""
    if made.get("what") not in ("pages", "blocks") or made["den"] not in BLOCK_TOKENS:
        return []
    spec = synthetic.make(1, synthetic.attention(range(1), 1, 128), max_context=LONGEST)
    figures = _ask(spec, made["num"], made["den"], "auto", made["num"])
    return [_exact(made["what"], made["printed"], figures["blocks per sequence"])]


def _figures(record: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """The answer whose whole blocks hold the log's tokens with least over."""
    sizes = dict.fromkeys((record["block_size"] or BLOCK_TOKENS[0], *BLOCK_TOKENS))
    latents = ((_dtype(record, made), False),) if "kv_heads" in made else _latents(made)
    answers = []
    for dtype, index in latents:
        for size in sizes:
            try:
                answers.append(_ask(_model(made, index), made["tokens"], size, dtype, size))
            except KvplanError:
                continue
    return min(answers, key=lambda a: a["tokens"])


def _latents(made: dict[str, Any]) -> list[tuple[str, bool]]:
    """The kinds of latent whose row in one layer has the log's bytes; all where the log does not say it."""
    one = made | {"layers": 1}
    rows = {kind: _ask(_model(one, kind[1]), made["tokens"], 32, kind[0], 32)["bytes per token"] for kind in LATENTS}
    return [kind for kind in LATENTS if rows[kind] == made.get("row_bytes")] or list(LATENTS)


def _ask(spec: ModelSpec, tokens: int, block: int, dtype: str, context: int) -> dict[str, Any]:
    request = PlanRequest(
        model=spec.id, context=context, kv=dtype, engine="trtllm",
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
    return synthetic.make(
        made["layers"], synthetic.attention(layers, made["kv_heads"], made["dk"], made.get("dv")), native="fp16"
    )


def _dtype(record: dict[str, Any], made: dict[str, Any]) -> str:
    printed = (record["kv_dtype"] or "auto").split("(")[0]
    return BY_WIDTH.get(made["bytes"], "auto") if "bytes" in made else DTYPES.get(printed, "auto")


def _exact(what: str, printed: float, found: float) -> Compared:
    return Compared(what, printed, found, found)
