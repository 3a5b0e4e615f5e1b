"""The formats that are validated without being named one by one. The only list of them."""

from __future__ import annotations

from kvplan.formats.ds_mla import RECORDS

ALL = "all"
USUAL = ("int8:token", "int8:head", "fp8_e4m3:tensor", "fp8_e4m3:head")
"""Without --kv."""
EVERY = (
    "int8:token", "int8:token,asym", "int8:tensor", "int8:head", "int8:channel", "int8:group/32", "int8:channel/32",
    "fp8_e4m3:tensor", "fp8_e4m3:head", "fp8_e4m3:token", "fp8_e5m2:tensor", "fp8_e5m2:head", "mxfp8",
    "int4:token,asym", "int4:group/32", "int4:group/32,asym", "int4:channel/32,asym", "int2:token,asym",
    "int2:group/32", "int2:group/32,asym", "kivi4", "kivi2", "nvfp4", "mxfp4", "int4,rot", "int3,rot", "int2,rot",
)  # fmt: skip
"""`--kv all`: every kind that has kernels, once."""
RECORD = "fp8_ds_mla"
SAME_RECORD = "fp8_e4m3:group/128,scale=fp32,pack=slot,rope=bf16"
"""The record of a latent, and its spelling for widths that the name does not cover."""


def latent_formats(nope: int, rope: int) -> tuple[str, ...]:
    """The formats with latent kernels, for a row of these widths: with and without `all`."""
    return (RECORD if RECORDS[RECORD].widths == (nope, rope) else SAME_RECORD,)
