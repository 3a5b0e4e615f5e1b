"""Text Generation Inference: blocks of K and V per layer, sized by the attention backend.

Source: huggingface/text-generation-inference, git db931fc (2026-01-08), read.
"""

from __future__ import annotations

from fractions import Fraction

from kvplan.engines.shared.launch import Flag, LaunchSpec
from kvplan.engines.shared.memory import GpuMemory, PoolRule
from kvplan.engines.shared.paged import PagedCache
from kvplan.engines.shared.scope import check_scope
from kvplan.engines.shared.types import (
    NATIVE,
    Case,
    Engine,
    EngineCache,
    EngineFigure,
    EngineFormat,
    EngineOption,
    EngineRule,
    EngineVersion,
)
from kvplan.errors import UnsupportedError, UsageError
from kvplan.memory.groups import CacheGroup
from kvplan.memory.terms import packed_rows

_PROJECT = "TGI 3 (git db931fc), "
_BLOCKS = _PROJECT + "server/text_generation_server/models/globals.py:38-46"
_WINDOW = _PROJECT + "backends/v3/src/block_allocator.rs:172-176"
_LAUNCHER = _PROJECT + "launcher/src/main.rs and docs/source/reference/launcher.md"
_BYTES = _PROJECT + "server/text_generation_server/models/flash_causal_lm.py:1519-1566"

_FP8 = _PROJECT + "server/text_generation_server/layers/attention/kv_cache.py, KVCache"
_LATENT = _PROJECT + "server/text_generation_server/models/__init__.py, head_size of deepseek_v3"

BLOCK_SIZES = {"flashinfer": 1, "flashdecoding": 256, "flashdecoding-ipex": 64, "paged": 16}
"""Attention backend to tokens per block."""


class TgiCache(PagedCache):
    """Blocks of all layers alike; only a window that every layer has, without prefix caching, spares any."""

    def __init__(self, case: Case) -> None:
        attention = case.options["attention"]
        super().__init__(case, BLOCK_SIZES[attention], _BYTES)
        windows = {g.law.limit for g in case.groups if g.law.law == "window"}
        whole = all(g.law.law == "window" for g in case.groups)
        self._saves_window = whole and len(windows) == 1 and not case.options["prefix_caching"]
        if windows and not self._saves_window:
            self.notes = ("TGI keeps all rows of windowed layers: prefix caching is on, or not every layer has one.",)

    def rows(self, group: CacheGroup, context: int) -> int:
        """All rows, unless the model's one window is used to reuse blocks."""
        return packed_rows(group, context) if self._saves_window else context

    def figures(self, context: int, pool_bytes: int | None = None) -> tuple[EngineFigure, ...]:
        """Bytes of a block of all layers, and the blocks of a pool."""
        assert self.page_size is not None
        block = sum(g.layers * g.layout.page_bytes(self.page_size) for g in self.case.groups)
        made = [EngineFigure("bytes per block", block, _BYTES)]
        if pool_bytes is not None:
            made.append(EngineFigure("num_blocks", pool_bytes // block, _BYTES))
        return tuple(made)


def cache(case: Case) -> EngineCache:
    """Lay out a case.

    Raises:
        UsageError: fp8 where the backend or the system has none.
        UnsupportedError: caches other than K and V rows, K and V of different widths, more ranks than KV heads.
    """
    check_scope(case, "TGI", ("kv",), pp=False, mtp=False)
    for group in case.groups:
        spec = case.spec.group(group.name)
        if spec.kind == "attention" and 1 < spec.kv_heads < case.sharding.attention_tp:
            raise UnsupportedError(
                f"versions of TGI differ in how {case.sharding.attention_tp} ranks keep {spec.kv_heads} KV heads",
                "use a tp that divides the KV heads",
            )
        if group.layout.tensor("k").dim != group.layout.tensor("v").dim:
            raise UnsupportedError(
                f"kvplan has no rule for K and V of different widths in TGI ({group.name})", "plan without --engine"
            )
    _check_fp8(case)
    return TgiCache(case)


def _check_fp8(case: Case) -> None:
    attention, system = case.options["attention"], case.options["system"]
    fp8 = {option for option in case.chosen.values() if option != "auto"}
    has = attention == "paged" or attention == "flashdecoding-ipex" or (attention, system) == ("flashinfer", "cuda")
    if fp8 and not has:
        raise UsageError(
            f"TGI has no fp8 cache with {attention} attention on {system}",
            "use flashinfer on CUDA, or --engine-option attention=paged",
        )
    for option, without, other in (("fp8_e5m2", "rocm", "fp8_e4m3fn"), ("fp8_e4m3fn", "cpu", "fp8_e5m2")):
        if option in fp8 and system == without:
            raise UsageError(f"TGI refuses a cache in {option} on {system}", f"give --kv {other}")


def _pool(memory: GpuMemory) -> int:
    used = memory.weights + memory.activations + memory.graphs + memory.framework
    return int(memory.share * Fraction(9, 10) * memory.total) - used


ENGINE = Engine(
    name="tgi",
    title="TGI",
    flag=("--kv-cache-dtype",),
    versions=(EngineVersion(name="3", note="git db931fc of 2026-01-08, the last change seen"),),
    formats=(
        EngineFormat(option="auto", k=NATIVE, v=NATIVE, nbytes=512, source=_BYTES),
        EngineFormat(
            option="fp8_e4m3fn", k="fp8_e4m3", v="fp8_e4m3", nbytes=256, needs="not on IPEX CPU", source=_FP8
        ),
        EngineFormat(option="fp8_e5m2", k="fp8_e5m2", v="fp8_e5m2", nbytes=256, needs="not on ROCm", source=_FP8),
    ),
    options=(
        EngineOption(
            name="attention", kind=str, default="flashinfer", choices=tuple(BLOCK_SIZES),
            text="Attention backend; it sets the tokens per block.", source=_BLOCKS,
        ),
        EngineOption(
            name="system", kind=str, default="cuda", choices=("cuda", "rocm", "xpu", "cpu"),
            text="What TGI runs on (xpu and cpu with IPEX); it decides which fp8 formats there are.", source=_FP8,
        ),
        EngineOption(
            name="prefix_caching", kind=bool, default=True,
            text="Prefix caching; with it the allocator ignores a sliding window.",
            source=_PROJECT + "backends/v3/src/radix.rs:31",
        ),
    ),
    rules=(
        EngineRule(name="blocks", text="Tokens per block: " + ", ".join(f"{a} {n}" for a, n in BLOCK_SIZES.items()),
                   source=_BLOCKS),
        EngineRule(name="bytes", text="A block holds 2 x KV heads x head_dim x bytes of every layer; fp8 has one "
                   "scale per tensor and no bytes per token.", source=_BYTES),
        EngineRule(name="fp8", text="With flashinfer on CUDA, paged attention, or flashdecoding-ipex; e5m2 not on "
                   "ROCm, e4m3fn not on IPEX CPU.", source=_FP8),
        EngineRule(name="latents", text="DeepSeek's latents are stored as K and V of every head, whose widths the spec "
                   "of a latent does not say: kvplan does not plan them here.", source=_LATENT),
        EngineRule(name="budget", text="Blocks fill MEMORY_FRACTION x TGI_WIGGLE_ROOM (0.90) of what a warm-up batch "
                   "leaves free.", source=_BYTES),
        EngineRule(name="window", text="One window of the whole model caps a sequence's blocks, only without prefix "
                   "caching; layers of several kinds all keep every row.", source=_WINDOW),
    ),
    cache=cache,
    pool=PoolRule(
        share_name="cuda_memory_fraction",
        default_share=lambda _version, _total, _ranks: Fraction(1),
        busiest=lambda _started: (64, 4096),
        pool=_pool,
        text="The share x 0.90 (TGI_WIGGLE_ROOM) of the total, less what weights, a warm-up batch, graphs and "
        "framework take.",
        source=_BYTES,
    ),
    launch=LaunchSpec(
        command="text-generation-launcher --model-id {model}",
        flags=(
            Flag(field="context", text="--max-total-tokens {value}", source=_LAUNCHER),
            Flag(field="tp", text="--num-shard {value}", source=_LAUNCHER),
            Flag(field="share", text="--cuda-memory-fraction {value}", source=_LAUNCHER),
            Flag(field="kv", text="--kv-cache-dtype {value}", source=_LAUNCHER),
            Flag(field="attention", text="ATTENTION={value}", environment=True, source=_BLOCKS),
            Flag(field="prefix_caching", text="PREFIX_CACHING=1", off="PREFIX_CACHING=0", environment=True,
                 source=_BLOCKS),
        ),
        source=_LAUNCHER,
    ),
)  # fmt: skip
