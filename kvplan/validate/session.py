"""What all formats of one validation share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from kvplan.specs.groups import AttentionGroup
from kvplan.specs.model import ModelSpec
from kvplan.validate.captured import Captured
from kvplan.validate.report import Baselines, PhaseName, PhaseResult, Roof, ValidationRequest
from kvplan.validate.tensors import Geometry, Tensors

Progress = Callable[[str], None]
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass
class Session:
    """Originals, roof and 16-bit baselines of one run.

    Attributes:
        native: the phases of the 16-bit format, which runs first.
        lost: the device can do no more work in this process.
    """

    request: ValidationRequest
    spec: ModelSpec
    group: AttentionGroup
    geometry: Geometry
    tensors: Tensors
    progress: Progress
    captured: Captured | None = None
    roof: Roof | None = None
    baselines: Baselines = field(default_factory=Baselines)
    native: dict[PhaseName, PhaseResult] = field(default_factory=dict)
    lost: bool = False

    @property
    def timed(self) -> bool:
        return self.request.device == "cuda"

    @property
    def sm_scale(self) -> float:
        return 1 / math.sqrt(self.geometry.k_dim)

    def native_seconds(self, phase: PhaseName, path: str) -> float | None:
        """What the 16-bit format took for a path of a phase; None if it was not timed."""
        found = self.native.get(phase)
        return found.seconds(path) if found else None

    @property
    def dense_bytes(self) -> int:
        """Bytes of the 16-bit originals of one layer."""
        return sum(x.numel() * x.element_size() for x in (self.tensors.k, self.tensors.v))
