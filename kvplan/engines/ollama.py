"""Ollama: a llama-server for each model, with the context times the parallel requests, each in a stream of its own.

Source: ollama/ollama, git fb30760 (2026-08-21), read; what is allocated is llama.cpp's (`kvplan.engines.llamacpp`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvplan.engines.llamacpp import ENGINE as LLAMA
from kvplan.engines.llamacpp.builds import NEWEST
from kvplan.engines.llamacpp.cache import LlamaCache
from kvplan.engines.llamacpp.check import SLOTS
from kvplan.engines.llamacpp.families import family
from kvplan.engines.llamacpp.start import POOL
from kvplan.engines.llamacpp.tensors import float_states, row_layout
from kvplan.engines.shared.launch import Flag, LaunchSpec
from kvplan.engines.shared.types import (
    Case,
    Engine,
    EngineCache,
    EngineFigure,
    EngineFormat,
    EngineOption,
    EngineRule,
    EngineVersion,
)
from kvplan.memory.groups import CacheGroup
from kvplan.memory.parts import Part
from kvplan.units import GIB

_PROJECT = "Ollama git fb30760, "
_SERVER = _PROJECT + "llm/llama_server.go:371-396"
_ENV = _PROJECT + "envconfig/config.go:222-334"
_DEFAULT_CONTEXT = _PROJECT + "server/routes.go:2052-2054"
_TYPES = _PROJECT + "fs/ggml/ggml.go:899"
_ESTIMATE = _PROJECT + "fs/ggml/ggml.go:959-970 and GraphSize"

CONTEXTS = ((47 * GIB, 262144), (23 * GIB, 32768), (0, 4096))
"""GPU memory from which on a context is the default."""
ESTIMATED = {"f16": "fp16", "q8_0": "int8:tensor", "q4_0": "int4:tensor"}
"""What Ollama's own estimate takes a type to be: without the scales of its blocks."""
ESTIMATED_WINDOWS = {"gemma3": None, "gptoss": 4096}
"""Architectures whose windows the estimate knows, and the window that it takes; None: the model's."""


class OllamaCache(EngineCache):
    """The llama-server that Ollama starts."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.inner = LlamaCache(llama_case(case))
        self.notes = (*notes(case), *(note for note in self.inner.notes if note != SLOTS))

    def parts(self, context: int, sequences: int) -> tuple[Part, ...]:
        """As llama.cpp takes it."""
        return self.inner.parts(context, sequences)

    def beside(self, tokens: int) -> int | None:
        """All slots have one size."""
        return None

    def figures(self, context: int, pool_bytes: int | None = None) -> tuple[EngineFigure, ...]:
        """The default context of the GPU, Ollama's own estimate, and llama.cpp's figures."""
        made = []
        if self.case.memory_bytes is not None:
            made.append(EngineFigure("default context", default_context(self.case.memory_bytes), _DEFAULT_CONTEXT))
        estimate = estimated(self.case, context)
        if estimate is not None:
            made.append(EngineFigure("estimated bytes", estimate, _ESTIMATE))
        return (*made, *self.inner.figures(context, pool_bytes))


def llama_case(case: Case) -> Case:
    """What the llama-server is asked: one type for K and V, -c and -np, a stream for each slot."""
    asked = case.options
    slots = asked["num_parallel"]
    options: dict[str, object] = {o.name: o.default for o in LLAMA.options}
    options |= {
        "n_parallel": slots,
        "n_ctx": asked["num_ctx"] * (slots or max(case.sequences, 1)) if asked["num_ctx"] else None,
        "n_ubatch": asked["num_batch"],
        "flash_attn": asked["flash_attention"],
        "cuda": asked["cuda"],
    }
    return replace(case, version=NEWEST, options=options, chosen=dict(case.chosen) | dict.fromkeys("kv", _type(case)))


def _type(case: Case) -> str:
    """The one cache type; the default where the model has only states."""
    return next(iter(case.chosen.values()), ENGINE.formats[0].option)


def default_context(memory_bytes: int) -> int:
    """OLLAMA_CONTEXT_LENGTH where nothing is set: by the memory of all GPUs."""
    return next(context for least, context in CONTEXTS if memory_bytes >= least)


def estimated(case: Case, context: int) -> int | None:
    """What Ollama's own estimate says, over all layers: it forgets the scales of quantised blocks, padding and slots
    of states, and knows the windows of a few architectures only. None for caches that it does not know.
    """
    if any(group.kind == "none" and group.reads for group in case.spec.layer_groups):
        return None
    total = 0
    for group in (group for stage in case.stages for group in stage):
        found = _estimated(case, group, context)
        if found is None:
            return None
        total += found
    return total


def _estimated(case: Case, group: CacheGroup, context: int) -> int | None:
    if group.role == "state" and group.law.limit == 1:
        return group.layers * float_states(group.layout).fixed_bytes("state")
    if group.role != "kv" or group.law.stride > 1:
        return None
    slots = case.options["num_parallel"] or max(case.sequences, 1)
    rows = (case.options["num_ctx"] or context) * slots
    if group.law.law == "window" and family(case.spec) in ESTIMATED_WINDOWS:
        rows = (ESTIMATED_WINDOWS[family(case.spec)] or group.law.limit) * slots + case.options["num_batch"]
    width = sum(group.layout.heads * tensor.dim for tensor in group.layout.tensors)
    return group.layers * rows * row_layout("k", ESTIMATED[_type(case)], width).page_bytes(1)


def notes(case: Case) -> Iterator[str]:
    """Defaults that decide bytes."""
    if case.options["num_parallel"] is None and case.sequences > 1:
        yield f"Ollama runs one request at a time unless OLLAMA_NUM_PARALLEL says more; here {case.sequences}."
    if _type(case) != "f16":
        yield "Ollama's own estimate leaves out the scales of quantised blocks: the cache is larger than it says."


def _format(option: str, spelling: str, nbytes: int) -> EngineFormat:
    return EngineFormat(
        option=option, k=spelling, v=spelling, latent=spelling, index=spelling, nbytes=nbytes, source=_TYPES,
        needs="" if option == "f16" else "flash attention; blocks of 32 that divide the head dimension",
    )  # fmt: skip


ENGINE = Engine(
    name="ollama",
    title="Ollama",
    flag=("OLLAMA_KV_CACHE_TYPE",),
    versions=(
        EngineVersion(name="0.33", note="git fb30760 of 2026-08-21; allocates as llama.cpp b11434", source=_SERVER),
    ),
    formats=(_format("f16", "fp16", 512), _format("q8_0", "q8_0", 272), _format("q4_0", "q4_0", 144)),
    options=(
        EngineOption(name="num_parallel", source=_ENV,
                     text="Requests at once (OLLAMA_NUM_PARALLEL, Ollama's default 1); default: those of the request."),
        EngineOption(name="num_ctx", source=_SERVER,
                     text="Context of each request (num_ctx, OLLAMA_CONTEXT_LENGTH); default: the request's."),
        EngineOption(name="num_batch", default=512, source=_PROJECT + "llm/llama_server.go (appendBatchArgs)",
                     text="Tokens of a batch, physical too; caches with a window hold one beside it."),
        EngineOption(name="flash_attention", kind=str, default="auto", choices=("auto", "on", "off"), source=_ENV,
                     text="OLLAMA_FLASH_ATTENTION."),
        EngineOption(name="cuda", kind=bool, source=_SERVER,
                     text="The cache lies on a CUDA device; default: where a GPU with a compute capability is named."),
    ),
    rules=(
        EngineRule(name="server", source=_SERVER,
                   text="Ollama starts llama-server with -c num_ctx x num_parallel, -np num_parallel and one type for "
                   "K and V; it never asks for a shared pool or for full windows. The rules of llama.cpp hold."),
        EngineRule(name="default context", source=_DEFAULT_CONTEXT,
                   text="Without a context: 262,144 tokens from 47 GiB of GPU memory on, 32,768 from 23 GiB, else "
                   "4,096, for each of the parallel requests."),
        EngineRule(name="estimate", source=_ESTIMATE,
                   text="Its own estimate counts 1 byte for an element of q8_0 and half a byte for q4_0; the cache "
                   "takes 6.25% and 12.5% more."),
    ),
    cache=OllamaCache,
    pool=POOL,
    launch=LaunchSpec(
        command="ollama serve",
        flags=(
            Flag(field="context", text="OLLAMA_CONTEXT_LENGTH={value}", environment=True, source=_ENV),
            Flag(field="batch", text="OLLAMA_NUM_PARALLEL={value}", environment=True, source=_ENV),
            Flag(field="kv", text="OLLAMA_KV_CACHE_TYPE={value}", environment=True, source=_TYPES),
            Flag(field="flash_attention", text="OLLAMA_FLASH_ATTENTION={value}", environment=True, source=_ENV),
        ),
        source=_ENV,
    ),
)  # fmt: skip
