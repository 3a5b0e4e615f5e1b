"""What every kind of cache can do for a validation.

Rows are always `k` (B, T, H, Dk) and `v` (B, T, H, Dv). Of a latent H is 1, `k` is the whole row, and `v` a view of its
first channels: it is not stored again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from kvplan_kernels.attention.config import DecodeConfig
from kvplan_kernels.attention.variant import PLAIN, Variant
from kvplan_kernels.attention.workspace import Workspace
from kvplan_kernels.cache import Cache
from kvplan_kernels.tuning.launch import Launch
from kvplan_kernels.tuning.search import Say
from torch import Tensor

from kvplan.formats.layout import Layout
from kvplan.specs.groups import AttentionGroup, LatentGroup
from kvplan.specs.model import ModelSpec
from kvplan.validate.report import PhaseName
from kvplan.validate.tensors import Geometry, Tensors

Group = AttentionGroup | LatentGroup
Attend = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Kind(ABC):
    """One kind of cache and its kernels.

    Attributes:
        words: what is stored, in a sentence.
        option: the field of a plan request that sets its format.
        scaled, valued: the stored tensors whose scales and whose codes the proofs change.
        phases: those that have kernels.
        fixed_scratch_bytes: what a decode launch may keep for its parts, whatever the number of tokens.
    """

    words: str
    option: str
    scaled: str
    valued: str
    phases: tuple[PhaseName, ...]
    fixed_scratch_bytes: int = 0

    @abstractmethod
    def usual(self, group: Group) -> tuple[str, ...]:
        """Candidates where none is named."""

    @abstractmethod
    def every(self, group: Group) -> tuple[str, ...]:
        """Candidates of `all`."""

    @abstractmethod
    def carried(self, text: str, spec: ModelSpec) -> str:
        """The canonical spelling of what --kv sets.

        Raises:
            UsageError: it means nothing for this kind.
        """

    @abstractmethod
    def check(self, layout: Layout, page_size: int) -> None:
        """Refuse what the write or the attention kernel cannot take.

        Raises:
            UnsupportedError: naming the format.
        """

    @abstractmethod
    def geometry(self, group: Group, context: int, batch: int) -> Geometry:
        """Shape of the decode step of one layer."""

    def variant(self, group: Group, seed: int, device: str) -> Variant:
        """How the model's attention differs from a plain causal softmax."""
        return PLAIN

    def notes(self, group: Group, geometry: Geometry) -> Iterator[str]:
        """What a reader must know to read the figures."""
        yield from ()

    @abstractmethod
    def make_tensors(self, geometry: Geometry, *, seed: int, dtype: torch.dtype, device: str) -> Tensors:
        """Synthetic originals of one layer."""

    def static_roles(self, layout: Layout) -> tuple[str, ...]:
        """Tensors whose values can lie outside a range that was calibrated before."""
        return ()

    @abstractmethod
    def calibrate(self, cache: Cache, k: Tensor, v: Tensor) -> None:
        """Store static scales; nothing for formats without."""

    @abstractmethod
    def append(
        self, cache: Cache, k: Tensor, v: Tensor, *, max_length: int | None = None, saturated: Tensor | None = None
    ) -> None:
        """The write kernel: new rows behind the stored ones."""

    @abstractmethod
    def write_reference(self, cache: Cache, k: Tensor, v: Tensor) -> None:
        """The same by the reference codec."""

    @abstractmethod
    def read(self, cache: Cache, role: str, request: int, length: int | None = None, *, turned: bool = False) -> Tensor:
        """Dequantised rows of one request as attention sees them, (H, T, D); role is k or v.

        Args:
            turned: rows as they are stored, without the back rotation of `rot` formats.
        """

    @abstractmethod
    def value_dim(self, layout: Layout) -> int:
        """Channels of an output."""

    @abstractmethod
    def quantised(self, layout: Layout) -> bool:
        """Whether `scaled` has scales."""

    @abstractmethod
    def double_scales(self, cache: Cache) -> None:
        """Double every scale of `scaled` in place."""

    @abstractmethod
    def flip(self, cache: Cache, token: int, channel: int) -> None:
        """Flip the top bit of one code of `valued`, of request 0 and head 0, in place."""

    @abstractmethod
    def decode(
        self,
        q: Tensor,
        cache: Cache,
        *,
        sm_scale: float,
        variant: Variant = PLAIN,
        fp8_domain: bool = False,
        out: Tensor | None = None,
        workspace: Workspace | None = None,
        config: DecodeConfig | None = None,
        work: Tensor | None = None,
    ) -> Tensor:
        """The fused kernel: q (B, HQ, Dk) -> (B, HQ, Dv); `work` is what an earlier call left in `workspace`."""

    @abstractmethod
    def workspace(self, q: Tensor, cache: Cache, config: DecodeConfig | None = None) -> Workspace:
        """Its scratch memory."""

    @abstractmethod
    def launch(self, q: Tensor, cache: Cache) -> Launch:
        """The shape of its launch from the table, which is the default."""

    def tuned(self, q: Tensor, cache: Cache, *, sm_scale: float, variant: Variant, say: Say) -> Launch:
        """The shape for this GPU, searched where the table does not know it; a kind without a search has the table."""
        return self.launch(q, cache)

    def has_fp8_domain(self, layout: Layout) -> bool:
        """Whether decode can multiply in 8 bit."""
        return False

    @abstractmethod
    def unfused(self, q: Tensor, cache: Cache, sm_scale: float, **how: Any) -> Tensor:
        """Dequantise to memory, then torch's attention."""

    @abstractmethod
    def scratch(self, q: Tensor, cache: Cache, tokens: int) -> Any:
        """Memory for its dense rows."""

    @abstractmethod
    def dense(self, tensors: Tensors) -> tuple[Tensor, Tensor]:
        """A fresh dense copy of the originals for torch, (B, H, T, D) each."""

    @abstractmethod
    def torch_ways(self, q: Tensor, sm_scale: float) -> tuple[Attend, ...]:
        """Ways to ask torch for attention on such a copy."""


def flip_sign(row: Tensor, channel: int) -> None:
    """Flip the top bit of one code of 8 or 16 bits in a row of codes, in place."""
    bits = row.view(torch.int16 if row.element_size() == 2 else torch.int8)
    bits[channel] ^= torch.iinfo(bits.dtype).min
