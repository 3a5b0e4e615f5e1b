"""Error of a format on tensors of a real model, from a file that `kvplan capture` wrote."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from kvplan_kernels.attention.reference import FormatError, format_error
from kvplan_kernels.codecs.ds_mla import decode_latent, encode_latent
from kvplan_kernels.codecs.grid import calibrate, decode, encode
from torch import Tensor

from kvplan.captured import SHIPPED, read_capture
from kvplan.errors import InputError
from kvplan.formats.layout import Layout
from kvplan.specs.groups import AttentionGroup, LatentGroup

MAX_QUERIES = 16
"""Queries used of each layer, evenly spread: fp64 attention of more would take longer than the rest."""


@dataclass(frozen=True)
class Captured:
    """Tensors of some layers; a request is one query of one layer over the rows before it and its own.

    Attributes:
        q: fp32 `(L, HQ, N, D)`, scaled so that `scale` holds for all layers.
        k, v: fp32 `(L, H, T, D)` and `(L, H, T, Dv)`; of MLA the latent rows and their first channels.
        windows: rows that a query sees, per layer; None for all.
        positions: of the N queries, among T.
        source: which model, layers and text, in words.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    windows: tuple[int | None, ...]
    positions: tuple[int, ...]
    source: str
    latent: bool = False

    @property
    def label(self) -> str:
        """What may be concluded from the errors."""
        return (
            f"format errors on captured Q, K and V of {self.source}, scales of static formats from the first half of "
            "its rows"
        )

    @cached_property
    def requests(self) -> tuple[tuple[int, int, int, int], ...]:
        """(layer, query, first row, rows) of each request."""
        queries = self.q.shape[2]
        step = -(-queries // MAX_QUERIES)
        found = []
        for layer, window in enumerate(self.windows):
            for n in range(queries - 1, -1, -step):
                stop = self.positions[n] + 1
                start = max(stop - window, 0) if window else 0
                found.append((layer, n, start, stop - start))
        return tuple(found)

    def error(self, layout: Layout) -> FormatError:
        """Decode attention on what `layout` stores of the rows against that on the rows, in fp64."""
        if self.latent:
            k_hat = torch.stack(
                [decode_latent(layout, encode_latent(layout, rows[0])).float()[None] for rows in self.k]
            )
            v_hat = k_hat[..., : self.v.shape[-1]]
        else:
            k_hat, v_hat = (_stored(layout, role, x) for role, x in (("k", self.k), ("v", self.v)))
        q = torch.stack([self.q[layer, :, n] for layer, n, _, _ in self.requests])
        lengths = torch.tensor([rows for *_, rows in self.requests])
        k, v, k_hat, v_hat = (self._rows(x) for x in (self.k, self.v, k_hat, v_hat))
        return format_error(q, k, v, k_hat, v_hat, lengths, self.scale)

    def _rows(self, x: Tensor) -> Any:
        """`(H, T, D)` of a request, its first visible row first."""

        def of(request: int) -> Tensor:
            layer, _, start, rows = self.requests[request]
            return x[layer, :, start : start + rows]

        return of


def _stored(layout: Layout, role: str, x: Tensor) -> Tensor:
    """Rows `(L, H, T, D)` after encode and decode; static scales per layer, from the first half."""
    parts = []
    for rows in x:
        static = calibrate(layout, role, rows[:, : rows.shape[1] // 2]) or None
        parts.append(decode(layout, role, encode(layout, role, rows, static)))
    return torch.stack(parts)


def shipped(model: str) -> Path | None:
    """The capture file that comes with kvplan, if it is of this model and can be read here."""
    return SHIPPED if model == SHIPPED.stem and importlib.util.find_spec("safetensors") else None


def load(path: Path, group: AttentionGroup | LatentGroup) -> Captured:
    """Read a capture file of a model with this attention group.

    Raises:
        InputError: not a capture file, damaged, or of another geometry.
        NoDeviceError: safetensors is missing.
    """
    file = read_capture(path)
    q, k, v = (torch.stack([getattr(x, role) for x in file.layers]) for role in ("q", "k", "v"))
    _check(path, group, q, k, v)
    scales = torch.tensor([x.scale for x in file.layers])
    return Captured(
        q * (scales / scales[0])[:, None, None, None],
        k,
        v,
        float(scales[0]),
        tuple(x.window for x in file.layers),
        file.layers[0].positions,
        file.source,
        file.is_latent,
    )


def _check(path: Path, group: AttentionGroup | LatentGroup, q: Tensor, k: Tensor, v: Tensor) -> None:
    got = q.shape[1], k.shape[1], k.shape[3], v.shape[3]
    if isinstance(group, LatentGroup):
        want = group.q_heads, 1, group.nope_dim + group.rope_dim, group.nope_dim
    else:
        want = group.q_heads, group.kv_heads, group.k_dim, group.v_dim
    if got != want:
        words = "{} query heads on {} KV heads of {} and {} channels"
        raise InputError(f"{path} has {words.format(*got)}, the model {words.format(*want)}", "capture the same model")
