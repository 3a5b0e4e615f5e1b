"""Two results about time, kept apart: decode attention of a step, and a whole step with the throughput that follows.

Attention comes from a validation report of the same shape, else from the time model of kvplan's own kernels. A whole
step has a floor for every engine (weights and cache must be read once, and nothing reads faster than the read roof) and
a range only where the rest of the step has a model: dense weights on one rank, few enough requests that reading them
is what takes the time. Assumption of the range: they are read at half to all of the read roof.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvplan.plan.capacity import weights_term
from kvplan.recommend.timemodel import attention_seconds, read_roof
from kvplan.units import cdiv

if TYPE_CHECKING:
    from kvplan.plan import Resolved
    from kvplan.specs.device import DeviceSpec

MOST_SEQUENCES = 64
"""Up to so many sequences a step's matrix products read the weights once and wait for memory; beyond, arithmetic
counts."""
SLOWEST_READ = 0.5
ENGINE = "not predicted: kvplan's time model is of its own kernels, not of an engine's"
UNTIMED = "not predicted: no kernel of this format has been timed"
PREDICTED = "predicted by the time model of kvplan's kernels"


@dataclass(frozen=True)
class Measured:
    """Decode attention of a validation report, by formats (k, v) or (latent,): seconds of one step over all layers."""

    source: str
    seconds: Mapping[tuple[str, ...], float]
    model: str
    gpu: str
    context: int
    batch: int

    def of(self, resolved: Resolved) -> float | None:
        """The time of this very cache; None where another shape, model or GPU was measured."""
        r, device = resolved.request, resolved.device
        if resolved.engine or r.layers or resolved.sharding.gpus > 1 or device is None:
            return None
        if (resolved.spec.id, r.context, r.batch) != (self.model, self.context, self.batch):
            return None
        if not device.name.startswith(self.gpu):
            return None
        key = (r.latent,) if r.latent and not r.k else (r.k, r.v)
        return self.seconds.get(tuple(f or "" for f in key))


def attention(resolved: Resolved, device: DeviceSpec, measured: Measured | None = None) -> tuple[float | None, str]:
    """Seconds of decode attention in one step on the fullest rank, and where they come from."""
    found = measured.of(resolved) if measured else None
    if found is not None and measured is not None:
        return found, f"measured: {measured.source}"
    if resolved.engine:
        return None, ENGINE
    seconds = attention_seconds(resolved, device)
    return (seconds, PREDICTED) if seconds is not None else (None, UNTIMED)


def step_floor(resolved: Resolved, device: DeviceSpec, logical_bytes: int, seconds: float | None) -> float:
    """Seconds below which no step can be: active weights and the cache read once, attention as predicted if it is."""
    roof = read_roof(device)
    return _active_bytes(resolved) / roof + max(seconds or 0.0, logical_bytes / roof)


def step_range(
    resolved: Resolved, device: DeviceSpec, seconds: float | None, basis: str
) -> tuple[tuple[float, float] | None, str]:
    """(shortest, longest) seconds of a step, or None with the reason."""
    if seconds is None:
        return None, f"not estimated: attention is {basis}"
    params = resolved.spec.params
    if params and params.active and params.active < params.total:
        return None, "not estimated: which experts a batch reads has no model here"
    if resolved.sharding.gpus > 1:
        return None, "not estimated: communication between GPUs has no model here"
    if resolved.sequences > MOST_SEQUENCES:
        return None, f"not estimated: above {MOST_SEQUENCES} requests arithmetic counts, which has no model here"
    weights = weights_term(resolved).nbytes / read_roof(device)
    text = f"weights read at {SLOWEST_READ:.0%} to 100% of the read roof, plus attention; no prefill, no sampling"
    return (weights + seconds, weights / SLOWEST_READ + seconds), text


def _active_bytes(resolved: Resolved) -> int:
    """Bytes of the weights that one token reads on one rank."""
    nbytes, params = weights_term(resolved).nbytes, resolved.spec.params
    return cdiv(nbytes * params.active, params.total) if params and params.active else nbytes
