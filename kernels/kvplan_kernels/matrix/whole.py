"""The whole matrix, for a GPU: every format at every head dimension, kinds of lengths and data in rotation.

Cases that share formats and shape share compiled kernels, so few shapes carry many cases.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from kvplan_kernels.matrix.cases import AXES, FORMATS, Case
from kvplan_kernels.testing import WITH_KERNEL

KIVI = (
    "int2:channel/32,asym,recent=128 int2:group/32,asym,recent=128",
    "int4:channel/32,asym,recent=128 int4:group/32,asym,recent=128",
)
SAME = tuple(f"{f} {f}" for f in WITH_KERNEL if f != "int8:channel/8,asym,recent=24") + KIVI

# Shapes of a pair of formats that differ: they have every dimension as K or V beside themselves already.
SHAPES_OF_A_MIXED_PAIR = 3
LENGTHS = (*AXES["lengths"], "many pages")
# Kinds of lengths and of writing per shape, and cases per shape; `again` has two values in a shape. More of them are more
# kernels to compile.
LENGTHS_PER_SHAPE, WRITES_PER_SHAPE, CASES_PER_SHAPE = 4, 2, 8
HEADS = (1, 2, 3, 8)
ROWS = (1, 1, 2, 4)

# Pools beyond 2^31 elements, and lengths at which single probabilities fall below fp16.
HUGE = ("bf16", "int8", "fp8_e4m3:token", "int4:token,asym", "int8:channel/32", "nvfp4", "int3,rot")
LONG = ("fp16", "bf16", "int8", "fp8_e4m3", "int4:token,asym", "int2:group/32,asym", "nvfp4", "int4:token,asym,rot")


def candidates() -> Iterator[Case]:
    """Every case that the rotation gives, those included that the library refuses."""
    for i, formats in enumerate((*SAME, *FORMATS)):
        dims = AXES["dims"]
        if i >= len(SAME):
            dims = tuple(islice((*dims, *dims), i % len(dims), i % len(dims) + SHAPES_OF_A_MIXED_PAIR))
        for j, pair in enumerate(dims):
            yield from _of_shape(formats, pair, i + j * 7)
    for formats in HUGE:
        yield Case(f"{formats} {formats}", "many pages", 128, (128, 128), 4, heads=8, dtype="bf16", pool="huge")
    for formats in (*(f"{f} {f}" for f in LONG), *KIVI):
        for queries in ("unit", "tiny"):
            yield Case(formats, "long", 128, (128, 128), 4, heads=2, queries=queries, dtype="bf16")


def _of_shape(formats: str, dims: tuple[int, int], turn: int) -> Iterator[Case]:
    def at(axis: tuple, n: int):
        return axis[n % len(axis)]

    for n in range(CASES_PER_SHAPE):
        case = Case(
            formats=formats,
            dims=dims,
            page_size=at(AXES["page_size"], turn),
            group=at(AXES["group"], turn * 3),
            heads=at(HEADS, turn),
            rows=at(ROWS, turn),
            variant="plain" if turn % 2 else at(AXES["variant"], turn // 2),
            dtype=at(AXES["dtype"], turn),
            lengths=at(LENGTHS, turn + n % LENGTHS_PER_SHAPE),
            write=at(AXES["write"], turn + n % WRITES_PER_SHAPE),
            data=at(AXES["data"], turn + n),
            dirt=at(AXES["dirt"], turn + n // 2),
            calibration=at(AXES["calibration"], turn + n // 3),
            queries=at(AXES["queries"], turn + n // 4),
            again=at(AXES["again"], turn + n // 4 * 3),
        )
        if case.shape_refusal():
            yield case
            continue
        # A value that says nothing for these formats gives way to the next one.
        for axis in ("dtype", "lengths", "data", "calibration", "queries", "again"):
            values = LENGTHS if axis == "lengths" else AXES[axis]
            start = values.index(getattr(case, axis))
            turned = (replace(case, **{axis: value}) for value in (*values[start:], *values[:start]))
            case = next((c for c in turned if axis not in c.silent), case)
        yield case
