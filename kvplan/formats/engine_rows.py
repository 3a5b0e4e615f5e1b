"""The rows that engines store, as spellings: what to write here for an engine's own option, and its bytes.

Read in the engines' sources or measured (vLLM 0.33, SGLang 0.5.23, llama.cpp b11434, transformers 5.24, MLX-LM 0.32,
ExLlama V3 1.6 and V2 0.3, LMDeploy 0.18, OpenVINO 2026.4, TensorRT-LLM 1.4, all of 2026). How engines pad pages, round
token counts and flush residuals is no matter of rows and not said here.

Same bytes, other contents: vLLM hides the zero of int4_per_token_head in the low bits of its fp32 scale; LMDeploy's
policy 42 stores a norm where the grammar has a zero.

transformers groups the flattened tensor (`flat`; the rows below say `row`, which is the same where a row fills whole
groups). Without a spelling: 3-bit codes of hqq, which it pads to ten in 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.formats.grammar import parse_any
from kvplan.formats.grid import Tensor, bind, row_bytes


@dataclass(frozen=True)
class EngineRow:
    """K and V of one (token, head) at head_dim 128.

    Attributes:
        option: the engine's name for it.
        k, v: spellings.
        nbytes: bytes of both; over 32 tokens where scales belong to several tokens.
        tokens: 1, or 32.
    """

    engine: str
    option: str
    k: str
    v: str
    nbytes: int
    tokens: int = 1


def _same(engine: str, option: str, both: str, nbytes: int) -> EngineRow:
    return EngineRow(engine, option, both, both, nbytes)


ENGINE_ROWS = (
    _same("vllm", "auto", "bf16", 512),
    _same("vllm", "fp8", "fp8_e4m3", 256),
    _same("vllm", "fp8_e5m2", "fp8_e5m2", 256),
    _same("vllm", "int8_per_token_head", "int8,scale=fp32,pack=slot", 264),
    _same("vllm", "fp8_per_token_head", "fp8_e4m3:token,scale=fp32,pack=slot", 264),
    _same("vllm", "int4_per_token_head", "int4,scale=fp32,pack=slot,rot", 136),
    _same("vllm", "nvfp4", "nvfp4", 144),
    _same("vllm", "turboquant_k8v4", "turboquant_k8v4", 196),
    _same("vllm", "turboquant_4bit_nc", "turboquant_4bit_nc", 134),
    _same("vllm", "turboquant_k3v4_nc", "turboquant_k3v4_nc", 118),
    _same("vllm", "turboquant_3bit_nc", "turboquant_3bit_nc", 102),
    _same("vllm", "ultraquant_4bit", "int4:group/32,scale=e8m0,pack=slot", 136),
    _same("vllm", "octave_k3v4", "octave_k3v4", 136),
    _same("vllm", "octave_k3v3", "octave_k3v3", 120),
    _same("vllm", "octave_k3v3_compact", "octave_k3v3_compact", 100),
    _same("sglang", "mxfp8", "mxfp8", 264),
    _same("sglang", "fp4_mx_block16", "fp4_e2m1,scale=e8m0", 144),
    _same("sglang", "nvfp4", "nvfp4", 144),
    *(_same("llama.cpp", name, name, nbytes) for name, nbytes in (
        ("q8_0", 272), ("q5_1", 192), ("q5_0", 176), ("q4_1", 160), ("q4_0", 144), ("iq4_nl", 144))),
    _same("transformers", "quanto, 4 bits", "int4:group/64,asym,row,scale=model,recent=128,flush=whole", 144),
    _same("transformers", "quanto, 2 bits", "int2:group/64,asym,row,scale=model,recent=128,flush=whole", 80),
    _same("transformers", "hqq, 8 bits", "int8:group/64,asym,row,scale=model,recent=128,flush=whole", 272),
    _same("transformers", "fp8", "fp8_e4m3", 256),
    _same("mlx", "--kv-bits 8", "int8:group/64,asym,scale=model", 272),
    _same("mlx", "--kv-bits 4", "int4:group/64,asym,scale=model", 144),
    _same("mlx", "--kv-bits 3", "int3:group/64,asym,scale=model", 112),
    _same("mlx", "--kv-bits 2", "int2:group/64,asym,scale=model", 80),
    *(_same("exllamav3", f"-cq {bits}", f"int{bits}:group/32,row", 32 * bits + 16) for bits in (8, 6, 5, 4, 3, 2)),
    _same("exllamav2", "8bit", "fp8_e5m2", 256),
    _same("exllamav2", "Q4", "int4:group/32,row", 144),
    EngineRow("exllamav2", "Q6", "int8:group/32,row", "int4:group/32,row", 208),
    _same("exllamav2", "Q8", "int8:group/32,row", 272),
    _same("lmdeploy", "quant_policy 8", "int8,asym,scale=model", 264),
    _same("lmdeploy", "quant_policy 4", "int4,asym,scale=model", 136),
    _same("lmdeploy", "quant_policy 16", "fp8_e4m3", 256),
    EngineRow("lmdeploy", "quant_policy 42", "int4,asym,scale=model", "int2,scale=model", 102),
    EngineRow("openvino", "u8", "int8:channel/32,asym,scale=fp32,pack=page", "int8,asym,scale=fp32,pack=slot",
              5120 + 4352, 32),
    EngineRow("openvino", "u4", "int4:channel/32,asym,scale=fp32,pack=page", "int4,asym,scale=fp32,pack=slot",
              3072 + 2304, 32),
    _same("openvino", "u8, by token", "int8,asym,scale=fp32,pack=slot", 272),
    _same("openvino", "u4, by token", "int4,asym,scale=fp32,pack=slot", 144),
    _same("openvino", "GPU, i8", "int8,asym,pack=slot", 264),
    _same("tensorrt-llm", "int8", "int8:tensor", 256),
    _same("tensorrt-llm", "nvfp4", "nvfp4", 144),
)  # fmt: skip


@dataclass(frozen=True)
class LatentRow:
    """One row of a latent or of index keys: its widths without and with position, spelling and bytes."""

    engine: str
    option: str
    role: str
    spelling: str
    nope: int
    rope: int
    nbytes: int


LATENT_ROWS = (
    LatentRow("vllm", "fp8", "latent", "fp8_e4m3", 512, 64, 576),
    LatentRow("vllm", "fp8_ds_mla", "latent", "fp8_ds_mla", 512, 64, 656),
    LatentRow("vllm", "nvfp4_ds_mla", "latent", "nvfp4_ds_mla", 512, 64, 352),
    LatentRow("vllm", "DeepSeek-V4", "latent", "fp8_ds_v4", 448, 64, 584),
    LatentRow("vllm", "DeepSeek-V4.1", "latent", "fp8_e4m3:group/32,scale=e8m0,pack=slot", 448, 64, 528),
    LatentRow("vllm", "sparse index", "index", "fp8_e4m3:token,scale=fp32,pack=page", 128, 0, 132),
    LatentRow("vllm", "sparse index, mxfp4", "index", "mxfp4", 128, 0, 68),
    LatentRow("sglang", "fp4_mx_block16", "latent", "fp4_e2m1,scale=e8m0", 512, 64, 324),
    LatentRow("lmdeploy", "fp8", "latent", "fp8_ds_mla", 512, 64, 656),
    LatentRow("llama.cpp", "q8_0", "latent", "q8_0", 512, 64, 612),
    LatentRow("exllamav3", "-cq 4", "latent", "int4:group/32,rope=fp16", 512, 64, 416),
)

for _row in ENGINE_ROWS:
    assert row_bytes(_row.k, _row.v, tokens=_row.tokens) == _row.nbytes, _row
for _latent in LATENT_ROWS:
    _tensor = Tensor(_latent.role, parse_any(_latent.spelling), _latent.nope + _latent.rope, _latent.rope)
    # 576 rows: the least number of DeepSeek-V4 rows that fills its aligned pages.
    assert bind([_tensor], 1, "bf16").page_bytes(576) == 576 * _latent.nbytes, _latent
