"""The metadata of one GGUF architecture: keys without their prefix, some of them one number per layer."""

from __future__ import annotations

from typing import Any

from kvplan.specs.importers.fields import Fields
from kvplan.specs.importers.figure import Fallback, Figure
from kvplan.specs.importers.gguf_file import TensorInfo


class GgufFields(Fields):
    """Metadata, and the tensors that say what metadata does not."""

    def __init__(
        self, data: dict[str, Any], where: str, arch: str, *, prefix: str = "", tensors: tuple[TensorInfo, ...] = ()
    ) -> None:
        super().__init__(data, where, arch, prefix=prefix)
        self.tensors = {tensor.name: tensor for tensor in tensors}

    def at(self, name: str, layer: int, *, low: int = 0, high: int, absent: Fallback | None = None) -> Figure:
        """A number that is one for all layers, or a list with one for each."""
        if not isinstance(self.data.get(name), list):
            return self.whole(name, low=low, high=high, absent=absent, default=False)
        # Checked from 0: layers of another kind have 0 here.
        numbers = self.numbers(name, high=high) or []
        if layer >= len(numbers):
            self.refuse(name, f"expected one entry per layer, got {len(numbers)}")
        if numbers[layer] < low:
            self.refuse(f"{name}[{layer}]", f"expected a number from {low} to {high:,}, got {numbers[layer]}")
        return Figure(numbers[layer], "read", self.prefix + name)

    def tensor(self, layer: int, name: str) -> TensorInfo | None:
        """A tensor of a layer, such as `attn_k.bias`, or None."""
        return self.tensors.get(f"blk.{layer}.{name}")

    def any_tensor(self, layer: int, start: str) -> bool:
        """Whether a layer has a tensor whose name starts so."""
        return any(name.startswith(f"blk.{layer}.{start}") for name in self.tensors)


def gguf_fields(cfg: Fields) -> GgufFields:
    """The fields of a GGUF header, which is what every GGUF rule is given."""
    assert isinstance(cfg, GgufFields)
    return cfg
