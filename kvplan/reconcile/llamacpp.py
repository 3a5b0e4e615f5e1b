"""Log lines of llama.cpp, from 2023 to build b11434, and what its forks keep of them. MB of 2023 was 2^20 bytes.

Sources name files of ggml-org/llama.cpp.
"""

from __future__ import annotations

from kvplan.reconcile.rules import Figure, LogFormat, Rule

_CACHE = "src/llama-kv-cache.cpp; until 2025-06 src/llama.cpp"
_CONTEXT = "src/llama-context.cpp; until 2025-01 src/llama.cpp"
_MODEL = "src/llama-model.cpp; until 2025-01 src/llama.cpp"
_DEVICE = r"(?P<of>[A-Za-z_]+\d*)(?:\[[^\]]*\])?"
_MIB = r" Mi?B"

FIGURES = {
    "size": Figure("cache", "MiB", 2),
    "cells": Figure("cells of a stream", "cells"),
    "layers": Figure("layers with this cache", "layers"),
    "seqs": Figure("sequences", "sequences"),
    "streams": Figure("streams", "streams"),
    "rollbacks": Figure("rollback copies of a state", "copies"),
    "k": Figure("K", "MiB", 2),
    "v": Figure("V", "MiB", 2),
    "r": Figure("convolution states", "MiB", 2),
    "s": Figure("recurrent states", "MiB", 2),
    "p": Figure("further states", "MiB", 2),
    "state_size": Figure("compressor states", "MiB", 2),
    "kv_self": Figure("cache", "MiB", 2),
    "kv_buffer": Figure("KV buffer", "MiB", 2),
    "rs_buffer": Figure("state buffer", "MiB", 2),
    "compute_buffer": Figure("compute buffer", "MiB", 2),
    "output_buffer": Figure("output buffer", "MiB", 2),
    "model_buffer": Figure("weights", "MiB", 2),
    "free": Figure("free device memory", "MiB"),
    "context": Figure("context of all sequences", "tokens"),
    "context_per_sequence": Figure("context of a sequence", "tokens"),
    "sequences": Figure("sequences at most", "sequences"),
    "batch": Figure("batch", "tokens"),
    "ubatch": Figure("micro batch", "tokens"),
    "trained": Figure("context of the training", "tokens"),
    "n_layer": Figure("layers of the model", "layers"),
    "n_embd": Figure("width of the model", "channels"),
    "n_embd_head_k": Figure("channels of a K head", "channels"),
    "n_embd_head_v": Figure("channels of a V head", "channels"),
    "n_swa": Figure("window", "tokens"),
    "ssm_d_conv": Figure("width of the convolution", "tokens"),
    "ssm_d_inner": Figure("inner width of a state layer", "channels"),
    "ssm_d_state": Figure("state width", "channels"),
    "ssm_dt_rank": Figure("state heads", "heads"),
    "ssm_n_group": Figure("state groups", "groups"),
}

_SEQS = r"\( *{cells} cells, *{layers} layers, *{seqs}"
# Lines about a whole cache, which follow those about its buffers.
_WHOLE = ("size", "kv_self", "state_size")
_INFO = r"(?:print_(?:info|meta)|load_internal): "

RULES = (
    Rule("build", r"(?:^|\s)(?:main: )?build(?::|_info:| =) b?(?P<version>\d+)\b", "common/common.cpp",
         effect="start"),
    Rule("loading model", r"(?:srv +load_model|main): loading model\b(?: '(?P<model>[^']+)')?",
         "tools/server/server-context.cpp", effect="start"),
    Rule("draft", r"loading draft model|creating MTP draft context", "tools/server/server-context.cpp",
         effect="draft"),
    Rule("loaded meta data", r"llama_model_loader: loaded meta data with .*? from (?P<model>.+?) \(version",
         "src/llama-model-loader.cpp", effect="model", laid_out=_WHOLE),
    Rule("- kv ", r"llama_model_loader: - kv +\d+: +(?P<h_key>[\w.-]+) +(?:[uif]\d+|bool|str|arr\S*) += "
         r"(?P<h_value>[\w.-]+|\[[\w, ]+\])\s*$", "src/llama-model-loader.cpp"),
    Rule("constructing llama_context", r"llama_context: constructing llama_context", _CONTEXT, effect="model",
         laid_out=_WHOLE),
    Rule("general.name", r"print_(?:info|meta): general\.name *= *(?P<model>.+?)\s*$", _MODEL),
    Rule("arch", _INFO + r"arch *= *(?P<o_arch>[\w.-]+)", _MODEL),
    Rule("n_ctx_train", _INFO + r"n_ctx_train *= *{trained}", _MODEL),
    Rule("n_layer", _INFO + r"n_layer *= *{n_layer}", _MODEL),
    Rule("n_embd", _INFO + r"n_embd *= *{n_embd}", _MODEL),
    Rule("n_head", _INFO + r"n_head *= *(?P<o_n_head>\d+|\[[\d, ]+\])", _MODEL),
    Rule("n_head_kv", _INFO + r"n_head_kv *= *(?P<o_n_head_kv>\d+|\[[\d, ]+\])", _MODEL),
    Rule("n_embd_head_k", _INFO + r"n_embd_head_k *= *{n_embd_head_k}", _MODEL),
    Rule("n_embd_head_v", _INFO + r"n_embd_head_v *= *{n_embd_head_v}", _MODEL),
    Rule("n_swa", _INFO + r"n_swa *= *{n_swa}", _MODEL),
    Rule("ssm_d_conv", _INFO + r"ssm_d_conv *= *{ssm_d_conv}", _MODEL),
    Rule("ssm_d_inner", _INFO + r"ssm_d_inner *= *{ssm_d_inner}", _MODEL),
    Rule("ssm_d_state", _INFO + r"ssm_d_state *= *{ssm_d_state}", _MODEL),
    Rule("ssm_dt_rank", _INFO + r"ssm_dt_rank *= *{ssm_dt_rank}", _MODEL),
    Rule("ssm_n_group", _INFO + r"ssm_n_group *= *{ssm_n_group}", _MODEL),
    Rule("using device", r"using device " + _DEVICE + r" .* - {free} MiB free", "src/llama.cpp"),
    Rule("model buffer size", _DEVICE + r" +model buffer size = *{model_buffer}" + _MIB, _MODEL),
    Rule("n_seq_max", r"n_seq_max *= *{sequences}", _CONTEXT),
    Rule("n_ctx", r"(?:llama_context|_with_model|load_internal): n_ctx *= *{context}", _CONTEXT),
    Rule("n_ctx_", r"(?:llama_context|_with_model): n_ctx_(?:seq|per_seq) *= *{context_per_sequence}", _CONTEXT),
    Rule("n_batch", r"(?:llama_context|_with_model): n_batch *= *{batch}", _CONTEXT),
    Rule("n_ubatch", r"(?:llama_context|_with_model): n_ubatch *= *{ubatch}", _CONTEXT),
    Rule("flash_attn", r"(?:llama_context|_with_model): flash_attn *= *(?P<o_flash_attn>\w+)", _CONTEXT),
    Rule("kv_unified", r"llama_context: kv_unified *= *(?P<o_kv_unified>\w+)", _CONTEXT),
    Rule("KV cache, size", r"creating +(?P<of>[\w-]+(?: [\w-]+)*?) KV cache, size", "src/llama-kv-cache-iswa.cpp",
         effect="label"),
    Rule("kv_size = ", r"kv_size = {cells}, offload = .*?type_k = '(?P<o_type_k>\w+)', type_v = '(?P<o_type_v>\w+)',"
         r" n_layer = {layers}", _CACHE),
    Rule("size = ", r"size = *{size} MiB " + _SEQS + r"(?:/ *{streams})? seqs\), K \((?P<o_type_k>\w+)\): *{k} MiB,"
         r" V \((?P<o_type_v>\w+)\): *{v} MiB", _CACHE, labelled=True),
    Rule("size = ", r"llama_memory_recurrent: size = *{size} MiB " + _SEQS + r" seqs(?: *{rollbacks} rs_seq)?\),"
         r" R \(\w+\): *{r} MiB, S \(\w+\): *{s} MiB(?:, P \(\w+\): *{p} MiB)?", "src/llama-memory-recurrent.cpp"),
    Rule("_comp_state:", r"comp_state: (?P<of>\w+) ratio = .*?streams = {streams},.*?layers = {layers},"
         r" size = *{state_size} MiB", "src/llama-kv-cache-dsv4.cpp"),
    Rule("self size", r"(?:KV|kv) self size *= *{kv_self} Mi?B, K \((?P<o_type_k>\w+)\): *{k} Mi?B,"
         r" V \((?P<o_type_v>\w+)\): *{v} Mi?B", _CACHE),
    Rule("self size", r"(?:KV|kv) self size *= *{kv_self} Mi?B\s*$", "llama.cpp (2023)"),
    Rule("self size", r"KV self size *= *{kv_self} MiB, c\^KV \((?P<o_type_k>\w+)\): *{k} MiB",
         "ikawrakow/ik_llama.cpp, latents only"),
    Rule("KV buffer size", _DEVICE + r" +KV buffer size = *{kv_buffer}" + _MIB, _CACHE),
    Rule("RS buffer size", _DEVICE + r" +RS buffer size = *{rs_buffer}" + _MIB, "src/llama-memory-recurrent.cpp"),
    Rule("compute buffer", _DEVICE + r" +compute buffer size *= *{compute_buffer}" + _MIB, _CONTEXT),
    Rule("output buffer", _DEVICE + r" +output buffer size *= *{output_buffer}" + _MIB, _CONTEXT),
)  # fmt: skip

CACHES = ("k", "v", "r", "s", "p", "state_size")
"""Figures whose sum is the whole cache, where each of them is printed."""

FORMAT = LogFormat(
    engine="llamacpp",
    title="llama.cpp",
    figures=FIGURES,
    rules=RULES,
    capacity=frozenset({"size", "kv_self", "state_size", "kv_buffer", "rs_buffer"}),
    capacity_lines=(
        "llama_kv_cache: size = X MiB (N cells, N layers, N seqs), K (f16): X MiB, V (f16): X MiB",
        "KV self size = X MiB", "KV buffer size = X MiB", "llama_memory_recurrent: size = X MiB",
    ),
    expected=(
        (("size", "kv_self", "state_size"), "llama_kv_cache: size = X MiB (N cells, N layers, N seqs)"),
        (("kv_buffer", "rs_buffer"), "KV buffer size = X MiB"),
        (("compute_buffer",), "compute buffer size = X MiB"),
    ),
)  # fmt: skip
