"""Reading what `kvplan capture` wrote: post-RoPE queries, un-repeated K and V of some layers, checked before use."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from kvplan.errors import InputError, NoDeviceError

SCHEMA = "kvplan.capture/1"
HINT = "write one with: kvplan capture MODEL --out FILE.safetensors"
SHIPPED = Path(__file__).parent / "captures" / "smollm2-135m.safetensors"
"""A small set of SmolLM2-135M; the page beside it says how it was made."""
PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


@dataclass(frozen=True)
class CapturedRows:
    """One layer: q fp32 `(HQ, N, D)` at `positions`, k `(H, T, D)` and v `(H, T, Dv)`; `window` rows seen or all.

    Of MLA: k is the latent row `(1, T, R + rope)` and v its first R channels. `softcap` and `sinks` (a logit per query
    head) as in `quality.attention.attend`.
    """

    layer: int
    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    window: int | None
    positions: tuple[int, ...]
    latent: bool = False
    softcap: float | None = None
    sinks: tuple[float, ...] | None = None


@dataclass(frozen=True)
class CaptureFile:
    """All layers of a file and where they come from."""

    model: str
    text: str
    layers: tuple[CapturedRows, ...]

    @property
    def tokens(self) -> int:
        return int(self.layers[0].k.shape[1])

    @property
    def is_latent(self) -> bool:
        """Whether K and V are one row, an MLA latent."""
        return self.layers[0].latent

    @property
    def source(self) -> str:
        """Model, layers and text in words."""
        numbers = [x.layer for x in self.layers]
        whole = len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1))
        said = f"{numbers[0]} to {numbers[-1]}" if whole else ", ".join(map(str, numbers))
        return f"{self.model} (layers {said}; {self.tokens:,} tokens of {self.text})"


def read_capture(path: Path) -> CaptureFile:
    """All tensors of a capture file.

    Raises:
        InputError: not there, damaged, a pickle, not a capture file, shapes that contradict each other, NaN.
        NoDeviceError: safetensors is missing.
    """
    if importlib.util.find_spec("safetensors") is None:
        raise NoDeviceError("captured tensors need safetensors", "pip install 'kvplan-advisor[quality]'")
    from safetensors import SafetensorError, safe_open

    _refuse_pickle(path)
    try:
        with safe_open(path, "pt") as opened:
            manifest = json.loads((opened.metadata() or {}).get("kvplan", "{}"))
            if manifest.get("schema") != SCHEMA:
                raise InputError(f"{path} is no capture file of kvplan", HINT)
            layers = tuple(_layer(path, opened, x, manifest.get("query_step", 1)) for x in manifest["layers"])
            found = CaptureFile(manifest["model"], manifest["text"]["name"], layers)
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read {path}: {str(error).splitlines()[0]}", HINT) from None
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: its manifest is damaged ({error})", HINT) from None
    if not layers:
        raise InputError(f"{path} has no layers", HINT)
    if len({(x.k.shape, x.v.shape, x.q.shape) for x in layers}) > 1:
        raise InputError(f"{path}: its layers differ in shape", "capture layers of one kind: --layers LIST")
    return found


def _refuse_pickle(path: Path) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", HINT) from None
    if start.startswith(PICKLES):
        raise InputError(f"{path} is a pickle, which can run code when it is read; only safetensors are read", HINT)


def _layer(path: Path, opened: Any, entry: dict[str, Any], step: int) -> CapturedRows:
    number = int(entry["layer"])
    rank, sinks = entry.get("latent_rank"), entry.get("sinks")
    roles = ("q", "latent", "latent") if rank else ("q", "k", "v")
    q, k, v = (opened.get_tensor(f"layers.{number}.{role}").float() for role in roles)
    v = v[..., :rank] if rank else v
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    tokens, queries = k.shape[1] if k.dim() == 3 else 0, q.shape[1] if q.dim() == 3 else 0
    fits = (
        (q.dim(), k.dim(), v.dim()) == (3, 3, 3)
        and k.shape[:2] == v.shape[:2]
        and q.shape[2] == k.shape[2]
        and k.shape[0] > 0
        and q.shape[0] % k.shape[0] == 0
        and 0 < (queries - 1) * step + 1 <= tokens
    )
    if not fits:
        raise InputError(f"{path}: layer {number} has wrong shapes: {shapes}", HINT)
    for role, x in (("q", q), ("k", k), ("v", v)):
        if not x.isfinite().all():
            raise InputError(f"{path}: layers.{number}.{role} holds NaN or infinity", HINT)
    positions = tuple(tokens - 1 - step * i for i in reversed(range(queries)))
    scale, window, softcap = float(entry["scale"]), entry["sliding_window"], entry.get("softcap")
    heads = tuple(sinks) if sinks else None
    return CapturedRows(number, q, k, v, scale, window, positions, bool(rank), softcap, heads)
