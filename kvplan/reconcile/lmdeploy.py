"""Log lines of LMDeploy: TurboMind (block manager until 0.14, object cache since 0.15) and its PyTorch engine.

What TurboMind prints as MB is MiB: its source shifts bytes by 20. Sources name files of InternLM/lmdeploy.
"""

from __future__ import annotations

from kvplan.reconcile.rules import Figure, LogFormat, Rule

_KEYS = (
    "tp", "dp", "dtype", "session_len", "max_batch_size", "cache_max_entry_count", "cache_block_seq_len", "block_size",
    "quant_policy", "max_prefill_token_num", "num_gpu_blocks", "enable_prefix_caching", "device_type",
)  # fmt: skip
_NAME = r"(?:model_path|pretrained_model_name_or_path|model_name)['\"]?\s*[:=]\s*['\"](?P<model>[^'\"]+)['\"]"
_MANAGER = "src/turbomind/models/llama/BlockManager.cc"
_PYTORCH = "lmdeploy/pytorch/engine/cache_engine"

FIGURES = {
    "block_bytes": Figure("block of all layers", "MiB", 3),
    "block_bytes_floor": Figure("block of all layers, whole MiB", "MiB", floor=True),
    "blocks": Figure("blocks", "blocks"),
    "cpu_blocks": Figure("CPU blocks", "blocks"),
    "block_size": Figure("tokens per block", "tokens"),
    "session": Figure("session length that the cache allows", "tokens"),
    "free": Figure("free memory after the weights", "MiB"),
    "fraction": Figure("share of the free memory"),
    "pool": Figure("object cache", "MiB", 3),
    "runtime": Figure("runtime memory", "MiB"),
}

RULES = (
    Rule("lmdeploy", r"\blmdeploy(?:==| version:? | v)(?P<version>\d+\.\d+[\w.]*)", "lmdeploy/version.py"),
    Rule("TurbomindEngineConfig(", r"TurbomindEngineConfig\(", "lmdeploy/messages.py", keys=_KEYS, effect="start"),
    Rule("PytorchEngineConfig(", r"input backend=.*PytorchEngineConfig\(", "lmdeploy/messages.py", keys=_KEYS,
         effect="start"),
    Rule("lmdeploy", r"lmdeploy.*?" + _NAME, "lmdeploy/serve/core/async_engine.py"),
    Rule("[BlockManager] block_size", r"\[BlockManager\] block_size = (?P<block_bytes_floor>\d+) MB", _MANAGER),
    Rule("[BlockManager] block_size", r"\[BlockManager\] block_size = (?P<block_bytes>\d+\.\d+) MB", _MANAGER,
         since="0.7"),
    Rule("[BlockManager] max_block_count", r"\[BlockManager\] max_block_count = {blocks}", _MANAGER, until="0.14"),
    Rule("session_len", r"session_len['`\" ]*(?: is)? truncated to {session}",
         "src/turbomind/models/llama/LlamaBatch.cc"),
    Rule("Object cache budget", r"Object cache budget: *{pool} *MB from free *{free} *MB and ratio *{fraction}",
         "src/turbomind/turbomind.cc", since="0.15"),
    Rule("CacheEngine with config", r"CacheConfig\(.*?\bblock_size={block_size}", _PYTORCH, keys=_KEYS),
    Rule("CacheEngine with config", r"CacheConfig\(.*?\bnum_cpu_blocks={cpu_blocks}", _PYTORCH),
    Rule("CacheEngine with config", r"CacheConfig\(.*?\bnum_gpu_blocks={blocks}", _PYTORCH),
    Rule("free gpu memory", r"free gpu memory: {free} mb", "lmdeploy/pytorch/engine/model_agent.py"),
    Rule("max runtime memory", r"estimated max runtime memory: {runtime} mb",
         "lmdeploy/pytorch/engine/model_agent.py"),
)  # fmt: skip

FORMAT = LogFormat(
    engine="lmdeploy",
    title="LMDeploy",
    figures=FIGURES,
    rules=RULES,
    capacity=frozenset({"block_bytes", "block_bytes_floor", "blocks", "pool"}),
    capacity_lines=(
        "[BlockManager] block_size = X MB", "[BlockManager] max_block_count = N", "Object cache budget: X MB",
        "build CacheEngine with config:CacheConfig(... num_gpu_blocks=N",
    ),
    expected=(
        (("block_bytes", "block_bytes_floor", "pool", "block_size"), "[BlockManager] block_size = X MB"),
        (("blocks", "pool"), "[BlockManager] max_block_count = N"),
    ),
)  # fmt: skip
