"""Model specs made from bare dimensions, for figures that come with shapes instead of a model's name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvplan.errors import InputError
from kvplan.specs.compiled import by_hf_id
from kvplan.specs.load import list_models, load_model
from kvplan.specs.model import ModelSpec

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def attention(
    layers: Iterable[int] | str, kv_heads: int, head_dim: int, v_dim: int | None = None, *, q_heads: int | None = None,
    name: str = "attention", retain: dict[str, int] | str = "all", stride: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """Layers with K and V; `retain` as a spec has it, such as {"window": 1024}."""
    dims: Any = head_dim if v_dim is None or v_dim == head_dim else {"k": head_dim, "v": v_dim}
    return {
        "kind": "attention", "name": name, "layers": _placed(layers), "q_heads": q_heads or kv_heads,
        "kv_heads": kv_heads, "head_dim": dims, "retain": retain, "stride": stride,
    }  # fmt: skip


def latent(
    layers: Iterable[int] | str, nope: int, rope: int, *, name: str = "latent", role: str = "kv", overlay: bool = False,
    q_heads: int = 128, stride: int = 1, retain: dict[str, int] | str = "all",
) -> dict[str, Any]:  # fmt: skip
    """Layers with one shared row per token; `role` index for the keys of sparse attention, an overlay."""
    body = {
        "kind": "latent", "name": name, "layers": _placed(layers), "role": role, "overlay": overlay, "stride": stride,
        "width": {"nope": nope, "rope": rope} if rope else nope, "retain": retain,
    }  # fmt: skip
    return body | ({"q_heads": q_heads} if role == "kv" else {})


def state(
    layers: Iterable[int] | str, dims: dict[str, Any], *, name: str = "state", recurrent: str = "float32",
    conv: str = "model", overlay: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Layers with a state; `dims` as a spec has them, such as {"type": "mamba1", ...}."""
    return {
        "kind": "state", "name": name, "layers": _placed(layers), "state": dims, "overlay": overlay,
        "dtype": {"recurrent": recurrent, "conv": conv},
    }  # fmt: skip


def nothing(layers: Iterable[int] | str, reads: tuple[str, ...] = (), name: str = "none") -> dict[str, Any]:
    """Layers without a cache of their own."""
    return {"kind": "none", "name": name, "layers": _placed(layers), "reads": list(reads)}


def make(
    layers: int, *groups: dict[str, Any], native: str = "bf16", max_context: int = 1 << 20, **more: Any
) -> ModelSpec:
    """A checked spec of these groups; `more` are further fields of a spec, such as model_type or mtp."""
    body = {
        "kvplan_spec": 1, "id": "synthetic", "max_context": max_context, "layers": layers,
        "native_dtype": DTYPES.get(native, native), "layer_groups": list(groups),
    }  # fmt: skip
    return ModelSpec.model_validate(body | more)


def _placed(layers: Iterable[int] | str) -> list[int] | str:
    return layers if isinstance(layers, str) else list(layers)


def named_model(name: str) -> ModelSpec:
    """The shipped spec that a name means: a Hugging Face id, or letters and digits that begin like a spec's id.

    An equal name wins, then the longest id that begins the name, then the shortest id that the name begins.
    """
    stems = by_hf_id(name.lower())
    if stems:
        return load_model(stems[0])
    wanted = _plain(name.rpartition("/")[2])
    known = {_plain(stem): stem for stem in list_models()}
    begins = [p for p in known if wanted.startswith(p)]
    begun = [p for p in known if p.startswith(wanted)]
    if not begins and not begun:
        raise InputError(f"no shipped spec is called like {name!r}", "give its Hugging Face id")
    return load_model(known[max(begins, key=len) if begins else min(begun, key=len)])


def _plain(name: str) -> str:
    """Letters and digits of a name in lower case, without the `.0` of versions."""
    return "".join(c for c in name.lower().replace(".0", "") if c.isalnum())
