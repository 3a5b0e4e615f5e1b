"""The list of traps: what has gone wrong in kernels like these, and which cases step into it.

One table. A trap belongs to a phase: it counts for a case only if that phase ran and was not refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvplan.units import cdiv
from kvplan_kernels.attention.config import INTERPRETER_SMS
from kvplan_kernels.matrix.cases import HUGE_ELEMENTS, Case


@dataclass(frozen=True)
class Trap:
    """`holds` says from a case's values alone whether it steps into the trap; `gpu` if no interpreter can."""

    phase: str
    holds: Callable[[Case], bool]
    gpu: bool = False


def _views(case: Case):
    return [case.layout.view(role) for role in "kv"]


def _lengths(*wanted: int) -> Callable[[Case], bool]:
    return lambda case: set(wanted) <= set(case.counts)


def _around(edge: Callable[[Case], int]) -> Callable[[Case], bool]:
    return lambda case: edge(case) > 0 and {edge(case) - 1, edge(case), edge(case) + 1} <= set(case.counts)


def _dim(dim: int) -> Callable[[Case], bool]:
    return lambda case: dim in case.dims


def _group(group: int) -> Callable[[Case], bool]:
    return lambda case: case.group == group


def _data(
    kind: str, where: Callable[[Case], bool] = lambda case: any(v.quantised for v in _views(case))
) -> Callable[[Case], bool]:
    return lambda case: case.data == kind and where(case)


def _asym(case: Case) -> bool:
    return any(v.asym for v in _views(case))


def _half_scale(case: Case) -> bool:
    """A scale stored with the rows as fp16, which the data can leave."""
    return any(v.meta_storage == "fp16" and not v.has_static_scale for v in _views(case))


def _cut_group(case: Case) -> bool:
    return any(v.by_channel and count % v.group for v in _views(case) for count in case.counts)


def _tail(case: Case) -> bool:
    """Rows and scales beyond the length lie in the last page."""
    return any(count % case.page_size for count in case.counts)


def _idle_programs(case: Case) -> bool:
    tiles = case.heads * sum(cdiv(count, case.config.block_tokens) for count in case.counts)
    return 0 < tiles < INTERPRETER_SMS * case.config.ctas_per_sm


def _left_of_window(case: Case) -> bool:
    return bool(case.window) and max(case.counts) >= case.config.block_tokens + case.window + case.rows


def _number(name: str) -> Callable[[Case], bool]:
    return lambda case: any(v.number == name and not v.rot for v in _views(case))


def _clipped(case: Case, number: str) -> bool:
    return case.calibration == "clip" and any(v.number == number and v.has_static_scale for v in _views(case))


def _prefix(path: str) -> Callable[[Case], bool]:
    return lambda case: case.again == f"prefix {path}" and max(case.counts) > 0


TRAPS: dict[str, Trap] = {
    # Lengths.
    "length 0": Trap("decode", _lengths(0)),
    "length 1": Trap("decode", _lengths(1)),
    "tile edges": Trap("decode", _around(lambda case: case.config.block_tokens)),
    "page edges": Trap("decode", _around(lambda case: case.page_size)),
    "flush edges": Trap("decode", _around(lambda case: case.recent)),
    "flush edges while writing token by token": Trap(
        "append", lambda case: case.write == "tokens" and _around(lambda c: c.recent)(case)
    ),
    "a length that cuts a group of tokens": Trap("decode", _cut_group),
    "programs without work": Trap("decode", _idle_programs),
    "an empty request between others": Trap("decode", lambda case: 0 in case.counts[1:-1]),
    "70,000 tokens: probabilities below fp16": Trap("decode", lambda case: max(case.counts) > 2**16, gpu=True),
    # Values.
    "range 0": Trap("append", _data("equal")),
    "all zeros": Trap("append", _data("zeros")),
    "one outlier of 1e4": Trap("decode", _data("outlier")),
    "a range beyond an fp16 scale": Trap("append", _data("overflow", _half_scale)),
    "a range beyond an fp16 scale, read": Trap("decode", _data("overflow", _half_scale)),
    "a range below an fp16 scale": Trap("decode", _data("denormal", _half_scale)),
    "negative only: zero point above the codes": Trap("decode", _data("negative", _asym)),
    "positive only: zero point below the codes": Trap("decode", _data("offset", _asym)),
    "exact ties": Trap("append", _data("ties")),
    "static scales that clip e4m3": Trap("append", lambda case: _clipped(case, "fp8_e4m3")),
    "static scales that clip e5m2": Trap("append", lambda case: _clipped(case, "fp8_e5m2")),
    "static scales that clip int8": Trap("append", lambda case: _clipped(case, "int8")),
    "a global scale that clips": Trap(
        "append", lambda case: case.calibration == "clip" and any(v.has_global for v in _views(case))
    ),
    # Memory.
    "not-a-number in rows and scales beyond the length": Trap(
        "decode", lambda case: case.dirt == "nan" and _tail(case)
    ),
    "infinity in rows and scales beyond the length": Trap("decode", lambda case: case.dirt == "inf" and _tail(case)),
    "rows of a freed sequence in reused pages": Trap("decode", lambda case: case.dirt == "stale" and _tail(case)),
    "padding in the calibration rows": Trap("append", lambda case: case.has_static and len(set(case.counts)) > 1),
    "rows of a fused projection": Trap("append", lambda case: case.write == "fused"),
    "writes at odd offsets": Trap("append", lambda case: case.write == "pieces" and max(case.counts) > 8),
    "a pool of more than 2^31 elements": Trap(
        "decode", lambda case: case.pool == "huge" and case.num_pages(case.page_size) * _page_words(case) > HUGE_ELEMENTS, gpu=True
    ),
    "no memory but the workspace": Trap("fusion", lambda case: True, gpu=True),
    # Shapes.
    **{f"head dim {dim}": Trap("decode", _dim(dim)) for dim in (64, 80, 96, 112, 128, 192, 256, 512, 576)},
    "Dk != Dv": Trap("decode", lambda case: case.dims[0] != case.dims[1]),
    "a row of words that is no power of two": Trap(
        "decode", lambda case: any(v.words & (v.words - 1) for v in _views(case))
    ),
    "rows of 8 words": Trap("decode", lambda case: any(v.words == 8 for v in _views(case))),
    **{f"{g} query heads a KV head": Trap("decode", _group(g)) for g in (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)},
    "several KV heads": Trap("decode", lambda case: case.heads > 1),
    "more query columns than one matrix step": Trap("decode", lambda case: case.rows * case.group > 16),
    "several query rows, each with its own end": Trap("decode", lambda case: case.rows > 1 and max(case.counts) > 1),
    "fewer tokens than query rows": Trap("decode", lambda case: 0 < min(case.counts) < case.rows),
    "pages of 48 tokens": Trap("decode", lambda case: case.page_size == 48),
    # Variants.
    "window of 1": Trap("decode", lambda case: case.window == 1),
    "window beyond every length": Trap("decode", lambda case: (case.window or 0) > max(case.counts)),
    "a tile wholly left of the window": Trap("decode", _left_of_window),
    "softcap before the mask": Trap("decode", lambda case: case.variant == "all three"),
    "softcap": Trap("decode", lambda case: case.variant == "softcap"),
    "sinks counted once over splits": Trap(
        "decode", lambda case: case.variant == "sinks" and max(case.counts) > case.config.block_tokens
    ),
    "sinks of a request without tokens": Trap("decode", lambda case: case.variant == "sinks" and 0 in case.counts),
    # Queries.
    "logits whose exponentials leave fp32": Trap("decode", lambda case: case.queries == "sharp"),
    "tiny queries": Trap("decode", lambda case: case.queries == "tiny"),
    "queries near the end of fp16": Trap("decode", lambda case: case.queries == "large"),
    # Numbers, one by one.
    **{
        f"number {n}": Trap("decode", _number(n))
        for n in ("fp16", "bf16", "int8", "fp8_e4m3", "fp8_e5m2", "int4", "int2", "fp4_e2m1")
    },
    "rotated rows": Trap("decode", lambda case: any(v.rot for v in _views(case))),
    "fp32 rows": Trap("unfused", _number("fp32")),
    # Nothing but the data decides the result.
    "other splits": Trap("decode", lambda case: case.again == "programs"),
    "other page size": Trap("decode", lambda case: case.again == "page size"),
    "other batch order": Trap("decode", lambda case: case.again == "order" and len(case.counts) > 1),
    "doubled scales are obeyed": Trap("decode", lambda case: case.again == "scales"),
    "a flipped code is obeyed": Trap("decode", lambda case: case.again == "code"),
    # Other readers of the same cache.
    "FP8 domain": Trap("decode", lambda case: case.again == "fp8 domain"),
    "FP8 domain: several query rows": Trap("decode", lambda case: case.again == "fp8 domain" and case.rows > 1),
    "a chunk behind quantised rows, fused": Trap("decode", _prefix("fused")),
    "a chunk behind quantised rows, dequantised once": Trap("decode", _prefix("dense")),
    "a chunk behind an empty prefix": Trap(
        "decode", lambda case: case.again.startswith("prefix") and 0 in case.counts
    ),
    "a chunk behind rows that wait": Trap("decode", lambda case: _prefix("fused")(case) and case.recent > 0),
    "a chunk behind rows, within a window": Trap(
        "decode", lambda case: case.again.startswith("prefix") and 0 < (case.window or 0) <= max(case.counts)
    ),
}

ELSEWHERE = {
    "MLA latents: lengths, page edges, dirt, heads, rows, scales": "tests/kernels/test_latent.py, test_latent_gpu.py",
    "prefill without a prefix": "tests/kernels/test_prefill.py, test_prefill_gpu.py",
    "compiler: spills, shared memory, asynchronous copies, warp replication": "tests/kernels/test_aot.py",
    "captured graphs that follow shrunken lengths": "tests/kernels/test_gpu.py",
    "not-a-number and infinity among the rows that are stored": "tests/kernels/test_append.py, test_decode.py",
    "interleaved or transposed caches": "refused at the door: tests/kernels/test_bytes.py",
    "zero points hidden in mantissas, ALiBi": "no format and no variant of ours has them",
}
"""Lines of the trap list that no case of this matrix can show, and what does."""


def traps_of(case: Case) -> set[str]:
    """Traps that the case steps into, whatever its phases then say."""
    return {name for name, trap in TRAPS.items() if trap.holds(case)}


def missing(executed: Iterable[str], gpu: bool) -> list[str]:
    """Traps that nothing executed although it could."""
    done = set(executed)
    return [name for name, trap in TRAPS.items() if name not in done and (gpu or not trap.gpu)]


def _page_words(case: Case) -> int:
    """16-bit words of codes in one page, of the narrower of K and V."""
    return case.heads * case.page_size * min(v.words for v in _views(case))
