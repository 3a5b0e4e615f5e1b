"""Golden figures of llama.cpp: tensors of its own memory objects, its context sizes and its log lines.

A record has the GGUF metadata of a model (`gguf_kv`), which kvplan's importer reads, and the parameters of a context.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from golden.common import Outcome, figures, refusal
from kvplan.plan import Plan, PlanRequest, make_plan
from kvplan.specs.importers.gguf import import_header
from kvplan.specs.importers.gguf_file import GgufHeader
from kvplan.specs.model import ModelSpec

FLASH = {-1: "auto", 0: "off", 1: "on"}
MEMORIES = {
    "kv": "attention", "base": "attention", "attn": "attention", "mla": "attention", "main": "attention",
    "swa": "swa", "raw_swa": "swa", "indexer": "indexer", "csa": "csa", "hca": "hca", "lid": "csa-index",
    "recr": "recurrent", "csa_state": "csa state", "hca_state": "hca state", "lid_state": "csa-index state",
}  # fmt: skip
"""Part of the engine's memory, as the record has it, to kvplan's name of that cache."""
TENSORS = {"cache_k": "K", "cache_v": "V", "cache_r": "R", "conv_states_all": "R", "cache_s": "S"}
"""Name of a tensor to its kind; the states of DeepSeek-V4 end in their kind."""
LINES = ("llama_kv_cache: size =", "llama_memory_recurrent: size =")
CASE = (
    "type_k", "type_v", "n_ctx_req", "n_seq_max", "n_ubatch", "kv_unified", "flash_attn", "swa_full", "n_rs_seq",
)  # fmt: skip
"""Order of a failure's parameters."""


def claims(data: dict[str, Any]) -> bool:
    """Whether a file is this engine's."""
    return data.get("meta", {}).get("meta", data.get("meta", {})).get("engine") == "llama.cpp"


def outcomes(data: dict[str, Any]) -> Iterator[Outcome]:
    """Every record, then the contexts that the library aborted on."""
    models: dict[str, ModelSpec] = {}
    for at, record in enumerate(data["records"]):
        models.setdefault(record["model"], spec_of(record))
        spec, name = models[record["model"]], f"{at} {record['model']}"
        if not record["ok"]:
            yield refusal(name, "; ".join(record["log"]), lambda s=spec, r=record: allocated(plan_of(s, r)))
        else:
            yield figures(name, expected(record), lambda s=spec, r=record: found(s, r))
    for failure in data["meta"].get("failures", ()):
        record = dict(zip(CASE, failure["case"], strict=True))
        name = f"failure {failure['model']}"
        if failure["model"] not in models:
            continue
        spec = models[failure["model"]]
        yield refusal(name, failure["error"], lambda s=spec, r=record: allocated(plan_of(s, r)))


def spec_of(record: dict[str, Any]) -> ModelSpec:
    """The record's metadata through kvplan's importer."""
    arch = record["arch"]
    values = {f"{arch}.{key}": value for key, value in record["gguf_kv"].items()}
    return import_header(GgufHeader("golden.gguf", {"general.architecture": arch, **values}, ())).spec


def plan_of(spec: ModelSpec, record: dict[str, Any], *, sized: bool = False) -> Plan:
    """The plan of a context as the record starts it.

    Args:
        sized: let the request's own context size the server instead of n_ctx.
    """
    options = [f"{name}={record[name]}" for name in ("n_ubatch", "kv_unified", "swa_full", "n_rs_seq")]
    options += [f"n_parallel={record['n_seq_max']}", f"flash_attn={FLASH[record['flash_attn']]}"]
    if not sized:
        options.append(f"n_ctx={record['n_ctx_req']}")
    request = PlanRequest(
        model=spec.id, engine="llamacpp", engine_options=tuple(options), k=record["type_k"], v=record["type_v"],
        context=record["n_ctx_req"] if sized else 1, batch=1 if sized else record["n_seq_max"], beyond_max=True,
    )  # fmt: skip
    return make_plan(request, spec)


def allocated(plan: Plan) -> int:
    """Bytes of the whole cache."""
    assert plan.kv is not None
    return plan.kv.allocated_bytes


def expected(record: dict[str, Any]) -> dict[str, Any]:
    """What the engine reported."""
    lines = [line for line in record["log"] if line.startswith(LINES) or _state_line(line)]
    made = {"n_ctx": record["n_ctx"], "n_ctx_seq": record["n_ctx_seq"], "allocated": record["total_bytes"]}
    if record["n_seq_max"] == 1:
        made["allocated for the request"] = record["total_bytes"]
    return made | {named(role): nbytes for role, nbytes in record["bytes_by_role"].items()} | {"lines": lines}


def found(spec: ModelSpec, record: dict[str, Any]) -> dict[str, Any]:
    """The same figures from kvplan."""
    plan = plan_of(spec, record)
    assert plan.engine is not None
    given = {f.name: f.value for f in plan.engine.figures}
    made = {name: given[name] for name in ("n_ctx", "n_ctx_seq")} | {"allocated": allocated(plan)}
    if record["n_seq_max"] == 1:
        made["allocated for the request"] = allocated(plan_of(spec, record, sized=True))
    made |= {name: value for name, value in given.items() if name.endswith(" bytes")}
    return made | {"lines": [value for name, value in given.items() if name.startswith("log line")]}


def named(role: str) -> str:
    """`base/cache_k` -> `attention K bytes`, `csa_state/dsv4_csa_state_kv` -> `csa state kv bytes`."""
    memory, tensor = role.split("/")
    return f"{MEMORIES[memory]} {TENSORS.get(tensor, tensor.rpartition('_')[2])} bytes"


def _state_line(line: str) -> bool:
    return line.startswith("llama_dsv4_comp_state: ") and " ratio = " in line
