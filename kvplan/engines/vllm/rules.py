"""vLLM's rules in sentences, for the user; each is implemented in the module that the docstring of `vllm` names."""

from __future__ import annotations

from kvplan.engines.shared.types import EngineRule
from kvplan.engines.vllm.backends import ORDER, SIZES
from kvplan.engines.vllm.blocks import INTERFACE
from kvplan.engines.vllm.formats import REWRITE, SKIPS
from kvplan.engines.vllm.options import IN_FLIGHT
from kvplan.engines.vllm.pool import UTILS
from kvplan.engines.vllm.states import ALIGNMENT, SHAPES
from kvplan.engines.vllm.versions import PLANNING, PROJECT

RULES = (
    EngineRule(
        name="page", source=INTERFACE + ":586-601",
        text="A page is KV heads of the rank x states of a block x bytes of one state in the backend's own rows; KV "
        "heads are divided by tp, at least 1; MLA rows are on every rank.",
    ),
    EngineRule(name="backend", source=ORDER, text="The backend follows from GPU and cache dtype, as vLLM orders them."),
    EngineRule(
        name="block size", source=SIZES,
        text="16 tokens where every backend takes it; FLASHMLA and indexed MLA 64, FLASHINFER_MLA 32, CUTLASS_MLA 128, "
        "TURBOQUANT 32, DeepSeek-V4 256.",
    ),
    EngineRule(
        name="hybrids", source=ALIGNMENT,
        text="The attention block grows until its page holds one state; the state's page is padded to it.",
    ),
    EngineRule(
        name="states", source=SHAPES + "; MambaSpec",
        text="States are blocks of the pool: 1 + speculative tokens, with prefix caching 2 + speculative tokens + 1 "
        "for a checkpoint inside a prefill; in the model's number type unless said otherwise.",
    ),
    EngineRule(
        name="page groups", source=PLANNING + ":416-556",
        text="Layers of each type are dealt to groups as large as the rarest type, or as the commonest where counts "
        "are within 1.5; slots without a layer stay empty in every block.",
    ),
    EngineRule(
        name="page sizes", source=PLANNING + ":346",
        text="Smaller pages get a larger block where they divide the largest, else padding; in block-outermost layouts "
        "they lie side by side.",
    ),
    EngineRule(
        name="windows", source=INTERFACE + ":861, 901",
        text="A window takes blocks for window - 1 + in-flight tokens, at most the context, and one more; a chunk for "
        "chunk + in-flight tokens.",
    ),
    EngineRule(
        name="in-flight tokens", source=IN_FLIGHT,
        text="max_num_batched_tokens x concurrent batches: pipeline stages + 1 with asynchronous scheduling.",
    ),
    EngineRule(
        name="null block", source=PROJECT + "v1/core/block_pool.py:189-192",
        text="One block of the pool is never given to a request.",
    ),
    EngineRule(
        name="printed tokens", source=UTILS,
        text="From 0.21 on int(concurrency x max_model_len), before the blocks of one group x block size.",
    ),
    EngineRule(
        name="context parallel", source=INTERFACE,
        text="A block spans block_size x dcp tokens, index keys included; windows and states are whole on every rank.",
    ),
    EngineRule(
        name="rewritten dtypes", source=REWRITE,
        text="fp8 is fp8_ds_mla on FLASHMLA_SPARSE, and on SM120 auto is too; on SM100 fp8 stays 576 bytes.",
    ),
    EngineRule(
        name="unquantised layers", source=SKIPS,
        text="TurboQuant and UltraQuant keep the first and last two layers of dense models in the model's dtype.",
    ),
)  # fmt: skip
