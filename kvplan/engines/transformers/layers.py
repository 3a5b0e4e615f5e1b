"""Which tensors a layer of each cache group has in transformers, after a list of calls."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from kvplan.breakdown import Factor
from kvplan.engines.shared.select import number_of
from kvplan.engines.shared.types import Case
from kvplan.engines.transformers.layouts import latent_part, native_layout
from kvplan.engines.transformers.quantised import quantised_tensors, residual_length
from kvplan.engines.transformers.rows import open_rows, quantised_rows, sliding_rows
from kvplan.engines.transformers.states import state_layout
from kvplan.engines.transformers.stored import Stored, row_width, rows
from kvplan.errors import UnsupportedError
from kvplan.formats.layout import Field
from kvplan.memory.groups import DTYPES, CacheGroup

if TYPE_CHECKING:
    from kvplan.specs.groups import LatentGroup

NAMES = {"k": "keys", "v": "values", "index": "indexer_keys"}


def layer_tensors(
    case: Case, option: str, group: CacheGroup, calls: Sequence[int], sequences: int, fullest: bool
) -> tuple[Stored, ...]:
    """The tensors of one layer.

    Args:
        option: the engine's format.
        fullest: buffers that fill and empty again count as full, if they have been.
    """
    if group.role == "state" and group.law.limit > 1:
        return open_group(case, group, calls, fullest)
    if group.role == "state":
        return state_tensors(case, group)
    if group.law.stride > 1:
        done = sum(calls) // group.law.stride
        why = f"{sum(calls):,} tokens / {group.law.stride}, complete ones"
        return (rows("compressed_kv", done, done, _wide(group), why=why),)
    if option != "auto" and group.role in ("kv", "latent"):
        return quantised_layer(case, option, group, calls, sequences)
    layout = native_layout(case, group)
    kept, held = token_rows(case, group, calls)
    made = [
        rows(
            NAMES[t.role], kept, held, row_width(layout, t.role, group.origin.width), why=group.law.explain(sum(calls))
        )
        for t in layout.tensors
    ]
    if group.role == "latent" and group.law.law == "window":
        # DeepSeek V4: keys and values are one tensor.
        made.append(rows("values", kept, held, made[0].width, alias=True, why="the same tensor as keys"))
    return (*made, *_counter(case, group))


def _counter(case: Case, group: CacheGroup) -> tuple[Stored, ...]:
    """A 64-bit scalar per layer: how far a static layer is filled, or the window of a dynamic one."""
    if case.options["cache_implementation"] == "static" and group.law.law != "encoder":
        name = "indexer_cumulative_length" if group.role == "index" else "cumulative_length"
    elif group.law.law in ("window", "chunk"):
        name = "_sliding_window_tensor"
    else:
        return ()
    one, width = Factor("scalars", 1), Factor("bytes", Field("counter", "counter", "int32", 2).unit_bytes, "int64")
    return (Stored(name, one, one, width, batched=False, constant=True),)


def token_rows(case: Case, group: CacheGroup, calls: Sequence[int]) -> tuple[int, int]:
    """(kept, held) rows of one sequence in a layer's tensors."""
    tokens = sum(calls)
    if group.law.law == "encoder":
        return group.law.limit, group.law.limit
    if case.options["cache_implementation"] == "static":
        # Without a maximum the cache is made for the length in question.
        most = max(case.options["max_cache_len"] or tokens, tokens)
        size = min(group.law.limit, most) if group.law.limit else most
        return size, size
    if group.law.limit:
        return sliding_rows(calls, group.law.limit)
    return tokens, tokens


def quantised_layer(
    case: Case, option: str, group: CacheGroup, calls: Sequence[int], sequences: int
) -> tuple[Stored, ...]:
    """Recent rows in the model's dtype, then codes, scales and zeros of K and V."""
    packed, waiting, _ = quantised_rows(calls, residual_length(case, option), number_of(case.version))
    layout = native_layout(case, group)
    plain: list[Stored] = []
    coded: list[Stored] = []
    for t in layout.tensors:
        plain.append(rows(NAMES[t.role], waiting, waiting, row_width(layout, t.role, group.origin.width), why="recent"))
        values = prod((sequences, layout.heads, packed, t.dim))
        axis = case.options["axis_key" if t.role == "k" else "axis_value"]
        coded += quantised_tensors(case, option, NAMES[t.role], axis, values)
    return (*plain, *coded)


def state_tensors(case: Case, group: CacheGroup) -> tuple[Stored, ...]:
    """Recurrent and convolution states, one of each for a sequence."""
    names = {"recurrent": "recurrent_states", "conv": "conv_states"}
    one = Factor("states", 1)
    layout = state_layout(case, group)
    return tuple(
        Stored(names.get(p.name, p.name), one, one, Factor("bytes", p.fixed_bytes(1), f"{p.items:,} x {p.storage}"))
        for p in layout.planes
    )


def open_group(case: Case, group: CacheGroup, calls: Sequence[int], fullest: bool) -> tuple[Stored, ...]:
    """DeepSeek V4's compressors: values and gates of tokens whose group is open, and of the last one where it overlaps.

    kvplan's ring of R rows holds values and gates side by side; with overlap R is two groups and a row two halves.
    """
    part = latent_part(case, group)
    rate = next((g.stride for g in _compressed(case) if (g.role, _at(case, g)) == (part.role, _at(case, part))), None)
    if rate is None:
        raise UnsupportedError(f"kvplan has no rule for ring {group.name} in transformers", "plan without --engine")
    native = DTYPES[case.spec.native_dtype]
    items = group.layout.planes[0].items // group.law.limit
    kept, held = open_rows(calls, rate)
    if fullest:
        kept, held = min(sum(calls), rate - 1), max(held, min(sum(calls), rate))
    row = Factor("bytes", Field("ring", "row", native, items // 2).unit_bytes, f"{items // 2} x {native}")
    made = [
        rows(name, kept, held, row, why=f"tokens of the open group of {rate}") for name in ("buffer_kv", "buffer_gate")
    ]
    if group.law.limit == 2 * rate:
        half = Factor("bytes", Field("ring", "row", native, items // 4).unit_bytes, f"{items // 4} x {native}")
        last = rate if sum(calls) >= rate else 0
        made += [
            rows(name, last, last, half, why="of the last complete group") for name in ("overlap_kv", "overlap_gate")
        ]
    return tuple(made)


def _compressed(case: Case) -> list[LatentGroup]:
    """Layer groups with one row for several tokens."""
    return [g for g in case.spec.layer_groups if g.kind == "latent" and g.stride > 1]


def _at(case: Case, part: LatentGroup) -> tuple[int, ...]:
    return case.spec.positions(part)


def _wide(group: CacheGroup) -> Factor:
    return row_width(group.layout, group.layout.tensors[0].role, group.origin.width)
