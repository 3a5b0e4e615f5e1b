"""A cover of all pairs: every two values of two axes that can occur together do so in some case. Greedy and seeded."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, fields
from functools import cache
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

from kvplan_kernels.matrix.cases import AXES, Case

Pair = tuple[tuple[str, Any], tuple[str, Any]]

# Seed of the committed list.
COVER_SEED = 1
# Cases that compete for each place in the list.
CANDIDATES = 12


def pairs_of(case: Case) -> set[Pair]:
    """Pairs of axis values that the case has."""
    values = [(axis, getattr(case, axis)) for axis in AXES]
    return set(combinations(values, 2))


@cache
def feasible_pairs() -> frozenset[Pair]:
    """Pairs that some case has: what refuses a case depends on its formats and one or two more axes."""
    found: set[Pair] = set()
    for spelling in AXES["formats"]:
        allowed = {axis: [v for v in AXES[axis] if possible(spelling, {axis: v})] for axis in AXES if axis != "formats"}
        for a, b in combinations(AXES, 2):
            if a == "formats":
                found |= {((a, spelling), (b, v)) for v in allowed[b]}
            else:
                found |= {((a, v), (b, w)) for v in allowed[a] for w in allowed[b] if possible(spelling, {a: v, b: w})}
    return frozenset(found)


def possible(formats: str, wanted: dict[str, Any]) -> bool:
    """Whether `wanted` and these formats can be completed to a case."""
    return complete(formats, wanted) is not None


@cache
def _fallbacks() -> tuple[dict[str, Any], ...]:
    """Values that nearly every format takes, tried for the axes that are not given."""
    base = {"lengths": "tail", "dtype": "bf16", "calibration": "fit", "again": "programs", "data": "normal"}
    return tuple({**base, "page_size": page, "dims": dims} for page in (32, 48) for dims in ((128, 128), (96, 96)))


def complete(formats: str, wanted: dict[str, Any]) -> Case | None:
    for rest in _fallbacks():
        case = Case(**{"formats": formats, **rest, **wanted})
        if case.refusal() is None:
            return case
    return None


def cover(seed: int) -> list[Case]:
    """Cases that have every feasible pair, cheap ones preferred."""
    draw = Random(seed)
    open_pairs = set(feasible_pairs())
    order = sorted(open_pairs, key=repr)
    cases = []
    while open_pairs:
        order = [pair for pair in order if pair in open_pairs]
        starts = [order[0], *(draw.choice(order) for _ in range(CANDIDATES - 1))]
        built = [case for case in (_build(dict(start), open_pairs, draw) for start in starts) if case]
        best = max(built, key=lambda case: len(pairs_of(case) & open_pairs) / (0.5 + case.effort))
        cases.append(best)
        open_pairs -= pairs_of(best)
    return cases


def _build(chosen: dict[str, Any], open_pairs: set[Pair], draw: Random) -> Case:
    """A case with the values `chosen`; each further axis takes what covers most of what is still open."""
    if "formats" not in chosen:
        spellings = [f for f in AXES["formats"] if possible(f, chosen)]
        chosen = {
            "formats": max(spellings, key=lambda f: (_gain("formats", f, chosen, open_pairs), draw.random())),
            **chosen,
        }
    rest = {axis: value for axis, value in chosen.items() if axis != "formats"}
    axes = [axis for axis in AXES if axis not in chosen]
    draw.shuffle(axes)
    for axis in axes:
        case = {v: complete(chosen["formats"], {**rest, axis: v}) for v in AXES[axis]}
        able = [v for v in AXES[axis] if case[v]]
        rest[axis] = max(
            able,
            key=lambda v: (
                _gain(axis, v, {**rest, "formats": chosen["formats"]}, open_pairs),
                -case[v].effort,
                draw.random(),
            ),
        )
    return Case(formats=chosen["formats"], **rest)


_ORDER = {axis: i for i, axis in enumerate(AXES)}


def _gain(axis: str, value: Any, chosen: dict[str, Any], open_pairs: set[Pair]) -> int:
    mine = (axis, value)
    return sum(
        ((mine, pair) if _ORDER[axis] < _ORDER[pair[0]] else (pair, mine)) in open_pairs for pair in chosen.items()
    )


def dump(cases: Iterable[Case]) -> str:
    """One case a line."""
    lines = [json.dumps(list(asdict(case).values()), separators=(", ", ": ")) for case in cases]
    columns = json.dumps([f.name for f in fields(Case)])
    return f'{{"columns": {columns},\n"cases": [\n' + ",\n".join(lines) + "\n]}\n"


def load(path: Path) -> list[Case]:
    """Inverse of `dump`."""
    stored = json.loads(path.read_text())
    rows: list[dict[str, Any]] = [dict(zip(stored["columns"], row, strict=True)) for row in stored["cases"]]
    return [Case.from_json(row) for row in rows]
