"""The hook's attention against a loop over queries, and against the models' own attention functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kvplan.quality.attention import QUERY_BLOCK, attend, identity, register, visiting
from kvplan.quality.latent import watch_latents
from kvplan.quality.stored import Codec, Rows, untouched


def _rows(heads: int, tokens: int, dim: int, seed: int) -> Tensor:
    return torch.randn(1, heads, tokens, dim, generator=torch.Generator().manual_seed(seed))


def _loop(q: Tensor, k: Rows, v: Rows, scale: float, seen_k: Any, seen_v: Any) -> Tensor:
    """Each query alone: rows j < seen(t) decoded, the others exact."""
    out = torch.empty(*q.shape[:3], v.exact.shape[-1])
    repeat = q.shape[1] // k.exact.shape[1]
    for h in range(q.shape[1]):
        for t in range(q.shape[2]):
            keys, values = (
                torch.cat([r.decoded[0, h // repeat, : seen(t)], r.exact[0, h // repeat, seen(t) : t + 1]])[: t + 1]
                for r, seen in ((k, seen_k), (v, seen_v))
            )
            out[0, h, t] = (keys @ q[0, h, t] * scale).softmax(-1) @ values
    return out


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_kivi_windows_follow_the_rule(kv_heads: int) -> None:
    """The query at t sees K packed for j < floor(t / R) * R and V for j < t - R, exact rows elsewhere."""
    tokens, recent = QUERY_BLOCK + 37, 64
    q = _rows(4, tokens, 32, 1)
    k = Codec("k", f"int2:channel/32,asym,recent={recent}", "bf16").rows(0, _rows(kv_heads, tokens, 32, 2))
    v = Codec("v", f"int2:group/32,asym,recent={recent}", "bf16").rows(0, _rows(kv_heads, tokens, 32, 3))
    want = _loop(q, k, v, 0.2, lambda t: t // recent * recent, lambda t: max(t - recent, 0))
    torch.testing.assert_close(attend(q, k, v, None, 0.2), want, rtol=1e-4, atol=1e-5)


def test_a_format_without_residual_is_seen_by_its_own_query() -> None:
    q, x = _rows(2, 40, 32, 1), _rows(1, 40, 32, 2)
    k, v = Codec("k", "int4", "bf16").rows(0, x), untouched("v", x)
    want = _loop(q, k, v, 0.3, lambda t: t + 1, lambda t: t + 1)
    torch.testing.assert_close(attend(q, k, v, None, 0.3), want, rtol=1e-4, atol=1e-5)
    assert (k.decoded - x).abs().max() > 0.05


def test_sinks_take_their_share_and_softcap_bounds() -> None:
    q, x = _rows(2, 8, 32, 1), _rows(1, 8, 32, 2)
    rows = untouched("k", x), untouched("v", torch.ones_like(x))
    sinks = torch.full((2,), 50.0)
    assert attend(q, *rows, None, 0.1, sinks=sinks).max() < 1e-6
    flat = attend(q, rows[0], untouched("v", x), None, 1.0, softcap=1e-6)
    means = x.cumsum(-2) / torch.arange(1, 9)[:, None]
    torch.testing.assert_close(flat, means.expand_as(flat), rtol=1e-4, atol=1e-5)


def _logits(model: Any, name: str, ids: Tensor) -> Tensor:
    model.set_attn_implementation(name)
    with torch.inference_mode(), visiting(identity):
        found: Tensor = model(ids, use_cache=False).logits
    return found


MLA: dict[str, Any] = {
    "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 20, "num_key_value_heads": 4,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 32,
    "first_k_dense_replace": 1, "head_dim": 8,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Llama with one KV head": {"num_key_value_heads": 1},
    "Mistral": {"sliding_window": 8},
    "Qwen3": {},
    "Gemma2": {"sliding_window": 8, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 32},
    "Gemma3": {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "GptOss": {"sliding_window": 8, "num_local_experts": 2, "num_experts_per_tok": 1},
    "DeepseekV2": MLA | {"q_lora_rank": None},
    "DeepseekV3": MLA | {"q_lora_rank": 24, "rope_interleave": True},
}
"""Windows per layer, softcap, query scale, attention sinks."""


@pytest.mark.parametrize("family", FAMILIES)
def test_the_untouched_hook_is_the_model(family: str, sizes: dict[str, Any]) -> None:
    """Against the model's own eager attention."""
    import transformers

    name = family.split()[0]
    text = "Text" if name == "Gemma3" else ""
    config = getattr(transformers, f"{name}{text}Config")(**{**sizes, **FAMILIES[family]})
    register()
    torch.manual_seed(1)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    watch_latents(model)
    ids = torch.randint(256, (1, 40))
    torch.testing.assert_close(_logits(model, "kvplan", ids), _logits(model, "eager", ids), rtol=1e-4, atol=1e-4)


def test_static_scales_belong_to_a_layer() -> None:
    codec = Codec("k", "int8:head", "bf16")
    x = _rows(2, 16, 32, 5)
    codec.calibrate(0, x)
    codec.calibrate(1, 10 * x)
    wide, narrow = codec.rows(1, 10 * x), codec.rows(0, 10 * x)
    assert (wide.decoded - 10 * x).abs().max() < 0.5 < (narrow.decoded - 10 * x).abs().max()
    assert 0 < codec.clipped < codec.values == 2 * x.numel()
