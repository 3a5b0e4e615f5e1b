"""One GPU: memory, bandwidth and the number formats its hardware converts, each figure with its source."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from kvplan.specs.base import CAPABILITY_PATTERN, LENIENT, Count, Name, SchemaVersion, Spec, Text, Texts, problem

HardwareFormat = Literal[
    "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "fp8_e4m3_fnuz", "fp8_e5m2_fnuz", "fp6_e2m3", "fp6_e3m2", "fp4_e2m1"
]
"""A number format; `fnuz` is the older AMD variant of fp8, whose codes have other values."""


class FigureSources(Spec):
    """A source for each figure of a device, under the figure's own key."""

    memory_bytes: Text
    """Of the driver's total."""
    memory_nominal: Text
    """Of the vendor's memory figure."""
    bandwidth_bytes_per_second: Text
    """Of the vendor's bandwidth."""
    measured_read_bandwidth_bytes_per_second: Text | None = None
    """Of the measured read bandwidth: how and when."""
    num_sms: Text | None = None
    """Of the number of multiprocessors."""
    compute_capability: Text | None = None
    """Of the compute capability."""
    arch: Text | None = None
    """Of the AMD architecture name."""
    hardware_formats: Text | None = None
    """Of the list of formats."""


class DeviceSpec(Spec):
    """A GPU."""

    kvplan_device: SchemaVersion
    """Version of this schema."""
    id: Name
    """Name on the command line; a shipped file has it as its stem."""
    name: Text
    """The vendor's name."""
    memory_bytes: Count
    """Total memory as the driver reports it, in bytes."""
    memory_nominal: Count
    """Memory as the vendor states it, in bytes."""
    bandwidth_bytes_per_second: Count
    """Peak memory bandwidth as the vendor states it, in bytes per second."""
    measured_read_bandwidth_bytes_per_second: Count | None = None
    """What a pure read reaches, in bytes per second, where it has been measured."""
    num_sms: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Streaming multiprocessors (AMD: compute units)."""
    compute_capability: Annotated[str, Field(pattern=CAPABILITY_PATTERN)] | None = None
    """CUDA compute capability, quoted, such as "9.0"; null for other vendors."""
    arch: Annotated[str, Field(pattern=r"^gfx[0-9a-f]+$")] | None = None
    """AMD architecture, such as gfx942; null for NVIDIA."""
    hardware_formats: Annotated[tuple[HardwareFormat, ...], LENIENT] = ()
    """Number formats converted by single instructions; empty: not known."""
    sources: FigureSources
    """Where each figure comes from."""
    notes: Texts = ()
    """Remarks for the reader."""

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        for figure in FigureSources.model_fields:
            if getattr(self, figure) and getattr(self.sources, figure) is None:
                raise problem("missing", f"{figure} is given, so its source is required", at=("sources", figure))
        return self


def adhoc_device(memory_bytes: int, bandwidth_bytes_per_second: int) -> DeviceSpec:
    """A device of which only memory (bytes) and bandwidth (bytes per second) are known.

    Both numbers come from `units.parse_bytes` and `units.parse_bandwidth`, which check them.
    """
    given = "given by the user"
    return DeviceSpec(
        kvplan_device=1,
        id="custom",
        name="custom GPU",
        memory_bytes=memory_bytes,
        memory_nominal=memory_bytes,
        bandwidth_bytes_per_second=bandwidth_bytes_per_second,
        sources=FigureSources(memory_bytes=given, memory_nominal=given, bandwidth_bytes_per_second=given),
        notes=("Number formats of this GPU are not known.",),
    )
