"""Cache lines that llama.cpp printed: cells, layers and elements of a row give the bytes; states by their heads.

Sizes are MiB with two decimals. Lines hold no version; one with a V beside a latent is of an old build.
"""

from __future__ import annotations

import re
from typing import Any

import synthetic

from kvplan.errors import KvplanError, UnsupportedError
from kvplan.plan import Plan, PlanRequest, make_plan
from kvplan.specs.model import ModelSpec
from logs.common import Compared, Finding, finding, rounded

ENGINES = ("llama.cpp",)
HALF = 0.005
OLD = "b5937"
FIELD = re.compile(r"(size|\b[A-Z]\b)(?: \(\w+\))?(?: =|:) +([0-9.]+) MiB")
"""A size in a line, such as `K (f16):   16.00 MiB`."""
COPIES = ("rs_seq", "n_rs_seq", "rs", "n_rs")
"""Names under which a check may have its number of snapshots."""


def check(record: dict[str, Any]) -> Finding:
    """Every check of one log."""
    compared: list[Compared] = []
    why = "" if record["status"] == "explained" else record["derivation"]
    for one in record["checks"]:
        reader = CHECKS.get(one["f"])
        try:
            compared += reader(one, record) if reader else []
        except KvplanError as error:
            # An empty interval: a refusal agrees with nothing that was printed.
            compared.append(Compared(f"kvplan refuses: {error.message}", float(one.get("size", 0)), 1, 0))
    return finding(record, compared, why)


def kv_line(one: dict[str, Any], record: dict[str, Any]) -> list[Compared]:
    """A `KV cache: size =` line."""
    return sizes(one, kv_plan(one, record))


def state_line(one: dict[str, Any], record: dict[str, Any]) -> list[Compared]:
    """A line of recurrent states: gated delta nets, f32."""
    dims = {
        "type": "gated_deltanet", "k_heads": one["k_heads"], "v_heads": one["v_heads"], "k_dim": one["sdk"],
        "v_dim": one["sdv"], "conv_kernel": one.get("kernel", 4),
    }  # fmt: skip
    spec = synthetic.make(one["lin"], synthetic.state(range(one["lin"]), dims), model_type="qwen3_5")
    copies = next((one[name] for name in COPIES if name in one), 0)
    request = PlanRequest(
        model=spec.id, engine="llamacpp", context=1, batch=one["seqs"], engine_options=(f"n_rs_seq={copies}",)
    )
    return sizes(one, make_plan(request, spec))


def window_cells(one: dict[str, Any], record: dict[str, Any]) -> list[Compared]:
    """Cells of a cache with a window beside one without."""
    groups = (
        synthetic.attention([0], 1, 128, name="full"),
        synthetic.attention([1], 1, 128, name="sliding", retain={"window": one["window"]}),
    )
    spec = synthetic.make(2, *groups, model_type="gemma3")
    unified = "on" if one["seqs"] > 1 else "off"
    options = (f"n_ubatch={one['ubatch']}", f"n_ctx={one['base']}", f"kv_unified={unified}")
    request = PlanRequest(model=spec.id, engine="llamacpp", context=1, batch=one["seqs"], engine_options=options)
    cells = values(make_plan(request, spec))["swa cells"]
    return [rounded("swa cells", one["cells"], cells, half=0)]


CHECKS = {"ggml_kv": kv_line, "ggml_rs": state_line, "swa_cells": window_cells}
"""Kind of a check to its reader; others are arithmetic among printed figures."""


def kv_model(one: dict[str, Any], record: dict[str, Any]) -> ModelSpec:
    """Layers with the line's rows: one wide head stands for all, but a latent for K alone or with its copy."""
    layers, k, v = range(one["layers"]), one["k_el"], one["v_el"]
    if not v:
        group = synthetic.latent(layers, k, 0)
    elif latent_copy(one, record):
        group = synthetic.latent(layers, v, k - v)
    else:
        group = synthetic.attention(layers, 1, k, v)
    return synthetic.make(one["layers"], group, native="fp16")


def latent_copy(one: dict[str, Any], record: dict[str, Any]) -> bool:
    """Whether V is a latent once more, K having a rope part beside it."""
    return "mla" in record["deviations"] and 0 < one["v_el"] < one["k_el"]


def kv_plan(one: dict[str, Any], record: dict[str, Any]) -> Plan:
    """The plan of as many streams as the line has, each of its cells, in the build that it is of as far as it shows:
    an old one for latents with a copy, and without flash attention where the cells are not padded for it.
    """
    spec = kv_model(one, record)
    builds = [(OLD, "on"), (OLD, "off")]
    if not latent_copy(one, record):
        builds.insert(0, (None, "on"))
    for build, flash in builds:
        request = PlanRequest(
            model=spec.id, engine="llamacpp", engine_version=build, k=one["k_type"], v=one["v_type"],
            context=one["cells"], batch=one.get("streams", 1), engine_options=(f"flash_attn={flash}",), beyond_max=True,
        )  # fmt: skip
        plan = make_plan(request, spec)
        if values(plan)["attention cells"] == one["cells"]:
            return plan
    raise UnsupportedError(f"no covered build has {one['cells']} cells", "see kvplan/engines/llamacpp/builds.py")


def values(plan: Plan) -> dict[str, Any]:
    """The engine's figures by name."""
    assert plan.engine is not None
    return {f.name: f.value for f in plan.engine.figures}


def sizes(one: dict[str, Any], plan: Plan) -> list[Compared]:
    """The sizes that a line printed against the line that kvplan writes."""
    found = {name: float(mib) for name, mib in FIELD.findall(values(plan)["log line 1"])}
    return [rounded(name, one[name], mib, half=HALF) for name, mib in found.items() if name in one]
