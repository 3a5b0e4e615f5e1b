"""transformers' quantised caches: backends, packing of codes, and what they refuse.

Groups run over the flattened tensor (batch, heads, tokens, channels), so a batch's values must fill whole groups each
time they are quantised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvplan.breakdown import Factor
from kvplan.engines.shared.select import number_of
from kvplan.engines.shared.types import NATIVE, Case, EngineFormat
from kvplan.engines.transformers.layouts import native_layout
from kvplan.engines.transformers.rows import quantised_rows
from kvplan.engines.transformers.stored import SOURCE, Stored
from kvplan.errors import UsageError
from kvplan.formats.layout import STORAGE_BITS, Field
from kvplan.memory.groups import DTYPES
from kvplan.units import cdiv

_QUANTO = SOURCE + ": QuantoQuantizedLayer; optimum-quanto 0.2.7"
_HQQ = SOURCE + ": HQQQuantizedLayer; hqq 0.2.8, hqq/core/bitpack.py"
BITS = {"quanto": (4, 2), "hqq": (8, 4, 3, 2, 1)}
AXES = {"quanto": ("0", "-1"), "hqq": ("0", "1")}
_WORD_VALUES = 10
"""Values of 3 bits in a 32-bit word of hqq."""


def backend_of(option: str) -> str:
    """quanto, hqq or fp8; empty for an unquantised cache."""
    return "" if option == "auto" else option.split("-")[0]


def bits_of(option: str) -> int:
    """`hqq-int3` -> 3."""
    return int(option.rpartition("int")[2])


_WHOLE = "the model's dtype: all of a layer's K and V are dequantised first"


def formats_for(options: Mapping[str, Any]) -> tuple[EngineFormat, ...]:
    """Every backend and number of bits, with the group size that the options give."""
    size = options["q_group_size"]
    made = [EngineFormat(option="auto", k=NATIVE, v=NATIVE, latent=NATIVE, index=NATIVE, nbytes=512, source=SOURCE)]
    for backend, source in (("quanto", _QUANTO), ("hqq", _HQQ)):
        for bits in BITS[backend]:
            rows = f"int{bits}:group/{size},asym,flat,scale=model"
            # At the default group size; hqq's 3-bit codes lie in words of ten, which is padding and not said here.
            nbytes = cdiv(2 * 128 * bits, 8) + 16 if size == 64 else None
            made.append(
                EngineFormat(
                    option=f"{backend}-int{bits}", k=rows, v=rows, latent=rows, nbytes=nbytes, source=source,
                    needs="full-attention layers only", compute=_WHOLE,
                )
            )  # fmt: skip
    made.append(
        EngineFormat(
            option="fp8", k="fp8_e4m3", v="fp8_e4m3", latent="fp8_e4m3", nbytes=256, since="5.21.0", source=SOURCE,
            needs="full-attention layers only", compute=_WHOLE,
        )
    )  # fmt: skip
    return tuple(made)


def residual_length(case: Case, option: str) -> int:
    """Tokens that wait unquantised at most; the fp8 backend keeps none unless told to."""
    given = case.options["residual_length"]
    return int(given) if given is not None else 0 if backend_of(option) == "fp8" else 128


def check(case: Case, option: str, calls: Sequence[int], sequences: int) -> None:
    """Refuse what the backend refuses.

    Raises:
        UsageError: layers that are not full attention, axes, values that do not fill groups.
    """
    if case.options["cache_implementation"] == "static":
        raise UsageError("a cache is quantised or static, not both", "drop cache_implementation=static, or --kv")
    for g in case.groups:
        if g.role not in ("kv", "latent") or g.law.law != "all" or g.law.stride != 1:
            raise UsageError(
                f"QuantizedCache is for models with only full attention layers; group {g.name} is not", "drop --kv"
            )
    backend = backend_of(option)
    if backend == "fp8":
        return
    for name in ("axis_key", "axis_value"):
        if case.options[name] not in AXES[backend]:
            raise UsageError(f"{name} of {backend} is {' or '.join(AXES[backend])}", f"use {name}=0")
    flushes = quantised_rows(calls, residual_length(case, option), number_of(case.version))[2]
    for g in case.groups:
        layout = native_layout(case, g)
        for tensor in layout.tensors:
            axis = "axis_key" if tensor.role == "k" else "axis_value"
            for n, packed in enumerate(flushes):
                again = n > 0 or len(calls) > 1
                _check_groups(case, option, axis, (packed * sequences, layout.heads, tensor.dim), again)


def _check_groups(case: Case, option: str, axis: str, shape: tuple[int, int, int], again: bool) -> None:
    """The values of (rows of the batch, heads, channels) must fill whole groups, and hqq's groups whole bytes.

    Args:
        again: whether later calls read them.
    """
    size, (rows, heads, dim) = case.options["q_group_size"], shape
    groups, rest = divmod(rows * heads * dim, size)
    if rest:
        raise UsageError(
            f"{option}: groups of {size} do not divide {rows:,} rows x {heads} heads x {dim} channels",
            f"use another prompt length, or a q_group_size that divides {heads * dim}",
        )
    if backend_of(option) != "hqq" or case.options[axis] == "0":
        return
    bits = bits_of(option)
    if bits == 3 and again and groups % _WORD_VALUES:
        raise UsageError(
            f"{option} with {axis} 1 fails when its {groups:,} groups are no multiple of ten and are read again",
            f"use {axis}=0",
        )
    if bits != 3 and groups % (8 // bits):
        raise UsageError(f"{option} with {axis} 1: {groups:,} groups do not fill whole bytes", f"use {axis}=0")


def quantised_tensors(case: Case, option: str, name: str, axis: str, values: int) -> tuple[Stored, ...]:
    """Codes, scales and zeros of K or V.

    Args:
        name: keys or values.
        axis: the axis that its groups run along.
        values: of all sequences, heads, rows and channels.
    """
    backend, native = backend_of(option), DTYPES[case.spec.native_dtype]
    if backend == "fp8":
        whole = _of(f"_quantized_{name}", "values", values, Field("k", "codes", "fp8_e4m3", 1))
        one = _of(f"_quantized_{name} scale", "scales", 1, Field("k", "scale", "fp32", 1))
        return whole, replace(one, constant=True)
    size, bits = case.options["q_group_size"], bits_of(option)
    groups = cdiv(values, size)
    first = axis == "0" if backend == "hqq" else axis == "-1"
    if bits == 3:
        # The first axis is packed: ten of a group's values, or the same value of ten groups.
        words = cdiv(size, _WORD_VALUES) if first else size
        codes = Field("k", "codes", "int32", words)
        count = groups if first else cdiv(groups, _WORD_VALUES)
    else:
        together = 1 if first else 8 // STORAGE_BITS[f"int{bits}"]
        codes = Field("k", "codes", f"int{bits}", size * together)
        count = cdiv(groups, together)
    scale = Field("k", "scale", native, 1)
    second = "zero" if backend == "hqq" else "shift"
    return (
        _of(f"_quantized_{name}", "packed units", count, codes),
        _of(f"_quantized_{name} scale", "groups", groups, scale),
        _of(f"_quantized_{name} {second}", "groups", groups, scale),
    )


def _of(name: str, unit: str, count: int, field: Field) -> Stored:
    units = Factor(unit, count, "of all sequences")
    return Stored(name, units, units, Factor("bytes", field.unit_bytes, f"{field.items} x {field.storage}"), False)
