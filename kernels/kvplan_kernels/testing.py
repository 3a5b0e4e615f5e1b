"""What counts as equal: the one tolerance table, and sentinels that show which bytes a writer touched.

Nothing loosens the table. Codes and scales are compared bit by bit, values by a bound from the step, attention by
relative error and by the largest error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvplan.formats.grammar import parse_any
from kvplan.formats.grid import Tensor as Stored
from kvplan.formats.grid import bind
from kvplan.formats.layout import Layout
from kvplan_kernels.cache import Cache

# Every kind of format with a codec, a write kernel and a dequantise kernel; and those of them with a residual.
WITHOUT_RESIDUAL = (
    "fp32", "fp16", "bf16",
    "int8", "int8,asym", "int8,scale=bf16", "int8,asym,scale=fp32", "int8:group/32", "int8:group/16,asym",
    "int8:tensor", "int8:tensor,asym", "int8:head", "int8:head,asym", "int8:channel", "int8:channel,asym",
    "fp8_e4m3", "fp8_e4m3:head", "fp8_e4m3:token", "fp8_e5m2", "fp8_e5m2:head", "fp8_e5m2:token,scale=bf16",
    "int4", "int4:token,asym", "int4:group/32,asym", "int4:group/16,scale=bf16", "int4:channel,asym",
    "int2:token,asym", "int2:group/32", "int2:head",
    "mxfp4", "mxfp8", "nvfp4", "int4:token,asym,rot", "int3,rot",
)  # fmt: skip
WITH_RESIDUAL = (
    "int8:channel/16", "int8:channel/8,asym,recent=24", "int8:token,recent=8", "int8:group/32,asym,recent=5",
    "int8:token,recent=8,flush=whole", "fp8_e4m3:token,recent=3", "fp8_e5m2:channel/16,scale=fp32",
    "int4:channel/16,asym,recent=16", "int2:channel/24,scale=bf16,recent=24", "int2:group/32,asym,recent=5",
    "int4:token,recent=21",
)  # fmt: skip
WITH_KERNEL = WITHOUT_RESIDUAL + WITH_RESIDUAL

# Every bit of a byte differs between the two, so no written byte can equal both.
SENTINELS = (0xAA, 0x55)

# Where tests keep their tensors: the same tests run compiled on a GPU and interpreted without one.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Tolerance:
    """Bounds of a kernel against float64 attention on the dequantised codes.

    Attributes:
        relative: of ||out - ref|| / ||ref|| over all rows.
        max_factor: max |out - ref| / max |ref| stays below this many times `relative`.
    """

    relative: float
    max_factor: float = 4.0

    def accepts(self, error: Error) -> bool:
        """Whether a measured error is within the bounds (not-a-number is not)."""
        return error.relative <= self.relative and error.max_ratio <= self.relative * self.max_factor


@dataclass(frozen=True)
class Error:
    """||out - ref|| / ||ref|| and max |out - ref| / max |ref|."""

    relative: float
    max_ratio: float


# Kernels that compute in 16 bit and accumulate in 32 bit, output in fp16 or fp32. Rounding an output to bf16 alone
# costs 1.7e-3, so outputs are compared before such a rounding.
KERNEL = Tolerance(2e-3)
# Kernels that round queries and probabilities to e4m3 too, against a reference that rounds at the same points: a value
# next to a tie may go the other way.
FP8_DOMAIN = Tolerance(1e-2)


def relative_error(out: Tensor, ref: Tensor) -> Error:
    """Error of `out` against `ref`, over all elements, in float64. All-zero references give the absolute error."""
    out, ref = out.double(), ref.double()
    diff = out - ref
    norm, top = ref.norm(), ref.abs().amax()
    return Error(float(diff.norm() / (norm if norm > 0 else 1.0)), float(diff.abs().amax() / (top if top > 0 else 1.0)))


def bytes_taken(call: Callable[[], object]) -> int:
    """Most bytes of GPU memory that `call` asks the allocator for at a time, beyond those held before it.

    Requests are counted, not blocks: the allocator may hand out a larger block that happens to be free.
    """
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    call()
    torch.cuda.synchronize()
    return int(torch.cuda.memory_stats()["requested_bytes.all.peak"] - before)


def differing_bytes(a: Cache, b: Cache) -> dict[str, int]:
    """Bytes that differ between two caches of one layout, by plane; only planes that differ."""
    counts = {name: int((as_bytes(x) != as_bytes(b.planes[name])).sum()) for name, x in a.planes.items()}
    return {name: n for name, n in counts.items() if n}


def as_bytes(x: Tensor) -> Tensor:
    """The tensor's bytes, shape `(..., items * element bytes)`."""
    return x.view(torch.uint8)


def poison(cache: Cache, byte: int) -> None:
    """Fill every plane with a byte and empty every sequence."""
    for plane in cache.planes.values():
        as_bytes(plane).fill_(byte)
    cache.lengths.zero_()


def written_bytes(cache: Cache, write: Callable[[Cache], None]) -> dict[str, Tensor]:
    """Which bytes `write` writes: it runs on the cache filled with 0xAA, then with 0x55.

    A byte counts as written if one of the runs changes it. `write` starts from empty sequences and stores static scales
    itself.

    Returns:
        plane name to bool `(..., bytes)`, shaped like `as_bytes` of the plane.
    """
    touched: dict[str, Tensor] = {}
    for byte in SENTINELS:
        poison(cache, byte)
        write(cache)
        for name, plane in cache.planes.items():
            changed = as_bytes(plane) != byte
            touched[name] = touched[name] | changed if name in touched else changed
    return touched


def guard_pages(cache: Cache) -> Tensor:
    """Pages of the pool that no sequence owns: int64 ids. Nothing may ever write there."""
    owned = torch.zeros(cache.num_pages, dtype=torch.bool, device=cache.page_table.device)
    owned[cache.page_table.flatten().long()] = True
    return (~owned).nonzero().flatten()


def layout_of(k: str, v: str = "", dims: tuple[int, int] = (64, 64), heads: int = 2, dtype: str = "fp16") -> Layout:
    """Layout of one K, V pair of spellings; V's spelling defaults to K's."""
    formats = (parse_any(k), parse_any(v or k))
    return bind([Stored(r, f, d) for r, f, d in zip("kv", formats, dims, strict=True)], heads, dtype)
