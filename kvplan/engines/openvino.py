"""OpenVINO GenAI: one tensor of blocks per layer for K and one for V, scales inside the blocks.

Sources: the CPU plugin of OpenVINO 2026.4.1, whose compiled shapes were measured; openvino.genai, read; the GPU plugin
through excerpts only, of which kvplan takes f16 and i8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan.engines.shared.launch import Flag, LaunchSpec
from kvplan.engines.shared.paged import PagedCache
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
from kvplan.errors import UnsupportedError, UsageError
from kvplan.formats.layout import STORAGE_BITS, Plane
from kvplan.memory.groups import CacheGroup
from kvplan.memory.parts import Part
from kvplan.memory.sharding import Sharding
from kvplan.memory.terms import logical_terms

_MEASURED = "OpenVINO 2026.4.1, CPU plugin: shapes of the compiled model's key_cache.* and value_cache.* inputs"
_GENAI = "openvino.genai git da1db86, src/cpp/src/continuous_batching/cache/kv_cache_manager.hpp"
_GPU = "OpenVINO, intel_gpu plugin: i8 with a scale and a zero in f16 for each token or channel (excerpts read)"

BLOCK_SIZES = {"CPU": 32, "GPU": 16}
"""Device to tokens per block."""
XATTENTION_BLOCK = 256
ELEMENTS = {"int8": "u8", "int4": "u4", "bf16": "bf16", "fp16": "f16", "fp32": "f32"}
"""Stored number to the CPU plugin's name of the element type."""
_QUANTISED = {"u8": "int8", "u4": "int4"}


def respell(spelled: Mapping[str, str], chosen: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, str]:
    """Rows as the plugin stores them: by channel or by token, in groups, and in the precision that inference runs in.

    Raises:
        UnsupportedError: rows that kvplan has not read for that device or precision.
    """
    if options["device"] == "GPU":
        return {role: _gpu_row(role, row, options) for role, row in spelled.items()}
    if options["EXECUTION_MODE_HINT"] == "ACCURACY":
        return dict.fromkeys(spelled, "fp32")
    infers = options["INFERENCE_PRECISION_HINT"]
    made = {}
    for role, option in chosen.items():
        if infers == "f32" and option != "f32":
            raise UnsupportedError(
                f"kvplan has no rule for {option} rows of OpenVINO where inference runs in f32", "give --kv f32"
            )
        made[role] = _cpu_row(role, option, options) or ("bf16" if infers == "bf16" else "fp32")
    return made


def _gpu_row(role: str, row: str, options: Mapping[str, Any]) -> str:
    """Scales of i8 K behind each token, or as further rows of a block; V has them behind each token."""
    if role != "k" or not row.startswith("int8") or options["KEY_CACHE_QUANT_MODE"] != "BY_CHANNEL":
        return row
    return f"int8:channel/{_block_tokens(options)},asym,pack=page"


def _block_tokens(options: Mapping[str, Any]) -> int:
    sparse = options["device"] == "GPU" and options["use_sparse_attention"]
    return XATTENTION_BLOCK if sparse else BLOCK_SIZES[options["device"]]


def _cpu_row(role: str, option: str, options: Mapping[str, Any]) -> str:
    """A quantised row of the CPU plugin; empty for 16 and 32 bit, which follow the precision of inference."""
    if option not in _QUANTISED:
        return ""
    number = _QUANTISED[option]
    if role == "k" and options["KEY_CACHE_QUANT_MODE"] != "BY_TOKEN":
        return f"{number}:channel/{BLOCK_SIZES['CPU']},asym,scale=fp32,pack=page"
    group = options["KEY_CACHE_GROUP_SIZE" if role == "k" else "VALUE_CACHE_GROUP_SIZE"]
    return f"{number}:group/{group},asym,scale=fp32,pack=slot" if group else f"{number},asym,scale=fp32,pack=slot"


class OpenVinoCache(PagedCache):
    """As many blocks in every layer; a partly filled block is quantised at once, without recent rows in 16 bit."""

    notes: tuple[str, ...] = ("OpenVINO gives every layer as many blocks, so windowed layers keep all rows.",)

    def __init__(self, case: Case) -> None:
        device = case.options["device"]
        super().__init__(case, _block_tokens(case.options), _GENAI)
        if not any(g.law.law == "window" for g in case.groups):
            self.notes = ()
        if device == "CPU" and "f16" in case.chosen.values() and case.options["EXECUTION_MODE_HINT"] != "ACCURACY":
            self.notes += ("A CPU with bf16 stores rows of the default precision f16 as bf16.",)
        if device == "GPU":
            self.notes += ("The GPU plugin chooses its own default precision: set KV_CACHE_PRECISION to be sure.",)
        if "i8" in case.chosen.values() and case.options["KEY_CACHE_QUANT_MODE"] == "AUTO":
            self.notes += ("kvplan takes i8 keys by token; a GPU plugin may choose BY_CHANNEL: set it to be sure.",)

    def rows(self, group: CacheGroup, context: int) -> int:
        """All rows, also of windows and chunks."""
        return context

    def paged_part(self, group: CacheGroup, context: int, sequences: int) -> Part:
        """Whole blocks; what the grammar of K by channel keeps unquantised is spared."""
        part = super().paged_part(group, context, sequences)
        waiting = logical_terms(group, context, sequences).get("residual", ())
        return Part(part.name, part.allocated, saves=waiting, padding=part.padding)

    def figures(self, context: int, pool_bytes: int | None = None) -> tuple[EngineFigure, ...]:
        """Shape and bytes of a block of every group's tensors, a block of all layers, and how many fit a cache size."""
        assert self.page_size is not None
        made = [figure for g in self.case.groups for figure in self._tensors(g)]
        true = sum(g.layers * g.layout.page_bytes(self.page_size) for g in self.case.groups)
        booked = sum(g.layers * self._booked(g, p) for g in self.case.groups for p in g.layout.scoped("page"))
        made += [
            EngineFigure("bytes per block", true, _MEASURED),
            EngineFigure("booked bytes per block", booked, _GENAI + ", element.size() of a u4 is 1"),
        ]
        if pool_bytes is not None:
            made.append(EngineFigure("num_kv_blocks", pool_bytes // booked, _GENAI))
        return tuple(made)

    def _tensors(self, group: CacheGroup) -> list[EngineFigure]:
        assert self.page_size is not None
        made = []
        for role, name in (("k", "key_cache"), ("v", "value_cache")):
            plane = group.layout.plane(role, "codes")
            nbytes = plane.page_bytes(self.page_size, group.layout.heads)
            prefix = f"{group.name}: {name}"
            if self.case.options["device"] == "CPU":  # a GPU orders the axes of keys in ways of its own
                made += [
                    EngineFigure(f"{prefix} shape", self._shape(group, role, nbytes), _MEASURED),
                    EngineFigure(f"{prefix} element", ELEMENTS[group.layout.tensor(role).number], _MEASURED),
                ]
            made += [
                EngineFigure(f"{prefix} bytes per block", nbytes, _MEASURED),
                EngineFigure(f"{prefix} booked bytes per block", self._booked(group, plane), _GENAI),
            ]
        return made

    def _shape(self, group: CacheGroup, role: str, nbytes: int) -> str:
        """`[?,heads,rows,elements]`: scales are further rows of a block by channel, else further elements of a row."""
        assert self.page_size is not None
        tensor, heads = group.layout.tensor(role), group.layout.heads
        elements = nbytes * 8 // STORAGE_BITS[tensor.number] // heads
        by_channel = tensor.granularity == "channel"
        rows = elements // tensor.dim if by_channel else self.page_size
        return f"[?,{heads},{rows},{elements // rows}]"

    def _booked(self, group: CacheGroup, plane: Plane) -> int:
        """What GenAI reckons a block of a tensor to be: a byte for each u4."""
        assert self.page_size is not None
        number = group.layout.tensor(plane.fields[0].tensor).number
        elements_per_byte = 8 // STORAGE_BITS[number] if STORAGE_BITS[number] < 8 else 1
        return plane.page_bytes(self.page_size, group.layout.heads) * elements_per_byte


def cache(case: Case) -> EngineCache:
    """Lay out a case.

    Raises:
        UsageError: a precision that the device refuses.
        UnsupportedError: caches other than K and V rows, and several ranks.
    """
    for group in case.groups:
        if group.role != "kv" or group.law.stride != 1:
            raise UnsupportedError(
                f"kvplan has no rule for group {group.name} ({group.role}) in OpenVINO GenAI", "plan without --engine"
            )
    if case.sharding != Sharding() or case.mtp:
        raise UnsupportedError("kvplan has no rule for several ranks or drafts of OpenVINO GenAI", "plan one device")
    _check_precision(case)
    return OpenVinoCache(case)


def _check_precision(case: Case) -> None:
    options, chosen = case.options, set(case.chosen.values())
    if options["device"] == "GPU":
        if left := chosen & {"u8", "u4", "f32", "bf16"}:
            raise UnsupportedError(
                f"kvplan has not read how the GPU plugin of OpenVINO stores {min(left)}", "give --kv f16 or --kv i8"
            )
        return
    if "i8" in chosen:
        raise UsageError(
            "OpenVINO's CPU plugin refuses i8 as a KV cache precision", "give --kv u8, or --engine-option device=GPU"
        )
    if options["use_sparse_attention"]:
        raise UsageError("the blocks of XAttention are the GPU's", "add --engine-option device=GPU")
    exact = options["EXECUTION_MODE_HINT"] == "ACCURACY" or options["INFERENCE_PRECISION_HINT"] == "f32"
    if "f32" in chosen and not exact:
        raise UsageError(
            "OpenVINO refuses f32 rows on a CPU where inference runs in bf16",
            "give --kv bf16, or --engine-option EXECUTION_MODE_HINT=ACCURACY",
        )


_BY_CHANNEL = "int{}:channel/32,asym,scale=fp32,pack=page"
_BY_TOKEN = "int{},asym,scale=fp32,pack=slot"

ENGINE = Engine(
    name="openvino",
    title="OpenVINO GenAI",
    flag=("KEY_CACHE_PRECISION", "VALUE_CACHE_PRECISION"),
    versions=(EngineVersion(name="2026.4.1", note="CPU plugin measured on an AVX512 machine with bf16"),),
    formats=(
        EngineFormat(option="f16", k="fp16", v="fp16", nbytes=512, source=_MEASURED),
        EngineFormat(option="bf16", k="bf16", v="bf16", nbytes=512, source=_MEASURED),
        EngineFormat(option="u8", k=_BY_CHANNEL.format(8), v=_BY_TOKEN.format(8), nbytes=5120 + 4352, tokens=32,
                     needs="CPU", source=_MEASURED),
        EngineFormat(option="u4", k=_BY_CHANNEL.format(4), v=_BY_TOKEN.format(4), nbytes=3072 + 2304, tokens=32,
                     needs="CPU", source=_MEASURED),
        EngineFormat(option="f32", k="fp32", v="fp32", nbytes=1024, needs="inference in f32", source=_MEASURED),
        EngineFormat(option="i8", k="int8,asym,pack=slot", v="int8,asym,pack=slot", nbytes=264, needs="GPU",
                     source=_GPU),
    ),
    options=(
        EngineOption(name="device", kind=str, default="CPU", choices=tuple(BLOCK_SIZES),
                     text="Where the model runs; it sets the tokens per block.", source=_GENAI),
        EngineOption(name="use_sparse_attention", kind=bool, default=False,
                     text="XAttention on the GPU, with blocks of 256 tokens.", source=_GENAI),
        EngineOption(name="KEY_CACHE_QUANT_MODE", kind=str, default="AUTO", choices=("AUTO", "BY_CHANNEL", "BY_TOKEN"),
                     text="Scales of quantised K: of a channel over a block (AUTO on the CPU), or of a token "
                     "(taken for AUTO on a GPU).",
                     source=_MEASURED),
        EngineOption(name="KEY_CACHE_GROUP_SIZE", default=0,
                     text="Channels that share a scale of K by token; 0: all of a head.", source=_MEASURED),
        EngineOption(name="VALUE_CACHE_GROUP_SIZE", default=0,
                     text="Channels that share a scale of V; 0: all of a head.", source=_MEASURED),
        EngineOption(name="EXECUTION_MODE_HINT", kind=str, default="PERFORMANCE", choices=("PERFORMANCE", "ACCURACY"),
                     text="ACCURACY stores f32 rows whatever precision is asked for.", source=_MEASURED),
        EngineOption(name="INFERENCE_PRECISION_HINT", kind=str, default="bf16", choices=("bf16", "f32"),
                     text="What a CPU computes in; bf16 where the CPU has it. 16-bit rows follow it.",
                     source=_MEASURED),
    ),
    rules=(
        EngineRule(name="blocks", text="Tokens per block: CPU 32, GPU 16, GPU with XAttention 256; every layer has as "
                   "many blocks.", source=_GENAI),
        EngineRule(name="scales", text="Scale and zero are two f32: further rows of a block where K is quantised by "
                   "channel, else behind each group of a token's row.", source=_MEASURED),
        EngineRule(name="u4 booking", text="GenAI counts a byte for each u4 of a block, so a cache_size holds half the "
                   "blocks that it could.", source=_GENAI),
        EngineRule(name="f16", text="f16 rows are stored as bf16 on a CPU that infers in bf16; f32 rows are refused "
                   "there, except with EXECUTION_MODE_HINT=ACCURACY, which always stores f32.", source=_MEASURED),
    ),
    cache=cache,
    launch=LaunchSpec(
        command='openvino_genai.LLMPipeline("{model}", ',
        language="python",
        closing=")",
        flags=(
            Flag(field="device", text='device="{value}"', always=True, source=_GENAI),
            Flag(field="k", text='KEY_CACHE_PRECISION="{value}"', source=_GENAI),
            Flag(field="v", text='VALUE_CACHE_PRECISION="{value}"', source=_GENAI),
            Flag(field="KEY_CACHE_QUANT_MODE", text='KEY_CACHE_QUANT_MODE="{value}"', source=_GENAI),
            Flag(field="KEY_CACHE_GROUP_SIZE", text="KEY_CACHE_GROUP_SIZE={value}", source=_GENAI),
            Flag(field="VALUE_CACHE_GROUP_SIZE", text="VALUE_CACHE_GROUP_SIZE={value}", source=_GENAI),
            Flag(field="EXECUTION_MODE_HINT", text='EXECUTION_MODE_HINT="{value}"', source=_GENAI),
            Flag(field="INFERENCE_PRECISION_HINT", text='INFERENCE_PRECISION_HINT="{value}"', source=_GENAI),
        ),
        source=_GENAI,
    ),
    apart=True,
    respell=respell,
)  # fmt: skip
