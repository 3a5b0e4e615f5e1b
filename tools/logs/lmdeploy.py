"""LMDeploy: the size of a block in MB, and the blocks of the longest session."""

from __future__ import annotations

from math import lcm
from typing import Any

import synthetic

from kvplan.engines import load_engine
from kvplan.engines.shared.select import number_of
from kvplan.plan import PlanRequest, make_plan
from logs.common import Compared, Finding, finding, rounded

ENGINES = ("LMDeploy",)
ENGINE = "lmdeploy-turbomind"
WHOLE_MB = "0.0.14"
"""The version whose logs print whole MB."""
HALF_WHOLE, HALF_THIRD_DECIMAL = 1.0, 0.0005


def check(record: dict[str, Any]) -> Finding:
    """Ask for a block of the record's dimensions, and for the blocks of its longest session."""
    compared = [
        c
        for made in record["checks"]
        if made["f"] == "lmdeploy_block" and "block_mb" in made
        for c in _block(record, made)
    ]
    return finding(record, compared)


def _block(record: dict[str, Any], made: dict[str, Any]) -> list[Compared]:
    whole = bool(made.get("int_display"))
    old = whole and not made.get("quant_bits")
    version = WHOLE_MB if old else _version(record["engine_version"])
    found = _figures(made, version)
    half = HALF_WHOLE if whole else HALF_THIRD_DECIMAL
    compared = [rounded("block size (MB)", made["block_mb"], found["block size (MB)"], half)]
    if "session_len" in made and "blocks" in made:
        blocks = found["blocks per sequence"]
        compared.append(Compared("blocks of the longest session", made["blocks"], blocks, blocks))
    return compared


def _figures(made: dict[str, Any], version: str) -> dict[str, Any]:
    tp, heads = made.get("tp") or 1, made["kv_heads"]
    group = synthetic.attention(range(made["layers"]), heads, made["dk"], made.get("dv"), q_heads=lcm(heads, tp))
    spec = synthetic.make(made["layers"], group, native="fp16")
    request = PlanRequest(
        model=spec.id, context=made.get("session_len") or made["bs"], tp=tp, kv=str(made.get("quant_bits") or 0),
        engine=ENGINE, engine_version=version, engine_options=(f"cache_block_seq_len={made['bs']}",),
    )  # fmt: skip
    summary = make_plan(request, spec).engine
    assert summary is not None
    return {figure.name: figure.value for figure in summary.figures}


def _version(printed: str | None) -> str:
    """The covered version that a text such as `0.9/0.10` or `0.7` begins; the newest where none does."""
    covered = [version.name for version in load_engine(ENGINE).versions]
    for text in reversed((printed or "").split(" ")[0].split("/")):
        asked = number_of(text)
        for name in covered:
            if asked and number_of(name)[: len(asked)] == asked:
                return name
    return covered[0]
