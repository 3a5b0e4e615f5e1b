"""What all formats of one validation share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from kvplan_kernels.attention.variant import PLAIN, Variant

from kvplan.specs.model import ModelSpec
from kvplan.validate.captured import Captured
from kvplan.validate.kinds.base import Group, Kind
from kvplan.validate.kinds.table import kind_of
from kvplan.validate.report import Baselines, PhaseName, PhaseResult, Roof, ValidationRequest
from kvplan.validate.tensors import Geometry, Tensors

Progress = Callable[[str], None]
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass
class Session:
    """Originals, roof and 16-bit baselines of one run.

    Attributes:
        variant: how the model's attention differs from a plain causal softmax; sink logits are synthetic.
        native: the phases of the 16-bit format, which runs first.
        lost: the device can do no more work in this process.
    """

    request: ValidationRequest
    spec: ModelSpec
    group: Group
    geometry: Geometry
    tensors: Tensors
    progress: Progress
    captured: Captured | None = None
    variant: Variant = PLAIN
    roof: Roof | None = None
    baselines: Baselines = field(default_factory=Baselines)
    native: dict[PhaseName, PhaseResult] = field(default_factory=dict)
    lost: bool = False

    @property
    def kind(self) -> Kind:
        """Appends, reads and attends."""
        return kind_of(self.group)

    @property
    def timed(self) -> bool:
        return self.request.device == "cuda"

    @property
    def sm_scale(self) -> float:
        return self.geometry.sm_scale

    def query_rows(self, requests: int, rows: int) -> torch.Tensor:
        """Queries of several rows per request, around the one that the tensors have: (requests, rows, HQ, Dk)."""
        q = self.tensors.q[:requests, None].float()
        generator = torch.Generator(device=q.device).manual_seed(self.request.seed)
        noise = torch.randn(requests, rows, *q.shape[2:], generator=generator, device=q.device)
        return (q + 0.3 * noise).to(self.tensors.q.dtype)

    def native_seconds(self, phase: PhaseName, path: str) -> float | None:
        """What the 16-bit format took for a path of a phase; None if it was not timed."""
        found = self.native.get(phase)
        return found.seconds(path) if found else None

    @property
    def beyond_torch(self) -> bool:
        """The model's attention has parts that torch's has not."""
        return self.variant.softcap is not None or self.variant.sinks is not None

    @property
    def dense_bytes(self) -> int:
        """Bytes of the 16-bit originals of one layer."""
        return self.geometry.batch * self.geometry.tokens * self.geometry.row_bytes
