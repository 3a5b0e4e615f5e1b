"""What all formats of one validation share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from kvplan.specs.groups import AttentionGroup
from kvplan.specs.model import ModelSpec
from kvplan.validate.captured import Captured
from kvplan.validate.report import Baselines, Roof, ValidationRequest
from kvplan.validate.tensors import Geometry, Tensors

Progress = Callable[[str], None]
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass
class Session:
    """Originals, roof and 16-bit baselines of one run."""

    request: ValidationRequest
    spec: ModelSpec
    group: AttentionGroup
    geometry: Geometry
    tensors: Tensors
    progress: Progress
    captured: Captured | None = None
    roof: Roof | None = None
    baselines: Baselines = field(default_factory=Baselines)

    @property
    def timed(self) -> bool:
        return self.request.device == "cuda"

    @property
    def sm_scale(self) -> float:
        return 1 / math.sqrt(self.geometry.k_dim)

    @property
    def dense_bytes(self) -> int:
        """Bytes of the 16-bit originals of one layer."""
        return sum(x.numel() * x.element_size() for x in (self.tensors.k, self.tensors.v))
