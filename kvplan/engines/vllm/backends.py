"""Attention backends of vLLM: which cache dtypes and GPUs each one has, their order, and their block sizes.

Source: vLLM 0.33.0, platforms/cuda.py:84-154 (order), v1/attention/backends/*.py (dtypes, block sizes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvplan.engines.vllm.states import normal
from kvplan.engines.vllm.versions import PROJECT
from kvplan.errors import UsageError

ORDER = PROJECT + "platforms/cuda.py:84-154"
SIZES = PROJECT + "v1/attention/backends, get_supported_kernel_block_sizes"
Capability = tuple[int, int]
Range = tuple[Capability, Capability]

PLAIN = frozenset({"auto", "float16", "bfloat16"})
E4M3 = frozenset({"fp8", "fp8_e4m3"})
PER_TOKEN_HEAD = frozenset({"int4_per_token_head", "int8_per_token_head", "fp8_per_token_head"})
TURBOQUANT = frozenset({"turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"})
OCTAVE = frozenset({"octave_k3v4", "octave_k3v3", "octave_k3v3_compact"})
ANY = ((0, 0), (99, 9))
ROCM = "ROCm only"


@dataclass(frozen=True, slots=True)
class Backend:
    """One attention backend.

    Attributes:
        kind: attention, mla or sparse (MLA with an index).
        dtypes: values of --kv-cache-dtype that it takes, each with inclusive ranges of compute capability.
        blocks: block sizes of its kernels; the first is a base of which all multiples do where `multiples`.
        capabilities: inclusive ranges of compute capability that have it.
        preferred: block size that it asks for where none is given; 0: the least that all backends take.
        platform: empty on CUDA.
    """

    kind: str
    dtypes: Mapping[str, tuple[Range, ...]]
    blocks: tuple[int, ...] = (16,)
    multiples: bool = True
    capabilities: tuple[Range, ...] = (ANY,)
    preferred: int = 0
    platform: str = ""

    def runs_on(self, capability: Capability | None) -> bool:
        """Whether a GPU has it; unknown GPUs do."""
        return capability is None or _inside(capability, self.capabilities)

    def takes(self, dtype: str, capability: Capability | None) -> bool:
        """Whether it stores a cache dtype on that GPU."""
        return dtype in self.dtypes and (capability is None or _inside(capability, self.dtypes[dtype]))


def _inside(capability: Capability, ranges: tuple[Range, ...]) -> bool:
    return any(low <= capability <= high for low, high in ranges)


def _on(dtypes: frozenset[str], *ranges: Range) -> dict[str, tuple[Range, ...]]:
    return dict.fromkeys(sorted(dtypes), ranges or (ANY,))


_SM80UP, _SM90, _SM100 = ((8, 0), (99, 9)), ((9, 0), (9, 9)), ((10, 0), (11, 9))
_SM120 = ((12, 0), (12, 9))
_FLASHINFER = ((8, 0), (12, 1))

BACKENDS: dict[str, Backend] = {
    "FLASH_ATTN": Backend("attention", _on(PLAIN) | _on(E4M3, _SM90, _SM100), capabilities=(_SM80UP,)),
    "FLASHINFER": Backend(
        "attention",
        _on(PLAIN) | _on(E4M3 | {"fp8_e5m2"}, _FLASHINFER) | _on(frozenset({"nvfp4"}), _FLASHINFER)
        | _on(frozenset({"nvfp4_4over6"}), _SM100),
        blocks=(16, 32, 64), multiples=False, capabilities=(_FLASHINFER,),
    ),
    "TRITON_ATTN": Backend("attention", _on(PLAIN | E4M3 | {"fp8_e5m2"} | PER_TOKEN_HEAD)),
    "FLEX_ATTENTION": Backend("attention", _on(PLAIN)),
    "TURBOQUANT": Backend("attention", _on(TURBOQUANT), blocks=(16, 32, 64, 128), multiples=False, preferred=32),
    "ULTRAQUANT": Backend("attention", _on(frozenset({"ultraquant_4bit"})), blocks=(64,), platform=ROCM),
    "ROCM_OCTAVE": Backend("attention", _on(OCTAVE), platform=ROCM),
    "FLASH_ATTN_MLA": Backend("mla", _on(PLAIN), capabilities=(_SM90,)),
    "FLASHMLA": Backend("mla", _on(PLAIN | E4M3), blocks=(64,), multiples=False, capabilities=(_SM90, _SM100)),
    "FLASHINFER_MLA": Backend("mla", _on(PLAIN | E4M3), blocks=(32, 64), multiples=False, capabilities=(_SM100,)),
    "CUTLASS_MLA": Backend("mla", _on(PLAIN | E4M3), blocks=(128,), multiples=False, capabilities=(_SM100,)),
    "TOKENSPEED_MLA": Backend("mla", _on(PLAIN | E4M3), blocks=(32, 64), multiples=False, capabilities=(_SM100,)),
    "TRITON_MLA": Backend("mla", _on(PLAIN | E4M3)),
    "FLASHMLA_SPARSE": Backend(
        "sparse", _on(PLAIN | E4M3 | {"fp8_ds_mla"}) | _on(frozenset({"nvfp4_ds_mla"}), _SM100), blocks=(64,),
        capabilities=(_SM90, _SM100), multiples=False,
    ),
    "FLASHINFER_MLA_SPARSE": Backend("sparse", _on(PLAIN | E4M3), blocks=(32,), capabilities=(_SM100,)),
    "FLASHINFER_MLA_SPARSE_SM120": Backend(
        "sparse", _on(PLAIN | E4M3 | {"fp8_ds_mla"}), blocks=(64,), capabilities=(_SM120,)
    ),
    "DEEPSEEK_V4": Backend("v4", _on(frozenset({"auto", "fp8", "fp8_ds_mla"})), blocks=(256,), multiples=False),
}  # fmt: skip
FP8_BY_DEFAULT = ("glmmoedsa",)
INDEXER_BLOCK = 64
"""Kernel block of the DSA indexer (DEEPSEEK_V32_INDEXER)."""


def gpus_with(dtype: str) -> tuple[Range, ...]:
    """Inclusive ranges of compute capability on which some backend stores a dtype; empty: any, or not on CUDA."""
    found = set()
    # DeepSeek-V4 has its own rows whatever the option, so its backend says nothing of the option's.
    for b in (b for b in BACKENDS.values() if dtype in b.dtypes and not b.platform and b.kind != "v4"):
        for runs in b.capabilities:
            for takes in b.dtypes[dtype]:
                both = (max(runs[0], takes[0]), min(runs[1], takes[1]))
                found |= {both} if both[0] <= both[1] else set()
    return () if ANY in found else tuple(sorted(found))


def resolved_dtype(model_type: str | None, option: str, capability: Capability | None) -> str:
    """The cache dtype that an option means: `auto` is fp8 for sparse GLM models on SM100 (models/config.py:90-146)."""
    blackwell = capability is not None and capability[0] in (10, 11)
    return "fp8" if option == "auto" and blackwell and normal(model_type) in FP8_BY_DEFAULT else option


def _order(kind: str, capability: Capability, dtype: str) -> tuple[str, ...]:
    """Backends in the order in which vLLM tries them."""
    hopper, blackwell = capability[0] == 9, capability[0] in (10, 11)
    if kind == "v4":
        return ("DEEPSEEK_V4",)
    if kind == "sparse":
        if blackwell and dtype in E4M3:
            return ("FLASHINFER_MLA_SPARSE", "FLASHMLA_SPARSE")
        return ("FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE", "FLASHINFER_MLA_SPARSE_SM120")
    if kind == "mla":
        if blackwell:
            return ("FLASHINFER_MLA", "CUTLASS_MLA", "FLASHMLA", "TOKENSPEED_MLA", "TRITON_MLA")
        return ("FLASH_ATTN_MLA", "FLASHMLA", "TRITON_MLA") if hopper else ("TRITON_MLA",)
    first = ("FLASHINFER", "FLASH_ATTN") if blackwell else ("FLASH_ATTN", "FLASHINFER")
    return (*first, "TRITON_ATTN", "FLEX_ATTENTION", "TURBOQUANT", "ULTRAQUANT", "ROCM_OCTAVE")


def choose_backend(
    kind: str, dtype: str, capability: Capability | None, asked: str | None, dcp: int = 1, assumed: Capability = (9, 0)
) -> str:
    """The attention backend of a model.

    Args:
        kind: attention, mla, sparse or v4.
        dtype: value of --kv-cache-dtype.
        capability: of the GPU; None: not known, then `assumed` orders the backends and none is refused for it.
        asked: --attention-backend.

    Raises:
        UsageError: no backend stores that dtype there, or not the one asked for.
    """
    there = f"on compute capability {capability[0]}.{capability[1]}" if capability else "on any GPU"
    if asked:
        backend = BACKENDS[asked]
        if backend.kind != kind:
            fits = ", ".join(name for name, b in BACKENDS.items() if b.kind == kind)
            raise UsageError(f"vLLM's {asked} is no backend for this model", f"for it there are: {fits}")
        if not (backend.runs_on(capability) and backend.takes(dtype, capability)):
            raise UsageError(
                f"vLLM's {asked} has no cache dtype {dtype} {there}",
                "leave attention_backend out, or take another dtype",
            )
        return asked
    order = _order(kind, capability or assumed, dtype)
    for gpu in (capability or assumed,) if capability else (assumed, None):
        # Without a GPU nothing is refused for its capability, and ROCm's backends are open too.
        for name in order:
            if _has(name, dtype, gpu):
                return name
    there_is = sorted({d for n in order for d in BACKENDS[n].dtypes if _has(n, d, capability)})
    raise UsageError(
        f"no attention backend of vLLM stores {dtype} {there} for this model",
        "there is: " + ", ".join(there_is)
        if there_is
        else "take another GPU: vLLM has no backend for this model there",
    )


def _has(name: str, dtype: str, capability: Capability | None) -> bool:
    b = BACKENDS[name]
    return not (b.platform and capability) and b.runs_on(capability) and b.takes(dtype, capability)


def kernel_blocks(name: str, head_dim: int, dtype: str, capability: Capability | None) -> tuple[int, ...]:
    """Block sizes of a backend's kernels on that GPU; the first is the least."""
    if name == "FLASH_ATTN":
        if head_dim == 256 and capability and capability[0] in (10, 11):
            return (128,)
        if head_dim == 512 and dtype in E4M3 and capability and capability[0] == 9:
            return (64,)
    return BACKENDS[name].blocks


def default_block(name: str, blocks: tuple[int, ...], indexed: bool) -> int:
    """Tokens of a block where the user gives none: 16 if every backend takes it, else the least that all take."""
    if BACKENDS[name].preferred:
        return BACKENDS[name].preferred
    least = blocks[0] if blocks[0] > 16 else 16
    return max(least, INDEXER_BLOCK) if indexed else least


def check_block(name: str, block: int, blocks: tuple[int, ...]) -> None:
    """Refuse a block size that no kernel of the backend divides.

    Raises:
        UsageError: naming those that it takes.
    """
    if any(block % b == 0 for b in blocks):
        return
    takes = ", ".join(map(str, blocks))
    raise UsageError(f"block_size {block} is no multiple of a kernel block of {name}", f"its kernel blocks: {takes}")
