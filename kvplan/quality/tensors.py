"""What a format does to attention on captured tensors: the codec is run, nothing else of the model.

The error of a tensor is ||O' - O|| / ||O|| with only K or only V stored. Of K: of each head, mean over layers and
heads, root mean square over queries, because KL grows with its square and a window leaves early queries exact. Of V: of
a whole layer's outputs, root mean square over layers, because an error of V adds to the output whatever a head's own
output is, and small heads count little in what the layer passes on. On SmolLM2-135M both order formats as end-to-end KL
does; errors of K and V themselves, or of random tensors, do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from kvplan.captured import CapturedRows, CaptureFile
from kvplan.formats.grammar import PLAIN
from kvplan.quality.stored import Codec, Rows, untouched


class TensorErrors:
    """Errors of formats on the tensors of one file.

    Args:
        calibration: another text's tensors of the same layers for static scales; else the first half of the rows.
        dtype: of the model's own cache, for `scale=model`.
        margin: factor on the range that static scales cover.
    """

    def __init__(
        self, file: CaptureFile, calibration: CaptureFile | None = None, dtype: str = "bf16", margin: float = 1.0
    ) -> None:
        self.file, self._dtype, self._margin = file, dtype, margin
        self._learn = {x.layer: x for x in calibration.layers} if calibration else {}
        self._known: dict[tuple[str, str], Tensor] = {}
        self._codecs: dict[tuple[str, str], Codec] = {}

    def error(self, role: str, spelling: str) -> float:
        """Error with only this tensor stored."""
        if spelling in PLAIN:
            return 0.0
        errors = self.by_layer(role, spelling)
        if role == "k":
            return float(errors.mean((0, 1)).square().mean().sqrt())
        energy = torch.stack([x.square().sum(-1) for x in self._exact])
        return float(((errors.square() * energy).sum((1, 2)) / energy.sum((1, 2))).mean().sqrt())

    def by_layer(self, role: str, spelling: str) -> Tensor:
        """Errors `(L, HQ, N)` of every head and query."""
        key = role, spelling
        if key not in self._known:
            rows = [self._layer(i, role, spelling) for i in range(len(self.file.layers))]
            self._known[key] = torch.stack(rows)
        return self._known[key]

    def clipped(self, role: str, spelling: str) -> float:
        """Share of this tensor's values beyond its static scales' range."""
        self.by_layer(role, spelling)
        codec = self._codecs[role, spelling]
        return codec.clipped / codec.values if codec.values else 0.0

    def scales(self, role: str, spelling: str) -> dict[int, Tensor]:
        """Layer to its static scales `(heads or 1, channels or 1)`; the global scale of nvfp4."""
        self.by_layer(role, spelling)
        static = self._codecs[role, spelling].static
        return {layer: found.get("scale", found.get("global")) for layer, found in static.items()}

    @cached_property
    def _exact(self) -> list[Tensor]:
        return [attend_at(x, untouched("k", x.k), untouched("v", x.v)) for x in self.file.layers]

    def _layer(self, i: int, role: str, spelling: str) -> Tensor:
        x = self.file.layers[i]
        codec = self._codecs.setdefault((role, spelling), Codec(role, spelling, self._dtype, margin=self._margin))
        rows = getattr(x, role)
        known = self._learn.get(x.layer)
        codec.calibrate(x.layer, (getattr(known, role) if known else rows[:, : rows.shape[1] // 2])[None])
        stored = codec.rows(x.layer, rows[None])
        stored = Rows(role, stored.exact[0], stored.decoded[0], stored.layout)
        k, v = (stored if role == r else untouched(r, getattr(x, r)) for r in ("k", "v"))
        return relative(attend_at(x, k, v), self._exact[i])


def relative(found: Tensor, exact: Tensor) -> Tensor:
    """||found - exact|| / ||exact|| of outputs `(HQ, N, D)` -> `(HQ, N)`."""
    tiny = torch.finfo(exact.dtype).tiny
    return (found - exact).norm(dim=-1) / exact.norm(dim=-1).clamp_min(tiny)


def probabilities(x: CapturedRows, k: Rows) -> Tensor:
    """Softmax `(H, g, N, T)` of the captured queries on K as stored."""
    q = x.q.unflatten(0, (x.k.shape[0], -1))
    logits = q @ k.decoded[:, None].transpose(-1, -2)
    if k.layout is not None:
        logits = torch.where(seen_decoded(x, k), logits, q @ k.exact[:, None].transpose(-1, -2))
    logits = logits * x.scale
    if x.softcap is not None:
        logits = torch.tanh(logits / x.softcap) * x.softcap
    logits = logits.masked_fill(~visible(x), -torch.inf)
    if x.sinks is None:
        return logits.softmax(-1)
    column = torch.tensor(x.sinks).view(*logits.shape[:2], 1, 1).expand(*logits.shape[:-1], 1)
    return torch.cat([logits, column], -1).softmax(-1)[..., :-1]


def attend_at(x: CapturedRows, k: Rows, v: Rows) -> Tensor:
    """Outputs `(HQ, N, Dv)` of the captured queries; each row is exact or decoded as its query sees it."""
    p = probabilities(x, k)
    if v.layout is None:
        return (p @ v.decoded[:, None]).flatten(0, 1)
    old = seen_decoded(x, v)
    return (p * old @ v.decoded[:, None] + p * ~old @ v.exact[:, None]).flatten(0, 1)


def visible(x: CapturedRows) -> Tensor:
    """Bool `(N, T)`: causal, and within the window."""
    row, at = torch.arange(x.k.shape[1]), torch.tensor(x.positions)[:, None]
    seen = row <= at
    return seen if x.window is None else seen & (row > at - x.window)


def seen_decoded(x: CapturedRows, rows: Rows) -> Tensor:
    """Bool `(N, T)`: rows that were packed when the query came."""
    return torch.arange(x.k.shape[1]) < packed(rows, x.positions)[:, None]


def packed(rows: Rows, positions: Sequence[int]) -> Tensor:
    return torch.tensor([rows.packed(t) for t in positions])
