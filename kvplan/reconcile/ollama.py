"""Log lines of Ollama: its estimator, its own engine's buffers, and the llama.cpp lines that it passes on.

Its sizes have one decimal (format/bytes.go). Sources name files of ollama/ollama.
"""

from __future__ import annotations

from kvplan.reconcile import llamacpp
from kvplan.reconcile.rules import Figure, LogFormat, Rule

_SIZE = r"\"?{%s} ?(?P<unit>[KMGT]?i?B)\"?"
_DEVICE = r"device=\"?(?P<of>[A-Za-z_]+\d*)[^ ]* size="

FIGURES = llamacpp.FIGURES | {
    "kv_estimate": Figure("KV cache by Ollama's estimate", "*", 1),
    "weights_estimate": Figure("weights by Ollama's estimate", "*", 1),
    "graph_estimate": Figure("compute graph by Ollama's estimate", "*", 1),
    "required": Figure("all memory by Ollama's estimate", "*", 1),
    "kv_device": Figure("KV cache", "*", 1),
    "weights_device": Figure("weights", "*", 1),
    "graph_device": Figure("compute graph", "*", 1),
    "total_memory": Figure("all memory", "*", 1),
    "context": Figure("context of all slots", "tokens"),
    "slots": Figure("slots", "slots"),
    "batch": Figure("batch", "tokens"),
}


def _size(key: str, name: str) -> str:
    return key + "=" + _SIZE % name


OWN = (
    Rule("Listening on", r"msg=\"Listening on .*\(version (?P<version>[\w.+-]+)\)", "server/routes.go", effect="start"),
    Rule("OLLAMA_KV_CACHE_TYPE", r"OLLAMA_KV_CACHE_TYPE:(?P<o_kv_cache_type>\w+)", "envconfig/config.go"),
    Rule("OLLAMA_FLASH_ATTENTION", r"OLLAMA_FLASH_ATTENTION:(?P<o_flash_attention>\w+)", "envconfig/config.go"),
    Rule("new model will fit", r"msg=\"new model will fit .*?\bparallel=(?P<o_parallel>\d+)", "server/sched.go",
         effect="model"),
    Rule("offload", r"msg=\"?offload(?: to \w+)?\"? ", "llm/memory.go", effect="model"),
    Rule("loading model", r"msg=\"loading model\" \"model layers\"=", "llm/server.go", effect="model"),
    Rule("memory.required.kv", _size("memory.required.kv", "kv_estimate"), "llm/memory.go"),
    Rule("memory.required.full", _size("memory.required.full", "required"), "llm/memory.go"),
    Rule("memory.weights.total", _size("memory.weights.total", "weights_estimate"), "llm/memory.go"),
    Rule("memory.graph.full", _size("memory.graph.full", "graph_estimate"), "llm/memory.go"),
    Rule("\"kv cache\"", r"msg=\"kv cache\" " + _DEVICE + _SIZE % "kv_device", "ml/device.go"),
    Rule("\"model weights\"", r"msg=\"model weights\" " + _DEVICE + _SIZE % "weights_device", "ml/device.go"),
    Rule("\"compute graph\"", r"msg=\"compute graph\" " + _DEVICE + _SIZE % "graph_device", "ml/device.go"),
    Rule("\"total memory\"", r"msg=\"total memory\" size=" + _SIZE % "total_memory", "ml/device.go"),
    Rule("--ctx-size", r"--ctx-size {context}\b", "llm/server.go, the runner's command line"),
    Rule("--parallel", r"--parallel {slots}\b", "llm/server.go, the runner's command line"),
    Rule("--batch-size", r"--batch-size {batch}\b", "llm/server.go, the runner's command line"),
    Rule("--kv-cache-type", r"--(?:kv-)?cache-type(?:-k)?[ =](?P<o_kv_cache_type>\w+)", "llm/server.go"),
    Rule("--cache-type-k", r"--cache-type-k[ =](?P<o_kv_cache_type>\w+)", "llm/llama_server.go"),
    Rule("llama-server", r"llama-server.*? -c {context}\b.*? -np {slots}\b", "llm/llama_server.go"),
    Rule("KvSize:", r"Parallel:{slots} BatchSize:{batch} .*?KvSize:{context}\b"
         r"(?: KvCacheType:(?P<o_kv_cache_type>\w+)?)?", "llm/server.go, the load request"),
)  # fmt: skip

FORMAT = LogFormat(
    engine="ollama",
    title="Ollama",
    figures=FIGURES,
    # The server outlives the processes that hold its models, so llama.cpp's own start is none of the server's.
    rules=(*OWN, *(rule for rule in llamacpp.RULES if rule.effect != "start")),
    capacity=llamacpp.FORMAT.capacity | {"kv_estimate", "kv_device"},
    capacity_lines=(
        "msg=\"kv cache\" device=D size=\"X GiB\"", "memory.required.kv=\"X GiB\"", *llamacpp.FORMAT.capacity_lines,
    ),
    expected=((("kv_device", "kv_estimate", "size", "kv_self"), "msg=\"kv cache\" device=D size=\"X GiB\""),),
    latest=frozenset({"kv_device", "weights_device", "graph_device", "total_memory", "context", "slots", "batch",
                      "kv_estimate"}),
    wraps="llamacpp",
    signs=frozenset(rule.hint for rule in OWN if "msg=" in rule.pattern or rule.hint.startswith(("memory.", "OLLAMA"))),
)  # fmt: skip
