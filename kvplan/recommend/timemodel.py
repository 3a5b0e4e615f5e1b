"""Predicted time of decode attention: t = fixed + bytes / rate per layer, rate a share of the GPU's read roof.

Fixed time and shares were measured on one H200 (CUDA graphs, head_dim 128, fused kernels, 2026-11-30) and predicted a
held-out shape within 4%. On other GPUs they are carried over: a prediction, never a measurement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.formats.layout import BoundTensor
from kvplan.memory.terms import logical_terms

if TYPE_CHECKING:
    from kvplan.memory.groups import CacheGroup
    from kvplan.specs.device import DeviceSpec

FIXED_SECONDS = 8.5e-6
READABLE_SHARE = 0.95
"""Measured read roof over the vendor's bandwidth on the H200 (4.56 of 4.8 TB/s), used where no roof was measured."""

_ROOF_SHARES = {"fp16": 1.0, "bf16": 1.0, "fp8_e4m3": 0.99, "fp8_e5m2": 0.99, "int8": 0.98, "int2": 0.81}


def read_roof(device: DeviceSpec) -> float:
    """Bytes per second that a pure read reaches: measured if known, else a share of the vendor's bandwidth."""
    measured = device.measured_read_bandwidth_bytes_per_second
    return float(measured) if measured else READABLE_SHARE * device.bandwidth_bytes_per_second


def roof_share(tensor: BoundTensor) -> float | None:
    """Steady-state share of the read roof at which this tensor is read; None where no kernel was timed."""
    timed = not (tensor.group or tensor.asym or tensor.recent or tensor.rot or tensor.beyond_kernels)
    return _ROOF_SHARES.get(tensor.number) if timed else None


def attention_seconds(groups: tuple[CacheGroup, ...], context: int, batch: int, device: DeviceSpec) -> float | None:
    """Decode attention of one step over all layers of one rank; None if a format in it was never timed.

    Covers K and V caches only: states, latents and index keys have no timed kernel.
    """
    roof, total, counted = read_roof(device), 0.0, 0
    for group in groups:
        if group.role == "state":
            continue
        if group.role != "kv":
            return None
        shares = [roof_share(t) for t in group.layout.tensors]
        if None in shares:
            return None
        nbytes = sum(term.nbytes for terms in logical_terms(group, context, batch).values() for term in terms)
        widths = [group.layout.plane(t.role, "codes").slot_bytes for t in group.layout.tensors]
        slowness = sum(w / s for w, s in zip(widths, shares, strict=True) if s) / sum(widths)
        total += group.layers * FIXED_SECONDS + nbytes * slowness / roof
        counted += group.layers
    return total if counted else None
