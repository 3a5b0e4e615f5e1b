"""Settings of vLLM that change cache bytes, and what it takes where none is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvplan.engines.shared.types import EngineOption
from kvplan.engines.vllm.backends import BACKENDS, ORDER
from kvplan.engines.vllm.blocks import in_flight_tokens
from kvplan.engines.vllm.states import ALIGNMENT, CHECKPOINTS, StateMode, checkpoint_alignment
from kvplan.engines.vllm.versions import PLANNING, PROJECT, Rules
from kvplan.specs.groups import StateGroup
from kvplan.units import GIB

if TYPE_CHECKING:
    from kvplan.engines.shared.types import Case

BATCHED = PROJECT + "engine/arg_utils.py:2973-3006"
IN_FLIGHT = PROJECT + "config/vllm.py:586-609, 1685-1719"
LAYOUTS = ("LBNHC", "LBHNC", "BLNHC", "BLHNC")
"""Orders of layers, blocks, tokens and heads; B first keeps all layers of a block together."""
DTYPE_NAMES = ("auto", "float32", "float16", "bfloat16")

OPTIONS = (
    EngineOption(
        name="block_size", text="Tokens of a block; by default the least that every backend takes, 16 or more.",
        source=PROJECT + "config/cache.py:185, platforms/interface.py:700-781",
    ),
    EngineOption(
        name="attention_backend", kind=str, choices=tuple(BACKENDS),
        text="Attention backend; by default the first that the GPU and the cache dtype allow.", source=ORDER,
    ),
    EngineOption(
        name="max_num_batched_tokens",
        text="Tokens of a scheduled batch: 16384 on GPUs of 160 GiB or more, 8192 from 70 GiB on (not A100, GB10), "
        "else 2048. Windows and chunks keep them beside their own.", source=BATCHED,
    ),
    EngineOption(
        name="max_num_seqs",
        text="Requests at once: 1024 on GPUs from 70 GiB on (not A100, GB10), else 256. It changes no block, but the "
        "start-up run samples for as many, which is the peak of activations on a large card.", source=BATCHED,
    ),
    EngineOption(
        name="async_scheduling", kind=bool, default=True,
        text="Schedule the next batch while one runs: one batch more is in flight.", source=IN_FLIGHT,
    ),
    EngineOption(
        name="enable_prefix_caching", kind=bool,
        text="Prefix caching; states are then kept at block boundaries (mode align). On by default, for hybrids from "
        "0.18 on.", source=PROJECT + "models/config.py:750-787",
    ),
    EngineOption(
        name="mamba_cache_mode", kind=str, choices=("none", "align", "all"),
        text="States per request: one, those of prefix caching, or one for every block.", source=ALIGNMENT,
    ),
    EngineOption(
        name="mamba_block_size", text="Tokens that mode all aligns states to: the model's chunk size.", source=ALIGNMENT
    ),
    EngineOption(
        name="mamba_cache_dtype", kind=str, default="auto", choices=DTYPE_NAMES,
        text="Number type of convolution states; auto: the model's.", source=PROJECT + "config/cache.py",
    ),
    EngineOption(
        name="mamba_ssm_cache_dtype", kind=str, default="auto", choices=DTYPE_NAMES,
        text="Number type of recurrent states; auto: as mamba_cache_dtype, float32 for Nemotron-H and KDA, the "
        "checkpoint's for Qwen 3.5.", source=PROJECT + "config/cache.py, models/config.py",
    ),
    EngineOption(
        name="gdn_prefill_backend", kind=str, choices=("flashinfer", "triton"),
        text="Kernel of gated delta nets; FlashInfer, the default on Hopper, keeps a checkpoint every 64 tokens.",
        source=CHECKPOINTS,
    ),
    EngineOption(
        name="num_speculative_tokens",
        text="Tokens drafted at once; each takes a state. 1 with --mtp, else 0.",
        source=PROJECT + "config/speculative.py",
    ),
    EngineOption(
        name="disable_hybrid_kv_cache_manager", kind=bool, default=False,
        text="Keep every token of windowed and chunked layers.", source=PROJECT + "config/vllm.py:2222-2295",
    ),
    EngineOption(
        name="allow_chunked_local_attn_with_hybrid_kv_cache", kind=bool, default=True,
        text="Chunked layers (Llama 4) keep only their chunk; off with speculation.",
        source=PROJECT + "envs.py, config/vllm.py:2222-2295",
    ),
    EngineOption(
        name="num_gpu_blocks_override", text="Blocks of the pool, whatever the memory.", source=PLANNING + ":1510-1531"
    ),
    EngineOption(
        name="kv_cache_layout", kind=str, choices=LAYOUTS,
        text="Order of the cache in memory (VLLM_KV_CACHE_LAYOUT); LBNHC by default, LBHNC for FlashInfer on SM100.",
        source=PROJECT + "v1/attention/backends/utils.py:229-236",
    ),
    EngineOption(
        name="max_num_encoder_input_tokens",
        text="Encoder tokens of a batch; cross-attention takes blocks for so many. By default as many as batched "
        "tokens or one whole input.", source=PROJECT + "v1/kv_cache_interface.py:1221",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """A case's options with all defaults worked out.

    Attributes:
        in_flight: tokens that windows and chunks keep beside their own.
        retained: tokens behind a window for speculation with several modules.
        hybrid: windows and chunks keep only their own tokens.
        notes: what was assumed.
    """

    batched_tokens: int
    in_flight: int
    retained: int
    mode: StateMode
    hybrid: bool
    encoder_tokens: int
    notes: tuple[str, ...]


def settings_of(case: Case, rules: Rules) -> Settings:
    """The settings of a case."""
    o, notes = case.options, []
    batched = o["max_num_batched_tokens"]
    if batched is None:
        batched, note = _batched_default(case)
        notes += [note] if note else []
    batches = case.sharding.pp + (1 if o["async_scheduling"] else 0) if rules.in_flight_batches else 1
    drafted = o["num_speculative_tokens"]
    speculative = (1 if case.mtp else 0) if drafted is None else drafted
    modules = case.spec.mtp.layers if case.mtp and case.spec.mtp else 0
    mode = _state_mode(case, rules, speculative, notes)
    chunked = any(g.law.law == "chunk" for g in case.groups)
    chunks_off = chunked and bool(speculative or not o["allow_chunked_local_attn_with_hybrid_kv_cache"])
    if chunks_off and speculative:
        notes.append("With speculation vLLM keeps every token of chunked layers.")
    return Settings(
        batched_tokens=batched,
        in_flight=in_flight_tokens(batches, batched),
        retained=max(0, speculative - 1) if modules > 1 else 0,
        mode=mode,
        hybrid=rules.hybrid and not o["disable_hybrid_kv_cache_manager"] and not chunks_off,
        encoder_tokens=o["max_num_encoder_input_tokens"] or batched,
        notes=tuple(notes),
    )


def _batched_default(case: Case) -> tuple[int, str]:
    """(default of max_num_batched_tokens for `vllm serve`, what was assumed)."""
    windowed = any(g.law.law in ("window", "chunk", "encoder") for g in case.groups)
    if case.memory_bytes is None:
        text = "No GPU is named: max_num_batched_tokens 8192, as on GPUs of 70 to 160 GiB, is assumed."
        return 8192, text if windowed else ""
    return default_batched_tokens(case.memory_bytes, case.capability), ""


def default_batched_tokens(memory_bytes: int, capability: tuple[int, int] | None) -> int:
    """max_num_batched_tokens of `vllm serve` by the GPU's memory; the A100 and GB10 have the small one."""
    if memory_bytes >= 160 * GIB:
        return 16384
    return 8192 if memory_bytes >= 70 * GIB and capability not in ((8, 0), (12, 1)) else 2048


def default_requests(memory_bytes: int, capability: tuple[int, int] | None) -> int:
    """max_num_seqs of `vllm serve`, by the same rule."""
    return 1024 if memory_bytes >= 70 * GIB and capability not in ((8, 0), (12, 1)) else 256


def _state_mode(case: Case, rules: Rules, speculative: int, notes: list[str]) -> StateMode:
    states = [g for g in case.spec.layer_groups if isinstance(g, StateGroup)]
    if not states:
        return StateMode("none", speculative)
    o = case.options
    caching = rules.prefix_caching_states if o["enable_prefix_caching"] is None else o["enable_prefix_caching"]
    mode = o["mamba_cache_mode"] or ("align" if caching else "none")
    kinds = frozenset(g.state.type for g in states)
    gdn = o["gdn_prefill_backend"]
    if gdn is None and "gated_deltanet" in kinds and mode == "align":
        gdn = "flashinfer" if (case.capability or (9, 0))[0] == 9 else "triton"
        if case.capability is None and rules.checkpoints:
            notes.append(
                "No GPU is named: FlashInfer's kernel for gated delta nets, the default on Hopper, is assumed."
            )
    if "kda" in kinds and mode == "align" and rules.checkpoints:
        notes.append("kvplan counts no checkpoint inside a prefill for KDA; with FlashKDA vLLM keeps one state more.")
    return StateMode(mode, speculative, checkpoint_alignment(kinds, gdn or "triton") if rules.checkpoints else None)
