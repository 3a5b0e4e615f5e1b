"""The formats that are validated without being named one by one. The only list of them."""

from __future__ import annotations

from kvplan_kernels.attention.door import check_supported
from kvplan_kernels.codecs.limits import check_kernel

from kvplan.errors import UnsupportedError, UsageError
from kvplan.formats.layout import Layout
from kvplan.specs.model import ModelSpec
from kvplan.validate.subject import choose_group, planned

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


def check_door(layout: Layout) -> None:
    """Refuse what the write or the attention kernel cannot take.

    Raises:
        UnsupportedError: naming the format.
    """
    check_kernel(layout)
    check_supported(layout)


def split_by_model(
    spec: ModelSpec, context: int, batch: int, page_size: int | None
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The formats of `EVERY` that this model's geometry can have, and the others with the reason."""
    group, good, bad = choose_group(spec), [], {}
    for text in EVERY:
        try:
            check_door(planned(spec, text, context, batch, page_size).group(group.name).layout)
            good.append(text)
        except (UnsupportedError, UsageError) as error:
            bad[text] = error.message
    return tuple(good), bad
