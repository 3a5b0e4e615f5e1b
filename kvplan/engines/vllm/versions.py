"""Versions of vLLM whose rules are known, and what differs between them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from kvplan.engines.shared.types import EngineVersion

PROJECT = "vLLM 0.33.0, vllm/"
PLANNING = PROJECT + "v1/core/kv_cache_planning.py"


@dataclass(frozen=True, slots=True)
class Rules:
    """How one version counts.

    Attributes:
        tokens: meaning of the printed figure: `capacity` int(concurrency x max_model_len), `per_group` blocks of one
            group times the smallest block size, `blocks` the number of blocks itself.
        one_line: tokens and concurrency share one log line.
        near_equal: types whose layer counts differ by less than this share the larger as group size; None: never.
        in_flight_batches: a window keeps the tokens of all concurrent batches, not of one.
        checkpoints: Mamba 2 and GDN hold a state for checkpoints inside a prefill.
        prefix_caching_states: prefix caching, and so align mode, is on for hybrids by default.
        hybrid: layers of different types have their own page groups; before, all kept every token.
        null_block: one block of the pool is held back for null entries.
        checks_null_block: the check of one request counts that block.
        graphs: the estimate of CUDA graphs is subtracted from the pool.
        whole_prompts: the dummy run has max_model_len tokens, unless that turns chunks on.
    """

    tokens: str = "capacity"
    one_line: bool = True
    near_equal: Fraction | None = Fraction(3, 2)
    in_flight_batches: bool = True
    checkpoints: bool = True
    prefix_caching_states: bool = True
    hybrid: bool = True
    null_block: bool = True
    checks_null_block: bool = True
    graphs: bool = True
    whole_prompts: bool = False


_V33 = Rules()
_V26 = replace(_V33, checkpoints=False, one_line=False)
_V21 = replace(_V26, in_flight_batches=False, checks_null_block=False)
_V18 = replace(_V21, tokens="per_group", graphs=False, near_equal=Fraction(5, 4))
_V11 = replace(_V18, near_equal=None, prefix_caching_states=False)
_V8 = replace(_V11, hybrid=False)
_V6 = replace(_V8, tokens="blocks", null_block=False, whole_prompts=True)

_RULES = {
    "0.33.0": _V33, "0.26.0": _V26, "0.21.0": _V21, "0.18.0": _V18, "0.11.2": _V11, "0.8.3": _V8, "0.6.6": _V6,
}  # fmt: skip

VERSIONS = (
    EngineVersion(name="0.33.0", note="newest covered", source=PLANNING),
    EngineVersion(
        name="0.26.0",
        note="no checkpoint states of Mamba 2 and GDN inside a prefill; two log lines",
        source="vllm-project/vllm#57329; tenstorrent/tt-xla#5908 names max_in_flight_tokens from 0.26.0 on",
    ),
    EngineVersion(
        name="0.21.0",
        note="a window keeps the tokens of one batch, not of all concurrent ones; one request is checked against all "
        "blocks, the null block included",
        source="vllm-project/vllm#47728, vllm-project/vllm#47272",
    ),
    EngineVersion(
        name="0.18.0",
        note="prints blocks of one group times block size as tokens; near-equal layer counts are within 1.25, not 1.5; "
        "CUDA graphs are not subtracted from the pool",
        source="vllm-project/vllm#40691 (0.19.0), #43308 (0.20.0 to 0.21.0), #35062",
    ),
    EngineVersion(
        name="0.11.2",
        note="the smaller layer count is always the group size; prefix caching is off for hybrids",
        source="vllm-project/vllm#29303 brought the 1.25 rule later; vllm-project/vllm#26646 (0.11)",
    ),
    EngineVersion(
        name="0.8.3",
        note="windowed and chunked layers keep every token",
        source="log of 0.8.3: 48 layers of Llama 4 Scout counted in full",
    ),
    EngineVersion(
        name="0.6.6",
        note="the V0 engine: prints the number of blocks, holds no null block",
        source="vllm-project/vllm#10517",
    ),
)


def rules_of(version: str) -> Rules:
    """The rules of a covered version."""
    return _RULES[version]


def available_bytes(
    version: str, total: float, utilization: float, weights: float, activation: float, other: float, graphs: float = 0
) -> float:
    """Bytes of the pool as vLLM measures it: what remains of its share of the GPU after weights and a dummy run.

    All in one unit, GiB for instance; negative where nothing remains.

    Args:
        total: memory of the GPU.
        utilization: gpu_memory_utilization, 0.92 by default in 0.33, 0.9 before.
        activation: peak of the dummy forward pass.
        other: what torch does not see (NCCL, contexts).
        graphs: estimate of the CUDA graphs; counted from 0.21 on.

    Source: vLLM v1/worker/gpu_worker.py:641-820; logs of 0.11 without the graphs.
    """
    used = weights + activation + other + (graphs if rules_of(version).graphs else 0)
    return total * utilization - used
