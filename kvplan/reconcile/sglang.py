"""Log lines of SGLang, from 0.4 to 0.5.23. What it prints as GB is GiB: its source divides by 2^30.

Sources name files of sgl-project/sglang below python/sglang/srt.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from kvplan.reconcile.rules import Figure, LogFormat, Rule
from kvplan.reconcile.types import Printed

_KEYS = (
    "context_length", "mem_fraction_static", "kv_cache_dtype", "dtype", "page_size", "tp_size", "dp_size", "pp_size",
    "attn_cp_size", "dcp_size", "chunked_prefill_size", "max_running_requests", "max_total_tokens",
    "attention_backend", "swa_full_tokens_ratio", "mamba_full_memory_ratio", "mamba_ssm_dtype",
    "max_mamba_cache_size", "mamba_radix_cache_strategy", "disable_radix_cache", "disable_hybrid_swa_memory",
    "enable_dp_attention", "speculative_algorithm", "speculative_num_draft_tokens", "speculative_num_steps",
    "disable_overlap_schedule", "quantization", "cuda_graph_max_bs",
)  # fmt: skip
_POOL = "mem_cache/memory_pool.py"
_GB = r" ?GB"

FIGURES = {
    "tokens": Figure("tokens of a pool", "tokens"),
    "k": Figure("K of a pool", "GiB", 2),
    "v": Figure("V of a pool", "GiB", 2),
    "kv": Figure("latents of a pool", "GiB", 2),
    "pool": Figure("both pools of a windowed model", "GiB", 2),
    "full_tokens": Figure("tokens of full layers", "tokens"),
    "swa_tokens": Figure("tokens of windowed layers", "tokens"),
    "slots": Figure("state slots", "slots"),
    "conv": Figure("convolution states", "GiB", 2),
    "ssm": Figure("recurrent states", "GiB", 2),
    "draft_ssm": Figure("recurrent states kept for draft tokens", "GiB", 2),
    "draft_conv": Figure("convolution states kept for draft tokens", "GiB", 2),
    "max_tokens": Figure("max_total_num_tokens", "tokens"),
    "chunk": Figure("chunked prefill", "tokens"),
    "requests": Figure("running requests at most", "requests"),
    "context": Figure("context length", "tokens"),
    "available": Figure("memory left when serving starts", "GiB", 2),
    "before_weights": Figure("memory before the weights", "GiB", 2),
    "after_weights": Figure("memory after the weights", "GiB", 2),
    "weights": Figure("model weights", "GiB", 2),
    "after_pool": Figure("memory after the pools", "GiB", 2),
    "graphs": Figure("CUDA graphs", "GiB", 2),
}

RULES = (
    Rule("server_args=", r"server_args=ServerArgs\((?:.*?\bmodel_path=['\"](?P<model>[^'\"]+)['\"])?",
         "entrypoints/engine.py", keys=_KEYS, effect="start"),
    Rule("sglang", r"\bsglang(?:==| version:? | v)(?P<version>\d+\.\d+[\w.+]*)", "entrypoints/engine.py"),
    Rule("Load weight begin", r"Load weight begin\. avail mem={before_weights}" + _GB,
         "model_executor/model_runner.py"),
    Rule("Load weight end", r"Load weight end\..*?\bavail mem={after_weights}" + _GB, "model_executor/model_runner.py"),
    Rule("Load weight end", r"Load weight end\..*?\bmem usage={weights}" + _GB, "model_executor/model_runner.py"),
    Rule("KV Cache is allocated", r"(?:(?P<of>Full|SWA) )?KV Cache is allocated\.?(?: dtype: (?P<o_kv_dtype>[\w.]+),)?"
         r" *#tokens: {tokens}, K(?: size:)? {k}" + _GB + r", V(?: size:)? {v}" + _GB, _POOL),
    Rule("KV Cache is allocated", r"(?:(?P<of>Full|SWA) )?KV Cache is allocated\.?(?: dtype: (?P<o_kv_dtype>[\w.]+),)?"
         r" *#tokens: {tokens}, KV size: {kv}" + _GB, _POOL),
    Rule("Mamba Cache is allocated", r"Mamba Cache is allocated\. max_mamba_cache_size: {slots}, "
         r"conv_state size: {conv}" + _GB, _POOL),
    Rule("ssm_state size", r"(?<!intermediate_)ssm_state size: {ssm}" + _GB, _POOL),
    Rule("intermediate_ssm_state", r"intermediate_ssm_state_cache size: {draft_ssm}" + _GB, _POOL),
    Rule("intermediate_conv_window", r"intermediate_conv_window_cache size: {draft_conv}" + _GB, _POOL),
    Rule("liding window memory pool", r"[Ss]liding window memory pool\. full_layer_tokens={full_tokens},"
         r" swa_layer_tokens={swa_tokens}", "model_executor/pool_configurator.py"),
    Rule("(all SWA)", r"memory pool \(all SWA\)\. swa_layer_tokens={swa_tokens}",
         "model_executor/pool_configurator.py"),
    Rule("SWAKVPool", r"SWAKVPool mem usage: {pool}" + _GB + r", swa size: {swa_tokens}, full size: {full_tokens}",
         "mem_cache/swa_memory_pool.py"),
    Rule("Memory pool end", r"Memory pool end\. avail mem={after_pool}" + _GB, "model_executor/model_runner.py"),
    Rule("graph end", r"Capture .*?(?:CUDA|cuda) graph end\..*?mem usage={graphs}" + _GB,
         "model_executor/model_runner.py"),
    Rule("max_total_num_tokens=", r"max_total_num_tokens={max_tokens}", "managers/scheduler.py"),
    Rule("max_total_num_tokens=", r"chunked_prefill_size={chunk}", "managers/scheduler.py"),
    Rule("max_total_num_tokens=", r"max_running_requests={requests}", "managers/scheduler.py"),
    Rule("max_total_num_tokens=", r"context_len={context}", "managers/scheduler.py"),
    Rule("available_gpu_mem=", r"available_gpu_mem={available}" + _GB, "managers/scheduler.py"),
)  # fmt: skip


def name_pools(printed: list[Printed]) -> list[Printed]:
    """Says which pool a figure is of: older versions print the windowed and the full pool of a model, and the pool of
    a draft model, with the same words. The first pools are the model's own; a windowed one is known by its tokens.
    """
    swa = {p.value for p in printed if p.name == "swa_tokens"}
    windowed = bool(swa) or any(p.of == "SWA" for p in printed)
    seen: dict[str, set[str]] = {}
    made, of = [], ""
    for p in printed:
        if p.name not in ("tokens", "k", "v", "kv"):
            made.append(p)
            continue
        if p.name == "tokens":
            of = _pool(p, seen.setdefault(p.rank, set()), swa, windowed)
        made.append(replace(p, of=of))
    return made


def _pool(tokens: Printed, seen: set[str], swa: set[Decimal], windowed: bool) -> str:
    if tokens.of:
        of = tokens.of.lower()
        of = f"draft {of}" if of in seen else of
    elif not windowed:
        of = "draft" if "" in seen else ""
    else:
        of = "swa" if tokens.value in swa and "swa" not in seen else "draft" if "full" in seen else "full"
    seen.add(of)
    return of


FORMAT = LogFormat(
    engine="sglang",
    title="SGLang",
    figures=FIGURES,
    rules=RULES,
    capacity=frozenset({"tokens", "max_tokens", "full_tokens", "swa_tokens", "slots"}),
    capacity_lines=(
        "KV Cache is allocated. #tokens: N, K size: X GB, V size: X GB", "max_total_num_tokens=N",
        "Use sliding window memory pool. full_layer_tokens=N", "Mamba Cache is allocated. max_mamba_cache_size: N",
    ),
    expected=(
        (("after_weights",), "Load weight end. ... avail mem=X GB"),
        (("k", "kv"), "KV Cache is allocated. #tokens: N, K size: X GB, V size: X GB"),
        (("max_tokens",), "max_total_num_tokens=N"),
    ),
    once=frozenset({"max_tokens"}),
    refine=name_pools,
)  # fmt: skip
