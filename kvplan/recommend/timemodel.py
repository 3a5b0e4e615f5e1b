"""Predicted time of decode attention: t = fixed + bytes / rate per layer, rate a share of the GPU's read roof; less for
caches that do not fill the GPU.

A latent is read by all query heads, so that arithmetic counts too: t = fixed + bytes / rate + operations / their rate.
Of the two ways to join them the sum is what was measured: with the larger of the two no rates fit both 16 heads (121 us
at 64 x 4,096 tokens of 16 bit) and 128 (774 us at 16 x 32,768; `docs/results/validate_deepseek-v*.json`).

The figures of each format stand in `times.json`, with their source: the project's first study, or stored benchmarks
(`python tools/fit_times.py`), on one H200 by CUDA graphs, head_dim 128 unless said, fused kernels. On other GPUs they
are carried over: a prediction, never a measurement.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import astuple, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kvplan.formats.layout import BoundTensor
from kvplan.memory.groups import shares_rows
from kvplan.memory.terms import logical_terms
from kvplan.specs.groups import LatentGroup

if TYPE_CHECKING:
    from kvplan.formats.layout import Layout
    from kvplan.memory.groups import CacheGroup
    from kvplan.plan import Resolved
    from kvplan.specs.device import DeviceSpec

READABLE_SHARE = 0.95
"""Measured read roof over the vendor's bandwidth on the H200 (4.56 of 4.8 TB/s), used where no roof was measured."""
HEAD_DIM = 128
"""What speeds of K and V are of, where they have no share for a head_dim of its own."""
TIMES = Path(__file__).with_name("times.json")


@dataclass(frozen=True)
class Short:
    """A cache too small to fill the GPU: up to the least that does, time goes straight to that one's.

    Attributes:
        nbytes, seconds: of the one that was timed.
        filling_bytes: the least for which the fit holds.
    """

    nbytes: float
    seconds: float
    filling_bytes: float


@dataclass(frozen=True)
class Speed:
    """How fast one format is read.

    Attributes:
        roof_share: steady-state share of the read roof.
        source: what the figures were measured by.
        worst_held_out_error: relative, over shapes that were not fitted; None where there were none.
        flops_per_second: rate of the two products, in addition to the reading; None where reading hides them.
        share_by_head_dim: `roof_share` of other head dimensions that were timed.
        short: what is known of small caches.
    """

    fixed_seconds: float
    roof_share: float
    source: str
    worst_held_out_error: float | None = None
    flops_per_second: float | None = None
    share_by_head_dim: dict[str, float] = field(default_factory=dict)
    short: Short | None = None

    def seconds(self, nbytes: float, roof: float, operations: float = 0.0) -> float:
        """One launch over `nbytes` of a layer, at a read roof in bytes per second."""
        if self.short and nbytes < self.short.filling_bytes:
            end = self.short.filling_bytes
            done = (end - nbytes) / (end - self.short.nbytes)
            full = self.fixed_seconds + end / (self.roof_share * roof)
            return full + (self.short.seconds - full) * min(done, 1.0)
        arithmetic = operations / self.flops_per_second if self.flops_per_second else 0.0
        return self.fixed_seconds + nbytes / (self.roof_share * roof) + arithmetic

    def at(self, head_dim: int) -> Speed:
        """With the share of this head_dim."""
        return replace(self, roof_share=self.share_by_head_dim.get(str(head_dim), self.roof_share))


@cache
def measured_speeds() -> dict[str, Speed]:
    """`times.json`: formats of K and V as `pair_key` spells them."""
    stored = json.loads(TIMES.read_text(encoding="utf-8"))
    return {
        key: Speed(**fields | {"short": fields.get("short") and Short(**fields["short"])})
        for key, fields in stored.items()
    }


def pair_key(k: str, v: str) -> str:
    """The key of a pair in `times.json`."""
    return k if k == v else f"{k} + {v}"


def latent_key(spelling: str) -> str:
    """The key of a latent's format in `times.json`."""
    return f"latent {spelling}"


def read_roof(device: DeviceSpec) -> float:
    """Bytes per second that a pure read reaches: measured if known, else a share of the vendor's bandwidth."""
    measured = device.measured_read_bandwidth_bytes_per_second
    return float(measured) if measured else READABLE_SHARE * device.bandwidth_bytes_per_second


def layout_speed(layout: Layout) -> Speed | None:
    """The pair as it was measured, else mixed from its two formats by their bytes; None if one was never timed."""
    pair = measured_speeds().get(pair_key(*(t.spelling for t in layout.tensors)))
    if pair:
        return pair.at(max(t.dim for t in layout.tensors))
    speeds = [tensor_speed(t) for t in layout.tensors]
    known = [s for s in speeds if s]
    if len(known) < len(speeds):
        return None
    widths = [layout.plane(t.role, "codes").slot_bytes for t in layout.tensors]
    slowness = sum(w / s.roof_share for w, s in zip(widths, known, strict=True)) / sum(widths)
    return Speed(
        max(s.fixed_seconds for s in known),
        1 / slowness,
        "mixed from the two formats",
        short=_slower(s.short for s in known),
    )


def _slower(found: Iterable[Short | None]) -> Short | None:
    """The small caches of two formats at once: no less than either."""
    each = [astuple(s) for s in found if s]
    return Short(*map(max, zip(*each, strict=True))) if len(each) == 2 else None


def latent_speed(group: CacheGroup) -> Speed | None:
    """The speed of an MLA latent; None if it was never timed."""
    spellings = [t.spelling for t in group.layout.tensors if t.role == "latent"]
    return measured_speeds().get(latent_key(spellings[0])) if group.role == "latent" and spellings else None


def tensor_speed(tensor: BoundTensor) -> Speed | None:
    """The speed of a cache with this format for K and V; where its scales lie makes no difference if they are few."""
    few_scales = not (tensor.group or tensor.asym or tensor.recent or tensor.rot or tensor.beyond_kernels)
    speeds = measured_speeds()
    found = speeds.get(tensor.spelling) or (speeds.get(tensor.number) if few_scales else None)
    return found and found.at(tensor.dim)


def attention_seconds(resolved: Resolved, device: DeviceSpec, layer_group: str | None = None) -> float | None:
    """Decode attention of one step over all layers of one rank, or of one layer group; None if a format in it was
    never timed.

    Covers K and V, and latents whose row has been timed: states and index keys have no timed kernel.
    """
    context, batch = resolved.request.context, resolved.sequences
    assert context is not None
    roof, total, counted = read_roof(device), 0.0, 0
    for group in resolved.groups:
        if group.role == "state" or layer_group not in (None, group.name):
            continue
        speed = layout_speed(group.layout) if group.role == "kv" else latent_speed(group)
        if speed is None:
            return None
        nbytes = sum(term.nbytes for terms in logical_terms(group, context, batch).values() for term in terms)
        operations = _latent_operations(resolved, group, context) if speed.flops_per_second else 0
        total += group.layers * speed.seconds(nbytes / group.layers, roof, operations)
        counted += group.layers
    return total if counted else None


def _latent_operations(resolved: Resolved, group: CacheGroup, context: int) -> int:
    """Multiplications and additions of one layer on one rank: logits of all channels, outputs of the values'."""
    sharding, latent = resolved.sharding, group.layout.tensors[0]
    of_spec = resolved.spec.group(group.name.removeprefix("mtp-").partition("[")[0])
    assert isinstance(of_spec, LatentGroup) and of_spec.q_heads is not None
    # Ranks that share rows gather their queries: each attends with the heads of all of them.
    gathered = sharding.dcp if shares_rows(of_spec) else 1
    heads = max(1, of_spec.q_heads * gathered // sharding.attention_tp)
    return 2 * (2 * latent.dim - latent.rope_dim) * heads * resolved.sequences * group.law.rows(context)
